"""Mistakes with an unknown number, such as a wrong constant in a formula.

The number is computed from the learner's answers. The mistake with this number is then tested like any other mistake. A
constant cannot fit by chance, because the mistake must reproduce every number in the learner's answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npformer.learn.answers import Case, call, is_numeric, leaves
from npformer.learn.exercise import Candidate, Exercise, Slip

STEPS = 30
RANGE = 1e4  # maximum factor between the number and its initial value; if it is larger, the number is not the mistake
NEAR = 1e-10  # relative precision of the number; float32 answers determine a number to about 1e-7


def with_a_number(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields the exercise's mistakes that have a number, each with the number that best fits the learner's answers."""
    wrong = [case for case in cases if case.wrong and not case.outcome.raised]
    for constant in exercise.constants if wrong else ():
        for start in constant.starts:
            number = _solved(constant, start, wrong)
            if number is not None and 1 / RANGE < number / start < RANGE:
                sentence = constant.sentence.format(number=f"{number:.4g}")
                yield Candidate(constant.name, sentence, constant.wrong(number=number))


def _solved(constant: Slip, start: float, cases: list[Case]) -> float | None:
    """Returns the number with which a mistake best fits the answers, by Gauss-Newton, with the sign of `start`.

    The steps change the number's logarithm, because constants such as eps vary in scale.
    """

    def errors(log: float) -> np.ndarray | None:
        number = float(np.copysign(np.exp(log), start))
        parts = [_differences(call(constant.wrong(number=number), case.wide).answer, case) for case in cases]
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
    """Returns an answer's numbers minus the learner's, or None if structures differ or a value is not a number."""
    ours, theirs = dict(leaves(answer)), dict(leaves(case.outcome.answer))
    if not all(map(is_numeric, [*ours.values(), *theirs.values()])):
        return None
    if ours.keys() != theirs.keys() or any(np.shape(ours[path]) != np.shape(theirs[path]) for path in ours):
        return None
    apart = [np.ravel(np.asarray(ours[path], np.float64) - np.asarray(theirs[path], np.float64)) for path in ours]
    found = np.concatenate([np.zeros(0), *apart])
    return found[np.isfinite(found)]
