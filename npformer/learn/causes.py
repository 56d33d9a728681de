"""Names the cause of a wrong answer, by finding a program with known mistakes that returns the learner's numbers.

A known mistake is an edit of a page's function. A learner may also make a mistake in only one branch of a function,
make two mistakes at once, or copy the steps of another exercise, with a mistake, instead of calling its function.
Programs with the corresponding edits test each of these possibilities. `constants.py` finds a number that is wrong, and
`changed.py` changes the values of the right answer. A program must reproduce the learner's answers in every case, or
else in the cases that the message to the learner names.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from npformer.learn.answers import Case, Match, call, determined, fitting, gives, leaves, near
from npformer.learn.changed import changed
from npformer.learn.chapters import EXERCISES
from npformer.learn.constants import with_a_number
from npformer.learn.contents import Function
from npformer.learn.exercise import Candidate, Exercise
from npformer.learn.programs import edited, parts, program
from npformer.learn.shown import value_name

Condition = Callable[[tuple[Any, ...]], bool]
#: Name of an optional argument -> the words for cases with it and without it.
OPTIONAL = {"mask": ("is given", "is True"), "past": ("has tokens", "is empty")}


def cause(exercise: Exercise, cases: Sequence[Case], seconds: float = math.inf) -> tuple[str, str]:
    """Returns the name and sentence of the first program that returns the learner's answers, or two empty strings.

    seconds: processor time for programs beyond the single mistakes in the table.
    """
    cases = sorted(cases, key=lambda case: not case.wrong)  # wrong answers first: they rule out most programs
    ends = time.process_time() + seconds
    for candidates in CANDIDATES:
        for each in candidates(exercise, cases):
            if _fits(each.wrong, cases, by_message=candidates is _listed):
                return each.name, each.sentence
            if candidates is not _listed and time.process_time() > ends:
                return "", ""
    found = _in_some_cases(exercise, cases)
    return found if found[0] else _in_some_values(exercise, cases)


def _fits(wrong: Function, cases: Sequence[Case], by_message: bool = False) -> bool:
    """Returns whether a program returns the learner's answers in every case, and at least one answer is wrong.

    by_message: an exception with the same message counts as the same wrong answer. A message is weaker evidence than
    numbers, because many mistakes cause the same error about sizes.
    """
    shown = False
    for case in cases:
        match = gives(wrong, case.args, case.wide, case.outcome)
        if match is Match.NO:
            return False
        shown |= case.wrong and match is Match.YES and (by_message or not case.outcome.raised)
    return shown


# --- programs with mistakes -------------------------------------------------------------------------------------------


def _listed(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields the mistakes in the exercise's table."""
    for slip in exercise.slips:
        yield Candidate(slip.name, slip.sentence, slip.wrong())


def _conditions(exercise: Exercise, cases: Sequence[Case]) -> Iterator[tuple[str, Condition]]:
    """Yields conditions that hold in some cases, each with a description, such as "If x has 2 axes"."""
    names = list(inspect.signature(exercise.right).parameters)
    wrong = sorted({np.ndim(case.args[0]) for case in cases if case.wrong})
    for axes in [wrong, *([n] for n in wrong if len(wrong) > 1)]:
        counts = " or ".join(map(str, axes))
        yield f"If {names[0]} has {counts} {'axis' if counts == '1' else 'axes'}", partial(_has_axes, axes)
    if exercise.optional:
        index = names.index(exercise.optional)
        for words, given in zip(OPTIONAL[exercise.optional], (True, False), strict=True):
            yield f"If {exercise.optional} {words}", partial(_is_given, index, given)


def _has_axes(axes: Sequence[int], args: tuple[Any, ...]) -> bool:
    return np.ndim(args[0]) in axes


def _is_given(index: int, given: bool, args: tuple[Any, ...]) -> bool:
    """Returns whether an optional argument is given or, if `given` is False, whether it is omitted.

    The value True and empty arrays count as omitted.
    """
    value = args[index] if index < len(args) else True
    return given is (value is not True and all(np.size(each) for _, each in leaves(value)))


