"""Runs the calls of a page that compute another program's first wrong stage, with and without edits of the page."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from npformer.golden.budget import FACTOR
from npformer.golden.page_edits.instrumented import Frame, Page
from npformer.golden.page_edits.operators import Edit
from npformer.golden.page_edits.padded import Padded

Arrays = Sequence[np.ndarray]  # a stage, one array for each text
MOSTLY = 0.99  # an edit must explain this fraction of the error before its rounding error is measured
AFTER_ATTENTION = ("attention.weights", "context", "attention_residual", "ffn_residual", "ffn_norm", "ffn.output")
IN_16_BITS = 0.1  # relative error that sums in 16 bits do not exceed
FAR = 0.5  # rounding explains no larger relative error of a stage; 4 bits for a whole array cause about 0.15
ROUNDED = 0.9  # replaces MOSTLY for edits that round, because a number between two steps may be rounded to either


class Place(NamedTuple):
    """An edit of a function of the page."""

    function: str
    edit: Edit


class Outcome(NamedTuple):
    """The stage of each text with an edit, and the rows in which it has the other program's values."""

    values: list[np.ndarray]  # empty if the edit does not fit
    rows: str  # "" if all fit, "wrong" if only the rows fit that were wrong, "start" if only the first of these fits
    first: np.ndarray | None  # the stage of the shortest wrong text, whether the edit fits or not
    nearly: bool = False  # an edit that rounds explains most of the error, but a few numbers are off by one step


FAILED = Outcome([], "", None)


