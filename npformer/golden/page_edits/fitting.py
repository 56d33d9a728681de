"""Finds the edits that make a page reproduce another program's values of the first wrong stage."""

from __future__ import annotations

import ast
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np

from npformer.engine.runtime.threads import single_blas_thread
from npformer.golden.mistakes.rows import rows_said
from npformer.golden.page_edits import blocks, cached, chunks, elsewhere, heads, operators, roundings, solved
from npformer.golden.page_edits.case import IN_16_BITS, Arrays, Case, Outcome, Place, is_near
from npformer.golden.page_edits.causes import FIRST_ROWS, Cause, Causes
from npformer.golden.page_edits.instrumented import Frame, Page
from npformer.golden.page_edits.operators import Edit
from npformer.golden.page_edits.padded import Padded, paddings

SECONDS = 10.0
FOR_PAIRS = 0.2  # the share of the time that is reserved for pairs of edits
KNOWN = 0.5  # the share of the time that is used if a known mistake also gives the values
SAME = 1e-3  # edits are one mistake if their values differ by less than this fraction of a budget
LINES = 4  # longer statements are shown without their unchanged lines
PAIRED = 400  # maximum number of pairs of edits to try: the pairs whose effects best add up to the error
#: Kinds of mistakes that a port may make in some calls of a function and not in others.
PARTLY = ("left out", "another function", "another axis", "another operation", "another value", "rounded")
CHECKED = 64  # maximum number of fitting edits for which the later stages are computed too
LATER = "in later rows"
BOTH = 20  # number of edits with the smallest errors, of which all pairs are tried
BASES = 16  # number of edits with the smallest errors, which are tried with every other edit
LARGEST = 1 << 14  # maximum size of a stage for which the effects of edits are added up


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
    seconds : float, the maximum processor time of the search
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
        page.record(run, frozenset(), "")
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
        case.page.module.__dict__.update(heads.FUNCTIONS | elsewhere.FUNCTIONS)
        self.case, self.page, self.name, self.all_of_them = case, case.page, name, all_of_them
        self.seconds, self.until = seconds, time.thread_time() + seconds
        self.seen = set[tuple[str, int]]()
        self.found: list[tuple[Cause, list[np.ndarray]]] = []
        self.restricted: list[Try] = []  # edits of a function that apply only in some of its calls
        self.several: list[tuple[list[Place], list[Frame]]] = []  # edits that are made together
        self.last: list[tuple[list[Place], list[Frame]]] = []  # edits that round some steps of a norm
        self.effects: list[Effect] = []  # effects of edits that do not fit alone

    @property
    def cut(self) -> bool:
        return time.thread_time() > self.until

    @property
    def is_late(self) -> bool:
        """Whether the remaining time is reserved for pairs."""
        return time.thread_time() > self.until - FOR_PAIRS * self.seconds

    def causes(self) -> Causes:
        """Finds the edits that fit: in the calls that compute the stage, and then in the calls above them."""
        tries = self._tries()
        self._try_several(LATER)
        for place, frames in tries:
            if place.edit.kind == "rounded" and not self.found_whole:
                self._try_several()
            found = self.found_whole if self.all_of_them else self.found_all
            if self.is_late or (found and (not self.all_of_them or place.edit.kind == "rounded")):
                break
            self._try([place], frames)
        if not self.found_whole:
            self._try_several()
            for places, frames in self.last:
                if self.is_late or self.found_whole:
                    break
                self._try(places, frames)
        if not self.found_whole:
            for place, frames in self.restricted:
                if self.is_late:
                    break
                self._try([place], frames)
            for place, frames in _expressions(tries):
                if self.is_late:
                    break
                if (factor := solved.factor(self.case, place, frames)) is not None:
                    self._try([factor], frames)
        if not self.found_whole and self.case.may_see_padding:
            self._paddings()
        if not self.found:
            self._pairs()
        return Causes(self.case.stage, self._apart(), self.case.tried, self.cut)

    @property
    def found_whole(self) -> bool:
        """Whether an edit was found that explains all rows."""
        return any(not cause.rows and not cause.nearly for cause, _ in self.found)

    @property
    def found_all(self) -> bool:
        """Whether an edit was found that explains all later stages, too."""
        return any(cause.explains_all for cause, _ in self.found)

    def _try_several(self, kind: str = "") -> None:
        """Tries the lists in `several`, whose edits are made together: those of one kind, or all."""
        waiting, self.several = self.several, []
        for places, frames in waiting:
            if kind not in ("", places[0].edit.kind):
                self.several.append((places, frames))
                continue
            if self.is_late or (self.found_all and not self.all_of_them):
                return
            self._try(places, frames)

    def _tries(self) -> list[Try]:
        """The edits, each with the calls to run again.

        Likely edits come first and roundings last. Among equally likely edits, those in the calls nearest to the stage
        come first, because these calls take the least time. A program whose first wrong row is the third or a later
        one often reads texts in chunks: then edits of later rows come before all others.
        """
        found, level = list[tuple[int, Place, list[Frame]]](), 0
        while (frames := self.case.frames(level)) is not None:
            for name, statements in self.case.functions(level):
                fresh = [each for each in statements if (name, each.lineno) not in self.seen]
                self.seen |= {(name, each.lineno) for each in fresh}
                own = [Place(name, edit) for edit in self._edits(name, fresh)]
                found += [(level, place, frames) for place in own]
                for each in blocks.edits(self.page.functions[name], fresh):
                    self.several.append(([Place(name, edit) for edit in each], frames))
                parts = self.case.parts(level, name)
                several = [*elsewhere.fused(self.case, name, fresh), *cached.edits(self.case, name, fresh)]
                for only in ("", *parts):
                    for each in several:
                        self.several.append(([Place(name, edit._replace(only=only)) for edit in each], frames))
                for each in roundings.of_all_values(fresh) if not self.case.is_far else ():
                    self.several.append(([Place(name, edit) for edit in each], frames))
                for each in roundings.of_norms(name, fresh) if self.case.relative_error < IN_16_BITS else ():
                    self.last.append(([Place(name, edit) for edit in each], frames))
                if self.case.start > 1:
                    later = filter(None, (chunks.of_later_rows(place.edit) for place in own))
                    self.restricted += [(Place(name, edit), frames) for edit in later]
                for part in parts:
                    some = [Place(name, place.edit._replace(only=part)) for place in own]
                    self.restricted += [(place, frames) for place in some if place.edit.kind in PARTLY]
            level += 1
        self.restricted.sort(key=lambda each: each[0].edit.rank)
        first = LATER if self.case.start > 1 else ""

        def order(one: tuple[int, Place, list[Frame]]) -> tuple[bool, bool, bool, int, int]:
            level, (_, edit), _ = one
            return edit.kind != first, edit.kind == "rounded", edit.kind not in operators.LIKELY, level, edit.rank

        return [(place, frames) for _, place, frames in sorted(found, key=order)]

    def _edits(self, name: str, statements: list[ast.stmt]) -> Iterator[Edit]:
        function = self.page.functions[name]
        kinds = self.page.kinds.get(name, {})
        yield from operators.edits(function, statements, self.page.functions, kinds)
        if not self.case.is_far:
            yield from roundings.edits(statements, kinds, self.case.relative_error > IN_16_BITS)
        yield from roundings.misreadings(statements)
        yield from elsewhere.edits(self.case, name, statements)
        yield from heads.edits(self.case, name, statements)
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

    def _paddings(self) -> None:
        """Tries padded texts, also with wrong uses of their mask."""
        frames = self.case.frames(0)
        uses = [
            Place(name, edit)
            for name, function in self.page.functions.items()
            for edit in operators.edits(function, function.body, self.page.functions, {})
            if isinstance(edit.node, ast.Call)
            and ast.unparse(edit.node.func) == "masked_softmax"
            and edit.kind == "another order"
        ]
        for padded in paddings(frames) if frames else ():
            masks = padded[0].masked and padded[0].before + padded[0].after
            for places in ([each] for each in uses) if masks else ([],):
                if self.is_late:
                    return
                outcome = self.case.outcome(places, padded)
                if outcome.values and not outcome.rows:
                    self._keep_padded(places, padded, outcome)

    def _keep_padded(self, places: Sequence[Place], frames: Sequence[Padded], outcome: Outcome) -> None:
        """Keeps a padding that fits, with the edit that uses its mask wrongly, if there is one."""
        frame, rank = frames[0], operators.KINDS.index(LATER)
        line, call = self.page.functions[frame.function].lineno, f"{frame.function}(ids, ...)"
        after = f"{call}, if the texts are padded to {frame.said}"
        cause = Cause(
            self.name, frame.function, line, call, after, "padded", rank, second=tuple(map(self._cause, places)),
            explains_all=self.case.explains_all(places, frames),
        )  # fmt: skip
        self.found.append((cause, outcome.values))

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
        best = np.argsort(alone)
        by_sum = [divmod(int(at), len(some)) for at in np.argsort(left, axis=None)[:PAIRED]]
        by_each = combinations(best[:BOTH], 2)  # edits whose effects do not add up, as before a softmax
        for i, k in (*by_sum[: PAIRED // 2], *by_each, *by_sum[PAIRED // 2 :]):
            self._try_two(some[i], some[k])
        for i in best[:BASES]:  # edits whose effects do not add up, such as factors
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
        whole = [each for each in whole if not each[0].nearly] or whole
        whole = [each for each in whole if each[0].explains_all] or whole
        for cause, made in sorted(whole or self.found, key=lambda each: each[0].rank):
            others = [values for other, values in kept if other.function == cause.function]
            if not any(all(is_near(a, b, least) for a, b in zip(made, each, strict=True)) for each in others):
                kept.append((cause, made))
        return [cause for cause, _ in kept]

    # --- the printed causes ---

    def _keep(self, places: Sequence[Place], outcome: Outcome) -> None:
        first, *others = map(self._cause, places)
        rows = FIRST_ROWS if outcome.rows == "start" else ""
        if outcome.rows == "wrong":
            rows = rows_said(self.case.wrong)
        rank = max(each.edit.rank for each in places)
        explains_all = not rows and len(self.found) < CHECKED and self.case.explains_all(places)
        cause = replace(
            first, rank=rank, rows=rows, second=tuple(others), nearly=outcome.nearly, explains_all=explains_all
        )
        self.found.append((cause, outcome.values))

    def _cause(self, place: Place) -> Cause:
        edit = place.edit
        return Cause(self.name, place.function, *self._lines(place), edit.kind, edit.rank, only=edit.only)

    def _lines(self, place: Place) -> tuple[int, str, str]:
        """The line number of the statement that an edit changes, and its text before and after the edit."""
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
