"""Checks a learner's file. A process that ends early is replaced with a new one, until each function has a verdict."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from npformer.common.checks import number, positive, whole
from npformer.common.errors import NpformerError
from npformer.learn import progress
from npformer.learn.chapters import CHAPTERS, EXERCISES
from npformer.learn.judge import UNWRITTEN, WRONG, Verdict, short
from npformer.learn.report import Report
from npformer.learn.running import (
    COMPUTED,
    LIMIT,
    OVER,
    PATIENCE,
    RUN_LIMIT,
    SHORTEST,
    WAITED,
    WHOLE,
    Ended,
    Time,
    run_worker,
    text_of,
)
from npformer.learn.template import FILE
from npformer.learn.whole import WholeRun


def check(
    folder: str | os.PathLike[str] = ".", chapter: int | None = None, limit: float = LIMIT, seed: int = 0
) -> Report:
    """Checks the functions of a learner's file, which runs in a separate process.

    Stores the learner's progress next to the file. If this fails, the report says so.

    Parameters
    ----------
    folder : folder written by `npformer learn start`, or the path of a file, with or without ".py"
    chapter : int, optional
        The last chapter to check; by default all chapters.
    limit : float, seconds of processor time for a function, up to 900
    seed : int, seed for different numbers in most cases, to judge functions a second time; 0 to judge only once

    Returns
    -------
    Report
        The report prints as a table. Programs use `ok`, `verdicts`, `runs` and `as_dict()`.

    Raises
    ------
    NpformerError
        There is no such file or no such chapter, or the limit or the seed is out of range.

    Examples
    --------
    >>> folder = npformer.learn.start("course")
    >>> report = npformer.learn.check(folder)
    >>> report.passed, report.verdicts[0].name, report.verdicts[0].state
    (0, 'linear', 'not yet written')
    >>> report.as_dict()["ok"]
    False
    """
    path = learners_file(folder)
    report = examine(path, chapter, limit, seed)
    hints, problem = progress.checked(path.parent, report.passed_names)
    return replace(report, hints=hints, note=problem)


def unstored(place: str | os.PathLike[str], chapter: int | None, limit: float, seed: int) -> Report:
    """Checks a learner's file as `check` does, but writes nothing to its folder."""
    path = learners_file(place)
    state, _ = progress.read(path.parent)
    return replace(examine(path, chapter, limit, seed), hints=state["hints"])


def examine(
    path: Path, chapter: int | None = None, limit: float = LIMIT, seed: int = 0, time: Time | None = None
) -> Report:
    """Checks a learner's file without reading or writing any other file in its folder."""
    if chapter is not None:
        whole("chapter", chapter, 1, len(CHAPTERS))
    number("limit", positive("limit", limit), 0, WHOLE)
    whole("seed", seed, 0)
    chapters = list(range(1, (chapter or len(CHAPTERS)) + 1))
    return _Check(path, chapters, limit, seed, time or Time()).report()


def learners_file(place: str | os.PathLike[str]) -> Path:
    """Returns the learner's file, given its folder, its path with or without ".py", or its module's name.

    Raises NpformerError if it does not exist.
    """
    path = Path(place)
    found = [path / FILE] if path.is_dir() else [path, Path(f"{path}.py"), Path(str(path).replace(".", os.sep) + ".py")]
    for each in found:
        if each.is_file():
            return each.resolve()
    if path.name in EXERCISES:
        hint = f"{path.name} is a function: `npformer learn check` checks all functions of the file in this folder"
    elif path.is_dir() and (below := sorted(path.glob(f"*/{FILE}"))):
        hint = f"name its folder: {short(str(below[0].parent))}"
    else:
        hint = "`npformer learn start FOLDER` writes it; `npformer learn check FOLDER` checks it"
    raise NpformerError(f"{found[0]}: no such file; {hint}")