class Case:
    """A page, its calls that compute the first wrong stage (one per text), and the other program's values."""

    def __init__(
        self, page: Page, runs: Sequence[Callable[[ModuleType], Any]], theirs: Mapping[str, Arrays],
        budgets: Mapping[str, float], stage: str, right: Sequence[Mapping[str, np.ndarray]],
    ) -> None:  # fmt: skip
        self.runs, order = runs, list(right[0])
        earlier = order[: order.index(stage)]
        before = [each for each in earlier if each in theirs and each in budgets]
        self.page, self.theirs, self.budgets, self.stage = page, theirs, budgets, stage
        self.right, self.exported = [each[stage] for each in right], frozenset(before)
        self.all_right = right
        self.stages = [{name: each[name] for name in earlier if name in each} for each in right]
        #: Keys and values of all layers, the other program's if it exported them.
        self.cached = [
            {name: theirs[name][i] if name in theirs else array for name, array in each.items() if _is_cached(name)}
            for i, each in enumerate(right)
        ]
        self.calls: list[list[Frame]] = []
        self.makers: list[Frame | None] = []
        for run in runs:
            self.calls.append(page.record(run, self.exported, stage))
            self.makers.append(page.found)
        self.tried = 0
        self.budget = budgets[stage]
        self.wrong = [self._wrong_rows(i) for i in range(len(runs))]
        wrong = [i for i, each in enumerate(self.wrong) if each.any()]
        self.starts = self._starts()
        self.names = [self._names_of(i) for i in range(len(runs))]  # names that edits may use -> values, for each text
        self._know_rows(0)
        #: Texts, the shortest wrong one first, because most edits already fail on one text.
        self.texts = sorted(range(len(runs)), key=lambda i: (i not in wrong, self.right[i].size))

    def _wrong_rows(self, i: int) -> np.ndarray:
        """Returns which rows of a text's stage differ or, for a stage without rows, whether it differs."""
        if self.right[i].shape != self.theirs[self.stage][i].shape:
            return np.ones(len(self.right[i]), bool)
        error = np.abs(self.right[i] - self.theirs[self.stage][i])
        rows = np.moveaxis(error, -2, 0) if error.ndim > 1 else error[None]
        found: np.ndarray = ~(rows.reshape(len(rows), -1).max(-1, initial=0) <= self.budget)
        return found

    @property
    def some_rows(self) -> bool:
        """Whether only some rows differ, in a stage with rows of at least eight numbers."""
        some = np.concatenate(self.wrong)
        return bool(some.any() and not some.all()) and self.right[0].ndim > 1 and self.right[0].shape[-1] >= 8

    def _starts(self) -> list[int]:
        """The first wrong row of each text, or its length if no row is wrong; [] if any text's first row is wrong."""
        if not self.some_rows:
            return []
        starts = [int(each.argmax()) if each.any() else len(each) for each in self.wrong]
        return starts if min(starts) > 0 else []

    @property
    def start(self) -> int:
        """The first wrong row of any text; 0 if it is the first row, or all rows of a text are wrong."""
        return min((at for at, wrong in zip(self.starts, self.wrong, strict=False) if wrong.any()), default=0)

    @property
    def spares_first_text(self) -> bool:
        """Whether the first text is right, and another text is wrong in its first row."""
        return len(self.wrong) > 1 and not self.wrong[0].any() and any(each[0] for each in self.wrong[1:])

    @property
    def may_see_padding(self) -> bool:
        """Whether padding may explain the error: it would change every output of attention, and none is known right."""
        return not any(name.endswith(AFTER_ATTENTION) for name in self.exported)

    @property
    def is_causal(self) -> bool:
        """Whether the page has a causal mask, so that a program may read a text in chunks."""
        return any("causal_" in name for name in self.page.functions)

    def error(self) -> np.ndarray | None:
        """The error of the shortest wrong text, flattened; None if the other program's array has another shape."""
        right, theirs = self.right[self.texts[0]], self.theirs[self.stage][self.texts[0]]
        return (theirs - right).ravel() if theirs.shape == right.shape else None

    @property
    def is_far(self) -> bool:
        """Whether the stage is too far from the correct one to be explained by rounding."""
        return self.relative_error > FAR

    @functools.cached_property
    def relative_error(self) -> float:
        """The norm of the error, divided by the norm of the correct stage; infinite if the shapes differ."""
        pairs = [
            pair for pair in zip(self.theirs[self.stage], self.right, strict=True) if pair[0].shape == pair[1].shape
        ]
        error = sum(float(((theirs - right) ** 2).sum()) for theirs, right in pairs)
        size = sum(float((right**2).sum()) for _, right in pairs)
        return (error / size) ** 0.5 if size else np.inf

    def frames(self, level: int) -> list[Frame] | None:
        """The calls that compute the stage, one per text, or callers `level` levels up; None if one is missing."""
        found = list(self.makers)
        for _ in range(level):
            found = [None if each is None else each.caller for each in found]
        frames = [each for each in found if each is not None]
        return frames if len(frames) == len(found) else None

    # --- running an edit ---

    def outcome(self, places: Sequence[Place], frames: Sequence[Frame]) -> Outcome:
        """Runs the texts with edits, up to the first text that they do not fit."""
        self.tried += 1
        rounds = any(each.edit.kind == "rounded" for each in places)
        later = bool(self.starts) and any(each.edit.kind == "in later rows" for each in places)
        made: dict[int, np.ndarray] = {}
        nearly = False
        fitting = ["", "wrong", *(["start"] if later else [])] if self.some_rows else [""]
        try:
            with self._edited(places):
                for i in self.texts:
                    stages = self._again(frames[i], i)
                    if self.stage not in stages or stages[self.stage].shape != self.theirs[self.stage][i].shape:
                        return FAILED
                    made[i] = value = stages[self.stage]
                    share = self._explained(value, i)
                    near = is_near(value, self.theirs[self.stage][i], self.budget)
                    if not near and share > (ROUNDED if rounds else MOSTLY):
                        near = self._error(value, i) <= FACTOR * self._noise(frames[i], value)
                        nearly |= rounds and not near
                        near |= rounds
                    first = self.wrong[i] & (np.arange(len(self.wrong[i])) == self.starts[i]) if later else None
                    errors = {"wrong": self.wrong[i], "start": first}
                    if not near:
                        fitting = [
                            each for each in fitting if each and self._error(value, i, errors[each]) <= self.budget
                        ]
                    if not fitting or not self._keeps(stages, i):
                        return Outcome([], "", made[self.texts[0]])
        except Exception:  # an edit may raise anything
            return FAILED
        return Outcome([made[i] for i in range(len(made))], fitting[0], made[self.texts[0]], nearly)

    def explains_all(self, places: Sequence[Place], frames: Sequence[Padded] = ()) -> bool:
        """Whether whole runs of the edited page have the other program's values in all later stages too.

        frames: padded calls to run instead of whole runs
        """
        later = [name for name in self.theirs if name in self.budgets and name not in self.exported]
        with self._edited(places):
            for i, run in enumerate(self.runs):
                self._know_rows(i)
                try:
                    made = self._padded(frames[i], i) if frames else self.page.whole(run)
                except Exception:  # an edit may raise anything
                    return False
                if not all(self._is_alike(made, name, i) for name in later):
                    return False
        return True

    def _padded(self, frame: Padded, i: int) -> dict[str, np.ndarray]:
        """All stages of a padded text, without the padding."""
        made, right = self.page.again(frame, frozenset(), ""), self.all_right[i]
        return {name: frame.cut(each, right[name]) for name, each in made.items() if name in right}

    def _is_alike(self, made: Mapping[str, np.ndarray], name: str, i: int) -> bool:
        """Whether a later stage has the other program's values, up to errors that grew on the way to it."""
        value, theirs, right = made.get(name), self.theirs[name][i], self.all_right[i].get(name)
        if value is None or right is None:
            return True  # the page has no such stage, or the call does not reach it
        if value.shape != theirs.shape:
            return False
        error, left = (np.abs(each - theirs).max(initial=0) for each in (right, value))
        return bool(left <= max(FACTOR * self.budgets[name], (1 - MOSTLY) * error))

    def values(self, places: Sequence[Place], frames: Sequence[Frame]) -> np.ndarray | None:
        """The stage of the shortest wrong text with edits; None if the edited page fails."""
        self.tried += 1
        i = self.texts[0]
        try:
            with self._edited(places):
                found = self._again(frames[i], i).get(self.stage)
        except Exception:
            return None
        return found if found is not None and found.shape == self.right[i].shape and np.isfinite(found).all() else None

    @contextmanager
    def _edited(self, places: Sequence[Place]) -> Iterator[None]:
        with ExitStack() as stack:
            for each in places:
                stack.enter_context(self.page.replaced(each.function, *each.edit))
            yield

    def _again(self, frame: Frame, i: int) -> dict[str, np.ndarray]:
        self._know_rows(i)
        stages = self.page.again(frame, self.exported, self.stage)
        if isinstance(frame, Padded):
            stages = {
                name: frame.cut(each, self.theirs[name][i]) for name, each in stages.items() if name in self.theirs
            }
        return stages

    def _know_rows(self, i: int) -> None:
        """Defines the names that edits may use for a text."""
        self.page.module.__dict__.update(self.names[i])

    def _names_of(self, i: int) -> dict[str, Any]:
        """A text's first wrong row, right stages, cached arrays and rotations, by the names that edits use."""
        start, angles = self.starts[i] if self.starts else 0, self._angles(i)
        of_rows = {name: partial(function, start) for name, function in OF_ROWS.items()}
        caches = {"caches": self.cached[i], "earlier": self.cached[max(i - 1, 0)], "first_text": self.cached[0]}
        return {"start": start, "stages": self.stages[i], **of_rows, **caches, **({"angles": angles} if angles else {})}

    def _angles(self, i: int) -> tuple[np.ndarray, ...]:
        """The cos and sin of a text's rotations in the call that makes the stage; () without rotations."""
        call = next((each for each in reversed(self.calls[i]) if each.function == "rotate"), None)
        return tuple(call.arguments[name] for name in ("cos", "sin")) if call else ()

    def _keeps(self, stages: Mapping[str, np.ndarray], i: int) -> bool:
        """Whether the earlier stages still have the other program's values."""
        return all(
            is_near(stages[name], self.theirs[name][i], self.budgets[name]) for name in self.exported & stages.keys()
        )

    def _error(self, value: np.ndarray, i: int, rows: np.ndarray | None = None) -> float:
        error = np.abs(value - self.theirs[self.stage][i])
        if rows is not None:
            error = error[..., rows, :]
        largest = float(error.max(initial=0))
        return largest if np.isfinite(largest) else np.inf

    def _explained(self, value: np.ndarray, i: int) -> float:
        """The share of a text's error that these values explain; 1 for a text without an error."""
        theirs = self.theirs[self.stage][i]
        alike = self.right[i].shape == theirs.shape
        error = np.linalg.norm(self.right[i] - theirs if alike else theirs)
        left = np.linalg.norm(value - theirs)
        return 1.0 if error == 0 else float(1 - left / error) if np.isfinite(left) else 0.0

    def _noise(self, frame: Frame, value: np.ndarray) -> float:
        """The largest rounding error of the edited call in float32."""
        narrow = replace(frame, arguments=narrowed(frame.arguments))
        found = self.page.again(narrow, self.exported, self.stage)[self.stage]
        found = narrow.cut(found, value) if isinstance(narrow, Padded) else found
        noise = float(np.abs(found - value).max(initial=0))
        return noise if np.isfinite(noise) else 0.0

    # --- where to edit ---

    def call_of(self, function: str) -> Frame | None:
        """The last call of a function for the first text; None if it was not called."""
        return next((each for each in reversed(self.calls[0]) if each.function == function), None)

    def parts(self, level: int, function: str) -> list[str]:
        """Parts of stage names, such as "ffn", that occur in only some of a function's calls inside the top call."""
        frames = self.frames(level)
        if frames is None:
            return []
        calls = [each for each in self.calls[0] if each.function == function and _is_within(each, frames[0])]
        scopes = [each.scope[len(frames[0].scope) :] for each in calls]
        found = dict.fromkeys(part for scope in scopes for part in (scope[:1] + scope[-1:]))
        ends = Counter(scope[-1] for scope in {*scopes} if scope)
        found |= dict.fromkeys(".".join(each) for each in scopes if len(each) == 2 and ends[each[1]] > 1)
        return [part for part in found if not all({*part.split(".")} <= {*scope} for scope in scopes)]

    def functions(self, level: int) -> Iterator[tuple[str, list[ast.stmt]]]:
        """The functions whose calls may make the stage wrong, the top call's first, with the relevant statements."""
        frames = self.frames(level)
        top = frames[0] if frames else None
        if top is None:
            return
        below = (self.frames(level - 1) or [top])[0] if level else None  # the call edited at the level below
        own = self._statements(top, below.line if below else self.page.line)
        yield top.function, own
        within = [each for each in self.calls[0] if each is not top and _is_within(each, top)]
        within = [each for each in within if below is None or not _is_within(each, below)]
        for name in dict.fromkeys(each.function for each in reversed(within) if self._matters(each, top, own)):
            if name != top.function:
                first = next(each for each in within if each.function == name)
                yield name, self._statements(first, 0)

    def _matters(self, frame: Frame, top: Frame, own: list[ast.stmt]) -> bool:
        """Whether a call inside the top call is made, directly or not, by statements that may make the stage wrong."""
        while frame is not top and frame.caller is not None:
            caller = frame.caller
            statements = own if caller is top else self._statements(caller, 0)
            if not any(each.lineno <= frame.line <= (each.end_lineno or 0) for each in statements):
                return False
            frame = caller
        return True

    def _statements(self, frame: Frame, last: int) -> list[ast.stmt]:
        """The statements on which line `last` of a call depends, or all if `last` is 0, without those known correct."""
        function = self.page.functions[frame.function]
        inside = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and each is not function]
        settled = [
            each
            for each in inside
            if isinstance(each, ast.Assign)
            and any(each.lineno <= at <= (each.end_lineno or 0) for at, _ in frame.settled)
        ]
        open_ones = [each for each in inside if each not in settled and not isinstance(each, ast.Expr)]
        return _needed(open_ones, last) if last else open_ones


