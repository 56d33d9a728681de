"""Checks a learner's file: runs `worker.py` in processes with a time limit, and reports what it found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npformer.common.errors import NpformerError
from npformer.learn import progress
from npformer.learn.chapters import CHAPTERS, EXERCISES
from npformer.learn.judge import UNWRITTEN, WRONG, Verdict
from npformer.learn.report import Report
from npformer.learn.template import FILE
from npformer.learn.whole import Run

LIMIT = 5.0  # seconds for a function; a right one takes milliseconds, in plain loops a tenth of a second
RUN_LIMIT = 60.0  # seconds for the whole model, which takes a second; in plain loops half a minute
WHOLE = 900.0  # seconds for one process, if its own limits fail
TAIL = 4000  # characters kept of what the file prints


def check(folder: str | os.PathLike[str] = ".", chapter: int | None = None, limit: float = LIMIT) -> Report:
    """Checks the functions of a learner's file, which is executed in a process of its own.

    Parameters
    ----------
    folder : folder that `npformer learn start` has written, or the path of a file
    chapter : int, optional
        The last chapter to check; all unless given.
    limit : float, seconds that a function may take

    Returns
    -------
    Report
        Printing it shows the table; `ok`, `verdicts`, `runs` and `as_dict()` are for programs.

    Raises
    ------
    NpformerError
        There is no such file, or no such chapter.

    Examples
    --------
    >>> folder = npformer.learn.start("course")
    >>> report = npformer.learn.check(folder)
    >>> report.passed, report.verdicts[0].name, report.verdicts[0].state
    (0, 'embeddings', 'not yet written')
    """
    path = learners_file(folder)
    if chapter is not None and not 1 <= chapter <= len(CHAPTERS):
        raise NpformerError(f"chapter: expected 1 ... {len(CHAPTERS)}, got {chapter}")
    chapters = list(range(1, (chapter or len(CHAPTERS)) + 1))
    report = _Check(path, chapters, limit).report()
    return replace(report, hints=progress.checked(path.parent, report.passed_names))


def learners_file(folder: str | os.PathLike[str]) -> Path:
    """The learner's file in a folder, or the file itself. Raises NpformerError if it does not exist."""
    path = Path(folder)
    path = path if path.suffix == ".py" else path / FILE
    if not path.is_file():
        raise NpformerError(
            f"{path}: no such file; `npformer learn start FOLDER` writes it, and --folder names its folder"
        )
    return path.resolve()


class _Check:
    """The verdicts so far, and what is known to end a process."""

    def __init__(self, file: Path, chapters: Sequence[int], limit: float) -> None:
        self.file, self.chapters, self.limit = file, list(chapters), limit
        self.verdicts: dict[str, Verdict] = {}
        self.runs: dict[str, Run] = {}
        self.problem = ""
        self.printed = ""

    def report(self) -> Report:
        """Starts processes until one ends by itself: each learns of one function more that does not end."""
        while not self._complete():
            pass
        names = [each.name for i in self.chapters for each in CHAPTERS[i - 1].exercises]
        verdicts = [self.verdicts.get(name, Verdict(name, UNWRITTEN)) for name in names]
        return Report(str(self.file), tuple(verdicts), tuple(self.runs.values()), self.problem, self.printed)

    def _complete(self) -> bool:
        with tempfile.TemporaryDirectory(prefix="npformer-") as work:
            results, stack = Path(work) / "results", Path(work) / "stack"
            known = {name: each.state for name, each in self.verdicts.items()} | dict.fromkeys(self.runs, "")
            request = {
                "file": str(self.file),
                "results": str(results),
                "ended_at": str(stack),
                "known": known,
                "chapters": self.chapters,
                "limit": self.limit,
                "run_limit": RUN_LIMIT,
            }
            code, printed = _run([sys.executable, "-m", "npformer.learn.worker", json.dumps(request)])
            self.printed = printed or self.printed
            began, ended = "", False
            for line in _text(results).splitlines():
                told = json.loads(line)
                began, ended = told.get("began", began), "end" in told
                self._take(told, began)
            if ended or self.problem:
                return True
            if not began:
                raise NpformerError(f"{self.file}: cannot be checked: exit code {code}: {printed[-500:]}")
            return self._stopped(began, code, _text(stack))

    def _take(self, told: dict[str, Any], began: str) -> None:
        self.problem = told.get("problem", self.problem)
        if told.get("run"):
            self.runs[began] = Run(**told["run"])
        if "verdict" in told:
            self.verdicts[began] = Verdict(**told["verdict"])

    def _stopped(self, began: str, code: int, stack: str) -> bool:
        """Takes note of what ended a process; returns whether the check is over."""
        line = _line_of(stack, self.file)
        source = self.file.read_text(encoding="utf-8").splitlines()[line - 1].strip() if line else ""
        at = f" It was at line {line}, `{source}`." if line else ""
        if stack:
            limit = self.limit if not began.startswith("run ") else RUN_LIMIT
            problem = f"It did not end within {limit:g} seconds.{at} Is there an endless loop?"
        else:
            problem = f"It ended the process with exit code {code}."
        if began in EXERCISES:
            self.verdicts[began] = Verdict(began, WRONG, "time" if stack else "exception", problem, line=line)
            return False
        if began.startswith("run "):
            self.runs[began] = Run("whole model", False, f"The whole model: {problem}")
            return False
        self.problem = f"The file cannot be loaded. {problem}"
        return True


def _line_of(stack: str, file: Path) -> int:
    """The line of the learner's file in which a process ended."""
    lines = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', stack)
    return int(lines[0]) if lines else 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _run(command: list[str]) -> tuple[int, str]:
    """Runs the worker; returns its exit code, and the end of what the learner's file printed."""
    root = str(Path(__file__).parents[2])  # the same npformer, wherever the learner's folder is
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
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
