"""The report of a check: tables for people, one per chapter, and a dict for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent, wrap
from typing import Any

from npformer.learn.chapters import CHAPTERS, EXERCISES
from npformer.learn.judge import PASSED, UNWRITTEN, WRONG, Verdict
from npformer.learn.whole import WholeRun

WIDTH = 80
LINES = 20  # maximum lines to show of the file's output


@dataclass(frozen=True, repr=False)
class Report:
    """The result of a check.

    Parameters
    ----------
    file : str, the learner's file
    verdicts : the verdict on each function of the checked chapters
    runs : runs of the whole model
    problem : str, the reason why the file could not be loaded, or ""
    printed : str, the end of the file's output
    hints : name of a function -> number of hints shown
    note : str, the reason why the progress could not be stored, or ""
    imports : names of the modules that the file imports
    foreign : name of a function that the file imports instead of defining it -> the module that defines the function
    """

    file: str
    verdicts: tuple[Verdict, ...]
    runs: tuple[WholeRun, ...] = ()
    problem: str = ""
    printed: str = ""
    hints: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    imports: tuple[str, ...] = ()
    foreign: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every checked function passed, and no run of the whole model failed."""
        return not self.problem and self.passed == len(self.verdicts) and all(run.ok is not False for run in self.runs)

    @property
    def passed_names(self) -> list[str]:
        return [each.name for each in self.verdicts if each.state == PASSED]

    @property
    def passed(self) -> int:
        return len(self.passed_names)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report in the form of `npformer learn check --json`."""
        chapter_of = {each.name: i for i, chapter in enumerate(CHAPTERS, 1) for each in chapter.exercises}
        return {
            "file": self.file,
            "ok": self.ok,
            "passed": self.passed,
            "total": len(self.verdicts),
            "problem": self.problem,
            "functions": [
                {"chapter": chapter_of[each.name], **each.as_dict(), "hints": self.hints.get(each.name, 0)}
                for each in self.verdicts
            ],
            "runs": [run.as_dict() for run in self.runs],
            "printed": self.printed,
            "note": self.note,
            "imports": list(self.imports),
            "foreign": dict(self.foreign),
        }

    def __str__(self) -> str:
        head = wrap(f"{self.file}: {self.problem}", WIDTH) if self.problem and self.verdicts else []
        head = head or [f"{self.file}: {self.problem}"] * bool(self.problem)
        if not self.verdicts:
            return "\n".join([*head, *self._printed()])
        by_name = {each.name: each for each in self.verdicts}
        lines, current = [*head, ""] if head else list[str](), False
        for number, chapter in enumerate(CHAPTERS, 1):
            verdicts = [by_name[each.name] for each in chapter.exercises if each.name in by_name]
            passed = sum(each.state == PASSED for each in verdicts)
            later = current and all(each.state == UNWRITTEN for each in verdicts)
            if not verdicts or later:
                continue
            title = f"Chapter {number}: {chapter.title}"
            lines.append(f"{title:38}{passed} of {len(verdicts)} passed")
            current |= passed < len(verdicts)
            lines += [line for each in verdicts if passed < len(verdicts) or each.note for line in _row(each)]
        lines += ["", *self._end(by_name), *self._printed()]
        return "\n".join(lines)

    __repr__ = __str__

    def _end(self, by_name: Mapping[str, Verdict]) -> list[str]:
        lines = [line for run in self.runs for line in wrap(run.text, WIDTH)]
        wrong = [each.name for each in self.verdicts if each.state == WRONG]
        unwritten = [each.name for each in self.verdicts if each.state == UNWRITTEN]
        lines.append(f"{self.passed} of {len(self.verdicts)} functions passed.")
        states = [each.state for each in self.verdicts]
        after = states[states.index(WRONG) + 1 :] if wrong else []
        if any(state != UNWRITTEN for state in after):
            versions, them = ("version", "it") if len(wrong) == 1 else ("versions", "them")
            said = f"{_listed(wrong)} replaced by npformer's {versions} in the functions that call {them}."
            lines += wrap(said, WIDTH)
        if following := [*wrong, *unwritten]:
            lines += wrap(f"Next: {following[0]}. {next_help(following[0], self.hints.get(following[0], 0))}", WIDTH)
        return [*lines, *wrap(self.note, WIDTH)]

    def _printed(self) -> list[str]:
        lines = self.printed.splitlines()
        first = [f"... ({len(lines) - LINES} more lines)"] if len(lines) > LINES else []
        return ["", "Your file printed:", indent("\n".join([*first, *lines[-LINES:]]), "  ")] if lines else []


def next_help(name: str, hints: int) -> str:
    """Returns a sentence with the command to run next, after this number of hints."""
    if hints < len(EXERCISES[name].hints):
        return f"`npformer learn hint {name}` gives a hint."
    return f"`npformer learn solution {name}` shows a right function."


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} was" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} were"


def _row(verdict: Verdict) -> list[str]:
    lines = [f"  {f'{verdict.name} ':30}{verdict.state}"]
    if verdict.state != WRONG:
        return lines + [f"      {line}" for line in wrap(verdict.note, WIDTH - 6)]
    lines += [f"      {line}" for line in wrap(verdict.problem, WIDTH - 6)]
    lines += [f"      {line}" for line in verdict.numbers.splitlines()]
    if verdict.cause and verdict.sentence != verdict.problem:
        lines += [f"      {line}" for line in wrap(f"Cause: {verdict.sentence}", WIDTH - 6)]
    return lines