def _needed(statements: list[ast.stmt], last: int) -> list[ast.stmt]:
    """The statement at line `last`, and the statements on which it depends."""
    simple = [each for each in statements if not isinstance(each, ast.For | ast.If | ast.With)]
    kept = [each for each in simple if each.lineno <= last <= (each.end_lineno or 0)]
    if not kept:
        return statements
    while True:
        read = {each.id for some in kept for each in ast.walk(some) if isinstance(each, ast.Name)}
        more = [each for each in statements if each not in kept and _stored(each) & read]
        more = [each for each in more if isinstance(each, ast.For) or each in simple]
        if not more:
            return sorted(kept, key=lambda each: each.lineno)
        kept += more


def _stored(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns; for a loop, only its loop variables."""
    within: list[ast.AST] = [statement.target] if isinstance(statement, ast.For) else [statement]
    return {
        each.id
        for one in within
        for each in ast.walk(one)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    } | {
        each.value.id
        for one in within
        for each in ast.walk(one)
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name)
    }


def _is_cached(name: str) -> bool:
    return name.endswith((".key", ".key_normed", ".key_rotated", ".value"))


def is_near(array: np.ndarray, other: np.ndarray, budget: float) -> bool:
    return array.shape == other.shape and bool(np.abs(array - other).max(initial=0) <= budget)


def _before(start: int, early: Any, own: Any) -> Any:
    """Joins the rows of `early` before `start` and the rows of `own` from `start` on; also for tuples of arrays."""
    if isinstance(own, tuple):
        return tuple(_before(start, one, other) for one, other in zip(early, own, strict=True))
    return np.concatenate([early[..., :start, :], own[..., start:, :]], axis=-2)


def _one_row_early(start: int, own: np.ndarray) -> np.ndarray:
    """Writes row `start` over the row before it; the rows from `start` on are 0, as in a cache written a row early."""
    made = _unwritten(start, own)
    if start < own.shape[-2]:
        made[..., start - 1, :] = own[..., start, :]
    return made


def _unwritten(start: int, own: np.ndarray) -> np.ndarray:
    """The rows before `start`; all later rows are 0, as in a cache that is not written."""
    made = own.copy()
    made[..., start:, :] = 0
    return made


#: The functions that edits call, by name, before their first argument is set to `start`.
OF_ROWS: dict[str, Callable[..., Any]] = {
    "before_start": _before,
    "one_row_early": _one_row_early,
    "unwritten": _unwritten,
}


def _is_within(frame: Frame, top: Frame) -> bool:
    """Whether a call is `top`, or is made inside it."""
    return any(each is top for each in frame.outward())


def narrowed(value: Any) -> Any:
    """Returns the arguments of a call with float64 arrays converted to float32."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype == np.float64 else value
    if isinstance(value, dict):
        return {name: narrowed(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(narrowed(each) for each in value)
    return value
