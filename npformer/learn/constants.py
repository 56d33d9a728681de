"""Mistakes with a number that nobody can list, such as another constant in a formula.

The number is solved for from the learner's answers. The mistake is then a program like any other: it has to give every
number of the learner's answers, so that one number does not fit them by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npformer.learn.answers import Case, call, leaves
from npformer.learn.exercise import Exercise, Function, Slip

STEPS = 30
NEAR = 1e-10  # relative; a float32 answer determines a number to about 1e-7


def with_a_number(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Slip]:
    """The constants of the exercise, with the numbers that fit the learner's answers best."""
    wrong = [case for case in cases if case.wrong and not case.outcome.raised]
    for constant in exercise.constants if wrong else ():
        for start in constant.starts:
            number = _solved(constant.wrong, start, wrong)
            if number is not None:
                yield Slip(constant.name, constant.sentence.format(number=f"{number:.4g}"), constant.wrong(number))


def _solved(program: Callable[[float], Function], start: float, cases: list[Case]) -> float | None:
    """The number with which a program comes nearest to the answers, by Gauss and Newton from a start with its sign.

    The steps are those of its logarithm: constants such as eps are of any size.
    """

    def errors(log: float) -> np.ndarray | None:
        number = float(np.copysign(np.exp(log), start))
        parts = [_differences(call(program(number), case.wide).answer, case) for case in cases]
        return None if any(part is None for part in parts) else np.concatenate(parts)  # type: ignore[arg-type]

    log = float(np.log(abs(start)))
    for _ in range(STEPS):
        error, moved = errors(log), errors(log + 1e-6)
        if error is None or moved is None:
            return None
        slope = (moved - error) / 1e-6
        if not slope @ slope > 0:
            return None
        step = float(np.clip(-(slope @ error) / (slope @ slope), -2, 2))
        log += step
        if abs(step) < NEAR:
            break
    return float(np.copysign(np.exp(log), start))


def _differences(answer: Any, case: Case) -> np.ndarray | None:
    """All numbers of an answer minus the learner's; None for another structure."""
    ours, theirs = dict(leaves(answer)), dict(leaves(case.outcome.answer))
    if ours.keys() != theirs.keys() or any(np.shape(ours[path]) != np.shape(theirs[path]) for path in ours):
        return None
    apart = [np.ravel(np.asarray(ours[path], np.float64) - np.asarray(theirs[path], np.float64)) for path in ours]
    found = np.concatenate([np.zeros(0), *apart])
    return found[np.isfinite(found)]
