"""Public functions take array-likes: lists, tuples, scalars and arrays of integers or booleans, as NumPy's own do.

The package's `__init__.py` wraps the functions that it exports. Inside the package they are called as they are
written, with arrays, so that a model pays nothing for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from npformer.errors import NpformerError

#: Arguments that keep their type: whole numbers, masks, and the array that `tap` names.
_KEPT = frozenset({"ids", "lengths", "source_lengths", "targets", "row_indices", "mask", "array"})
_REARRANGE = frozenset({"split_heads", "combine_heads", "embedding", "tap"})  # functions that compute no new number
#: The least number of axes of x in some functions, and of lengths in all.
_AXES = {"softmax": 1, "log_softmax": 1, "layer_norm": 1, "split_heads": 2, "combine_heads": 3}
_ARRAYS = ("np.ndarray", "Linear", "Mapping[str, Any]", "Mapping[str, Linear]")  # in annotations: arrays, or trees


def takes_array_likes(function: Any) -> Any:
    """The function, with its array arguments converted by np.asarray, and integers and booleans among them to float64.

    Annotations name the arguments to convert; in nested dicts and lists of weights every array is converted. A function
    without such an argument, or a class, is returned as it is.
    """
    parameters = inspect.signature(function).parameters if isinstance(function, FunctionType) else {}
    converters = {
        name: functools.partial(
            _with_axes if name in ("x", "lengths", "source_lengths") else _tree,
            function.__name__,
            name,
            name in _KEPT or function.__name__ in _REARRANGE,
        )
        for name, parameter in parameters.items()
        if name != "out" and any(part in str(parameter.annotation) for part in _ARRAYS)
    }
    if not converters:
        return function
    names = tuple(parameters)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        named = zip(names, args, strict=False)
        converted = [converters[name](value) if name in converters else _plain(value) for name, value in named]
        others = {name: converters[name](each) if name in converters else _plain(each) for name, each in kwargs.items()}
        return function(*converted, *args[len(converted) :], **others)

    wrapper.__module__ = "npformer"  # where pickle finds it
    return wrapper


def _plain(value: Any) -> Any:
    """The function inside a wrapper made here, because its backward is found by it; other values as they are."""
    ours = isinstance(value, FunctionType) and value.__module__ == "npformer"
    return inspect.unwrap(value) if ours else value


def _with_axes(function: str, name: str, keeps: bool, value: Any) -> np.ndarray:
    """Converts an array, and checks that it has the axes that the function needs."""
    array = _tree(function, name, keeps, value)
    least = _AXES.get(function, 0) if name == "x" else 1
    if np.ndim(array) < least:
        axes = "axis" if least == 1 else "axes"
        raise NpformerError(
            f"{function}: {name}: expected an array of at least {least} {axes}, got shape {array.shape}"
        )
    return array


def _tree(function: str, name: str, keeps: bool, value: Any) -> Any:
    """Converts an array, or every array in a nested dict or in a list of dicts."""
    if value is None or (type(value) is np.ndarray and value.dtype.kind == "f"):
        return value
    if isinstance(value, Mapping):
        return {key: _tree(function, f"{name}.{key}", keeps, each) for key, each in value.items()}
    if isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        return [_tree(function, f"{name}.{i}", keeps, each) for i, each in enumerate(value)]
    return as_numbers(f"{function}: {name}", value, keeps)


def as_numbers(where: str, value: Any, keeps: bool = False) -> np.ndarray:
    """np.asarray(value), integers and booleans as float64 unless `keeps`; NpformerError if it holds no real numbers."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise NpformerError(f"{where}: expected an array of numbers, got {error}") from None
    if array.dtype.kind not in "fiub":
        raise NpformerError(f"{where}: expected an array of real numbers, got {array.dtype} of shape {array.shape}")
    if keeps:
        return array.astype(np.int64) if not array.size and not isinstance(value, np.ndarray) else array
    return array if array.dtype.kind == "f" else array.astype(np.float64)
