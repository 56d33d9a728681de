"""Mistakes in activations and layer norms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.activations import ACTIVATIONS, gelu, gelu_tanh, silu
from npformer.golden.port import Mistake, Port, Rule, Ways

Formula = Callable[[np.ndarray], np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# --- activations -------------------------------------------------------------------------------------------------

OTHERS: dict[str, Formula] = {
    **{name: ACTIVATIONS[name] for name in ("relu", "silu", "gelu", "tanh")},
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky relu, slope 0.01": lambda x: np.maximum(x, 0.01 * x),
    "relu squared": lambda x: np.maximum(x, 0) ** 2,
    "relu6": lambda x: np.clip(x, 0, 6),
}
CONSTANTS: dict[str, Formula] = {
    "erf(x) for erf(x / sqrt(2))": lambda x: gelu(x * 2**0.5) / 2**0.5,
    "erf(x / 2) for erf(x / sqrt(2))": lambda x: gelu(x / 2**0.5) * 2**0.5,
    "x (1 + erf), not halved": lambda x: 2 * gelu(x),
    "tanh GELU without its cubic term": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * x)) / 2,
    "tanh GELU with 2 / pi for its root": lambda x: x * (1 + np.tanh(2 / np.pi * (x + 0.044715 * x**3))) / 2,
    "tanh GELU with x^2 for x^3": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**2))) / 2,
    "tanh GELU, not halved": lambda x: 2 * gelu_tanh(x),
    **{
        f"tanh GELU with {c:g} for 0.044715": lambda x, c=c: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + c * x**3))) / 2
        for c in (0.044, 0.0447, 0.045, 0.04, 0.44715, 0.0044715, 0.047715)
    },
    **{
        f"tanh GELU with {c:g} for sqrt(2 / pi)": lambda x, c=c: x * (1 + np.tanh(c * (x + 0.044715 * x**3))) / 2
        for c in (0.79, 0.797, 0.798, 0.7978, 0.8, (np.pi / 2) ** 0.5)
    },
}
SIGMOIDS = (1.5, 1.6, (8 / np.pi) ** 0.5, 1.7, 2.0, 0.5)  # c in x sigmoid(c x)


def _activated(port: Port, formula: Formula) -> Port:
    """Replaces the activation of the layers wherever the model uses it: some poolers and heads have the same."""
    return _replaced(port, port.config.activation, formula)


def _replaced(port: Port, name: str, formula: Formula) -> Port:
    """Replaces the activation of this name."""
    used = {
        "*.ffn.activation": port.config.activation,
        "head.activation": port.config.below_head,
        "convolution.activation": port.config.convolution_activation,
        "pooled": port.config.pooler,
    }
    return port.ruling({stage: _from_source(formula) for stage, own in used.items() if own == name})


def _from_source(formula: Formula) -> Rule:
    return lambda y, at: formula(at.source)


def tanh_gelu(port: Port) -> Ways:
    if "gelu" in (port.config.activation, port.config.below_head, port.config.pooler):
        yield "", _replaced(port, "gelu", gelu_tanh)


def erf_gelu(port: Port) -> Ways:
    if "gelu_tanh" in (port.config.activation, port.config.below_head, port.config.pooler):
        yield "", _replaced(port, "gelu_tanh", gelu)


def quick_gelu(port: Port) -> Ways:
    yield "x sigmoid(1.702 x)", _activated(port, lambda x: silu(1.702 * x) / 1.702)


def other_constant(port: Port) -> Ways:
    for way, formula in CONSTANTS.items():
        yield way, _activated(port, formula)
    for c in SIGMOIDS:
        yield f"x sigmoid({c:.4g} x)", _activated(port, lambda x, c=c: silu(c * x) / c)


def other_activation(port: Port) -> Ways:
    own = {port.config.activation, port.config.activation.removesuffix("_tanh")}
    for name in OTHERS.keys() - own:
        yield f"{name} for {port.config.activation}", _activated(port, OTHERS[name])
    if port.config.below_head != port.config.activation:
        wrong: Rule = _from_source(ACTIVATIONS[port.config.activation])
        yield "that of the layers in the head", port.ruling({"head.activation": wrong})


def no_activation(port: Port) -> Ways:
    yield "", port.ruling({"*.activation": _from_source(lambda x: x)})


def misplaced_activation(port: Port) -> Ways:
    own = ACTIVATIONS[port.config.activation]
    yield "twice", port.ruling({"*.activation": lambda y, at: own(y.copy())})
    after: dict[str, Rule] = {"*.ffn.output": lambda y, at: own(y.copy())}
    yield "after the FFN's second linear layer too", port.ruling(after)
    left_out: dict[str, Rule] = {"*.activation": _from_source(lambda x: x)}
    yield "after the FFN's second linear layer, not between the two", port.ruling(left_out | after)


# --- layer norms -------------------------------------------------------------------------------------------------


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-1, keepdims=True)


def variance(x: np.ndarray) -> np.ndarray:
    return np.square(centred(x)).mean(-1, keepdims=True)


def standard(x: np.ndarray, eps: float) -> np.ndarray:
    return centred(x) / np.sqrt(variance(x) + eps)


def _normed(port: Port, formula: Formula, norms: str = "*norm") -> Port:
    """Replaces (x - E[x]) / sqrt(Var[x] + eps) in the norms; their weight and bias stay."""
    return port.ruling({norms: lambda y, at: at.affine(formula(at.source))})


EPS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-7, 1e-8, 1e-10, 1e-4, 0.0)


def other_eps(port: Port) -> Ways:
    for eps in EPS:
        if eps != port.config.eps:
            yield f"{eps:g} for {port.config.eps:g}", _normed(port, lambda x, eps=eps: standard(x, eps))


def eps_outside(port: Port) -> Ways:
    for eps in EPS[:-1]:
        yield f"eps {eps:g}", _normed(port, lambda x, eps=eps: centred(x) / (np.sqrt(variance(x)) + eps))


def unbiased_variance(port: Port) -> Ways:
    def wrong(x: np.ndarray, eps: float) -> np.ndarray:
        return centred(x) / np.sqrt(variance(x) * x.shape[-1] / (x.shape[-1] - 1) + eps)

    def outside(x: np.ndarray, eps: float) -> np.ndarray:
        return centred(x) / (np.sqrt(variance(x) * x.shape[-1] / (x.shape[-1] - 1)) + eps)

    for eps in dict.fromkeys((port.config.eps, 1e-12, 1e-5, 1e-6)):
        other = "" if eps == port.config.eps else f"and eps {eps:g}"
        yield other, _normed(port, lambda x, eps=eps: wrong(x, eps))
        yield f"and eps {eps:g} outside the root", _normed(port, lambda x, eps=eps: outside(x, eps))


def other_deviation(port: Port) -> Ways:
    eps = port.config.eps
    yield "x - mean over the variance, not its root", _normed(port, lambda x: centred(x) / (variance(x) + eps))
    yield "over the root of the deviation", _normed(port, lambda x: centred(x) / np.sqrt(np.sqrt(variance(x)) + eps))
    yield (
        "over the mean absolute deviation",
        _normed(port, lambda x: centred(x) / (np.abs(centred(x)).mean(-1, keepdims=True) + eps)),
    )
    yield (
        "over the root of the sum of squares",
        _normed(port, lambda x: centred(x) / np.sqrt(variance(x) * x.shape[-1] + eps)),
    )
    yield "not divided at all", _normed(port, centred)


def no_mean(port: Port) -> Ways:
    eps = port.config.eps
    yield "as in RMSNorm", _normed(port, lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps))
    yield "over the deviation", _normed(port, lambda x: x / np.sqrt(variance(x) + eps))


def other_axis(port: Port) -> Ways:
    eps = port.config.eps
    yield "over the tokens of a text", _normed(port, lambda x: standard(x.T, eps).T)
    yield "over all of a text", _normed(port, lambda x: standard(x.ravel(), eps).reshape(x.shape))


def no_affine(port: Port) -> Ways:
    eps = port.config.eps
    yield "neither weight nor bias", port.ruling({"*norm": lambda y, at: standard(at.source, eps)})
    yield (
        "no weight",
        port.ruling({"*norm": lambda y, at: y + standard(at.source, eps) * (1 - _weight(at.weight(at.name)))}),
    )


def other_affine(port: Port) -> Ways:
    eps = port.config.eps
    if any(name.endswith("norm.bias") for name in port.weights):
        yield (
            "weight and bias exchanged",
            port.ruling(
                {
                    "*norm": lambda y, at: (
                        standard(at.source, eps) * _weight(at.weight(at.name, "bias")) + at.weight(at.name)
                    )
                }
            ),
        )
        yield (
            "the bias added before the weight is multiplied",
            port.ruling(
                {"*norm": lambda y, at: (standard(at.source, eps) + at.weight(at.name, "bias")) * at.weight(at.name)}
            ),
        )
    yield "1 + weight for weight", port.ruling({"*norm": lambda y, at: y + standard(at.source, eps)})


def _weight(array: np.ndarray | None) -> np.ndarray:
    assert array is not None
    return array


def no_norm(port: Port) -> Ways:
    yield "the embeddings'", port.ruling({"embeddings.norm": lambda y, at: at.source})
    yield "after attention", port.ruling({"*.attention_norm": lambda y, at: at.source})
    yield "after the FFN", port.ruling({"*.ffn_norm": lambda y, at: at.source})
    yield "the last", port.ruling({"norm": lambda y, at: at.source})
    yield "the head's", port.ruling({"head.norm": lambda y, at: at.source})


def norm_twice(port: Port) -> Ways:
    eps = port.config.eps
    yield "", port.ruling({"*norm": lambda y, at: at.affine(standard(y, eps))})
    names = [name for name in ("embeddings.norm", "norm") if f"{name}.weight" in port.weights]
    for name in names:
        yield name, port.ruling({name: lambda y, at: at.affine(standard(y, eps))})


MISTAKES = (
    Mistake(
        "tanh GELU for erf", "the activation is GELU's tanh approximation; this model's is the exact one", tanh_gelu
    ),
    Mistake(
        "erf GELU for tanh", "the activation is the exact GELU; this model was trained with the tanh one", erf_gelu
    ),
    Mistake("quick GELU", "x sigmoid(1.702 x) is GELU's quick approximation; it is off by up to 0.02", quick_gelu),
    Mistake(
        "another constant in the activation", "the formula is nearly GELU's, with another constant", other_constant
    ),
    Mistake("another activation", "the activation function is not this model's", other_activation),
    Mistake(
        "activation left out", "the FFN is act(x W_1 + b_1) W_2 + b_2; without act it is one linear map", no_activation
    ),
    Mistake(
        "activation in the wrong place", "it is applied once, between the FFN's linear layers", misplaced_activation
    ),
    Mistake(
        "another layer norm eps", "libraries' default is 1e-5; BERT's models have 1e-12 in their config", other_eps
    ),
    Mistake("eps outside the root", "x - mean is divided by sqrt(variance + eps), not by deviation + eps", eps_outside),
    Mistake("unbiased variance", "layer norm divides by D - 1 where it should by D", unbiased_variance),
    Mistake("another deviation in the norm", "x - mean is divided by sqrt(variance + eps)", other_deviation),
    Mistake("mean not subtracted", "layer norm subtracts each row's mean; RMSNorm does not", no_mean),
    Mistake("norm over the wrong axis", "each token's row, the last axis, is normalized on its own", other_axis),
    Mistake(
        "norm without weight or bias", "the normalized row is multiplied by a weight, and a bias is added", no_affine
    ),
    Mistake("weight and bias of the norm mixed up", "the normalized row times weight, plus bias", other_affine),
    Mistake("norm left out", "a layer norm of the model is not computed", no_norm),
    Mistake("norm applied twice", "each layer norm is computed once", norm_twice),
)
