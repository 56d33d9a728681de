"""Mistakes that are possible in any function: a factor, a wrong sign, or a transposed value.

Each mistake is applied to the right answer, but only to the values that the learner got wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npformer.learn.answers import Case, leaves, near
from npformer.learn.exercise import Candidate, Exercise
from npformer.learn.shown import value_name

Change = Callable[[Any, tuple[Any, ...]], Any]
#: Exponent of a size -> the resulting factor in words.
POWERS = {
    -1: "divided by",
    1: "multiplied by",
    -0.5: "divided by the square root of",
    0.5: "multiplied by the square root of",
}
CLOSE = 1e-5  # relative tolerance for a factor; the answer with this factor must then be within the error budget


def changed(exercise: Exercise, cases: Sequence[Case]) -> Iterator[Candidate]:
    """Yields variants of the right answer.

    In each, the values that the learner got wrong are transposed or multiplied by a factor.
    """
    wrong = [case for case in cases if case.wrong and not case.outcome.raised]
    paths = list(dict.fromkeys(path for case in wrong for path in case.wrong_values()))
    if not wrong or not paths:
        return
    names = ", ".join(_names(exercise, wrong[0], paths))

    def slip(name: str, differ: str, change: Change) -> Candidate:
        def program(*args: Any) -> Any:
            return _at(paths, lambda value: change(value, args), exercise.right(*args))

        return Candidate(name, f"{names}: {differ}.", program)

    yield slip("transposed", "rows and columns are exchanged", lambda value, args: _transposed(value))
    factors = [_factor(case, paths) for case in wrong]
    known = [(case, factor) for case, factor in zip(wrong, factors, strict=True) if factor is not None]
    if len(known) < len(wrong):
        return
    factor = known[0][1]
    nearest = {-1: "the sign is wrong", 0: "all are 0"}.get(round(factor), "")
    differ = nearest if nearest and abs(factor - round(factor)) < CLOSE else f"{factor:.4g} times the right numbers"
    yield slip("multiplied by a number", differ, lambda value, args: value * factor)
    for power, said in POWERS.items():
        sizes = [label for label in _sizes(exercise, wrong[0].args) if _fits(exercise, label, power, known)]
        if sizes:
            equal = " or ".join(sizes[:2]) + (", which are equal here" if len(sizes) > 1 else "")
            yield slip(f"{said} a size", f"the right numbers {said} {equal}", _times(exercise, sizes[0], power))


def _times(exercise: Exercise, label: str, power: float) -> Change:
    return lambda value, args: value * _sizes(exercise, args)[label] ** power


def _fits(exercise: Exercise, label: str, power: float, known: Sequence[tuple[Case, float]]) -> bool:
    """Returns whether the factor equals the size `label` raised to `power` in every case."""
    powers = [(_sizes(exercise, case.args).get(label, 0.0) or np.nan) ** power for case, _ in known]
    return all(abs(factor / each - 1) < CLOSE for each, (_, factor) in zip(powers, known, strict=True))


def _sizes(exercise: Exercise, args: Sequence[Any]) -> dict[str, float]:
    """Returns the sizes of the arrays and the positive numbers among the arguments, by name, such as `q.shape[2]`."""
    sizes: dict[str, float] = {}
    for name, value in zip(inspect.signature(exercise.right).parameters, args, strict=False):
        if isinstance(value, np.ndarray):
            sizes |= {f"{name}.shape[{axis}]": float(size) for axis, size in enumerate(value.shape)}
        elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            sizes[name] = float(value)
    return sizes


def _factor(case: Case, paths: Sequence[str]) -> float | None:
    """Returns the factor by which the right values best fit the learner's, or None if the shapes differ."""
    exact, answer = dict(leaves(case.true.outcome.answer)), dict(leaves(case.outcome.answer))
    pairs = [(np.asarray(exact[path]), np.asarray(answer.get(path))) for path in paths if path in exact]
    if not pairs or any(a.shape != b.shape or a.dtype.kind != "f" or b.dtype.kind != "f" for a, b in pairs):
        return None
    a, b = (
        np.concatenate([np.zeros(0), *(np.ravel(each[side]).astype(np.float64) for each in pairs)]) for side in (0, 1)
    )
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    return float(a @ b / (a @ a)) if a @ a > 0 else None


def _transposed(value: Any) -> Any:
    return np.swapaxes(value, -1, -2) if np.ndim(value) > 1 else value


def _names(exercise: Exercise, case: Case, paths: Sequence[str]) -> Iterator[str]:
    """Yields the names of the values at these paths, or the name of a group if all its nonzero values are wrong."""
    right = dict(leaves(case.true.outcome.answer))
    if all(path in paths for path in right) and not exercise.values:
        yield "All numbers"
        return
    for first in dict.fromkeys(path.split(".")[0] for path in right):
        group = value_name(exercise.values, first)
        members = [path for path in right if path.split(".")[0] == first]
        counted = [path for path in members if not near(0 * right[path], right[path], case.true.budgets[path])]
        if len(counted) > 1 and all(path in paths for path in counted):
            yield group
        else:
            yield from (value_name(exercise.values, path) for path in members if path in paths)


def _at(paths: Sequence[str], change: Callable[[Any], Any], value: Any, path: str = "") -> Any:
    """Returns a nested answer with the values at these paths changed."""
    if isinstance(value, Mapping):
        return {name: _at(paths, change, each, f"{path}.{name}".lstrip(".")) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_at(paths, change, each, f"{path}.{i}".lstrip(".")) for i, each in enumerate(value)]
    return change(value) if path in paths else value
