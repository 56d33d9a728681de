"""Finds the edits of a page with which it gives another program's values of its first wrong stage."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from npformer.golden.page_edits.causes import Cause, Causes
from npformer.golden.page_edits.instrumented import Frame, Page
from npformer.golden.page_edits.operators import Edit, edits
from npformer.golden.page_edits.sizes import number, value_of

Arrays = Sequence[np.ndarray]  # a stage, one array for each text
SECONDS = 2.0
SAME = 1e-3  # edits are one mistake if their values differ by less than this fraction of a budget


def explain(
    source: str,
    runs: Sequence[Callable[[ModuleType], Any]],
    theirs: Mapping[str, Arrays],
    budgets: Mapping[str, float],
    seconds: float = SECONDS,
    page_name: str = "page.py",
) -> Causes:
    """Finds the edits of a page that give another program's values of its first wrong stage.

    Parameters
    ----------
    source : str, the page in one file that needs NumPy alone
    runs : for each text, a function of the page's module that computes the text in float64
    theirs : stage -> the other program's arrays, one for each text
    budgets : stage -> the largest difference that rounding explains
    seconds : float, the most processor time to search
    page_name : str, the file to name in causes

    Returns
    -------
    Causes. Empty, with stage "", if no stage is wrong.

    Examples
    --------
    >>> source = "def double(x):\\n    y = x * 2\\n    return y"
    >>> x = np.array([1.0, 2.0, 5.0])
    >>> found = explain(source, [lambda page: page.double(x)], {"y": [x + 2]}, {"y": 1e-6})
    >>> print(found.causes[0].difference)
    - y = x * 2
    + y = x + 2
    """
    page = Page(source)
    right: list[dict[str, np.ndarray]] = []
    for run in runs:
        page.record(run, frozenset(), "")
        right.append(page.stages)
    stage = first_wrong(right, theirs, budgets)
    if not stage:
        return Causes("", [], 0, False)
    return _Search(page, runs, theirs, budgets, stage, right, time.thread_time() + seconds, page_name).causes()


def first_wrong(
    right: Sequence[Mapping[str, np.ndarray]], theirs: Mapping[str, Arrays], budgets: Mapping[str, float]
) -> str:
    """The first stage outside its budget, in the page's order; "" if no stage is."""
    for stage in right[0]:
        if stage in theirs and stage in budgets:
            pairs = zip(theirs[stage], (each.get(stage) for each in right), strict=True)
            if not all(_near(a, b, budgets[stage]) for a, b in pairs):
                return stage
    return ""


def _near(array: np.ndarray | None, other: np.ndarray | None, budget: float) -> bool:
    if array is None or other is None or array.shape != other.shape:
        return False
    return bool(np.abs(array - other).max(initial=0) <= budget)


