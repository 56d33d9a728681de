"""Mistakes that ports make in layer norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.golden.mistake import Mistake, Rules, Ways
from npformer.golden.mistakes.parts.norm import EPS, IN_GROUPS, centred, in_groups, normed, standard, variance


def unbiased(x: np.ndarray) -> np.ndarray:
    return variance(x) * x.shape[-1] / (x.shape[-1] - 1)


def _other_eps(port: Any) -> Ways:
    for eps in EPS:
        if eps != port.config.eps:
            yield f"{eps:g} for {port.config.eps:g}", normed(standard, eps)


def _unbiased_variance(port: Any) -> Ways:
    for eps in dict.fromkeys((port.config.eps, 1e-12, 1e-5, 1e-6)):
        other = "" if eps == port.config.eps else f"and eps {eps:g}"
        yield other, normed(lambda x, eps: centred(x) / np.sqrt(unbiased(x) + eps), eps)
        outside = normed(lambda x, eps: centred(x) / (np.sqrt(unbiased(x)) + eps), eps)
        yield f"and eps {eps:g} outside the root", outside


def _other_affine(port: Any) -> Ways:
    def exchanged(y: np.ndarray, at: Any) -> Any:
        return standard(at.source, at.config.eps) * at.weight(at.name, "bias") + at.weight(at.name)

    def bias_first(y: np.ndarray, at: Any) -> Any:
        return (standard(at.source, at.config.eps) + at.weight(at.name, "bias")) * at.weight(at.name)

    if any(name.endswith("norm.bias") for name in port.weights):
        yield "weight and bias exchanged", {"*norm": exchanged}
        yield "the bias added before the multiplication by the weight", {"*norm": bias_first}

    def weight_first(y: np.ndarray, at: Any) -> Any:
        bias = at.weight(at.name, "bias")
        return standard(at.source * at.weight(at.name), at.config.eps) + (0 if bias is None else bias)

    def affine_first(y: np.ndarray, at: Any) -> Any:
        return standard(at.affine(at.source), at.config.eps)

    yield "the row multiplied by the weight before it is normalized", {"*norm": weight_first}
    yield "weight and bias applied before the row is normalized", {"*norm": affine_first}
    yield "1 + weight instead of weight", {"*norm": lambda y, at: y + standard(at.source, at.config.eps)}


def _norm_twice(port: Any) -> Ways:
    for name in ("*norm", "embeddings.norm", "norm"):
        if name == "*norm" or f"{name}.weight" in port.weights:
            again: Rules = {name: lambda y, at: at.affine(standard(y, at.config.eps))}
            yield name.removeprefix("*norm"), again


LEFT_OUT = {
    "the embeddings'": "embeddings.norm",
    "after attention": "*.attention_norm",
    "after the FFN": "*.ffn_norm",
    "the last": "norm",
    "the head's": "head.norm",
}
MISTAKES = (
    Mistake(
        "another layer norm eps",
        "eps is in config.json: 1e-12 in BERT's, and 1e-5, torch's default, in many others",
        _other_eps,
    ),
    Mistake(
        "eps outside the root",
        "x - mean is divided by sqrt(variance + eps), not by sqrt(variance) + eps",
        {f"eps {eps:g}": normed(lambda x, eps: centred(x) / (np.sqrt(variance(x)) + eps), eps) for eps in EPS[:-1]},
    ),
    Mistake("unbiased variance", "layer norm divides the sum of squares by D, not by D - 1", _unbiased_variance),
    Mistake(
        "wrong deviation in the norm",
        "x - mean is divided by sqrt(variance + eps)",
        {
            "x - mean divided by the variance, not by its root": normed(
                lambda x, eps: centred(x) / (variance(x) + eps)
            ),
            "divided by the root of the deviation": normed(
                lambda x, eps: centred(x) / np.sqrt(np.sqrt(variance(x)) + eps)
            ),
            "divided by the mean absolute deviation": normed(
                lambda x, eps: centred(x) / (np.abs(centred(x)).mean(-1, keepdims=True) + eps)
            ),
            "divided by the root of the sum of squares": normed(
                lambda x, eps: centred(x) / np.sqrt(variance(x) * x.shape[-1] + eps)
            ),
            "not divided at all": normed(lambda x, eps: centred(x)),
        },
    ),
    Mistake(
        "mean not subtracted",
        "layer norm subtracts each row's mean; RMSNorm does not",
        {
            "as in RMSNorm": normed(lambda x, eps: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)),
            "divided by the deviation": normed(lambda x, eps: x / np.sqrt(variance(x) + eps)),
        },
    ),
    Mistake(
        "norm over the wrong axis",
        "each token's row, the last axis, is normalized on its own",
        {
            "over the tokens of a text": normed(lambda x, eps: standard(x.T, eps).T),
            "over all of a text": normed(lambda x, eps: standard(x.ravel(), eps).reshape(x.shape)),
        },
    ),
    Mistake("norm over groups of columns", IN_GROUPS, in_groups(standard)),
    Mistake(
        "norm without weight or bias",
        "the normalized row is multiplied by a weight, and a bias is added",
        {
            "neither weight nor bias": {"*norm": lambda y, at: standard(at.source, at.config.eps)},
            "no weight": {"*norm": lambda y, at: y + standard(at.source, at.config.eps) * (1 - at.weight(at.name))},
        },
    ),
    Mistake("weight and bias of the norm mixed up", "the normalized row times weight, plus bias", _other_affine),
    Mistake(
        "norm left out",
        "a layer norm of the model is not computed",
        {way: {norm: lambda y, at: at.source} for way, norm in LEFT_OUT.items()},
    ),
    Mistake("norm applied twice", "each layer norm is computed once", _norm_twice),
)
