"""Arrays that are mapped from a file, and their memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.runtime.narrow import NarrowWeight


def release(array: np.ndarray) -> bool:
    """Releases the memory of an array that is mapped from a file; reading it again reads the file.

    Returns whether it is mapped.
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
    """Whether all large arrays of a tree of weights are mapped from a file."""
    if isinstance(weights, NarrowWeight):
        weights = weights.values
    if isinstance(weights, np.ndarray):
        return weights.nbytes < 2**16 or _mapping(weights) is not None
    parts = weights.values() if isinstance(weights, Mapping) else weights
    return all(is_mapped(each) for each in parts)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file that an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
