"""Checks a learner's file: starts one process after another until each function has a verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from npformer.common.checks import number, positive, whole
from npformer.common.errors import NpformerError
from npformer.learn import progress
from npformer.learn.chapters import CHAPTERS, EXERCISES
from npformer.learn.judge import UNWRITTEN, WRONG, Verdict
from npformer.learn.report import Report
from npformer.learn.running import LIMIT, RUN_LIMIT, WHOLE, Ended, run_worker, text_of
from npformer.learn.template import FILE
from npformer.learn.whole import WholeRun


def check(folder: str | os.PathLike[str] = ".", chapter: int | None = None, limit: float = LIMIT) -> Report:
    """Checks the functions of a learner's file, which is executed in a process of its own.

    Parameters
    ----------
    folder : folder written by `npformer learn start`, or the path of a file
    chapter : int, optional
        The last chapter to check; by default all chapters.
    limit : float, time limit of a function in seconds, up to 900

    Returns
    -------
    Report
        The report prints as a table. Programs use `ok`, `verdicts`, `runs` and `as_dict()`.

    Raises
    ------
    NpformerError
        There is no such file or no such chapter, or the limit is out of range.

    Examples
    --------
    >>> folder = npformer.learn.start("course")
    >>> report = npformer.learn.check(folder)
    >>> report.passed, report.verdicts[0].name, report.verdicts[0].state
    (0, 'embeddings', 'not yet written')
    >>> report.as_dict()["ok"]
    False
    """
    path = learners_file(folder)
    if chapter is not None:
        whole("chapter", chapter, 1, len(CHAPTERS))
    number("limit", positive("limit", limit), 0, WHOLE)
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
    """A check in progress, with the verdicts so far."""

    def __init__(self, file: Path, chapters: Sequence[int], limit: float) -> None:
        self.file, self.chapters, self.limit = file, list(chapters), limit
        self.verdicts: dict[str, Verdict] = {}
        self.runs: dict[str, WholeRun] = {}
        self.problem = ""
        self.printed = ""

    def report(self) -> Report:
        """Starts processes until one completes. Each process judges only the functions that have no verdict yet."""
        over = False
        while not over:
            known = {name: each.state for name, each in self.verdicts.items()} | dict.fromkeys(self.runs, "")
            ended = run_worker(self.file, known=known, chapters=self.chapters, limit=self.limit)
            self._take(ended)
            over = ended.complete or self._stopped(ended)
        names = [each.name for i in self.chapters for each in CHAPTERS[i - 1].exercises]
        verdicts = [self.verdicts.get(name, Verdict(name, UNWRITTEN)) for name in names]
        return Report(str(self.file), tuple(verdicts), tuple(self.runs.values()), self.problem, self.printed)

    def _take(self, ended: Ended) -> None:
        began, self.printed = "", ended.printed or self.printed
        for told in ended.told:
            began, self.problem = told.get("began", began), told.get("problem", self.problem)
            if "run" in told:
                self.runs[began] = WholeRun(**told["run"])
            if "verdict" in told:
                self.verdicts[began] = Verdict(**told["verdict"])

    def _stopped(self, ended: Ended) -> bool:
        """Records why a process ended early; returns whether the check is over."""
        name = ended.began
        if not name:
            raise NpformerError(f"{self.file}: cannot be checked: exit code {ended.code}: {ended.printed[-500:]}")
        problem = f"It ended the process with exit code {ended.code}."
        if not ended.in_time:
            source = text_of(self.file).splitlines()[ended.line - 1].strip() if ended.line else ""
            at = f" It was at line {ended.line}, `{source}`." if ended.line else ""
            problem = f"It did not end within {self.limit:g} seconds.{at} Is there an endless loop?"
        if name in EXERCISES:
            self.verdicts[name] = Verdict(
                name, WRONG, "exception" if ended.in_time else "time", problem, line=ended.line
            )
        elif name.startswith("run "):
            self.runs[name] = _stopped_run(ended)
        else:
            self.problem = f"The file cannot be loaded. {problem}"
            return True
        return False


def _stopped_run(ended: Ended) -> WholeRun:
    """Returns the result for a whole model that was too slow or ended the process."""
    if ended.in_time:
        return WholeRun("whole model", False, f"The whole model ended the process with exit code {ended.code}.")
    slow = f"Your whole model takes more than {RUN_LIMIT:g} seconds here, so it was stopped"
    return WholeRun("whole model", None, f"{slow}. Products of whole arrays, with @, are far faster than loops.")
