"""`Recorded`: an array of a pass that is being recorded. NumPy calls its methods for each use of the array.

An operation allocates or overwrites memory. A view does neither, so it is not recorded. A query of a value, such as
`bool(x)`, is recorded, because the next steps of the pass depend on its result. A replay checks that the result is the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, cast

import numpy as np

from npformer.engine.replay.recorder import Recorder, owner, replaced
from npformer.engine.runtime import recording
from npformer.engine.runtime.recording import Changed, Unrecordable

# Compiled functions that return a new array.
WITH_OUT, WITHOUT_OUT = (np.concatenate, np.dot), (np.where, np.bincount, np.lexsort)
VIEWS = (np.lib.stride_tricks.sliding_window_view, np.broadcast_to)  # these return a plain view of the first argument
ASKING = (np.nonzero, np.flatnonzero)  # functions whose results depend on the values
ABOUT_SHAPES = (np.result_type, np.can_cast, np.shape, np.ndim, np.size)


class Recorded(np.ndarray):
    """An array that reports its operations to the recorder of its thread."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        recorder = _recorder()
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        args, kwargs = plain(inputs), plain(kwargs)
        if method == "at":
            recorder.call(function, args, kwargs)
            return function(*args, **kwargs)
        if out is None:
            found = function(*args, **kwargs)
            outs = tuple(map(np.asarray, found)) if isinstance(found, tuple) else (np.asarray(found),)
            out = tuple(recorder.new(each).view(Recorded) for each in outs)
        else:
            _expect_recorded(*out)
            outs = plain(out)
            function(*args, **kwargs, out=outs)
        recorder.call(function, args, kwargs, outs)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        recorder, given, options = _recorder(), plain(tuple(args)), plain(kwargs)
        if function is np.empty_like:
            return recorder.new(np.empty_like(*given, **options)).view(Recorded)
        if function is np.copyto:
            _expect_recorded(args[0])
            np.copyto(*given, **options)
            return recorder.call(np.copyto, given, options)
        if function in WITH_OUT or function in WITHOUT_OUT:
            if options.pop("out", None) is not None or (function is np.where and len(given) + len(options) < 3):
                raise Unrecordable(f"numpy.{function.__name__} with these arguments")
            return recorder.made(function, given, options, out=function in WITH_OUT).view(Recorded)
        if function in ABOUT_SHAPES:
            return function(*given, **options)
        if function in VIEWS:
            return _recorded(function(*given, **options))
        if isinstance(getattr(function, "_implementation", None), BuiltinFunctionType | None):
            raise Unrecordable(f"numpy.{function.__name__}")
        found = super().__array_function__(function, types, args, kwargs)  # runs the Python code of the function
        for each in found if isinstance(found, tuple | list) else [found]:
            heard = function in ASKING if type(each) is not Recorded else recorder.knows(each)
            if not heard:  # an operation was not recorded, for example after `asarray` in the function
                raise Unrecordable(f"numpy.{function.__name__}")
        return found

    # --- views, or copies if no view is possible ---

    def reshape(self, *shape: Any, **options: Any) -> Recorded:
        found = plain(self).reshape(*shape, **options)
        if owner(found) is not owner(self):
            if options:
                raise Unrecordable("reshape in another order")
            self._copy_to(found, found.reshape(self.shape))
        return _recorded(found)

    def ravel(self, order: Any = "C") -> Recorded:
        return self.reshape(-1) if order == "C" else self.reshape(-1, order=order)

    def flatten(self, order: Any = "C") -> Recorded:
        return self.ravel(order).copy()

    def astype(self, *args: Any, **kwargs: Any) -> Recorded:
        found = plain(self).astype(*args, **kwargs)
        if owner(found) is not owner(self):
            self._copy_to(found, found)
        return _recorded(found)

    def copy(self, order: Any = "C") -> Recorded:
        found = plain(self).copy(order)
        self._copy_to(found, found)
        return _recorded(found)

    @property
    def flat(self) -> Any:
        raise Unrecordable("ndarray.flat")

    def _copy_to(self, memory: np.ndarray, view: np.ndarray) -> None:
        """Records that this array was copied to a view of new memory."""
        _recorder().new(memory)
        _recorder().call(np.copyto, (view, plain(self)), {"casting": "unsafe"})

    def __getitem__(self, index: Any) -> Any:
        array, index = plain(self), plain(index)
        found = array[index]
        if not isinstance(found, np.ndarray):  # a single element
            found = array[(*index, ...) if isinstance(index, tuple) else (index, ...)]
        if owner(found) is owner(array):
            return _recorded(found)
        recorder = _recorder()
        recorder.new(found)
        if isinstance(index, np.ndarray) and index.dtype.kind in "iu":
            recorder.call(np.take, (array, index, 0), {}, (found,))
        elif isinstance(index, np.ndarray) and index.dtype.kind == "b":
            raise Unrecordable("a selection by a mask")
        else:
            recorder.call(_select, (found, array, index))
        return _recorded(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        array, index, value = plain(self), plain(index), plain(value)
        array[index] = value
        some = array[index]
        if isinstance(some, np.ndarray) and owner(some) is owner(array):
            _recorder().call(np.copyto, (some, value), {"casting": "unsafe"})
        else:
            _recorder().call(np.ndarray.__setitem__, (array, index, value))

    # --- queries of values ---

    def __bool__(self) -> bool:
        return bool(self._asked(bool))

    def __int__(self) -> int:
        return int(self._asked(int))

    def __index__(self) -> int:
        return int(self._asked(int))

    def __float__(self) -> float:
        return float(self._asked(float))

    def tolist(self) -> Any:
        return self._asked(np.ndarray.tolist)

    def item(self, *index: Any) -> Any:
        return self._asked(lambda array: array.item(*index))

    def tobytes(self, order: Any = "C") -> bytes:
        return cast(bytes, self._asked(np.ndarray.tobytes))

    def nonzero(self) -> tuple[np.ndarray, ...]:
        self.tobytes()  # records all elements, because the shape of the result depends on them
        return plain(self).nonzero()

    def _asked(self, question: Callable[[np.ndarray], Any]) -> Any:
        array = plain(self)
        answer = question(array)
        _recorder().expect(question, array, answer)
        return answer


def _making(name: str) -> Callable[..., Recorded]:
    """Returns a method that makes a new array whose shape does not depend on values."""
    function = getattr(np.ndarray, name)

    def method(self: Recorded, *args: Any, **kwargs: Any) -> Recorded:
        found = _recorder().made(function, (plain(self), *plain(args)), plain(kwargs), out=False)
        return cast("Recorded", found.view(Recorded))

    return method


def _refusing(name: str) -> Callable[..., Recorded]:
    def method(self: Recorded, *args: Any, **kwargs: Any) -> Recorded:
        raise Unrecordable(f"ndarray.{name}")

    return method


MAKING = ("take", "repeat", "argsort", "argmax", "argmin", "searchsorted", "choose", "cumsum", "cumprod", "dot", "clip")
REFUSING = ("sort", "partition", "argpartition", "fill", "put", "resize", "compress", "trace", "diagonal", "byteswap")
for _name in MAKING:
    setattr(Recorded, _name, _making(_name))
for _name in REFUSING:
    setattr(Recorded, _name, _refusing(_name))


def plain(value: Any) -> Any:
    """Replaces each recorded array in a value with a plain view, also inside tuples, lists and dicts."""
    return replaced(value, Recorded, _plain)


def _plain(array: Recorded) -> np.ndarray:
    return array.view(np.ndarray)


def _recorded(array: np.ndarray) -> Recorded:
    return array.view(Recorded)


def _expect_recorded(*arrays: Any) -> None:
    if not all(type(each) is Recorded for each in arrays):
        raise Unrecordable("a result in memory that was made without `empty_like`")


def _select(out: np.ndarray, array: np.ndarray, index: Any) -> None:
    found = array[index]
    if found.shape != out.shape:  # the index has a mask
        raise Changed
    out[...] = found


def _recorder() -> Recorder:
    found = recording.recorder()
    if found is None:
        raise Unrecordable("an array of a recorded pass was used after the pass")
    return cast("Recorder", found)
