"""Compares an answer with the right answer, value by value, within an error budget.

A right solution may add terms in a different order or compute in float64, so its answer may differ in the last bits, by
an amount that depends on the function. The right answer is therefore computed in float64, then in float32, and DRAWS
times in float32 with the arguments' numbers changed at random by up to one unit in the last place. The
budget is FACTOR times the largest difference from float64, plus FACTOR times EPS times the answer's largest number.
tests/learn/test_exercises.py checks right solutions against this budget. Numbers drawn with a seed are not tested
beforehand and may be sensitive to rounding. The budget is wider for these numbers, whose only purpose is to detect
hard-coded answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from npformer.learn.contents import Function
from npformer.learn.exercise import seeded_by

FACTOR = 8
DRAWS = 4
NEARLY = 1e-3  # minimum error budget of numbers drawn with a seed, as a fraction of the answer's largest number
MESSAGE = 2000  # maximum characters to keep of an exception's message
EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).tiny)  # smallest normal float32; smaller numbers are less precise


@dataclass(frozen=True)
class Outcome:
    """The result of a call: an answer, or the type and message of the exception that it raised."""

    answer: Any = None
    raised: str = ""
    message: str = ""


def raised(error: BaseException) -> Outcome:
    """Returns the result to report for a call that raised an exception."""
    try:
        message = str(error)[:MESSAGE]
    except Exception:  # str() of a learner's exception may fail
        message = ""
    return Outcome(raised=type(error).__name__, message=message)


class Match(Enum):
    """How closely the answer of a program matches the learner's answer."""

    NO, TYPE, YES = range(3)  # TYPE: the same type of exception with a different message


@dataclass(frozen=True)
class Truth:
    """An answer in float64, and the error budget of each of its arrays by path."""

    outcome: Outcome
    budgets: Mapping[str, float]


class Case(NamedTuple):
    """A case: its arguments as given and in float64 (`wide`), the learner's answer and the right answer."""

    args: tuple[Any, ...]
    wide: tuple[Any, ...]
    outcome: Outcome
    true: Truth
    wrong: bool

    @classmethod
    def of(cls, args: tuple[Any, ...], outcome: Outcome, true: Truth) -> Case:
        wrong = bool(outcome.raised) or not same(outcome.answer, true)
        return cls(args, in_float64(args), outcome, true, wrong)

    def wrong_values(self) -> list[str]:
        """Returns the paths of the learner's wrong values."""
        answer, budgets = dict(leaves(self.outcome.answer)), self.true.budgets
        exact = leaves(self.true.outcome.answer)
        return [path for path, value in exact if path not in answer or not near(answer[path], value, budgets[path])]


def call(function: Function, args: tuple[Any, ...]) -> Outcome:
    """Calls a function of npformer, without a time limit."""
    try:
        with np.errstate(all="ignore"):
            return Outcome(function(*args))
    except Exception as error:
        return raised(error)


def truth(function: Function, args: tuple[Any, ...]) -> Truth:
    """Returns a function's answer in float64, and its error budget."""
    exact = call(function, in_float64(args))
    if exact.raised:
        return Truth(exact, {})
    values = dict(leaves(exact.answer))
    runs = [args, *(moved(args, seed) for seed in range(DRAWS))]
    draws = [dict(leaves(call(function, each).answer)) for each in runs]
    budgets = {path: _budget(value, [draw.get(path) for draw in draws]) for path, value in values.items()}
    if seeded_by():
        least = NEARLY * max((_largest(value) for value in values.values() if is_numeric(value)), default=0.0)
        budgets = {path: max(budget, least * (budget > 0)) for path, budget in budgets.items()}
    return Truth(exact, budgets)


def _budget(value: Any, draws: list[Any]) -> float:
    exact = np.asarray(value)
    if exact.dtype.kind != "f":
        return 0.0
    largest = 0.0
    with np.errstate(all="ignore"):
        for each in draws:
            if np.shape(each) == exact.shape:
                largest = max(largest, _largest(np.asarray(each, np.float64) - exact))
    return FACTOR * (largest + EPS * _largest(exact) + TINY)


def same(answer: Any, true: Truth) -> bool:
    """Returns whether two answers have the same structure and shapes, and the same numbers within the budget."""
    theirs, exact = dict(leaves(answer)), dict(leaves(true.outcome.answer))
    return theirs.keys() == exact.keys() and all(near(theirs[path], exact[path], true.budgets[path]) for path in exact)


