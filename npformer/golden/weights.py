"""Compares another program's weights with the model's: their numbers, and their layout.

torch and most formats store a linear weight (out, in), npformer (in, out); both are recognised. Each finding is a line
of text; equal weights give none. `diagnose.py` finds the stages that diverge because of wrong weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.golden.mistakes import half
from npformer.model import Model

LAYOUTS = {True: "(out, in)", False: "(in, out)"}


def check_weights(model: Model, theirs: Mapping[str, np.ndarray]) -> list[str]:
    """Lists what is wrong with another program's weights: other numbers or shapes, or a layout unlike the others'.

    Parameters
    ----------
    model : Model
    theirs : mapping from npformer's flat names ("layers.0.attention.query.weight") to arrays

    Returns
    -------
    list of str
        One line for each wrong weight.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> check_weights(model, {"embeddings.norm.bias": np.zeros(384, np.float32)})
    ['embeddings.norm.bias: all zeros']
    """
    ours, known = layout.flatten(dict(model.weights)), layout.parameters(model.config)
    findings, stored_out_in = [], {}
    for name, array in theirs.items():
        linear = known[name].transposed
        if array.shape == ours[name].shape and np.array_equal(array, ours[name]):
            if linear:
                stored_out_in[name] = False
        elif linear and array.shape == ours[name].T.shape and np.array_equal(array, ours[name].T):
            stored_out_in[name] = True
        else:
            findings.append(f"{name}: {_difference(array, ours[name], linear)}")
    if stored_out_in:
        usual = sum(stored_out_in.values()) * 2 >= len(stored_out_in)
        for name, out_in in stored_out_in.items():
            if out_in is not usual:
                findings.append(f"{name}: lies {LAYOUTS[out_in]}, the others {LAYOUTS[usual]}; it is transposed")
    return findings


def _difference(theirs: np.ndarray, ours: np.ndarray, linear: bool) -> str:
    expected = f"{ours.shape} or {ours.T.shape}" if linear else f"{ours.shape}"
    if theirs.shape not in ({ours.shape, ours.T.shape} if linear else {ours.shape}):
        return f"expected {expected}, got {theirs.shape}"
    if linear and np.array_equal(theirs.ravel(), ours.T.ravel()):
        return "numbers that lie (out, in) under the shape (in, out)"
    if linear and np.array_equal(theirs.ravel(), ours.ravel()):
        return "numbers that lie (in, out) under the shape (out, in)"
    either = [ours, ours.T] if linear else [ours]
    for kind in ("float16", "bfloat16"):
        if any(theirs.shape == each.shape and np.array_equal(theirs, half(kind, each)) for each in either):
            return f"rounded to {kind}"
    if not theirs.any():
        return "all zeros"
    apart = min(float(np.abs(theirs - each).max()) for each in either if each.shape == theirs.shape)
    return f"differs by up to {apart:.3g}"
