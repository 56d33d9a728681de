"""The recorder of each thread, while a pass is being recorded for `engine.replay`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np


class Unrecordable(Exception):
    """The pass does something that a list of operations cannot repeat."""


class Changed(Exception):
    """A value on which the recorded calls depend is different in this pass."""


class Recorder(Protocol):
    """The part of a recorder that the runtime calls, implemented in `replay/recorder.py`."""

    tried: bool  # whether a trial chose how some work is done
    settled: bool  # whether all of these trials have ended at least once
    fixed: list[np.ndarray]  # read-only weights that the pass copied

    def in_parts(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of tasks that may run at the same time, on several threads."""

    def original(self, array: np.ndarray) -> np.ndarray:
        """The array whose recorded view is `array`, or `array` itself if it is not a recorded view."""


class _Local(threading.local):
    recorder: Recorder | None = None


_local = _Local()


def recorder() -> Recorder | None:
    """The recorder of this thread, or None."""
    return _local.recorder


@contextmanager
def recorded_by(recorder: Recorder | None) -> Iterator[None]:
    """Inside the block, `recorder` records the operations of this thread."""
    before = _local.recorder
    try:  # Ctrl-C can occur anywhere
        _local.recorder = recorder
        yield
    finally:
        _local.recorder = before
