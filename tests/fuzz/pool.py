"""Workers that run cases in parallel. A worker that dies or hangs is a finding, and is replaced."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 5.0  # maximum seconds of processor time per case
HANG = 12.0  # seconds that a worker may be idle without an answer; more on a busy machine
START = 300.0  # maximum seconds for the imports and the valid corpus
TICKS = os.sysconf("SC_CLK_TCK")
CHUNK = 100  # number of cases that a worker gets at a time
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MALLOC_ARENA_MAX": "2",  # each arena reserves 64 MB of address space
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # prevents .pyc files of modules that a case imports first
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "2",
    "PYTHONPATH": str(ROOT),
}

Chunk = tuple[str, int, int, int]  # kind, seed, first number, count
Result = dict[str, Any]


class Worker:
    """A process and the chunk it works on."""

    def __init__(self, root: Path, kinds: Sequence[str], seconds: float, hang: float) -> None:
        self.root, self.seconds, self.hang = root, seconds, hang
        self.root.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(root), str(seconds), *kinds],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | ENVIRONMENT,
        )  # fmt: skip
        self.ready = False
        self.since = time.monotonic()  # time of the worker's last output
        self.computed = -1.0  # the worker's processor time in seconds, read HANG / 2 after `since`
        self.chunk: Chunk | None = None
        self.running: tuple[str, int] | None = None  # kind and number of the running case
        self._rest = b""

    def give(self, chunk: Chunk) -> None:
        self.chunk, self.ready = chunk, False
        self.since = time.monotonic()
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(" ".join(map(str, chunk)).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `hear` notices that the worker has ended

    def hear(self) -> list[Result] | None:
        """Returns the worker's new results, or None if the worker has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        said = [json.loads(line) for line in lines]
        self.since, self.computed = time.monotonic(), -1.0
        for each in said:
            if "start" in each:
                self.running = each["kind"], each["start"]
            elif "ready" in each:
                self.ready, self.chunk, self.running = True, None, None
        return [each for each in said if "number" in each]

    def stuck(self) -> bool:
        """Returns whether a case has computed or idled for too long. A case may wait longer for a busy processor."""
        waited = time.monotonic() - self.since
        if self.ready or self.chunk is None:
            return not self.ready and waited > START
        if waited < self.hang / 2:
            return False
        computed, waits = self._doing()
        if self.computed < 0:
            self.computed = computed
        return waited > self.hang and (waits or computed - self.computed > self.seconds or waited > 20 * self.hang)

    def _doing(self) -> tuple[float, bool]:
        """Returns the process's processor time in seconds, and whether all its threads are waiting."""
        computed, waits = 0.0, True
        try:
            for each in os.scandir(f"/proc/{self.process.pid}/task"):
                fields = (
                    Path(each.path, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                )
                computed += (int(fields[11]) + int(fields[12])) / TICKS
                waits &= fields[0] == "S"
        except OSError:
            return 0.0, False
        return computed, waits

    def end(self) -> str:
        """Kills the process, and returns its exit status and the end of its output."""
        code = self.process.poll()
        self.process.kill()
        code = self.process.wait() if code is None else code
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        noise = self.root / "noise"
        last = noise.read_bytes()[-600:].decode("utf-8", "replace") if noise.exists() else ""
        shutil.rmtree(self.root, ignore_errors=True)
        return f"exit code {code}: {last}".strip()


class Pool:
    """Runs chunks of cases on `count` workers, and yields a result for each case."""

    def __init__(
        self, place: Path, count: int, kinds: Sequence[str] = (), seconds: float = SECONDS, hang: float = HANG
    ) -> None:
        self.place, self.count, self.kinds, self.limits, self.started = place, count, kinds, (seconds, hang), 0
        self.checked = False  # whether a worker has checked the valid corpus

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        waiting = list(chunks)[::-1]
        with selectors.DefaultSelector() as selector:
            workers: list[Worker] = []
            try:
                while waiting or workers:
                    while waiting and len(workers) < min(self.count, len(waiting) + len(workers)):
                        workers.append(self._start(selector))
                    for key, _ in selector.select(timeout=1):
                        yield from self._serve(key.data, workers, waiting, selector)
                    for worker in [each for each in workers if each.stuck()]:
                        yield from self._lost(worker, workers, waiting, selector, "hang")
            finally:
                for worker in workers:
                    worker.end()

    def _start(self, selector: selectors.BaseSelector) -> Worker:
        worker = Worker(self.place / f"worker-{self.started}", self.kinds if not self.checked else (), *self.limits)
        self.checked = True
        self.started += 1
        assert worker.process.stdout is not None
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _serve(
        self, worker: Worker, workers: list[Worker], waiting: list[Chunk], selector: selectors.BaseSelector
    ) -> Iterator[Result]:
        said = worker.hear()
        if said is None:
            yield from self._lost(worker, workers, waiting, selector, "death")
            return
        yield from said
        if worker.ready and waiting:
            worker.give(waiting.pop())
        elif worker.ready:
            self._dismiss(worker, workers, selector)

    def _lost(
        self, worker: Worker, workers: list[Worker], waiting: list[Chunk], selector: selectors.BaseSelector, how: str
    ) -> Iterator[Result]:
        """Yields a finding for the case that ended the worker; the rest of its chunk goes to another worker."""
        running, chunk = worker.running, worker.chunk
        ending = self._dismiss(worker, workers, selector)
        if running is None:
            raise RuntimeError(f"a worker came to a {how} before its first case: {ending}")
        kind, number = running
        yield {
            "kind": kind, "number": number, "outcome": "finding", "seconds": worker.hang if how == "hang" else 0.0, "memory": 0,
            "where": f"{how} in {kind}", "what": [f"{how}: {ending}"], "said": "", "digest": "",
        }  # fmt: skip
        if chunk is not None:
            kind, seed, first, count = chunk
            if number + 1 < first + count:
                waiting.append((kind, seed, number + 1, first + count - number - 1))

    def _dismiss(self, worker: Worker, workers: list[Worker], selector: selectors.BaseSelector) -> str:
        selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        workers.remove(worker)
        return worker.end()


def chunks(kind: str, seed: int, first: int, count: int) -> list[Chunk]:
    return [(kind, seed, start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK)]


@contextmanager
def place() -> Iterator[Path]:
    """Yields a folder for the workers, in memory if possible, because some cases sync files to disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)
