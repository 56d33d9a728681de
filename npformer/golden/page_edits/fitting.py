"""Finds the edits that make a page reproduce another program's values of the first wrong stage."""

from __future__ import annotations

import ast
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from npformer.engine.runtime.threads import single_blas_thread
from npformer.golden.mistakes.rows import rows_said
from npformer.golden.page_edits import chunks, elsewhere, operators, roundings, solved
from npformer.golden.page_edits.case import Arrays, Case, Outcome, Place, is_near
from npformer.golden.page_edits.causes import Cause, Causes
from npformer.golden.page_edits.instrumented import Frame, Page
from npformer.golden.page_edits.operators import Edit

SECONDS = 10.0
FOR_PAIRS = 0.2  # the share of the time that is reserved for pairs of edits
KNOWN = 0.5  # the share of the time to search if a known mistake gives the values, too
SAME = 1e-3  # edits are one mistake if their values differ by less than this fraction of a budget
LINES = 4  # longer statements are shown without their unchanged lines
PAIRED = 400  # maximum pairs of edits to try: the pairs whose effects best add up to the error
#: Kinds of edits that a port may make in some calls of a function and not in others.
PARTLY = ("left out", "another function", "another axis", "another operation", "another value", "rounded")
BASES = 16  # edits that are tried together with every other one
LARGEST = 1 << 14  # maximum numbers in a stage for which effects of edits are added up


