"""Recognizes scores in a form other than q k^T / sqrt(K), such as scores with the mask added.

A program may export its scores after it has masked them, or with a term that the softmax cancels, such as ALiBi by key
positions. Such scores reveal no more about the program than its attention weights do, and the program may be correct.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npformer.golden.budget import largest_error
from npformer.golden.format import Golden
from npformer.golden.names import Theirs

MOST = 0.5  # share of the hidden keys' scores that must be low
LOW = -5e3  # masked scores of programs are at most -1e4 plus a score, or not finite


def without_masked_scores(golden: Golden, theirs: Theirs, ratio: float) -> Theirs:
    """Returns the port's arrays without scores that are masked, or that differ by a constant for each query.

    ratio: the port's budgets divided by the float32 budgets
    """
    left_out = []
    for scores in [name for name in theirs.stages if name.endswith("attention.scores")]:
        weights = golden.truth.get(f"{scores.removesuffix('scores')}weights")
        right, given, budget = golden.truth[scores], theirs.stages[scores], golden.budgets[scores] * ratio
        with np.errstate(invalid="ignore"):  # a difference that is not a number is not within the budget
            is_right = largest_error(given, right) <= budget
        if weights is None or is_right:
            continue
        seen = [each > 0 for each in weights]
        if any((np.isnan(each[own]) | np.isposinf(each[own])).any() for each, own in zip(given, seen, strict=True)):
            continue  # the report names the stage that is not finite
        if _are_masked(given, seen) or all(map(_is_shifted, given, right, seen, [budget] * len(seen))):
            left_out.append(scores)
    if not left_out:
        return theirs
    more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
    said = f"{left_out[0]}{more}: not compared, because your scores include the mask or another term"
    kept = {name: arrays for name, arrays in theirs.stages.items() if name not in left_out}
    return replace(theirs, stages=kept, notes=[*theirs.notes, said])


def _are_masked(given: list[np.ndarray], seen: list[np.ndarray]) -> bool:
    """Whether most scores of hidden keys are low or NaN; not all need to be, because the port's mask may be wrong."""
    hidden = np.concatenate([each[~own] for each, own in zip(given, seen, strict=True)])
    return bool(hidden.size) and float((~(hidden > LOW)).mean()) >= MOST


def _is_shifted(given: np.ndarray, right: np.ndarray, seen: np.ndarray, budget: float) -> bool:
    """Whether each query's visible scores differ from the correct ones by a constant, which the softmax cancels."""
    added = np.where(seen, given, right) - right  # avoids subtracting infinite numbers
    least, most = np.where(seen, added, np.inf).min(axis=-1), np.where(seen, added, -np.inf).max(axis=-1)
    with np.errstate(invalid="ignore"):  # a wrong mask may hide all keys of a query
        return bool((most - least <= 2 * budget).all())
