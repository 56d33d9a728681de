"""Names the cause of a wrong answer: finds a program with known mistakes that returns the learner's numbers.

The program must reproduce the learner's answers in every case. The table of each exercise lists single mistakes.
Learners also make a mistake in only one branch of a function, make two mistakes at once, or copy the steps of another
exercise instead of calling its function, with a mistake in these steps. The functions in `CANDIDATES` generate programs
for all of these. `constants.py` generates programs with a wrong number, and `changed.py` changes the right answer.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from npformer.learn import right
from npformer.learn.answers import Case, Match, call, fitting, gives, leaves, near
from npformer.learn.changed import changed
from npformer.learn.chapters import EXERCISES
from npformer.learn.constants import with_a_number
from npformer.learn.exercise import Exercise, Function, Slip
from npformer.learn.shown import value_name


def cause(exercise: Exercise, cases: Sequence[Case], seconds: float = math.inf) -> tuple[str, str]:
    """Returns the name and sentence of the first program that returns the learner's answers, or two empty strings.

    seconds: processor time for programs other than the table's single mistakes.
    """
    cases = sorted(cases, key=lambda case: not case.wrong)  # tested first: a wrong answer rules out most programs
    ends = time.process_time() + seconds
    for candidates in CANDIDATES:
        for slip in candidates(exercise, cases):
            if _fits(slip.wrong, cases, by_message=candidates is _listed):
                return slip.name, slip.sentence
            if candidates is not _listed and time.process_time() > ends:
                return "", ""
    return _in_some_values(exercise, cases)


def _fits(program: Function, cases: Sequence[Case], by_message: bool) -> bool:
    """Returns whether a program returns the learner's answers in every case, and at least one answer is wrong.

    Cases in which the program's answer is undetermined do not count. by_message: an exception with the same message
    counts as the same wrong answer. A message is weaker evidence than numbers, because many
    mistakes cause the same error about sizes.
    """
    shown = False
    for case in cases:
        match = gives(program, case.args, case.wide, case.outcome)
        if match is Match.NO:
            return False
        shown |= case.wrong and match is Match.YES and (by_message or not case.outcome.raised)
    return shown


# --- programs with mistakes -------------------------------------------------------------------------------------------


def _listed(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """Yields the mistakes in the exercise's table."""
    yield from exercise.slips


