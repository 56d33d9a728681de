"""`Program`: a recorded pass as a flat list of calls that reuse the same memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from npformer.engine.replay.passes import InPlace
from npformer.engine.replay.recorder import Call, InParts, Place, Recorder, replaced, views
from npformer.engine.replay.simplify import without_copies
from npformer.engine.runtime.products import address
from npformer.engine.runtime.threads import run_tasks

ALIGNED = 64  # bytes; a multiple of the sizes of cache lines and vectors on every CPU
OF_CALL = 500  # approximate bytes of a call with its arrays

Bound = Callable[[], Any]


class Program:
    """Repeats a recorded pass for other inputs of the same shapes.

    Parameters
    ----------
    recorder : Recorder of the pass
    inputs : the arrays that the pass read; each call overwrites them
    answers : the arrays that the pass returned
    in_place : numbers of the memories that belong to an `InPlace`

    Attributes
    ----------
    tried : whether the recorded calls depend on the choices of trials
    settled : whether these trials have ended at least once
    nbytes : the size of the program
    """

    def __init__(
        self,
        recorder: Recorder,
        inputs: Sequence[np.ndarray],
        answers: Mapping[str, np.ndarray],
        in_place: Sequence[int] = (),
    ) -> None:
        self.inputs, self._caches = list(inputs), recorder.caches
        self.tried, self.settled = recorder.tried, recorder.settled
        places: list[Place] = []
        kept = recorder.placed(dict(answers), places)
        last = [place.memory for place in places]
        calls = without_copies(recorder.calls, recorder.sizes, [*last, *in_place])
        firsts, size = _layout(calls, last, [0 if i in in_place else each for i, each in enumerate(recorder.sizes)])
        memory = np.empty(size + ALIGNED, np.uint8)
        start = -address(memory) % ALIGNED
        self._memories = [(memory, start + first) for first in firsts]
        self._in_place = list(in_place)
        self._moving = [
            (index, call)
            for index, call in enumerate(calls)
            if any(place.memory in self._in_place for place in call.places)
        ]
        moving = {index for index, _ in self._moving}
        bind = _Binder(self._memories)
        self._calls = [_nothing if index in moving else bind.call(call) for index, call in enumerate(calls)]
        self._answers = bind(kept)
        self._fixed = list({id(each): each for weight in recorder.fixed for each in views(weight)}.values())
        self.nbytes = size + OF_CALL * sum(
            sum(map(len, each.parts)) if isinstance(each, InParts) else 1 for each in calls
        )

    def holds(self) -> bool:
        """Whether all weights that the program has copied are still read-only."""
        return not [1 for each in self._fixed if each.flags.writeable]

    def __call__(self, inputs: Sequence[np.ndarray], caches: Sequence[Any] | InPlace = ()) -> dict[str, np.ndarray]:
        """Returns the answers for new inputs. Raises `Changed` if a pass with these inputs would make other calls."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own[...] = given
        calls = self._calls
        if isinstance(caches, InPlace):
            calls = self._bound(caches)
        else:
            self._caches.caches = caches
        try:
            for call in calls:
                call()
        finally:
            self._caches.caches = ()
        return {name: each.copy() for name, each in self._answers.items()}

    def _bound(self, caches: InPlace) -> list[Bound]:
        """The calls, bound to the arrays of a pass. `caches` stores the calls, so the program keeps no array alive."""
        if caches.bound is None or caches.bound[0] is not self:
            memories, calls = list(self._memories), list(self._calls)
            for number, array in zip(self._in_place, caches.arrays, strict=True):
                memories[number] = array, 0
            bind = _Binder(memories)
            for index, call in self._moving:
                calls[index] = bind.call(call)
            caches.bound = self, calls
        found: list[Bound] = caches.bound[1]
        return found


def _nothing() -> None:
    """A placeholder for a call that is later bound to the arrays of a pass."""


def _layout(calls: Sequence[Call | InParts], answers: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], int]:
    """The first byte of each memory, and the total size. Memories that are never used at the same time share bytes.

    answers: the memories that are read after the last call.
    """
    last = [-1] * len(sizes)
    begun, ended = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for index, call in enumerate(calls):
        for place in call.places:
            if last[place.memory] < 0:
                begun[index].append(place.memory)
            last[place.memory] = index
    for number in answers:
        last[number] = len(calls)
    for number, index in enumerate(last):
        ended[index].append(number)
    firsts, free = [0] * len(sizes), _Free()
    for index in range(len(calls)):
        for number in begun[index]:
            firsts[number] = free.take(sizes[number])
        for number in ended[index]:
            free.give(firsts[number], sizes[number])
    return firsts, free.end


class _Free:
    """Allocates bytes. `end` is the number of bytes needed so far, and the gaps are the free bytes below it."""

    def __init__(self) -> None:
        self.end = 0
        self._gaps: list[tuple[int, int]] = []  # first byte and size of each gap, in order

    def take(self, size: int) -> int:
        """Reserves `size` bytes until `give`, and returns the first byte."""
        size = _whole(size)
        fitting = [gap for gap in self._gaps if gap[1] >= size]
        if not fitting:
            self.end += size
            return self.end - size
        first, room = gap = min(fitting, key=lambda gap: gap[1])
        self._gaps.remove(gap)
        if room > size:
            self._gaps.append((first + size, room - size))
        return first

    def give(self, first: int, size: int) -> None:
        """Frees the bytes that `take` reserved."""
        joined: list[tuple[int, int]] = []
        for gap in sorted([*self._gaps, (first, _whole(size))]):
            if joined and sum(joined[-1]) == gap[0]:
                before = joined.pop()
                gap = before[0], before[1] + gap[1]
            joined.append(gap)
        self._gaps = joined


def _whole(size: int) -> int:
    return max(1, -(-size // ALIGNED)) * ALIGNED


class _Binder:
    """Replaces each `Place` with an array. memories: for each memory, the array that contains it and its first byte."""

    def __init__(self, memories: Sequence[tuple[np.ndarray, int]]) -> None:
        self.memories = memories

    def __call__(self, value: Any) -> Any:
        return replaced(value, Place, self._array)

    def _array(self, place: Place) -> np.ndarray:
        memory, first = self.memories[place.memory]
        return np.ndarray(place.shape, place.dtype, memory, first + place.offset, place.strides)

    def call(self, call: Call | InParts) -> Bound:
        """The call as a function without arguments."""
        if isinstance(call, InParts):
            parts = [partial(_run, [self.call(each) for each in part]) for part in call.parts]
            return parts[0] if len(parts) == 1 else partial(run_tasks, parts, len(parts))
        args, kwargs, out = self(call.args), self(call.kwargs), self(call.out)
        if call.function is np.copyto and "where" not in kwargs:  # ndarray's methods avoid NumPy's dispatch
            target, source = args
            return partial(target.__setitem__, ..., source) if np.ndim(source) else partial(target.fill, source)
        function = call.function
        if isinstance(function, np.ufunc) and len(args) == function.nin and function not in (np.maximum, np.minimum):
            return partial(function, *args, *out, **kwargs)  # a positional `out` is faster
        return partial(function, *args, **kwargs, **({"out": out[0]} if out else {}))


def _run(calls: Sequence[Bound]) -> None:
    for call in calls:
        call()
