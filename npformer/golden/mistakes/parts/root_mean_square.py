"""Mistakes that ports make in RMSNorm, and in Gemma's RMSNorm with 1 + weight."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.common.halves import HALVES, half
from npformer.golden.mistake import Mistake, Ways
from npformer.golden.mistakes.parts.norm import (
    EPS,
    IN_GROUPS,
    centred,
    everywhere,
    in_groups,
    normed,
    of_norms,
    standard,
)


def over_root_mean_square(x: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(E[x^2] + eps)."""
    return x / _root(x, eps)


def _root(x: np.ndarray, eps: float) -> np.ndarray:
    """sqrt(E[x^2] + eps)."""
    return np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)


def _root_outside(x: np.ndarray, eps: float) -> np.ndarray:
    return x / (_root(x, 0) + eps)


def _root_of_sum(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.square(x).sum(-1, keepdims=True) + eps)


def _rounded(kind: str, x: np.ndarray, eps: float) -> np.ndarray:
    return half(kind, over_root_mean_square(x, eps))


def _other_eps(port: Any) -> Ways:
    for eps in EPS:
        if eps != port.config.eps:
            yield f"{eps:g} for {port.config.eps:g}", normed(over_root_mean_square, eps)


def _root_of_unbiased(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.square(x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + eps)


def _one_more(y: np.ndarray, at: Any) -> Any:
    return y + over_root_mean_square(at.source, at.config.eps)


def _left_out(port: Any) -> Ways:
    for name in ("*.attention_norm", "*.ffn_norm", "norm"):
        yield name.removeprefix("*."), {name: lambda y, at: at.source}


def without_weight(y: np.ndarray, at: Any) -> np.ndarray:
    return over_root_mean_square(at.source, at.config.eps)


MISTAKES = (
    Mistake("wrong RMSNorm eps", "eps is rms_norm_eps in config.json", everywhere(_other_eps)),
    Mistake(
        "eps outside the root of RMSNorm",
        "x is divided by sqrt(mean square + eps), not by sqrt(mean square) + eps",
        {f"eps {eps:g}": normed(_root_outside, eps) for eps in EPS[:-1]},
    ),
    Mistake(
        "mean subtracted in RMSNorm",
        "RMSNorm divides by the root mean square and subtracts no mean",
        everywhere(
            {
                "as in layer norm": normed(standard),
                "before the root mean square": normed(
                    lambda x, eps: centred(x) / np.sqrt(np.square(x).mean(-1)[..., None] + eps)
                ),
                "only in the deviation": normed(
                    lambda x, eps: x / np.sqrt(np.square(centred(x)).mean(-1)[..., None] + eps)
                ),
            }
        ),
    ),
    Mistake(
        "sum instead of mean in RMSNorm",
        "x is divided by the root of the mean square, not of the sum of squares",
        everywhere({"": normed(_root_of_sum)}),
    ),
    Mistake(
        "unbiased mean square in RMSNorm",
        "the sum of squares is divided by the number of columns, not by one less",
        everywhere({"": normed(_root_of_unbiased)}),
    ),
    Mistake(
        "mean square instead of its root in RMSNorm",
        "x is divided by the root of the mean square",
        everywhere({"": normed(lambda x, eps: x / (np.square(x).mean(-1, keepdims=True) + eps))}),
    ),
    Mistake("norm over groups of columns", IN_GROUPS, in_groups(over_root_mean_square)),
    Mistake(
        "weight of RMSNorm misused",
        "the normalized row is multiplied by the weight; only Gemma adds 1 to it",
        everywhere(
            {
                "left out": of_norms(without_weight),
                "1 + weight instead of weight": of_norms(_one_more),
                "multiplied before normalizing": of_norms(
                    lambda y, at: over_root_mean_square(at.source * at.weight(at.name), at.config.eps)
                ),
            }
        ),
    ),
    Mistake(
        "RMSNorm rounded before the weight is applied",
        "the normalized row is multiplied by the weight in float32",
        {f"to {kind}": normed(partial(_rounded, kind)) for kind in HALVES},
    ),
    Mistake(
        "RMSNorm over the wrong axis",
        "each token's row, the last axis, is normalized on its own",
        {"over all of a text": normed(lambda x, eps: over_root_mean_square(x.ravel(), eps).reshape(x.shape))},
    ),
    Mistake("RMSNorm left out", "every norm of the model is computed, also that of the last layer's output", _left_out),
    Mistake(
        "RMSNorm applied twice",
        "each norm is computed once",
        {"": of_norms(lambda y, at: at.affine(over_root_mean_square(y, at.config.eps)))},
    ),
)


def _weight_alone(y: np.ndarray, at: Any) -> Any:
    return over_root_mean_square(at.source, at.config.eps) * at.weight(at.name)


def _weight_first(y: np.ndarray, at: Any) -> Any:
    return over_root_mean_square(at.source * (1 + at.weight(at.name)), at.config.eps)


MISUSED = Mistake(
    "1 + weight of RMSNorm misused",
    "the normalized row is multiplied by 1 + weight, as in Gemma",
    everywhere(
        {
            "weight instead of 1 + weight": of_norms(_weight_alone),
            "left out": of_norms(without_weight),
            "1 + weight multiplied before normalizing": of_norms(_weight_first),
            "1 added to the row, not to the weight": of_norms(lambda y, at: 1 + _weight_alone(y, at)),
        }
    ),
)
ZERO_CENTRED = (
    MISUSED,
    *(each for each in MISTAKES if each.name != "weight of RMSNorm misused"),
)
