"""Memory of arrays that are mapped from a file."""

from __future__ import annotations

import mmap

import numpy as np


def release(array: np.ndarray) -> bool:
    """Releases the memory of an array that is mapped from a file; reading it again reads the file.

    Returns whether it is mapped.
    """
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return False
    first, last = np.lib.array_utils.byte_bounds(array)
    origin = np.frombuffer(base, np.uint8, 1).__array_interface__["data"][0]
    start = (first - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, start, last - origin - start)
    return True