def near(value: Any, exact: Any, budget: float) -> bool:
    """Returns whether two arrays have the same shape, and the same numbers within the budget."""
    if not is_numeric(value):
        return value is None and exact is None
    if np.shape(value) != np.shape(exact):
        return False
    value, exact = np.asarray(value), np.asarray(exact)
    if "f" not in (value.dtype.kind, exact.dtype.kind):
        return bool(np.array_equal(value, exact))
    value, exact = value.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(exact)
    if not np.array_equal(value[~finite], exact[~finite], equal_nan=True):
        return False
    return bool(np.all(np.abs(value[finite] - exact[finite]) <= budget))


def gives(function: Function, args: tuple[Any, ...], wide: tuple[Any, ...], outcome: Outcome) -> Match:
    """Compares the answer of a program with known mistakes to a learner's answer or exception.

    wide: the arguments in float64.
    """
    exact = call(function, wide)
    if outcome.raised or exact.raised:
        if outcome.raised != exact.raised:
            return Match.NO
        return Match.YES if outcome.message == exact.message else Match.TYPE
    fits = _roughly(outcome.answer, exact.answer) and same(outcome.answer, truth(function, args))
    return Match.YES if fits else Match.NO


def determined(function: Function, args: tuple[Any, ...]) -> bool:
    """Returns whether the answer is stable under rounding. If so, a close match counts as evidence."""
    true = truth(function, args)
    values = dict(leaves(true.outcome.answer))
    return all(budget <= NEARLY * _largest(values[path]) + 2 * FACTOR * TINY for path, budget in true.budgets.items())


def fitting(function: Function, args: tuple[Any, ...], outcome: Outcome) -> set[str]:
    """Returns the paths at which a program with a known mistake returns the same values as the learner."""
    true, answer = truth(function, args), dict(leaves(outcome.answer))
    if true.outcome.raised:
        return set()
    return {
        path
        for path, exact in leaves(true.outcome.answer)
        if path in answer and _roughly(answer[path], exact) and near(answer[path], exact, true.budgets[path])
    }


def _roughly(answer: Any, exact: Any) -> bool:
    """Returns whether two answers have the same structure and agree to about 1%, a quicker test than `truth`."""
    first, second = dict(leaves(answer)), dict(leaves(exact))
    if first.keys() != second.keys() or any(np.shape(first[path]) != np.shape(second[path]) for path in second):
        return False
    numeric = [path for path in second if is_numeric(first[path]) and is_numeric(second[path])]
    with np.errstate(all="ignore"):
        apart = [np.abs(np.asarray(first[path], np.float64) - np.asarray(second[path], np.float64)) for path in numeric]
    size = max([1e-3, *(_largest(second[path]) for path in numeric)])
    return max(map(_largest, apart), default=0.0) <= 0.01 * size


def _largest(array: Any) -> float:
    """Returns the largest finite absolute value."""
    values = np.abs(np.asarray(array, np.float64))
    return float(values[np.isfinite(values)].max(initial=0))


# --- structures -------------------------------------------------------------------------------------------------------


def leaves(answer: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the arrays and numbers of an answer with their paths, such as `1.query.weight`."""
    if isinstance(answer, Mapping):
        for name, each in answer.items():
            yield from leaves(each, f"{path}.{name}" if path else str(name))
    elif isinstance(answer, list | tuple):
        for i, each in enumerate(answer):
            yield from leaves(each, f"{path}.{i}" if path else str(i))
    else:
        yield path, answer


def in_form_of(answer: Any, right: Any) -> Any:
    """Splits an array into a list of arrays where the right answer has a list or tuple, such as a cache."""
    if isinstance(right, list | tuple):
        if isinstance(answer, np.ndarray) and answer.shape[:1] == (len(right),):
            answer = list(answer)
        if isinstance(answer, list | tuple) and len(answer) == len(right):
            return [in_form_of(*each) for each in zip(answer, right, strict=True)]
    return answer


def is_numeric(value: Any) -> bool:
    """Returns whether a value is an array or a number."""
    return isinstance(value, np.ndarray | np.generic | int | float) and np.asarray(value).dtype.kind in "bfiu"


def mapped(change: Any, value: Any) -> Any:
    """Returns a nested structure with each of its arrays changed."""
    if isinstance(value, Mapping):
        return {name: mapped(change, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(change, each) for each in value)
    return change(value) if isinstance(value, np.ndarray) else value


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments with copies of their arrays."""
    return mapped(np.copy, args)


def in_float64(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments with their floating-point arrays in float64."""
    return mapped(lambda array: array.astype(np.float64) if array.dtype.kind == "f" else array, args)


def moved(args: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Returns the arguments with each nonzero float changed at random by -1, 0 or 1 unit in the last place."""
    random = np.random.default_rng(seed)

    def change(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        movable = np.isfinite(array) & (array != 0)
        step = np.spacing(np.where(movable, array, 1)) * random.integers(-1, 2, array.shape)
        return np.where(movable, array + step.astype(array.dtype), array)

    return mapped(change, args)
