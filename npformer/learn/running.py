"""Starts the process that runs a learner's file, watches it, and collects its results.

The process limits its own processor time (`worker.py`). The parent ends a process that waits without using processor
time, is stopped by a signal, or uses up the time for the whole file. The parent counts polling intervals instead of
reading a clock, so that a suspended or busy machine does not use up a learner's time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npformer.learn.chapters import EXERCISES

LIMIT = 5.0  # seconds for a function; a right function takes milliseconds, or 0.1 s with plain loops
RUN_LIMIT = 20.0  # seconds for the whole model, which normally takes less than a second
WHOLE = 900.0  # seconds for all processes of a file together
PATIENCE = 4  # elapsed seconds that a step may take, as a multiple of its limit of processor time
SHORTEST = 20.0  # minimum elapsed seconds that every step may take
SLOW = 20  # a process that uses at least 1 / SLOW of a processor counts as slow, not as waiting
INTERVAL = 0.05  # seconds between polls of the process
STOPPED = 20  # number of polls after which a stopped process is ended
TAIL = 4000  # maximum characters to keep of the file's output
#: The arrays of the exercises are so small that a second BLAS thread would only spend processor time waiting.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
COMPUTED, WAITED, HALTED, OVER = "computed", "waited", "halted", "over"


@dataclass
class Time:
    """The remaining seconds for the processes of a file."""

    left: float = WHOLE


@dataclass(frozen=True)
class Ended:
    """A process of `worker.py` that has ended.

    Parameters
    ----------
    told : its results, in order
    code : int, its exit code
    printed : str, the end of the output of the learner's file
    line : int, the line that was being executed when the time ran out, or 0
    why : str, the reason why the parent ended the process: COMPUTED if its processor time ran out, WAITED, HALTED by a
    signal, or OVER if the time for the file ran out, or "" if the process ended by itself
    """

    told: tuple[dict[str, Any], ...]
    code: int
    printed: str
    line: int
    why: str

    @property
    def complete(self) -> bool:
        """Whether the process completed the request, or reported that the file cannot be loaded."""
        return any("end" in each for each in self.told)

    @property
    def began(self) -> str:
        """The last step that the process began."""
        return next((each["began"] for each in reversed(self.told) if "began" in each), "")


def run_worker(file: Path, time: Time | None = None, **request: Any) -> Ended:
    """Runs `worker.py` with the fields of a `WorkerRequest`, and waits until it ends.

    time: the remaining time, which is reduced by the time that the process takes.
    """
    with tempfile.TemporaryDirectory(prefix="npformer-") as work:
        results, stack = Path(work) / "results", Path(work) / "stack"
        given = {"file": str(file), "results": str(results), "ended_at": str(stack), "run_limit": RUN_LIMIT, **request}
        command = [sys.executable, "-m", "npformer.learn.worker", json.dumps(given)]
        code, why, printed = _run(command, results, given["limit"], time or Time())
        ended_at = text_of(stack)
        lines = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', ended_at)
        why = why or (COMPUTED if ended_at else "")
        return Ended(tuple(_told(text_of(results))), code, printed, int(lines[0]) if lines else 0, why)


def _told(results: str) -> Iterator[dict[str, Any]]:
    """Yields the results. Skips lines that the process did not complete, or that the learner's file wrote."""
    for line in results.splitlines():
        with suppress(ValueError, RecursionError):
            told = json.loads(line)
            if isinstance(told, dict) and isinstance(told.get("began", ""), str):
                yield told


def text_of(path: Path) -> str:
    """Returns the text of a file, or "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _run(command: list[str], results: Path, limit: float, time: Time) -> tuple[int, str, str]:
    """Runs a process. Returns the exit code, the reason for ending the process or "", and the end of the output."""
    root = str(Path(__file__).parents[2])  # on PYTHONPATH, so that the process imports the same npformer in any folder
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**ONE_THREAD, **os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,  # the process gets its own session, so that its children can be ended too
        )
        try:
            why = _watched(process, results, limit, time)
        finally:
            _kill(process)
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
        return process.wait(), why, printable(said.read().decode(errors="replace")).strip()


def _watched(process: subprocess.Popen[bytes], results: Path, limit: float, time: Time) -> str:
    """Waits until a process ends, or should be ended. Returns the reason to end it, or "" if it ended by itself."""
    waited, used, stopped, size, longest = 0.0, 0.0, 0, -1, _longest(results, limit)
    while not ended_in(process):
        time.left -= INTERVAL
        before, used = used, computed(process.pid)
        waited = max(0.0, waited + INTERVAL - SLOW * (used - before))
        stopped = (stopped + 1) * is_stopped(process.pid)
        with suppress(OSError):
            if (now := os.path.getsize(results)) != size:  # the results have grown, so a step began or ended
                waited, size, longest = 0.0, now, _longest(results, limit)
        if stopped == STOPPED:
            return HALTED
        if time.left <= 0:
            return OVER
        if waited >= longest:
            _where(process)
            return WAITED
    return ""


def _longest(results: Path, limit: float) -> float:
    """Returns the time limit of a process's current step, in elapsed seconds."""
    began = next((each["began"] for each in reversed([*_told(text_of(results))]) if "began" in each), "")
    return max(SHORTEST, PATIENCE * (limit if began in EXERCISES else RUN_LIMIT))


def ended_in(process: subprocess.Popen[bytes]) -> bool:
    """Waits for INTERVAL seconds. Returns whether the process has ended."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(INTERVAL)
        return True
    return False


def computed(pid: int) -> float:
    """Returns the seconds of processor time that a process has used; 0 on systems without /proc."""
    fields = text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def is_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped a child process; False on Windows, and on macOS before Python 3.13."""
    if not hasattr(os, "waitid"):
        return False
    with suppress(ChildProcessError):  # raised if the process has just ended
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _where(process: subprocess.Popen[bytes]) -> None:
    """Signals a process to write the line being executed and to end. The learner's file may prevent this."""
    if hasattr(signal, "SIGPROF"):
        process.send_signal(signal.SIGPROF)
        any(ended_in(process) for _ in range(STOPPED))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            process.kill()


def printable(text: str) -> str:
    """Replaces characters that would control a terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\x{ord(each):02x}" for each in text)
