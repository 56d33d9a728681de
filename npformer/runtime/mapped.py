"""Recognizes arrays that are memory-mapped from a file, and releases their memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.runtime.narrow import NarrowWeight


def release(array: np.ndarray) -> bool:
    """Releases the memory of an array that is mapped from a file. The next access reads the file again.

    Returns False for an array that is not mapped, or on a system without this operation.
    """
    base = _mapping(array)
    if base is None or not hasattr(mmap, "MADV_DONTNEED"):
        return False
    first, last = np.lib.array_utils.byte_bounds(array)
    origin = np.frombuffer(base, np.uint8, 1).__array_interface__["data"][0]
    start = (first - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, start, last - origin - start)
    return True


def is_mapped(weights: Mapping[str, Any] | Sequence[Any] | np.ndarray | NarrowWeight) -> bool:
    """Whether all large arrays in a tree of weights are mapped from a file."""
    if isinstance(weights, NarrowWeight):
        weights = weights.values
    if isinstance(weights, np.ndarray):
        return weights.nbytes < 2**16 or _mapping(weights) is not None
    parts = weights.values() if isinstance(weights, Mapping) else weights
    return all(is_mapped(each) for each in parts)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file of which an array is a view, if any."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