def explain(
    source: str,
    runs: Sequence[Callable[[ModuleType], Any]],
    theirs: Mapping[str, Arrays],
    budgets: Mapping[str, float],
    seconds: float = SECONDS,
    page_name: str = "page.py",
    all_of_them: bool = True,
    stage: str = "",
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
    all_of_them : bool, False to end the search at the first edit that fits
    stage : str, the first wrong stage, if it is known

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
    with single_blas_thread(), warnings.catch_warnings():  # in small products, threads of BLAS wait for one another
        warnings.simplefilter("ignore")  # SyntaxWarning: an edit may subscript a number
        return _explained(source, runs, theirs, budgets, seconds, page_name, all_of_them, stage)


def _explained(
    source: str, runs: Sequence[Callable[[ModuleType], Any]], theirs: Mapping[str, Arrays],
    budgets: Mapping[str, float], seconds: float, page_name: str, all_of_them: bool, stage: str,
) -> Causes:  # fmt: skip
    page = Page(source)
    right: list[dict[str, np.ndarray]] = []
    for run in runs:
        # a complete run shows whether the rows of tokens are scaled after they are looked up
        page.record(run, frozenset(), "" if stage.endswith("embeddings.token") else stage)
        right.append(page.stages)
    stage = stage or first_wrong(right, theirs, budgets)
    if not all(stage in each for each in right):
        return Causes("", [], 0, False)
    case = Case(page, runs, theirs, budgets, stage, right)
    if not any(each.any() for each in case.wrong):  # the page agrees with the other program
        return Causes("", [], 0, False)
    return _Search(case, seconds * (1 if all_of_them else KNOWN), page_name, all_of_them).causes()


def first_wrong(
    right: Sequence[Mapping[str, np.ndarray]], theirs: Mapping[str, Arrays], budgets: Mapping[str, float]
) -> str:
    """The first stage outside its budget, in the page's order; "" if no stage is."""
    for stage in right[0]:
        if stage in theirs and stage in budgets:
            pairs = zip(theirs[stage], (each.get(stage) for each in right), strict=True)
            if not all(b is not None and is_near(a, b, budgets[stage]) for a, b in pairs):
                return stage
    return ""


Try = tuple[Place, list[Frame]]
Effect = tuple[Place, list[Frame], np.ndarray]  # an edit, the calls to run again, and the change in a text


class _Search:
    """A search through the edits of a case."""

    def __init__(self, case: Case, seconds: float, name: str, all_of_them: bool) -> None:
        self.case, self.page, self.name, self.all_of_them = case, case.page, name, all_of_them
        self.seconds, self.until = seconds, time.thread_time() + seconds
        self.seen = set[tuple[str, int]]()
        self.found: list[tuple[Cause, list[np.ndarray]]] = []
        self.restricted: list[Try] = []  # edits of a function that apply only in some of its calls
        self.rounded: list[tuple[list[Place], list[Frame]]] = []  # edits that round every value of a function
        self.effects: list[Effect] = []  # effects of edits that do not fit alone

    @property
    def cut(self) -> bool:
        return time.thread_time() > self.until

    @property
    def is_late(self) -> bool:
        """Whether the remaining time is reserved for pairs."""
        return time.thread_time() > self.until - FOR_PAIRS * self.seconds

    def causes(self) -> Causes:
        """The edits of the calls that make the stage, and then of the calls above them."""
        tries = self._tries()
        for place, frames in tries:
            if place.edit.kind == "rounded" and not self.found:
                while self.rounded and not self.cut:
                    self._try(*self.rounded.pop(0))
            found = any(not cause.rows for cause, _ in self.found)
            if self.is_late or (found and (not self.all_of_them or place.edit.kind == "rounded")):
                break
            self._try([place], frames)
        if not any(not cause.rows for cause, _ in self.found):
            for place, frames in self.restricted:
                if self.is_late:
                    break
                self._try([place], frames)
            for place, frames in _expressions(tries):
                if self.is_late:
                    break
                if (factor := solved.factor(self.case, place, frames)) is not None:
                    self._try([factor], frames)
        if not self.found:
            self._pairs()
        return Causes(self.case.stage, self._apart(), self.case.tried, self.cut)

    def _tries(self) -> list[Try]:
        """The edits, each with the calls to run again.

        Likely edits come first and roundings last; among these, the calls nearest to the stage, which take the least
        time. A program that is wrong from the third row or a later one on often reads texts in chunks: then edits of
        later rows come before all others.
        """
        found, level = list[tuple[int, Place, list[Frame]]](), 0
        while (frames := self.case.frames(level)) is not None:
            for name, statements in self.case.functions(level):
                fresh = [each for each in statements if (name, each.lineno) not in self.seen]
                self.seen |= {(name, each.lineno) for each in fresh}
                own = [Place(name, edit) for edit in self._edits(name, fresh)]
                found += [(level, place, frames) for place in own]
                for each in roundings.of_all_values(fresh) if not self.case.is_far else ():
                    self.rounded.append(([Place(name, edit) for edit in each], frames))
                for part in self.case.parts(level, name):
                    some = [Place(name, place.edit._replace(only=part)) for place in own]
                    self.restricted += [(place, frames) for place in some if place.edit.kind in PARTLY]
            level += 1
        self.restricted.sort(key=lambda each: each[0].edit.rank)
        first = "in later rows" if min(self.case.starts, default=0) > 1 else ""

        def order(one: tuple[int, Place, list[Frame]]) -> tuple[bool, bool, bool, int, int]:
            level, (_, edit), _ = one
            return edit.kind != first, edit.kind == "rounded", edit.kind not in operators.LIKELY, level, edit.rank

        return [(place, frames) for _, place, frames in sorted(found, key=order)]

    def _edits(self, name: str, statements: list[ast.stmt]) -> Iterator[Edit]:
        function = self.page.functions[name]
        kinds = self.page.kinds.get(name, {})
        yield from operators.edits(function, statements, self.page.functions, kinds)
        if not self.case.is_far:
            yield from roundings.edits(statements, kinds)
        yield from roundings.misreadings(statements)
        yield from elsewhere.edits(self.case, name, statements)
        if self.case.starts:
            yield from chunks.edits(self.case, name, statements)

    def _try(self, places: Sequence[Place], frames: list[Frame]) -> None:
        outcome = self.case.outcome(places, frames)
        if outcome.values:
            self._keep(places, outcome)
        elif outcome.first is not None and places[0].edit.kind in operators.LIKELY:
            right = self.case.right[self.case.texts[0]]
            effect = (outcome.first - right).ravel() if outcome.first.shape == right.shape else right[:0]
            if 0 < effect.size <= LARGEST and np.isfinite(effect).all() and np.abs(effect).max() > self.case.budget:
                self.effects.append((places[0], frames, effect))

    def _pairs(self) -> None:
        """Tries the pairs of edits whose effects, each computed alone, add up best to the error."""
        error = self.case.error()
        different: dict[bytes, Effect] = {}
        for each in self.effects:
            different.setdefault((each[2] / self.case.budget).round(-1).tobytes(), each)
        some = list(different.values())
        if error is None or len(some) < 2:
            return
        effects = np.stack([effect for _, _, effect in some])
        alone = ((effects - error) ** 2).sum(1)
        left = alone[:, None] + alone + 2 * effects @ effects.T  # |error - one - two|^2, up to a constant
        left[np.tril_indices(len(some))] = np.inf
        for at in np.argsort(left, axis=None)[:PAIRED]:
            i, k = divmod(int(at), len(some))
            self._try_two(some[i], some[k])
        for i in np.argsort(alone)[:BASES]:  # effects that do not add up, such as effects of factors
            for other in some:
                if self.cut or any(cause.second for cause, _ in self.found):
                    return
                self._try_two(some[i], other)

    def _try_two(self, one: Effect, two: Effect) -> None:
        if self.cut or one[0].edit.node is two[0].edit.node:
            return
        outcome = self.case.outcome([one[0], two[0]], min(one[1], two[1], key=lambda each: len(each[0].scope)))
        if outcome.values and not outcome.rows:
            self._keep([one[0], two[0]], outcome)

    def _apart(self) -> list[Cause]:
        """The causes in order, without duplicates: edits of one function that give the same numbers are one mistake."""
        kept: list[tuple[Cause, list[np.ndarray]]] = []
        least = SAME * self.case.budget
        whole = [each for each in self.found if not each[0].rows]
        for cause, made in sorted(whole or self.found, key=lambda each: each[0].rank):
            others = [values for other, values in kept if other.function == cause.function]
            if not any(all(is_near(a, b, least) for a, b in zip(made, each, strict=True)) for each in others):
                kept.append((cause, made))
        return [cause for cause, _ in kept]

    # --- the printed causes ---

    def _keep(self, places: Sequence[Place], outcome: Outcome) -> None:
        first, *others = (
            Cause(self.name, each.function, *self._lines(each), each.edit.kind, each.edit.rank, only=each.edit.only)
            for each in places
        )
        rows = "the first wrong row of each text" if outcome.rows == "start" else ""
        if outcome.rows == "wrong":
            rows = rows_said(self.case.wrong)
        rank = max(each.edit.rank for each in places)
        self.found.append((replace(first, rank=rank, rows=rows, second=tuple(others)), outcome.values))

    def _lines(self, place: Place) -> tuple[int, str, str]:
        """The line of an edit's statement, and its text before and after."""
        function, edit = self.page.functions[place.function], place.edit
        inside = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and each is not function]
        around = [each for each in inside if each.lineno <= edit.node.lineno <= (each.end_lineno or 0)]
        statement = min(around, key=lambda each: (each.end_lineno or 0) - each.lineno)
        first, last = statement.lineno, statement.end_lineno
        if isinstance(statement, ast.For):
            last = statement.iter.end_lineno
        before, after = (
            [each.strip() for each in lines[first - 1 : last]]
            for lines in (self.page.lines, self._edited(edit).splitlines())
        )
        if len(before) > LINES:
            changed = [i for i, own in enumerate(before) if own != after[i]]
            first += changed[0]
            before, after = ([some[i] for i in changed] for some in (before, after))
        return first, " ".join(filter(None, before)), " ".join(filter(None, after))

    def _edited(self, edit: Edit) -> str:
        """The page's text with an edit, which is in parentheses only if necessary."""
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


def _expressions(tries: Sequence[Try]) -> list[Try]:
    """The expressions that edits replace, each once."""
    return list({(place.function, id(place.edit.node)): (place, frames) for place, frames in tries}.values())
