"""Arrays from the bytes of a file: mapping, dtypes, bfloat16, and conversion to the dtype of a model.

The arrays are read-only views of the bytes. Processes that map a file share its memory. `safetensors.py` reads
safetensors files, and `torch_file.py` reads .bin files.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.files import open_file
from npformer.engine.runtime.mapped import MappedFile, last_write, release
from npformer.engine.runtime.narrow import BFLOAT16, NarrowWeight, has_nonfinite, widen, widened
from npformer.engine.runtime.threads import run_tasks, threads_for_parts

Array = np.ndarray[Any, np.dtype[Any]]

_LINE = 64  # bytes of a cache line, to which copies are aligned
_BLOCK = 64  # rows per block of a transposing copy, which is ten times as fast because a block fits in the cache
_PIECE = 1 << 20  # elements that a thread copies at a time


Buffer = MappedFile | bytes


def open_buffer(path: Path, mapped: bool = True) -> Buffer:
    """The bytes of a whole file, mapped or read into memory."""
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size == 0:
            raise NpformerError(f"{path}: the file is empty")
        try:
            if not mapped:
                return file.read()
            buffer = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise NpformerError(f"{path}: {error.strerror or error}") from None
    buffer.path, buffer.written = path.absolute(), last_write(status)
    return buffer


def parts(array: Array | NarrowWeight) -> list[Array]:
    """The stored arrays: the array itself, or the values and the scale of a `NarrowWeight`."""
    if not isinstance(array, NarrowWeight):
        return [array]
    return [each for each in (array.values, array.scale) if each is not None]


def _base(array: Array) -> Array | Buffer:
    """The file that an array is a view of, or the array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base if isinstance(array.base, Buffer) else array


def view(
    buffer: Buffer,
    span: tuple[int, int],
    dtype: np.dtype[Any],
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    offset: int = 0,
) -> Array:
    """A view of the bytes `span` of a file as an array. strides (by default contiguous) and offset are in elements.

    Raises NpformerError if the array would extend beyond the span.
    """
    if strides is None:
        strides = contiguous_strides(shape)
    start, stop = span
    if len(shape) != len(strides) or len(shape) > 32 or min([offset, *shape, *strides]) < 0:
        raise NpformerError(f"invalid shape {shape!s:.100}, strides {strides!s:.100} or offset {offset}")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    elements = 0 if 0 in shape else last + 1
    if not 0 <= start <= stop <= len(buffer) or elements * dtype.itemsize > stop - start:
        raise NpformerError(f"expected {elements} elements of {dtype_name(dtype)}, got {stop - start} bytes")
    try:
        if elements == 0:
            return np.broadcast_to(np.zeros((), dtype), shape)
        step = dtype.itemsize
        return np.ndarray(shape, dtype, buffer, start + offset * step, [step * each for each in strides])
    except (ValueError, OverflowError):
        raise NpformerError(f"invalid shape {shape!s:.100}") from None


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


def converted(array: Array, dtype: np.dtype[Any] | None) -> Array:
    """Makes an array C-contiguous, aligned, read-only and of this `dtype` (None: unchanged). Copies only if necessary.

    Widening is exact, because float16 and bfloat16 are subsets of float32, and float32 is a subset of float64.
    """
    return converted_all([array], dtype)[0]


def converted_all(arrays: Sequence[Array], dtype: np.dtype[Any] | None, copy: bool = False) -> list[Array]:
    """`converted` for several arrays, with all copies in one block of memory.

    One block is faster, because the system allocates it in large pages. The block exists as long as any of these arrays
    exists. copy: copy all arrays, so that the results do not depend on a file.
    """
    kinds = [np.dtype(dtype or array.dtype.newbyteorder("=")) for array in arrays]
    copied = [
        copy or not (array.dtype == kind and array.flags.c_contiguous and array.flags.aligned)
        for array, kind in zip(arrays, kinds, strict=True)
    ]
    sizes = [
        (array.size * kind.itemsize + _LINE - 1) // _LINE * _LINE * is_copied
        for array, kind, is_copied in zip(arrays, kinds, copied, strict=True)
    ]
    memory = np.empty(sum(sizes) + _LINE, np.uint8)
    end = -memory.__array_interface__["data"][0] % _LINE
    loaded, copies = [], []
    for array, kind, is_copied, size in zip(arrays, kinds, copied, sizes, strict=True):
        result = array.view()
        if is_copied:
            result = memory[end : end + array.size * kind.itemsize].view(kind).reshape(array.shape)
            copies += [partial(_copy, *piece) for piece in _pieces(array, result)]
        loaded.append(result)
        end += size
    run_tasks(copies, threads_for_parts())
    for each in (memory, *loaded):
        each.flags.writeable = False
    return loaded


