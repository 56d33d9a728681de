"""Memory-mapped weights: finds their files, detects changes to a file, and releases memory.

Reading a mapped file that was truncated kills the process (SIGBUS), so `MappedFile.check` must be called first.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.narrow import NarrowWeight

Weights = Mapping[str, Any] | Sequence[Any] | np.ndarray | NarrowWeight  # a tree of weights, or part of a tree


class MappedFile(mmap.mmap):
    """A mapped file with its path, identity, size, and time of the last write."""

    path: Path
    written: tuple[int, ...]

    def check(self) -> None:
        """Raises NpformerError if the file was written to after it was mapped.

        Replacing or deleting the file is not a write: the mapping keeps the old file.
        """
        try:
            now = last_write(os.stat(self.path))
        except OSError:
            return
        if now != self.written and now[:2] == self.written[:2]:
            raise NpformerError(
                f"{self.path}: the file has changed since the model's weights were mapped from it; load the model "
                "again. To replace the file of a loaded model, write a new file and rename it to this name, "
                "or load with mapped=False"
            )


def last_write(status: os.stat_result) -> tuple[int, ...]:
    """The identity of a file (device, inode) and of its last write (size, time)."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def mapped_files(weights: Weights) -> list[MappedFile]:
    """The mapped files that contain a tree of weights."""
    found = {id(base): base for base in map(_mapping, _arrays(weights))}
    return [base for base in found.values() if isinstance(base, MappedFile)]


def is_mapped(weights: Weights) -> bool:
    """Whether all large arrays in a tree of weights are mapped from a file."""
    return all(array.nbytes < 2**16 or _mapping(array) is not None for array in _arrays(weights))


def _arrays(weights: Weights) -> Iterator[np.ndarray]:
    if isinstance(weights, NarrowWeight):
        yield weights.values
        if weights.scale is not None:
            yield weights.scale
    elif isinstance(weights, np.ndarray):
        yield weights
    else:
        for each in weights.values() if isinstance(weights, Mapping) else weights:
            yield from _arrays(each)


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


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file that contains an array, or None."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