class _Search:
    """A page, the texts' calls that make the wrong stage, and the edits tried so far."""

    def __init__(
        self, page: Page, runs: Sequence[Callable[[ModuleType], Any]], theirs: Mapping[str, Arrays],
        budgets: Mapping[str, float], stage: str, right: Sequence[Mapping[str, np.ndarray]], until: float, name: str,
    ) -> None:  # fmt: skip
        order = list(right[0])
        before = [each for each in order[: order.index(stage)] if each in theirs and each in budgets]
        self.page, self.theirs, self.budgets, self.stage, self.name = page, theirs, budgets, stage, name
        self.exported, self.until = frozenset(before), until
        self.calls: list[list[Frame]] = [page.record(run, self.exported, stage) for run in runs[:1]]
        self.makers = [page.found]
        for run in runs[1:]:
            self.calls.append(page.record(run, self.exported, stage))
            self.makers.append(page.found)
        self.tried, self.seen = 0, set[str]()
        self.found: list[tuple[Cause, list[np.ndarray]]] = []

    @property
    def cut(self) -> bool:
        return time.thread_time() > self.until

    def causes(self) -> Causes:
        """The edits of the function that makes the stage, of those that it calls, and then of its callers."""
        frames = list(self.makers)
        while all(frame is not None for frame in frames) and not self.cut:
            some = [frame for frame in frames if frame is not None]
            for name in self._functions(some[0]):
                if name not in self.seen and not self.cut:
                    self.seen.add(name)
                    self._try(name, some)
            frames = [frame.caller for frame in some]
        return Causes(self.stage, self._apart(), self.tried, self.cut)

    def _apart(self) -> list[Cause]:
        """The causes in order, each once: a function's edits that give the same numbers are one mistake."""
        kept: list[tuple[Cause, list[np.ndarray]]] = []
        least = SAME * self.budgets[self.stage]
        for cause, made in sorted(self.found, key=lambda each: each[0].rank):
            others = [values for other, values in kept if other.function == cause.function]
            if not any(all(map(_near, made, each, [least] * len(made))) for each in others):
                kept.append((cause, made))
        return [cause for cause, _ in kept]

    def _functions(self, top: Frame) -> Iterator[str]:
        """The functions whose calls made no stage of the other program but the wrong one, this one's first."""
        yield top.function
        within = [each for each in self.calls[0] if each is not top and _is_within(each, top)]
        yield from dict.fromkeys(each.function for each in reversed(within) if not self._settled(each, top))

    def _settled(self, frame: Frame, top: Frame) -> bool:
        while frame is not top and frame.caller is not None:
            if frame.line in self._lines(frame.caller) and frame not in self._above():
                return True
            frame = frame.caller
        return False

    def _above(self) -> list[Frame]:
        """The calls that were running when the stage was made."""
        found, frame = list[Frame](), self.makers[0]
        while frame is not None:
            found.append(frame)
            frame = frame.caller
        return found

    def _lines(self, frame: Frame) -> set[int]:
        """The lines of all statements whose values are right."""
        function = self.page.functions[frame.function]
        return {
            line
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and any(each.lineno <= at <= (each.end_lineno or 0) for at in frame.settled)
            for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
        }

    def _try(self, name: str, frames: list[Frame]) -> None:
        function = self.page.functions[name]
        own = [each for each in self.calls[0] if each.function == name]
        settled = self._lines(own[0]) if len(own) == 1 or own[0] is frames[0] else set()
        statements = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and each is not function]
        statements = [each for each in statements if each.lineno not in settled]
        for edit in edits(function, statements, self.page.functions):
            if self.cut:
                return
            if made := self._fits(name, edit, frames):
                self._keep(name, edit, made)
        for statement in statements:
            if not self.cut and isinstance(value := getattr(statement, "value", None), ast.expr):
                self._scaled(name, value, frames)

    def _keep(self, name: str, edit: Edit, made: list[np.ndarray]) -> None:
        function = self.page.functions[name]
        inside = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and each is not function]
        around = [each for each in inside if each.lineno <= edit.node.lineno <= (each.end_lineno or 0)]
        statement = min(around, key=lambda each: (each.end_lineno or 0) - each.lineno)
        first, last = statement.lineno, statement.end_lineno
        before, after = (
            " ".join(each.strip() for each in lines[first - 1 : last])
            for lines in (self.page.lines, self._edited(edit).splitlines())
        )
        self.found.append((Cause(self.name, name, first, before, after, edit.kind, edit.rank), made))

    def _edited(self, edit: Edit) -> str:
        """The page's text with an edit, in parentheses only where it needs them."""
        node, lines = edit.node, list(self.page.lines)
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        start, end = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [f"{start}({edit.text}){end}", *[""] * (last - first)]
        wanted, best = ast.dump(ast.parse("\n".join(lines))), list(lines)
        shorter = [f"{start}{edit.text}{end}"]
        if start.endswith("(") and end.startswith(")"):
            shorter.append(f"{start[:-1]}{edit.text}{end[1:]}")
        for text in shorter:
            lines[first] = text
            with suppress(SyntaxError):
                best = list(lines) if ast.dump(ast.parse("\n".join(lines))) == wanted else best
        return "\n".join(best)

    def _made(self, name: str, edit: Edit, frames: list[Frame]) -> list[dict[str, np.ndarray]] | None:
        """The stages of each text with an edit; None if the page then fails."""
        self.tried += 1
        try:
            with self.page.replaced(name, edit.node, edit.text):
                made = []
                for frame, theirs in zip(frames, self.theirs[self.stage], strict=True):
                    stages = self.page.again(frame, self.exported, self.stage)
                    if self.stage not in stages or stages[self.stage].shape != theirs.shape:
                        return None
                    made.append(stages)
                    if edit.kind != "" and not _near(stages[self.stage], theirs, self.budgets[self.stage]):
                        return None
                return made
        except Exception:  # an edit may make any error
            return None

    def _fits(self, name: str, edit: Edit, frames: list[Frame]) -> list[np.ndarray] | None:
        """The stage of each text with an edit that gives the other program's values; None for other edits."""
        made = self._made(name, edit, frames)
        wanted = [*self.exported, self.stage]
        fits = made is not None and all(
            _near(stages[each], self.theirs[each][i], self.budgets[each])
            for i, stages in enumerate(made)
            for each in wanted
            if each in stages
        )
        return [each[self.stage] for each in made] if made and fits else None

    def _scaled(self, name: str, value: ast.expr, frames: list[Frame]) -> None:
        """Solves for a factor of each part of a value by least squares, and keeps those that fit."""
        for node in [each for each in ast.walk(value) if isinstance(each, ast.BinOp | ast.Call)]:
            if self.cut:
                return
            if any(cause.function == name and cause.line == node.lineno for cause, _ in self.found):
                return  # an edit without a solved number is enough
            own = ast.unparse(node)
            none, one = (self._made(name, Edit(node, f"{factor} * ({own})", ""), frames) for factor in (0.0, 1.0))
            if none is None or one is None:
                continue
            a, b = (np.concatenate([each[self.stage].ravel() for each in some]) for some in (none, one))
            y = np.concatenate([each.ravel() for each in self.theirs[self.stage]])
            if y.size < 8 or not np.isfinite(a).all() or not (b - a).any():
                continue
            factor = float((y - a) @ (b - a) / ((b - a) @ (b - a)))
            if abs(factor) < 1e-4 or not np.isfinite(factor) or abs(factor - 1) < 1e-7:
                continue  # left out, or unchanged
            text, known = number(factor, [each.shape for each in self.theirs[self.stage]], frames[0].arguments)
            edit = Edit(node, f"{text} * ({own})", "another size" if known else "another value")
            if made := self._fits(name, edit._replace(text=f"{value_of(text)!r} * ({own})"), frames):
                self._keep(name, edit, made)


def _is_within(frame: Frame, top: Frame) -> bool:
    caller: Frame | None = frame
    while caller is not None and caller is not top:
        caller = caller.caller
    return caller is top
