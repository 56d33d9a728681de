"""Mistakes that ports make in RMSNorm, and in Gemma's RMSNorm with 1 + weight."""

from __future__ import annotations

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


def by_root(x: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(E[x^2] + eps)."""
    return x / _root(x, eps)


def _root(x: np.ndarray, eps: float = 0.0) -> np.ndarray:
    """sqrt(E[x^2] + eps)."""
    return np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)


def _other_eps(port: Any) -> Ways:
    for eps in EPS:
        if eps != port.config.eps:
            yield f"{eps:g} for {port.config.eps:g}", normed(by_root, eps)


def without_weight(y: np.ndarray, at: Any) -> np.ndarray:
    return by_root(at.source, at.config.eps)


MISTAKES = (
    Mistake(
        "wrong RMSNorm eps",
        "eps is in config.json, as rms_norm_eps, or in T5's as layer_norm_epsilon",
        everywhere(_other_eps),
    ),
    Mistake(
        "eps outside the root of RMSNorm",
        "x is divided by sqrt(mean square + eps), not by sqrt(mean square) + eps",
        {f"eps {eps:g}": normed(lambda x, eps: x / (_root(x) + eps), eps) for eps in EPS[:-1]},
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
        everywhere({"": normed(lambda x, eps: x / np.sqrt(np.square(x).sum(-1, keepdims=True) + eps))}),
    ),
    Mistake(
        "unbiased mean square in RMSNorm",
        "the sum of squares is divided by the number of columns, not by one less",
        everywhere(
            {"": normed(lambda x, eps: x / np.sqrt(np.square(x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + eps))}
        ),
    ),
    Mistake(
        "mean square instead of its root in RMSNorm",
        "x is divided by the root of the mean square",
        everywhere({"": normed(lambda x, eps: x / (np.square(x).mean(-1, keepdims=True) + eps))}),
    ),
    Mistake("norm over groups of columns", IN_GROUPS, in_groups(by_root)),
    Mistake(
        "weight of RMSNorm misused",
        "the normalized row is multiplied by the weight; only Gemma adds 1 to it",
        everywhere(
            {
                "left out": of_norms(without_weight),
                "1 + weight instead of weight": of_norms(lambda y, at: y + by_root(at.source, at.config.eps)),
                "multiplied before normalizing": of_norms(
                    lambda y, at: by_root(at.source * at.weight(at.name), at.config.eps)
                ),
            }
        ),
    ),
    Mistake(
        "RMSNorm rounded before the weight is applied",
        "the normalized row is multiplied by the weight in float32",
        {f"to {kind}": normed(lambda x, eps, kind=kind: half(kind, by_root(x, eps))) for kind in HALVES},
    ),
    Mistake(
        "RMSNorm over the wrong axis",
        "each token's row, the last axis, is normalized on its own",
        {"over all of a text": normed(lambda x, eps: by_root(x.ravel(), eps).reshape(x.shape))},
    ),
    Mistake(
        "RMSNorm left out",
        "every norm of the model is computed, also that of the last layer's output",
        {
            name.removeprefix("*."): {name: lambda y, at: at.source}
            for name in ("*.attention_norm", "*.ffn_norm", "norm")
        },
    ),
    Mistake(
        "RMSNorm applied twice",
        "each norm is computed once",
        {"": of_norms(lambda y, at: at.affine(by_root(y, at.config.eps)))},
    ),
)


def _weight_alone(y: np.ndarray, at: Any) -> Any:
    return by_root(at.source, at.config.eps) * at.weight(at.name)


MISUSED = Mistake(
    "1 + weight of RMSNorm misused",
    "the normalized row is multiplied by 1 + weight, as in Gemma",
    everywhere(
        {
            "weight instead of 1 + weight": of_norms(_weight_alone),
            "left out": of_norms(without_weight),
            "1 + weight multiplied before normalizing": of_norms(
                lambda y, at: by_root(at.source * (1 + at.weight(at.name)), at.config.eps)
            ),
            "1 added to the row, not to the weight": of_norms(lambda y, at: 1 + _weight_alone(y, at)),
        }
    ),
)
ZERO_CENTRED = (MISUSED, *(each for each in MISTAKES if each.name != "weight of RMSNorm misused"))
