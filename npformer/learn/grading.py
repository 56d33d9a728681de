"""Checks the submissions of a class of learners, several at a time, and writes a table of the results.

Each file is checked by a separate process, `python -m npformer.learn.grading REQUEST`, which starts the processes that
execute the file. Code that kills its parent process thus ends only the check of its own file.
"""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from npformer.common.checks import number, positive, whole
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.learn.chapters import CHAPTERS
from npformer.learn.checking import examine
from npformer.learn.gradescope import gradescope
from npformer.learn.judge import PASSED
from npformer.learn.running import INTERVAL, LIMIT, Time, ended_in
from npformer.learn.source import source_of
from npformer.learn.template import FILE

SECONDS = 120.0  # maximum seconds for all functions of a file
START = 60.0  # seconds for starting and ending the check of a file, in addition to SECONDS


@dataclass(frozen=True)
class Grade:
    """The result for a submitted file.

    Parameters
    ----------
    name : str, name of the submitted file or folder
    file : Path, the learner's file; None if it is missing
    report : dict, as from `Report.as_dict`; empty if the file could not be checked
    text : str, the report for the learner
    problem : str, the reason why the file was not checked or not loaded, or ""
    """

    name: str
    file: Path | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    problem: str = ""

    @property
    def passed(self) -> int:
        return int(self.report.get("passed", 0))

    def row(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the row of the table, with the states of these functions."""
        functions = {each["name"]: each for each in self.report.get("functions", [])}
        causes = [f"{name}: {each['cause']}" for name, each in functions.items() if each["cause"]]
        foreign = [f"{name}: {home}" for name, home in self.report.get("foreign", {}).items()]
        return {
            "name": self.name,
            "file": self.file or "",
            "passed": self.passed,
            "total": len(names),
            "ok": bool(self.report.get("ok", False)),
            "problem": self.problem,
            "causes": "; ".join(causes),
            "imports": " ".join(self.report.get("imports", [])),
            "foreign": "; ".join(foreign),
            **{name: functions[name]["state"] if name in functions else "" for name in names},
        }


def grade(
    folder: str | os.PathLike[str],
    chapter: int | None = None,
    limit: float = LIMIT,
    seed: int = 0,
    seconds: float = SECONDS,
    jobs: int | None = None,
) -> Iterator[Grade]:
    """Checks the files in a folder, and yields a grade for each submission, even if a submission has no file.

    Writes nothing to the folder.

    Parameters
    ----------
    folder : folder that contains a file or folder for each learner, or the folder of one learner
    chapter : int, optional
        The last chapter to check; by default all chapters.
    limit : float, seconds of processor time for a function
    seed : int, seed for different numbers in most cases, to judge functions a second time; 0 to judge only once
    seconds : float, for all functions of a file
    jobs : int, number of files to check at a time, by default the number of processors

    Yields
    ------
    Grade
        In the order of the names.

    Raises
    ------
    NpformerError
        There is no such folder, it has no submission, or a number is out of range.

    Examples
    --------
    >>> folder = npformer.learn.start("ada")
    >>> [(each.name, each.passed, each.problem) for each in npformer.learn.grade(folder)]
    [('ada', 0, '')]
    """
    found = submissions(Path(folder))
    if chapter is not None:
        whole("chapter", chapter, 1, len(CHAPTERS))
    asked = {"chapter": chapter, "limit": positive("limit", limit), "seed": whole("seed", seed, 0), "seconds": seconds}
    positive("seconds", seconds)
    number("limit", limit, 0, seconds)
    jobs = whole("jobs", jobs or os.cpu_count() or 1, 1)
    stop = Event()
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_graded, each, asked, stop) for each in found]
        try:
            for each in waiting:
                yield each.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def submissions(folder: Path) -> list[Grade]:
    """Returns the submissions in a folder: its Python files and its folders, or the folder itself if it has FILE."""
    if not folder.is_dir():
        raise NpformerError(f"{folder}: no such folder; expected a folder with a file or a folder for each learner")
    if (folder / FILE).exists():
        return [Grade(folder.resolve().name, folder / FILE)]
    try:
        entries = sorted(each for each in folder.iterdir() if not each.name.startswith((".", "__")))
    except OSError as error:
        raise NpformerError(f"{folder}: cannot be read: {error.strerror}") from None
    found = [_submission(each) for each in entries if each.suffix == ".py" or each.is_dir()]
    names = [each.name for each in found]
    found = [each if names.count(each.name) == 1 or each.file not in entries else replace(each, name=f"{each.name}.py")
             for each in found]  # fmt: skip
    if not found:
        raise NpformerError(f"{folder}: no submission; expected a Python file or a folder for each learner")
    return found


def _submission(entry: Path) -> Grade:
    name = entry.name
    if not entry.is_dir():
        return Grade(name.removesuffix(".py"), entry)
    try:
        files = sorted(entry.rglob("*.py"))
    except OSError as error:
        return Grade(name, problem=f"The folder cannot be read: {error.strerror}.")
    named = [each for each in files if each.name == FILE] or files
    if len(named) == 1:
        return Grade(name, named[0])
    said = f"It has {len(named)} files {FILE}" if files and files != named else f"It has {len(files)} Python files"
    return Grade(name, problem=f"{said}; expected one file {FILE}.")


# --- one submission ---------------------------------------------------------------------------------------------------


def _graded(submission: Grade, asked: dict[str, Any], stop: Event) -> Grade:
    """Checks a file in a separate process."""
    if submission.file is None or stop.is_set():
        return submission
    unread = partial(Grade, submission.name, submission.file)
    try:
        source_of(submission.file)
    except NpformerError as error:
        return unread(problem=f"The file cannot be read: {error}.")
    with tempfile.TemporaryDirectory(prefix="npformer-") as work:
        result = Path(work) / "report"
        request = json.dumps({**asked, "file": str(submission.file.resolve()), "result": str(result)})
        command = [sys.executable, "-m", "npformer.learn.grading", request]
        code = _finished(command, asked["seconds"] + START, stop)
        with suppress(NpformerError, KeyError):
            told = read_json(result)
            if told["error"]:
                return unread(problem=told["error"])
            return unread(told["report"], told["text"], told["report"]["problem"])
    return unread(problem=f"The check ended with exit code {code}, perhaps because of the file.")


def _finished(command: list[str], seconds: float, stop: Event) -> int:
    """Runs a process, which is ended after `seconds` or when `stop` is set. Returns the exit code."""
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    try:
        while not ended_in(process) and seconds > 0 and not stop.is_set():
            seconds -= INTERVAL
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # on SIGTERM, the process ends the processes that execute the file
            if not any(ended_in(process) for _ in range(20)):
                process.kill()
    return process.wait()


def main() -> None:
    """Checks a file, and writes the report."""
    request = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told: dict[str, Any] = {"error": ""}
    try:
        report = examine(
            Path(request["file"]), request["chapter"], request["limit"], request["seed"], Time(request["seconds"])
        )
        told |= {"report": report.as_dict(), "text": str(report)}
    except NpformerError as error:
        told["error"] = str(error)
    Path(request["result"]).write_text(json.dumps(told), encoding="utf-8")


# --- files ------------------------------------------------------------------------------------------------------------


def table(grades: Sequence[Grade], chapter: int | None) -> str:
    """Returns the grades as CSV."""
    names = [each.name for number in range(chapter or len(CHAPTERS)) for each in CHAPTERS[number].exercises]
    text = io.StringIO()
    writer = csv.DictWriter(text, Grade("").row(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in each.row(names).items()} for each in grades)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Returns a cell that spreadsheets do not read as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def feedback(grade: Grade) -> str:
    """Returns the report for the learner."""
    total = f"{grade.passed} of {grade.report.get('total', 0)} functions passed."
    return f"{grade.text or f'{grade.problem}{chr(10)}{total}'}\n"


def results(grade: Grade) -> str:
    """Returns the grade in the format of Gradescope."""
    return json.dumps(gradescope(grade.report, grade.problem), indent=1) + "\n"


def summary(grades: Sequence[Grade]) -> str:
    """Returns a sentence about the grades."""
    whole_files = sum(bool(each.report.get("ok")) for each in grades)
    failed = sum(not each.report for each in grades)
    wrong = sum(each["state"] != PASSED for grade in grades for each in grade.report.get("functions", []))
    return f"{len(grades)} submissions: {whole_files} complete, {failed} not checked; {wrong} functions do not pass yet"


if __name__ == "__main__":
    main()
