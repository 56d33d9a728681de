"""Recognizes scores and attention weights that a port dumps as (keys, queries) instead of (queries, keys).

Such an array has the shape of a correct one, so only its values show the layout: they are correct once the array is
transposed, while the next stage is correct as it is. In a port that computes K Q^T instead of Q K^T, the next stage
differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npformer.golden.budget import largest_error
from npformer.golden.format import Golden
from npformer.golden.graph import parted
from npformer.golden.names import Theirs, token_axes


def untransposed(
    golden: Golden, theirs: Theirs, ratio: float, right: Mapping[str, list[np.ndarray]] | None = None
) -> Theirs:
    """Returns the port's arrays with transposed scores and weights transposed back, in all layers if one shows it.

    ratio: the port's budgets divided by the float32 budgets. right: the correct stages, by default the golden file's
    """
    right = right or golden.truth
    found: set[tuple[str, str]] = set()
    stages = maps(golden, theirs)
    for name, kind in stages.items():
        if kind not in found and _is_transposed(golden, theirs, name, right, ratio):
            found.add(kind)
    turned = {
        name: [array.swapaxes(1, 2) for array in theirs.stages[name]] for name, kind in stages.items() if kind in found
    }
    if not turned:
        return theirs
    kinds = ", ".join(sorted(f"{stack}layers.*.{rest}" for stack, rest in found))
    said = f"read as (keys, queries), because your dump is transposed: {kinds}"
    return replace(theirs, stages=theirs.stages | turned, notes=[*theirs.notes, said])


def maps(golden: Golden, theirs: Theirs) -> dict[str, tuple[str, str]]:
    """Maps each stage with the axes (heads, queries, keys) to its stack and its name within a layer.

    Stages with different numbers of queries and keys are left out.
    """
    found = {}
    for name in theirs.stages:
        shapes = [array.shape for array in golden.truth[name]]
        square = all(len(shape) == 3 and shape[1] == shape[2] for shape in shapes)
        if square and token_axes(name, shapes[0], golden.config.head) == (1, 2):
            stack, _, rest = parted(name)
            found[name] = stack, rest
    return found


def _is_transposed(
    golden: Golden, theirs: Theirs, name: str, right: Mapping[str, list[np.ndarray]], ratio: float
) -> bool:
    def agrees(stage: str, arrays: list[np.ndarray]) -> bool:
        finite = all(np.isfinite(array).all() for array in arrays)
        return finite and largest_error(arrays, right[stage]) <= golden.budgets[stage] * ratio

    arrays = theirs.stages[name]
    if agrees(name, arrays) or not agrees(name, [array.swapaxes(1, 2) for array in arrays]):
        return False
    names, others = list(golden.stages), maps(golden, theirs)
    after = (each for each in names[names.index(name) + 1 :] if each in theirs.stages and each not in others)
    if (later := next(after, None)) is None:
        return name.endswith("attention.weights")  # scores alone may also be products in the wrong order
    return agrees(later, theirs.stages[later])
