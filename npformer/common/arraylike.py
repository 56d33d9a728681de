"""Lets public functions take array-likes, as in NumPy: lists, tuples, scalars, and arrays of integers or booleans.

float16 arrays are computed in float32, because sums and squares of float16 numbers overflow at 65504.
`npformer/__init__.py` wraps exported functions. Calls inside the package are not wrapped, so they have no overhead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError

Convert = Callable[[Any], Any]

#: Arguments that are not converted to a floating-point dtype: whole numbers, and the array of `tap`.
_KEPT = frozenset({"ids", "targets", "array"})
#: Maps function and argument to the minimum number of axes.
_AXES = {("log_softmax", "x"): 1, ("cross_entropy", "logits"): 1}


def scalar(value: Any) -> Any:
    """Converts a NumPy scalar to a Python number, which does not promote float32 arrays. Keeps any other value."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value


def takes_array_likes(function: Any) -> Any:
    """Wraps a function so that array arguments are converted with np.asarray, and integers and booleans to float64.

    Annotations determine which arguments are arrays. `_KEPT` lists arguments that are not converted to float64. Returns
    a class, or a function without array arguments, unchanged.
    """
    parameters = inspect.signature(function).parameters if isinstance(function, FunctionType) else {}
    found = {name: _converter(function.__name__, name, str(each.annotation)) for name, each in parameters.items()}
    converters = {name: convert for name, convert in found.items() if convert is not None}
    if not converters:
        return function
    names = tuple(parameters)
    compute = function if function.__name__ == "tap" else in_float32(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        named = zip(names, args, strict=False)
        converted = [converters[name](value) if name in converters else value for name, value in named]
        others = {name: converters[name](each) if name in converters else each for name, each in kwargs.items()}
        return compute(*converted, *args[len(converted) :], **others)

    wrapper.__module__ = "npformer"  # for pickle
    return wrapper


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that float16 arrays are computed in float32. If all arrays are float16, so is the result.

    Masks do not count as arrays. `out` may also be float16. Numbers above 65504 become infinite, as in any conversion
    to float16.
    """
    names = tuple(inspect.signature(function).parameters)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if not any(array.dtype == np.float16 for each in given.values() for array in _arrays(each)):
            return function(*args, **kwargs)
        others = [None if names[i : i + 1] == ("out",) else _widened(each) for i, each in enumerate(args)]
        made = function(*others, **{name: _widened(each) for name, each in kwargs.items() if name != "out"})
        read = [array.dtype for name in given.keys() - {"mask", "out"} for array in _arrays(given[name])]
        with np.errstate(over="ignore"):
            if (out := given.get("out")) is not None:
                out[...] = made
                return out
            is_half = np.result_type(*[dtype for dtype in read if dtype.kind == "f"]) == np.float16
            return _narrowed(made) if is_half else made

    return wrapper


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yields the arrays in a nested dict or list of weights, or the array itself."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(each)


def _widened(value: Any) -> Any:
    """Converts the float16 arrays in a value to float32."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype == np.float16 else value
    if isinstance(value, Mapping):
        return {name: _widened(each) for name, each in value.items()}
    return [_widened(each) for each in value] if isinstance(value, list) else value


def _narrowed(value: Any) -> Any:
    """Converts an array, or the arrays in a tuple, to float16."""
    return tuple(map(_narrowed, value)) if isinstance(value, tuple) else value.astype(np.float16)


def _converter(function: str, name: str, annotation: str) -> Convert | None:
    """Returns the function that checks and converts an argument, or None if the argument needs no conversion."""
    where = f"{function}: {name}"
    convert: Convert
    if name == "lengths":
        convert = functools.partial(_lengths, where)
    elif annotation.startswith("np.ndarray") and name != "out":
        convert = functools.partial(_array, where, name in _KEPT, _AXES.get((function, name), 0))
    else:
        return None
    return (lambda value: None if value is None else convert(value)) if "None" in annotation else convert


def _lengths(where: str, value: Any) -> np.ndarray:
    array = as_numbers(where, value, keeps=True)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min(initial=0) < 0:
        raise NpformerError(
            f"{where}: expected the number of tokens of each text, whole numbers (B,), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array


def _array(where: str, keeps: bool, least: int, value: Any) -> np.ndarray:
    """Converts a value to an array and checks its number of axes."""
    if isinstance(value, Mapping):
        function = where.partition(":")[0]
        raise NpformerError(
            f"{where}: expected an array, got a dict; use {function}(..., **weights) to pass its entries"
        )
    if value is None:
        raise NpformerError(f"{where}: expected an array, got None")
    kept = type(value) is np.ndarray and value.dtype.kind == "f"
    array: np.ndarray = value if kept else as_numbers(where, value, keeps)
    if array.ndim < least:
        axes = "axis" if least == 1 else "axes"
        raise NpformerError(f"{where}: expected an array of at least {least} {axes}, got shape {array.shape}")
    return array


def as_numbers(where: str, value: Any, keeps: bool = False) -> np.ndarray:
    """np.asarray(value), with integers and booleans converted to float64 unless `keeps`.

    Raises NpformerError if the elements are not real numbers.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise NpformerError(f"{where}: expected an array of numbers, got rows of different lengths") from None
    if array.dtype.kind not in "fiub":
        raise NpformerError(f"{where}: expected an array of real numbers, got {array.dtype} of shape {array.shape}")
    if keeps:
        return array.astype(np.int64) if not array.size and not isinstance(value, np.ndarray) else array
    return array if array.dtype.kind == "f" else array.astype(np.float64)