def _in_a_branch(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """Yields programs that make a mistake only if an optional argument is given, or only if it is None."""
    name = exercise.optional
    if not name:
        return
    index = list(inspect.signature(exercise.right).parameters).index(name)

    def branching(given: Function, absent: Function) -> Function:
        return lambda *args: (given if len(args) > index and args[index] is not None else absent)(*args)

    for slip in exercise.slips:
        yield Slip(slip.name, f"If {name} is given: {slip.sentence}", branching(slip.wrong, exercise.right))
        yield Slip(slip.name, f"If {name} is None: {slip.sentence}", branching(exercise.right, slip.wrong))


def _in_a_part(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """Yields right solutions that call a function with a mistake, because the learner may have copied its steps."""
    for part in _parts(exercise.name):
        for slip in EXERCISES[part].slips:
            yield Slip(slip.name, f"In the step {part}: {slip.sentence}", _with(part, slip.wrong)[exercise.name])


def _parts(name: str) -> tuple[str, ...]:
    """Returns the exercises that an exercise calls, directly or through another exercise."""
    function = vars(right)[name]
    if function.__module__ != right.__name__:
        return ()
    called = [each for each in _names(function.__code__) if each in EXERCISES and each != name]
    return tuple(dict.fromkeys([*called, *(part for each in called for part in _parts(each))]))


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names that a function and its nested functions read."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _with(part: str, wrong: Function) -> dict[str, Any]:
    """Returns copies of the functions of `right.py`, with one of them replaced."""
    names = dict(vars(right))
    for name, each in vars(right).items():
        if isinstance(each, FunctionType) and each.__module__ == right.__name__:
            names[name] = FunctionType(each.__code__, names, name, each.__defaults__)
    names[part] = _by_position(part, wrong)
    return names


def _by_position(name: str, wrong: Function) -> Function:
    """Returns a function that takes the arguments of an exercise by name too, and passes them on by position."""
    signature = inspect.signature(vars(right)[name])
    return lambda *args, **kwargs: wrong(*signature.bind(*args, **kwargs).args)


def _for_some_axes(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """Yields programs that make a mistake only if the first array has certain numbers of axes."""
    axes = [np.ndim(case.args[0]) for case in cases]
    wrong = {n for n, case in zip(axes, cases, strict=True) if case.wrong}
    if not wrong or wrong == set(axes):
        return
    first = next(iter(inspect.signature(exercise.right).parameters))
    counts = " or ".join(map(str, sorted(wrong)))
    where = f"If {first} has {counts} {'axis' if counts == '1' else 'axes'}"

    def branching(slip: Function) -> Function:
        return lambda *args: (slip if np.ndim(args[0]) in wrong else exercise.right)(*args)

    for slip in exercise.slips:
        yield Slip(slip.name, f"{where}: {slip.sentence}", branching(slip.wrong))


def _pairs(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """Yields programs with two mistakes at once."""
    for a, b in combinations(exercise.slips, 2):
        for both in (_joined(exercise.name, a.wrong, b.wrong), _joined(exercise.name, b.wrong, a.wrong)):
            if both is not None:
                yield Slip(f"{a.name}; {b.name}", f"Two mistakes. First: {a.sentence} Second: {b.sentence}", both)
                break


def _joined(name: str, a: Function, b: Function) -> Function | None:
    """Returns a program with two mistakes, or None if they exclude each other.

    Two mistakes can be options of one function. Or the first calls the right function, which the second replaces.
    """
    if isinstance(a, partial):
        if isinstance(b, partial) and a.func is b.func and not a.keywords.keys() & b.keywords.keys():
            return partial(a.func, **a.keywords, **b.keywords)
        return None
    if not isinstance(a, FunctionType) or name not in _names(a.__code__):
        return None
    replaced = _by_position(name, b)
    names = {**a.__globals__, name: replaced, "right": SimpleNamespace(**{**vars(right), name: replaced})}
    return FunctionType(a.__code__, names, a.__name__, a.__defaults__, a.__closure__)


def _pairs_in_a_part(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """Yields right solutions that call a function with two mistakes."""
    for part in _parts(exercise.name):
        for pair in _pairs(EXERCISES[part], cases):
            yield Slip(pair.name, f"In the step {part}: {pair.sentence}", _with(part, pair.wrong)[exercise.name])


CANDIDATES: tuple[Callable[[Exercise, Sequence[Case]], Iterator[Slip]], ...] = (
    _listed,
    with_a_number,
    changed,
    _in_a_branch,
    _for_some_axes,
    _in_a_part,
    _pairs,
    _pairs_in_a_part,
)


# --- several values ---------------------------------------------------------------------------------------------------


def _in_some_values(exercise: Exercise, cases: Sequence[Case]) -> tuple[str, str]:
    """Returns the first listed mistake that explains some of the wrong values and changes no right value."""
    if not exercise.values or any(case.outcome.raised for case in cases):
        return "", ""
    wrong = [case.wrong_values() for case in cases]
    everywhere = [path for path in dict.fromkeys(path for each in wrong for path in each) if not _only_0(cases, path)]
    for slip in exercise.slips:
        fits = [fitting(slip.wrong, case.args, case.outcome) for case in cases]
        found = [
            path for path in everywhere if all(path in each for each in fits) and _changes(slip.wrong, cases, path)
        ]
        harmless = all(
            path in fit or path in bad
            for case, fit, bad in zip(cases, fits, wrong, strict=True)
            for path, _ in leaves(case.true.outcome.answer)
        )
        if found and harmless:
            given = ", ".join(value_name(exercise.values, path) for path in found)
            others = ", ".join(value_name(exercise.values, path) for path in everywhere if path not in found)
            return slip.name, f"{slip.sentence} This explains your {given}, but not your {others}."
    return "", ""


def _only_0(cases: Sequence[Case], path: str) -> bool:
    """Returns whether the right value is 0 up to rounding in every case.

    The learner's value is then only rounding error.
    """
    return all(
        near(np.zeros_like(value), value, case.true.budgets[path])
        for case in cases
        for each, value in leaves(case.true.outcome.answer)
        if each == path
    )


def _changes(program: Function, cases: Sequence[Case], path: str) -> bool:
    """Returns whether a mistake changes the value at a path in any case. A gradient that is always 0 cannot show it."""
    for case in cases:
        right, theirs = dict(leaves(case.true.outcome.answer)), dict(leaves(call(program, case.wide).answer))
        if path not in theirs or not near(theirs[path], right[path], case.true.budgets[path]):
            return True
    return False