def _pieces(array: Array, result: Array) -> Iterator[tuple[Array, Array]]:
    """Yields pieces of an array that are contiguous in the file, each with the corresponding piece of the copy."""
    transposed = array.ndim == 2 and not array.flags.c_contiguous
    source, target = (array.T, result.T) if transposed else (np.atleast_1d(array), np.atleast_1d(result))
    rows = max(1, _PIECE * len(source) // max(1, source.size))
    for i in range(0, len(source), rows):
        yield source[i : i + rows], target[i : i + rows]


@np.errstate(invalid="ignore")  # a later check finds NaN
def _copy(source: Array, target: Array) -> None:
    by_bits = source.dtype == np.float16 and target.dtype == np.float32 and not has_nonfinite(source)
    step = len(source) if target.flags.c_contiguous else _BLOCK
    for i in range(0, len(source), step):
        rows, copied = source[i : i + step], target[i : i + step]
        if by_bits:
            widen(rows, copied)
        else:
            copied[...] = rows if rows.dtype == copied.dtype else widened(rows)
    release(source)  # otherwise both the file and the copy would take memory


def first_nonfinite(array: Array) -> tuple[int, ...] | None:
    """The index of the first NaN or infinite number, or None. Takes 6 ms for 100 MB."""
    table = np.atleast_2d(array)
    for i in range(0, len(table), _BLOCK):
        finite = np.isfinite(widened(table[i : i + _BLOCK]))
        if not finite.all():
            row, *rest = np.argwhere(~finite)[0].tolist()
            return (row + i, *rest)[2 - min(array.ndim, 2) :]
    return None


def place(array: Array | NarrowWeight) -> tuple[Any, ...]:
    """The location and layout of an array in memory, which are equal for two views of the same numbers."""
    array = parts(array)[0]
    return array.__array_interface__["data"][0], array.dtype, array.shape, array.strides


def writable(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Writable copies of arrays. Arrays that share memory, such as tied weights, also share a copy."""
    copies: dict[tuple[Any, ...], Array] = {}
    for array in arrays.values():
        if place(array) not in copies:
            copy = np.array(array, order="C")
            copies |= {place(array.T): copy.T, place(array): copy}
    return {name: copies[place(array)] for name, array in arrays.items()}


def check_storage(arrays: Mapping[str, Array | NarrowWeight]) -> None:
    """Checks that the total size of arrays does not exceed the size of the files and arrays that they are views of.

    Without this check, a file of a few bytes could describe many large arrays, with strides of 0 or overlapping bytes.
    An array that occurs several times, even transposed, is counted once.
    """
    views = {}
    stored = {name: parts(array)[0] for name, array in arrays.items()}
    for name, array in stored.items():
        start, dtype, shape, strides = place(array)
        views[start, dtype, tuple(sorted(zip(strides, shape, strict=True)))] = name, array.nbytes
    bases = {id(base): base for base in map(_base, stored.values())}
    available = sum(base.nbytes if isinstance(base, np.ndarray) else len(base) for base in bases.values())
    needed = sum(size for _, size in views.values())
    if needed > available:
        name, size = max(views.values(), key=lambda view: view[1])
        raise NpformerError(
            f"tensors of {needed} bytes in files of {available} bytes: some have strides of 0 or overlap; save them as "
            f"contiguous tensors. The largest is {name} with {size} bytes"
        )
