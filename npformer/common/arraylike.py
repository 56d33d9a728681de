"""Lets public functions take array-likes, as in NumPy: lists, tuples, scalars, and arrays of integers or booleans.

Arrays of float16 are computed in float32, because sums and squares of float16 numbers overflow at 65504.
`npformer/__init__.py` wraps the functions that it exports. Calls inside the package are not wrapped and have no
overhead.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from npformer.common.checks import shown
from npformer.common.errors import NpformerError

Convert = Callable[[Any], Any]

#: Arguments that keep their dtype: whole numbers, masks, and the array of `tap`.
_KEPT = frozenset({"ids", "targets", "row_indices", "mask", "array"})
_REARRANGE = frozenset({"split_heads", "combine_heads", "embedding", "tap"})  # functions that only rearrange numbers
#: Function and argument -> minimum number of axes.
_AXES = {
    ("softmax", "x"): 1,
    ("log_softmax", "x"): 1,
    ("layer_norm", "x"): 1,
    ("cross_entropy", "logits"): 1,
    ("split_heads", "x"): 2,
    ("combine_heads", "x"): 3,
}
_COUNTS = frozenset({"n_heads", "queries", "keys", "length", "width"})
_PACKED = (("x", "lengths"), ("source", "source_lengths"))  # packed rows and the lengths of their texts


def takes_array_likes(function: Any) -> Any:
    """Wraps a function to convert its array arguments with np.asarray, and integers and booleans to float64.

    Annotations determine which arguments are arrays. `_KEPT` and `_REARRANGE` list the exceptions to float64. In nested
    dicts and lists of weights, every array is converted. Counts and activations are checked. A class, or a function
    without such arguments, is returned unchanged.
    """
    parameters = inspect.signature(function).parameters if isinstance(function, FunctionType) else {}
    found = {name: _converter(function.__name__, name, str(each.annotation)) for name, each in parameters.items()}
    converters = {name: convert for name, convert in found.items() if convert is not None}
    if not converters:
        return function
    names = tuple(parameters)
    compute = function if function.__name__ in _REARRANGE else in_float32(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        named = zip(names, args, strict=False)
        converted = [converters[name](value) if name in converters else _plain(value) for name, value in named]
        others = {name: converters[name](each) if name in converters else _plain(each) for name, each in kwargs.items()}
        _check_packed(function.__name__, {**dict(zip(names, converted, strict=False)), **others})
        return compute(*converted, *args[len(converted) :], **others)

    wrapper.__module__ = "npformer"  # for pickle
    return wrapper


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to compute in float32 if an array is float16. The result is float16 if all arrays are.

    A mask does not count, and `out` may be float16 too. Numbers above 65504 become infinite, as in any conversion.
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
            return made.astype(np.float16) if is_half else made

    return wrapper


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yields the arrays in a nested dict or list of weights, or the array itself."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(each)


def _widened(value: Any) -> Any:
    """The value with float32 arrays instead of float16 arrays."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype == np.float16 else value
    if isinstance(value, Mapping):
        return {name: _widened(each) for name, each in value.items()}
    return [_widened(each) for each in value] if isinstance(value, list) else value


def _converter(function: str, name: str, annotation: str) -> Convert | None:
    """The function that checks and converts an argument, or None for arguments of other types."""
    where = f"{function}: {name}"
    keeps = name in _KEPT or function in _REARRANGE
    convert: Convert
    if name in _COUNTS and annotation.startswith("int"):
        convert = functools.partial(_count, where)
    elif annotation == "Activation":
        convert = functools.partial(_activation, where)
    elif name in ("lengths", "source_lengths"):
        convert = functools.partial(_lengths, where)
    elif annotation.startswith("Sequence[Mapping"):
        convert = functools.partial(_layers, where)
    elif annotation.startswith(("Linear", "Mapping[str, Any]", "Mapping[str, Linear]")):
        convert = functools.partial(_weights, where)
    elif annotation.startswith("np.ndarray") and name != "out":
        convert = functools.partial(_array, where, keeps, _AXES.get((function, name), 0))
    else:
        return None
    return (lambda value: None if value is None else convert(value)) if "None" in annotation else convert


def _check_packed(function: str, arguments: Mapping[str, Any]) -> None:
    """Checks that packed rows are (T, D), where T is the sum of the lengths."""
    for rows, lengths in _PACKED:
        if rows in arguments and lengths in arguments:
            shape, total = arguments[rows].shape, int(arguments[lengths].sum())
            if len(shape) != 2 or shape[0] != total or not total:
                raise NpformerError(
                    f"{function}: {rows}: expected the concatenated rows of all texts, (T, D), where T is the sum of "
                    f"{lengths}, {total}; got shape {shape}"
                )


def _plain(value: Any) -> Any:
    """Unwraps a function, because the table of backward functions lists unwrapped ones. Other values are unchanged."""
    ours = isinstance(value, FunctionType) and value.__module__ == "npformer"
    return inspect.unwrap(value) if ours else value


def _count(where: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise NpformerError(f"{where}: expected a whole number of at least 0, got {shown(value)}")
    return count


def _activation(where: str, value: Any) -> Any:
    if not callable(value):
        raise NpformerError(f"{where}: expected a function, such as npformer.gelu, got {shown(value)}")
    return _plain(value)


def _lengths(where: str, value: Any) -> np.ndarray:
    array = as_numbers(where, value, keeps=True)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min(initial=0) < 0:
        raise NpformerError(
            f"{where}: expected the number of tokens of each text, whole numbers (B,), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array


def _layers(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise NpformerError(f"{where}: expected a list of layers, each a dict of weights, got {shown(value)}")
    return [_weights(f"{where}.{i}", each) for i, each in enumerate(value)]


def _weights(where: str, value: Any) -> Any:
    """Converts every array in a nested dict of weights."""
    if not isinstance(value, Mapping):
        raise NpformerError(f"{where}: expected a dict of weights, got {shown(value)}")
    return {key: _tree(f"{where}.{key}", each) for key, each in value.items()}


def _tree(where: str, value: Any) -> Any:
    """Converts an array, or every array in a dict."""
    if value is None:  # a linear layer without a bias
        return None
    return _weights(where, value) if isinstance(value, Mapping) else _array(where, False, 0, value)


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

    Raises NpformerError if its elements are not real numbers.
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
