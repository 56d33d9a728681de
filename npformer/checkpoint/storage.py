"""Bytes of a file as arrays: mapping, dtypes, bfloat16, and the copy to the dtype that a model computes in.

Arrays made here are read-only views of the mapped file, so processes that map the same file share memory. The formats
that say where arrays are in a file: `safetensors.py`, and `torch_file.py` for .bin files.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npformer.errors import NpformerError
from npformer.files import open_file

Array = np.ndarray[Any, np.dtype[Any]]

#: NumPy has no bfloat16. This dtype holds its bits until they are widened.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

_BLOCK = 64  # rows of one step of a transposing copy, whose source and target fit in the cache together


def map_file(path: Path) -> mmap.mmap:
    """Maps the whole file for reading. Nobody may truncate it while it is in use."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise NpformerError(f"{path}: the file is empty")
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise NpformerError(f"{path}: {error.strerror or error}") from None


def view(
    buffer: mmap.mmap,
    span: tuple[int, int],
    dtype: np.dtype[Any],
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    offset: int = 0,
) -> Array:
    """An array in the bytes `span` of a mapped file; `strides` (None: contiguous) and `offset` count elements.

    Raises NpformerError if the array would extend beyond the span.
    """
    if strides is None:
        strides = contiguous_strides(shape)
    start, stop = span
    if len(shape) != len(strides) or len(shape) > 32 or min([offset, *shape, *strides]) < 0:
        raise NpformerError(f"no array has the shape {shape!s:.100}, strides {strides!s:.100}, offset {offset}")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    elements = 0 if 0 in shape else last + 1
    if not 0 <= start <= stop <= len(buffer) or elements * dtype.itemsize > stop - start:
        raise NpformerError(f"{elements} elements of {dtype_name(dtype)} do not fit in {stop - start} bytes")
    try:
        if elements == 0:
            return np.broadcast_to(np.zeros((), dtype), shape)
        step = dtype.itemsize
        return np.ndarray(shape, dtype, buffer, start + offset * step, [step * each for each in strides])
    except (ValueError, OverflowError):
        raise NpformerError(f"no array has the shape {shape!s:.100}") from None


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """The strides of a C-contiguous array, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def dtype_name(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype == BFLOAT16 or dtype.kind == "f"


def load(array: Array, dtype: np.dtype[Any] | None) -> Array:
    """Returns the array C-contiguous, aligned, read-only and in `dtype` (None: its own), copied only if needed.

    Widening is exact: float16 and bfloat16 are subsets of float32, float32 of float64.
    """
    dtype = dtype or array.dtype.newbyteorder("=")
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        result = array.view()
    else:
        result = np.empty(array.shape, dtype)
        _copy(array, result)
        _forget(array)
    result.flags.writeable = False
    return result


def _copy(array: Array, result: Array) -> None:
    """Copies blocks of rows as they lie in memory, which is ten times as fast as one transposing copy."""
    transposed = array.ndim == 2 and not array.flags.c_contiguous
    source, target = (array.T, result.T) if transposed else (np.atleast_1d(array), np.atleast_1d(result))
    step = _BLOCK if array.ndim > 1 else max(1, len(source))
    for i in range(0, len(source), step):
        target[i : i + step] = _widened(source[i : i + step], result.dtype)


def _widened(array: Array, dtype: np.dtype[Any]) -> Array:
    """Widens bfloat16, which is the upper half of a float32, by shifting its bits."""
    if array.dtype == BFLOAT16 and dtype != BFLOAT16:
        return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    return array


def _forget(array: Array) -> None:
    """Releases the mapped pages of a copied array, so that file and copy are not in memory together."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first, last = np.lib.array_utils.byte_bounds(array)
    origin = np.frombuffer(base, np.uint8, 1).__array_interface__["data"][0]
    start = (first - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, start, last - origin - start)
