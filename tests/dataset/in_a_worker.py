"""Functions that tests run on Dask's workers, which import this module by name."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import numpy as np
from distributed import WorkerPlugin

from npformer.checkpoint.tree import stored
from npformer.dataset import work
from npformer.tasks.text_classification import TextClassification


def slow(seconds: float) -> None:
    """Makes this worker take longer for every text."""
    real = TextClassification.answer

    def answer(self, requests, options):
        time.sleep(seconds)
        return real(self, requests, options)

    TextClassification.answer = answer


_machine, _probe = work.machine, work.probe


def report_the_truth() -> None:
    """Undoes the effect of `pretend`."""
    work.machine, work.probe = _machine, _probe


def pretend(name: str, value: str) -> None:
    """Makes this worker report a false `npformer` version or false `bits`."""
    real = work.machine
    work.machine = lambda: {**real(), name: value}
    if name == "bits":
        work.probe = lambda: value


class Slow(WorkerPlugin):
    """Makes every text take longer, also on the workers that replace dead ones."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def setup(self, worker):
        slow(self.seconds)


class Held(WorkerPlugin):
    """Makes a worker hold back its answers while a file exists and a folder has at least this many parts."""

    def __init__(self, file: Path, folder: Path, parts: int) -> None:
        self.file, self.folder, self.parts = file, folder, parts

    def setup(self, worker):
        real = TextClassification.answer

        def answer(self_, requests, options):
            while self.file.exists() and len(list(self.folder.glob("part-*"))) >= self.parts:
                time.sleep(0.01)
            return real(self_, requests, options)

        TextClassification.answer = answer


class Meeting(WorkerPlugin):
    """Makes each worker wait before its first text until every worker has a text."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers

    def setup(self, worker):
        real = TextClassification.answer

        def answer(self_, requests, options):
            (self.folder / str(os.getpid())).touch()
            while len(list(self.folder.iterdir())) < self.workers:
                time.sleep(0.01)
            return real(self_, requests, options)

        TextClassification.answer = answer


loads: list[dict[str, object]] = []


def note_loads() -> None:
    """Makes this worker record how it creates its tasks."""
    real = work.pipeline

    def made(*arguments, **options):
        loads.append(options)
        return real(*arguments, **options)

    work.pipeline = made


def noted() -> list[tuple[object, bool]]:
    """Returns the `threads` of each load on this worker, and whether the weights are memory-mapped."""
    (task,) = work._tasks.values()
    arrays = stored(dict(task.model.weights), task.model.config).values()
    mapped = all(isinstance(_base(array), mmap.mmap) for array in arrays)
    return [(options["threads"], mapped) for options in loads]


def _base(array):
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array


def fail_once() -> None:
    """Makes this worker's next part fail."""
    real = work.answer

    def answer(*arguments):
        work.answer = real
        raise MemoryError

    work.answer = answer


class Deadly(WorkerPlugin):
    """Kills each worker that receives this text, as a system does when it runs out of memory."""

    def __init__(self, text: str) -> None:
        self.text = text

    def setup(self, worker):
        real = work.answer

        def answer(task, texts, place):
            if self.text in texts[0].to_pylist():
                os._exit(1)
            return real(task, texts, place)

        work.answer = answer
