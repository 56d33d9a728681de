"""`Recorder`: lists the operations that the `Recorded` arrays of one pass report."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npformer.engine.runtime.products import address
from npformer.engine.runtime.recording import Changed, Unrecordable


class Place(NamedTuple):
    """A view of memory that the pass allocates: the number of the memory, and the offset and layout of the view."""

    memory: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]


class Call(NamedTuple):
    """function(*args, **kwargs, out=out), with a `Place` for each array of the pass.

    Without `out`, the function overwrites one of its arguments or raises `Changed`. `places` lists all views that the
    call reads or writes.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: tuple[Place, ...]
    places: Sequence[Place]


class InParts(NamedTuple):
    """Lists of calls. Threads may run the lists at the same time, and each list in order."""

    parts: list[list[Call]]

    @property
    def places(self) -> Sequence[Place]:
        """The views that the parts read or write."""
        return [place for part in self.parts for call in part for place in call.places]


def replaced(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Replaces each instance of exactly this class by change(instance), also inside tuples, lists and dicts."""
    found = type(value)
    if found is kind:
        return change(value)
    if found is tuple or found is list:
        return found([replaced(each, kind, change) for each in value])
    if found is dict:
        return {name: replaced(each, kind, change) for name, each in value.items()}
    return value


def owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    base: Any = array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            array = base
        base = getattr(base, "base", None)  # `as_strided` puts an object between the view and its array
    return array


def views(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array and all its base arrays."""
    each: Any = array
    while isinstance(each, np.ndarray):
        yield each
        each = each.base


class CachesOfNow:
    """The caches of the pass that is being replayed."""

    caches: Sequence[Any] = ()


class Recorder:
    """Records the calls of one pass.

    Recorded calls refer to memory by number, so the arrays of the pass are freed as usual.

    Attributes
    ----------
    calls : list of Call and InParts
    sizes : the number of bytes of each memory that the pass made
    caches : the caches of the pass that runs
    tried : whether trials chose how some work is done, so that a later program may be faster
    settled : whether all of these trials have ended at least once
    fixed : read-only weights that the pass copied; a copy would not follow a change of the weight
    """

    def __init__(self) -> None:
        self.calls: list[Call | InParts] = []
        self.sizes: list[int] = []
        self.tried, self.settled = False, True
        self.fixed: list[np.ndarray] = []
        self.caches = CachesOfNow()
        self._noted: list[Any] = self.calls
        self._numbers: dict[int, tuple[int, weakref.ref[np.ndarray]]] = {}  # by id of the memory's owner
        self._given: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._owners = set[int]()  # the identities of the owners of given arrays

    # --- what recorded arrays report ---

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any = {}, out: Sequence[np.ndarray] = ()) -> None:  # noqa: B006
        """Records a call that was made."""
        places: list[Place] = []
        given, options, outs = [self.placed(each, places) for each in (tuple(args), dict(kwargs), tuple(out))]
        self._noted.append(Call(function, given, options, outs, places))

    def made(self, function: Callable[..., Any], args: Any, kwargs: Any, out: bool) -> np.ndarray:
        """Makes and records a call, and returns the new array. out: whether the function has a parameter `out`."""
        found = np.asarray(function(*args, **kwargs))
        array = self.new(found)
        if out:
            self.call(function, args, kwargs, (found,))
        else:
            self.call(_store, (found, function, args, kwargs))
        return array

    def expect(self, question: Callable[[np.ndarray], Any], array: np.ndarray, answer: Any) -> None:
        """Records that the pass depends on question(array)."""
        self.call(_expect, (question, array, answer))

    def attends(self, index: int, args: Any, found: np.ndarray) -> None:
        """Records a call of a cache's `attend`."""
        self.call(_attend, (found, self.caches, index, args))

    def new(self, array: np.ndarray) -> np.ndarray:
        """Registers the memory of an array that the pass allocated, and returns the array."""
        memory = owner(array)
        if memory.dtype.hasobject:
            raise Unrecordable("an array of Python objects")
        key = id(memory)
        self._numbers[key] = len(self.sizes), weakref.ref(memory, lambda _: self._numbers.pop(key, None))
        self.sizes.append(memory.nbytes)
        return array

    def reads(self, array: np.ndarray) -> int:
        """Registers an array that each pass replaces, and returns the number of its memory."""
        self.new(array)
        return len(self.sizes) - 1

    def knows(self, array: np.ndarray) -> bool:
        """Whether the memory of this array was allocated by the pass or passed to it."""
        memory = id(owner(array))
        return memory in self._numbers or memory in self._owners

    def placed(self, value: Any, places: list[Place]) -> Any:
        """Replaces each array in memory of the pass with a `Place`. Appends each `Place` to `places`."""

        def place(array: np.ndarray) -> Any:
            memory = owner(array)
            number, _ = self._numbers.get(id(memory), (None, None))
            if number is None:
                return array
            whole = array.nbytes == memory.nbytes and min(array.strides, default=0) >= 0
            offset = 0 if whole else address(array) - address(memory)
            places.append(Place(number, offset, array.shape, array.dtype, array.strides))
            return places[-1]

        return replaced(value, np.ndarray, place)

    # --- called by the runtime ---

    def in_parts(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        if self._noted is not self.calls:
            return [task() for task in tasks]
        results, parts = [], list[list[Call]]()
        for task in tasks:
            parts.append([])
            self._noted = parts[-1]
            try:
                results.append(task())
            finally:
                self._noted = self.calls
        self.calls.append(InParts(parts))
        return results

    def original(self, array: np.ndarray) -> np.ndarray:
        return self._given.get(id(array), (array, array))[1]

    def gives(self, view: np.ndarray, array: np.ndarray) -> np.ndarray:
        """Registers and returns the view through which the pass reads an array from outside."""
        self._given[id(view)] = view, array
        self._owners.add(id(owner(array)))
        return view


def _expect(question: Callable[[np.ndarray], Any], array: np.ndarray, answer: Any) -> None:
    if question(array) != answer:
        raise Changed


def _attend(out: np.ndarray, caches: CachesOfNow, index: int, args: Any) -> None:
    out[...] = caches.caches[index].attend(*args)


def _store(out: np.ndarray, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    found = function(*args, **kwargs)
    if np.shape(found) != out.shape:
        raise Changed
    out[...] = found