class _Check:
    """A check in progress, with the verdicts so far."""

    def __init__(self, file: Path, chapters: Sequence[int], limit: float, seed: int, time: Time) -> None:
        self.file, self.chapters, self.limit, self.seed, self.time = file, list(chapters), limit, seed, time
        self.seconds = time.left
        self.verdicts: dict[str, Verdict] = {}
        self.runs: dict[str, WholeRun] = {}
        self.problem = ""
        self.printed = ""
        self.imports: tuple[str, ...] = ()
        self.foreign: dict[str, str] = {}

    def report(self) -> Report:
        """Starts processes until one completes the check. Each process judges only functions without a verdict."""
        over = False
        while not over:
            known = {name: each.state for name, each in self.verdicts.items()} | dict.fromkeys(self.runs, "")
            asked = {"known": known, "chapters": self.chapters, "limit": self.limit, "seed": self.seed}
            ended = run_worker(self.file, self.time, **asked)
            self._take(ended)
            over = ended.complete or self._stopped(ended)
        names = [each.name for i in self.chapters for each in CHAPTERS[i - 1].exercises]
        verdicts = (
            ()
            if self.problem and not self.verdicts
            else tuple(self.verdicts.get(name, Verdict(name, UNWRITTEN)) for name in names)
        )
        return Report(
            str(self.file), verdicts, tuple(self.runs.values()), self.problem, self.printed,
            imports=self.imports, foreign=self.foreign,
        )  # fmt: skip

    def _take(self, ended: Ended) -> None:
        """Adds the results of a process. The first verdict on a function is final, but its cause may be added later."""
        began, self.printed = "", ended.printed or self.printed
        for told in ended.told:
            began, self.problem = told.get("began", began), str(told.get("problem", "")) or self.problem
            if "imports" in told:
                self.imports, self.foreign = tuple(told["imports"]), dict(told.get("foreign", {}))
            if "run" in told and (run := _of(WholeRun, told["run"])):
                self.runs.setdefault(began, run)
            if (verdict := _of(Verdict, told.get("verdict"))) and verdict.name in EXERCISES:
                self.verdicts.setdefault(verdict.name, verdict)
            if (found := _of(Verdict, told.get("explained"))) and found.name in self.verdicts:
                known = self.verdicts[found.name]
                if not known.cause:
                    self.verdicts[found.name] = replace(known, cause=found.cause, sentence=found.sentence)

    def _stopped(self, ended: Ended) -> bool:
        """Records why a process ended early; returns whether the check is over."""
        name = ended.began
        if not name:
            raise NpformerError(f"{self.file}: cannot be checked: exit code {ended.code}: {ended.printed[-500:]}")
        problem = self._problem(ended)
        if name in EXERCISES:
            kind = "time" if ended.why else "exception"
            self.verdicts.setdefault(name, Verdict(name, WRONG, kind, problem, line=ended.line))
        elif name.startswith("run "):
            self.runs.setdefault(name, _stopped_run(ended))
        elif name == "loading":
            self.problem = f"The file cannot be loaded. {problem}"
            return True
        if ended.why == OVER:
            self._unchecked()
        return ended.why == OVER

    def _problem(self, ended: Ended) -> str:
        lines = text_of(self.file).splitlines()[ended.line - 1 : ended.line] if ended.line else []
        at = f" It was at line {ended.line}, `{short(lines[0].strip())}`." if lines else ""
        if ended.why == COMPUTED:
            return f"It did not end within {self.limit:g} seconds of processor time.{at} Is there an endless loop?"
        if ended.why == WAITED:
            longest = max(SHORTEST, PATIENCE * self.limit)
            slow = f"It did not end within {longest:g} seconds, although it used hardly any processor time."
            return f"{slow}{at} What does it wait for?"
        if ended.why == OVER:
            return f"It was stopped, because the check of the whole file took more than {self.seconds:g} seconds.{at}"
        if ended.why:
            return "Its process was stopped by a signal and did not continue."
        return f"It ended the process with {_code(ended.code)}."

    def _unchecked(self) -> None:
        """Adds a verdict for each function that was not checked because the time ran out."""
        problem = f"It was not checked, because the earlier functions took {self.seconds:g} seconds."
        for each in (each for i in self.chapters for each in CHAPTERS[i - 1].exercises):
            self.verdicts.setdefault(each.name, Verdict(each.name, WRONG, "time", problem))


def _of(kind: type[Any], given: Any) -> Any:
    """Returns a dataclass made from a result, or None if the result has missing or additional fields."""
    if isinstance(given, Mapping) and {each.name for each in fields(kind)} == set(given):
        return kind(**given)
    return None


def _code(code: int) -> str:
    """Describes an exit code in words, such as "exit code 3" or "the signal SIGSEGV"."""
    with suppress(ValueError):
        if code < 0:
            return f"the signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _stopped_run(ended: Ended) -> WholeRun:
    """Returns the result of a run of the whole model that was too slow or ended the process."""
    if not ended.why:
        return WholeRun("whole model", False, f"The whole model ended the process with {_code(ended.code)}.")
    slow = f"Your whole model takes more than {RUN_LIMIT:g} seconds here, so it was stopped"
    return WholeRun("whole model", None, f"{slow}. Products of whole arrays, with @, are far faster than loops.")
