"""Names the cause of numbers that are not finite: e^x overflows in a softmax that does not subtract the maximum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npformer.golden.diagnosis import Fit
from npformer.golden.graph import parted
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes.rows import rows_said

#: Precision -> the scores beyond which e^x is infinite, and below which the sum of e^x is 0.
LIMITS = {"float32": (88.7228, -103.972), "float16": (11.0899, -17.3287)}
NO_MAXIMUM = Mistake(
    "softmax without subtracting the maximum",
    "the largest score of a row is subtracted before e^x, which is infinite for large scores in float32 and float16",
    {},
)


def overflow(theirs: list[np.ndarray], scores: Mapping[str, list[np.ndarray]]) -> Fit | None:
    """Returns the cause if the rows with overflowing scores are the rows that are not finite; else None.

    scores: the correct masked scores (heads, queries, keys) of the layer, by name
    """
    wrong = not_finite_rows(theirs)
    for dtype, (high, low) in LIMITS.items():
        for name, arrays in scores.items():
            most = [array.max(-1) for array in arrays]
            over = [(each > high) | (each < low) for each in most]
            if theirs[0].ndim == 2:
                over = [each.any(0) for each in over]
            same = all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(over, wrong, strict=True))
            if same and any(each.any() for each in over):
                largest = max(float(each.max()) for each in most)
                return Fit(NO_MAXIMUM, f"{name} are up to {largest:.4g}; {dtype}", 0.0, 1.0, True)
    return None


def not_finite_rows(theirs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns which rows (of each head, if the stage has heads) contain a number that is not finite."""
    return [~np.isfinite(array).all(-1) for array in theirs]


def where_not_finite(theirs: list[np.ndarray]) -> str:
    """Describes the rows that are not finite; "" if all are, or if the stage has no rows."""
    rows = [np.asarray(each.any(0) if each.ndim == 2 else each) for each in not_finite_rows(theirs)]
    return "" if rows[0].ndim != 1 or all(each.all() for each in rows) else rows_said(rows)


def scores_of(stage: str, made: Mapping[str, list[np.ndarray]], causal: bool) -> dict[str, list[np.ndarray]]:
    """The correct scores of the stage's layer, without keys that a causal mask hides."""
    stack, layer, _ = parted(stage)
    found = {}
    for name, arrays in made.items():
        if parted(name)[:2] == (stack, layer) and name.endswith("attention.scores"):
            hidden = causal and "cross" not in name
            found[name] = [np.where(np.tri(array.shape[-1]), array, -np.inf) if hidden else array for array in arrays]
    return found
