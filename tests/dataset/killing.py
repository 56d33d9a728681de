"""Runs `npformer.dataset.map` in child processes that are killed with SIGKILL, and compares the final output.

This is a separate program, `python -m tests.dataset.killing MODEL INPUT OUTPUT steps|times`, because it forks: it
imports everything, loads the model and probes BLAS once, and no thread runs when a child starts. It prints the number
of killed children, and fails if an interrupted run and an uninterrupted run write different bytes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import filelock  # noqa: F401 - imported here because a run imports it late, and children should import nothing
import pyarrow.compute

import npformer
import npformer.dataset
from npformer.dataset import work

#: The file operations of a run, as audit events of Python (PEP 578).
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
KILLS = 50
ROWS = 50  # rows per part; a run of 100 rows has two parts


class Runs:
    def __init__(self, model: str, source: str, sink: str) -> None:
        self.task = npformer.pipeline("text-classification", model, threads=1)
        self.source, self.sink = source, Path(sink)
        pyarrow.array([0])  # imports pandas if it is installed
        work.machine()

    def child(self, before: Callable[[], None] = lambda: None) -> int:
        """Starts a run in a child and returns its process id."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                before()
                npformer.dataset.map(self.task, self.source, self.sink, column="text", part_rows=ROWS)
                code = 0
            finally:
                os._exit(code)
        return child

    def was_killed(self, child: int) -> bool:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return True
        assert status == 0, f"a run failed: {status}"
        return False

    def taken(self) -> dict[str, bytes]:
        """Removes the run's files, including the output, and returns their contents."""
        found = {}
        for path in sorted(self.sink.parent.rglob("*")):
            if path.is_file():
                found[str(path.relative_to(self.sink.parent))] = path.read_bytes()
        shutil.rmtree(self.sink.parent)
        self.sink.parent.mkdir()
        return found

    def check(self, whole: dict[str, bytes]) -> None:
        found = self.taken()
        assert found.keys() == whole.keys(), (sorted(found), sorted(whole))
        for name, data in whole.items():
            assert found[name] == data, (name, found[name][-300:], data[-300:])

    def unbroken(self) -> dict[str, bytes]:
        assert not self.was_killed(self.child())
        return self.taken()

    def at_every_step(self) -> int:
        """Kills a run at its first, second, ... operation on an output file."""
        whole, step = self.unbroken(), 0
        while self.was_killed(self.child(partial(self.count_down, step))):
            step += 1
            assert not self.was_killed(self.child())
            self.check(whole)
        self.check(whole)
        return step

    def count_down(self, step: int) -> None:
        left = step

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in EVENTS and any(str(each).startswith(str(self.sink.parent)) for each in arguments):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    def at_random_times(self) -> int:
        """Kills runs at random times, and resumes each until it ends."""
        begun = time.perf_counter()
        whole = self.unbroken()
        seconds, chosen, kills = time.perf_counter() - begun, random.Random(0), 0
        while kills < KILLS:
            child = self.child()
            time.sleep(chosen.random() * seconds)
            os.kill(child, signal.SIGKILL)
            if self.was_killed(child):
                kills += 1
            else:
                self.check(whole)
        assert not self.was_killed(self.child())
        self.check(whole)
        return kills


if __name__ == "__main__":
    runs = Runs(*sys.argv[1:4])
    print(runs.at_every_step() if sys.argv[4] == "steps" else runs.at_random_times())