def _in_a_branch(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields programs that make a mistake only under a condition that holds in all cases that the learner got wrong."""
    for where, condition in _conditions(exercise, cases):
        inside = [condition(case.args) for case in cases]
        if all(inside) or not all(is_in for is_in, case in zip(inside, cases, strict=True) if case.wrong):
            continue
        for slip in exercise.slips:
            wrong = _branching(condition, slip.wrong(), exercise.right)
            yield Candidate(slip.name, f"{where}: {slip.sentence}", wrong)


def _branching(condition: Condition, inside: Function, outside: Function) -> Function:
    return lambda *args: (inside if condition(args) else outside)(*args)


def _in_a_part(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields the right solution with a mistake in a function that it calls.

    The learner may have copied that function's steps, wrongly, instead of calling it.
    """
    for part in _exercises_in(exercise):
        for slip in part.slips:
            yield Candidate(slip.name, f"In the step {part.name}: {slip.sentence}", slip.wrong(exercise.name))


def _exercises_in(exercise: Exercise) -> list[Exercise]:
    return [EXERCISES[name] for name in parts(exercise.name) if name in EXERCISES]


def _pairs(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields the right solution with two mistakes whose edits do not overlap."""
    yield from _two_of(exercise, exercise.name, "")


def _pairs_in_a_part(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields the right solution with two mistakes in a function that it calls.

    The learner may have copied that function's steps, wrongly, instead of calling it.
    """
    for part in _exercises_in(exercise):
        yield from _two_of(part, exercise.name, f"In the step {part.name}: ")


def _two_of(exercise: Exercise, name: str, where: str) -> Iterator[Candidate]:
    for a, b in combinations(exercise.slips, 2):
        if text := edited(exercise.name, [*a.edits, *b.edits]):
            sentence = f"{where}Two mistakes. First: {a.sentence} Second: {b.sentence}"
            yield Candidate(f"{a.name}; {b.name}", sentence, program(name, {exercise.name: text}))


CANDIDATES: tuple[Callable[[Exercise, Sequence[Case]], Iterator[Candidate]], ...] = (
    _listed,
    with_a_number,
    changed,
    _in_a_branch,
    _in_a_part,
    _pairs,
    _pairs_in_a_part,
)


# --- some cases -------------------------------------------------------------------------------------------------------


def _in_some_cases(exercise: Exercise, cases: Sequence[Case]) -> tuple[str, str]:
    """Returns the first listed mistake that explains the answers in some cases, even if other cases are wrong too."""
    for where, condition in _conditions(exercise, cases):
        inside = [case for case in cases if condition(case.args)]
        for slip in exercise.slips if len(inside) < len(cases) else ():
            wrong = slip.wrong()
            if _fits(wrong, inside) and all(determined(wrong, case.args) for case in inside):
                return slip.name, f"{where}: {slip.sentence}"
    return "", ""


# --- several values ---------------------------------------------------------------------------------------------------


def _in_some_values(exercise: Exercise, cases: Sequence[Case]) -> tuple[str, str]:
    """Returns the first listed mistake that explains some of the wrong values, and changes no value that is right."""
    if any(case.outcome.raised for case in cases):
        return "", ""
    wrong = [case.wrong_values() for case in cases]
    everywhere = [path for path in dict.fromkeys(path for each in wrong for path in each) if not _only_0(cases, path)]
    for slip in exercise.slips:
        mistaken = slip.wrong()
        fits = [fitting(mistaken, case.args, case.outcome) for case in cases]
        found = [path for path in everywhere if all(path in each for each in fits) and _changes(mistaken, cases, path)]
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

    If so, the learner's value consists only of rounding errors.
    """
    return all(
        near(np.zeros_like(value), value, case.true.budgets[path])
        for case in cases
        for each, value in leaves(case.true.outcome.answer)
        if each == path
    )


def _changes(program: Function, cases: Sequence[Case], path: str) -> bool:
    """Returns whether a mistake changes the value at a path in any case. Some gradients are 0 even with a mistake."""
    for case in cases:
        right, theirs = dict(leaves(case.true.outcome.answer)), dict(leaves(call(program, case.wide).answer))
        if path not in theirs or not near(theirs[path], right[path], case.true.budgets[path]):
            return True
    return False
