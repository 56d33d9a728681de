"""Starts the process that runs a learner's file, and collects its results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 5.0  # seconds for a function; a right function takes milliseconds, or a tenth of a second in plain loops
RUN_LIMIT = 20.0  # seconds for the whole model, which takes less than a second
WHOLE = 900.0  # seconds for one process, in case its own limits fail
TAIL = 4000  # characters of the file's output to keep
#: The arrays of the exercises are so small that a second BLAS thread only waits, which doubles the processor time.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Ended:
    """A process of `worker.py` that has ended.

    Parameters
    ----------
    told : its results, in order
    code : int, its exit code
    printed : str, the end of the output of the learner's file
    line : int, the line that was being executed when the time ran out, or 0
    in_time : bool, whether it ended before its time limit
    """

    told: tuple[dict[str, Any], ...]
    code: int
    printed: str
    line: int
    in_time: bool

    @property
    def complete(self) -> bool:
        """Whether the process did everything that was requested, or reported that the file cannot be loaded."""
        return any("end" in each or "problem" in each for each in self.told)

    @property
    def began(self) -> str:
        """The last step that the process began."""
        return next((each["began"] for each in reversed(self.told) if "began" in each), "")


def run_worker(file: Path, **request: Any) -> Ended:
    """Runs `worker.py` with the fields of a `Request`, and waits until it ends."""
    with tempfile.TemporaryDirectory(prefix="npformer-") as work:
        results, stack = Path(work) / "results", Path(work) / "stack"
        given = {"file": str(file), "results": str(results), "ended_at": str(stack), "run_limit": RUN_LIMIT, **request}
        code, printed = _run([sys.executable, "-m", "npformer.learn.worker", json.dumps(given)])
        told = tuple(json.loads(line) for line in text_of(results).splitlines())
        ended_at = text_of(stack)
        lines = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', ended_at)
        return Ended(told, code, printed, int(lines[0]) if lines else 0, not ended_at)


def text_of(path: Path) -> str:
    """Returns the text of a file, or "" if there is no such file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _run(command: list[str]) -> tuple[int, str]:
    root = str(Path(__file__).parents[2])  # finds the same npformer, wherever the learner's folder is
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**ONE_THREAD, **os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            code = process.wait(WHOLE)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
        return code, said.read().decode(errors="replace").strip()
