"""Mistakes that ports make in feed-forward networks: in the activation, and in the gate of gated networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.engine.activations import ACTIVATIONS, gelu, gelu_tanh, silu
from npformer.golden.mistake import Mistake, Rule, Rules, Ways

Formula = Callable[[np.ndarray], np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def tanh_gelu(x: np.ndarray, c: float = 0.044715, root: float = (2 / np.pi) ** 0.5, power: int = 3) -> np.ndarray:
    """The tanh approximation of GELU, x (1 + tanh(root (x + c x^power))) / 2. The defaults are correct."""
    return x * (1 + np.tanh(root * (x + c * x**power))) / 2


OTHERS: dict[str, Formula] = {
    **{name: ACTIVATIONS[name] for name in ("relu", "silu", "gelu", "gelu_tanh", "tanh")},
    "sigmoid": sigmoid,
    "softplus": lambda x: np.logaddexp(x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky relu, slope 0.01": lambda x: np.maximum(x, 0.01 * x),
    "relu squared": lambda x: np.maximum(x, 0) ** 2,
    "relu6": lambda x: np.clip(x, 0, 6),
}
CONSTANTS: dict[str, Formula] = {
    "erf(x) instead of erf(x / sqrt(2))": lambda x: gelu(x * 2**0.5) / 2**0.5,
    "erf(x / 2) instead of erf(x / sqrt(2))": lambda x: gelu(x / 2**0.5) * 2**0.5,
    "x (1 + erf), not halved": lambda x: 2 * gelu(x),
    "tanh GELU without its cubic term": lambda x: tanh_gelu(x, 0),
    "tanh GELU with 2 / pi instead of its square root": lambda x: tanh_gelu(x, root=2 / np.pi),
    "tanh GELU with x^2 instead of x^3": lambda x: tanh_gelu(x, power=2),
    "tanh GELU, not halved": lambda x: 2 * gelu_tanh(x),
    **{
        f"tanh GELU with {c:g} instead of 0.044715": lambda x, c=c: tanh_gelu(x, c)
        for c in (0.044, 0.0447, 0.045, 0.04, 0.44715, 0.0044715, 0.047715)
    },
    **{
        f"tanh GELU with {c:g} instead of sqrt(2 / pi)": lambda x, c=c: tanh_gelu(x, root=c)
        for c in (0.79, 0.797, 0.798, 0.7978, 0.8, (np.pi / 2) ** 0.5)
    },
    **{f"x sigmoid({c:.4g} x)": lambda x, c=c: silu(c * x) / c for c in (1.5, 1.6, (8 / np.pi) ** 0.5, 1.7, 2.0, 0.5)},
}


def from_source(formula: Formula) -> Rule:
    return lambda y, at: formula(at.source)


def other_activations(own: str, stage: str) -> Ways:
    """Ways to compute a stage with activations other than its own."""
    for name, formula in OTHERS.items():
        if name != own:
            yield f"{name} for {own}", {stage: from_source(formula)}


def _replaced(port: Any, name: str, formula: Formula) -> Rules:
    """Rules that replace an activation wherever the model has it: in layers, convolutions, poolers or heads."""
    config = port.config
    used = {
        "*.ffn.activation": config.activation,
        "head.activation": config.below_head,
        "convolution.activation": config.convolution.activation if config.convolution else "",
        "pooled": config.pooler,
    }
    return {stage: from_source(formula) for stage, own in used.items() if own == name}


def _gelu_for(own: str, formula: Formula) -> Callable[[Any], Ways]:
    def ways(port: Any) -> Ways:
        if own in (port.config.activation, port.config.below_head, port.config.pooler):
            yield "", _replaced(port, own, formula)

    return ways


def _quick_gelu(port: Any) -> Ways:
    yield "x sigmoid(1.702 x)", _replaced(port, port.config.activation, lambda x: silu(1.702 * x) / 1.702)


def _other_constant(port: Any) -> Ways:
    for way, formula in CONSTANTS.items():
        yield way, _replaced(port, port.config.activation, formula)


def _other_activation(port: Any) -> Ways:
    own = port.config.activation
    for name, formula in OTHERS.items():
        if name.removesuffix("_tanh") != own.removesuffix("_tanh"):  # the two forms of GELU have separate mistakes
            yield f"{name} for {own}", _replaced(port, own, formula)
    if port.config.below_head != own:
        yield "the layers' activation in the head", {"head.activation": from_source(ACTIVATIONS[own])}


def _again(y: np.ndarray, at: Any) -> np.ndarray:
    return ACTIVATIONS[at.config.activation](y.copy())


def _bias_after(port: Any) -> Ways:
    """act(x W) + b instead of act(x W + b)."""
    inner = "ffn.gate" if port.config.gated else "ffn.hidden"

    def late(y: np.ndarray, at: Any) -> Any:
        return ACTIVATIONS[at.config.activation](at(inner).copy()) + at.weight(inner, "bias")

    if any(name.endswith(f"{inner}.bias") for name in port.weights):
        yield "", {f"*.{inner}": lambda y, at: y - at.weight(inner, "bias"), "*.ffn.activation": late}


LEFT_OUT: Rules = {"*.activation": lambda y, at: at.source}
MISTAKES = (
    Mistake(
        "tanh GELU for erf",
        "the model has the exact GELU, with erf, not its tanh approximation",
        _gelu_for("gelu", gelu_tanh),
    ),
    Mistake(
        "erf GELU for tanh",
        "the model was trained with the tanh approximation of GELU, not with the exact GELU",
        _gelu_for("gelu_tanh", gelu),
    ),
    Mistake("quick GELU", "x sigmoid(1.702 x) approximates GELU with errors of up to 0.02", _quick_gelu),
    Mistake(
        "wrong constant in the activation",
        "the tanh approximation of GELU has sqrt(2 / pi) and 0.044715",
        _other_constant,
    ),
    Mistake("wrong activation", "the activation is the one that config.json names", _other_activation),
    Mistake(
        "activation left out",
        "the FFN is act(x W_1 + b_1) W_2 + b_2; without act it is a single linear map",
        {"": LEFT_OUT},
    ),
    Mistake("bias after the activation", "the activation applies to x W_1 + b_1, including the bias", _bias_after),
    Mistake(
        "activation in the wrong place",
        "the activation is applied once, between the linear layers of the FFN",
        {
            "twice": {"*.activation": _again},
            "after the FFN's second linear layer too": {"*.ffn.output": _again},
            "after the FFN's second linear layer, not between the two": {**LEFT_OUT, "*.ffn.output": _again},
        },
    ),
)


# --- gated networks ---------------------------------------------------------------------------------------------------


def _swapped(port: Any) -> Ways:
    yield "", port.exchanging_in_layers("ffn.gate", "ffn.up")
    yield (
        "up is activated",
        {
            "*.ffn.activation": lambda y, at: ACTIVATIONS[at.config.activation](at("ffn.up")),
            "*.ffn.gated": lambda y, at: at("ffn.activation") * at("ffn.gate"),
        },
    )


def _renamed(port: Any) -> Ways:
    """Exports gate and up under each other's names, but reads each correctly."""

    def made_by(group: str) -> Rule:
        return lambda y, at: at.linear(at.source, group)

    exported: Rules = {"*.ffn.gate": made_by("ffn.up"), "*.ffn.up": made_by("ffn.gate")}
    read: Rules = {f"*.{group}": made_by(group) for group in ("ffn.gate", "ffn.up")}
    yield "ffn.gate and ffn.up exchanged", port.ruling(exported).rereading(read, "*.ffn.activation", "*.ffn.gated")


def _of_product(y: np.ndarray, at: Any) -> np.ndarray:
    return ACTIVATIONS[at.config.activation](at("ffn.gate") * at("ffn.up"))


_OF_BOTH: Rules = {"*.ffn.activation": _of_product, "*.ffn.gated": lambda y, at: at("ffn.activation")}
GATED = (
    *MISTAKES,
    Mistake(
        "stages under wrong names",
        "ffn.gate is the product that is activated, with gate_proj in Llama; ffn.up is the other one, with up_proj",
        _renamed,
    ),
    Mistake(
        "gate and up swapped",
        "the gate is activated (gate_proj in Llama, the first half of a fused layer); up, the other one, is not",
        _swapped,
    ),
    Mistake(
        "up left out",
        "the activation is multiplied by up, the product with up_proj",
        {
            "left out": {"*.ffn.gated": lambda y, at: at("ffn.activation")},
            "added, not multiplied": {"*.ffn.gated": lambda y, at: at("ffn.activation") + at("ffn.up")},
        },
    ),
    Mistake(
        "activation of gate times up",
        "the activation applies to one factor, act(x W_1) * (x V), not to the product",
        {"": {"*.ffn.gated": _of_product}, "exported as both": _OF_BOTH},
    ),
)
