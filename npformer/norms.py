"""Norms as parts of a model: the base class `Norm`, and `LayerNorm` with the mistakes that ports make in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.common.mistake import Mistake, Rule, Rules, Ways
from npformer.direction import Direction
from npformer.functions import layer_norm, layer_norm_backward
from npformer.stage import Stage
from npformer.weight_group import Group


class Norm(ABC):
    """The base class of norms of rows, (..., D) -> (..., D). Subclasses are frozen dataclasses."""

    function: ClassVar[str]  # module and name of the formula, relative to npformer
    mistakes: ClassVar[tuple[Mistake, ...]] = ()

    @abstractmethod
    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        """Normalize(x), written to `out` if given."""

    @abstractmethod
    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Backward of `__call__`: dx and the gradients of the weights."""

    @abstractmethod
    def pull(self, direction: Direction, name: str, x: str, **weights: np.ndarray) -> None:
        """Pulls a direction in the output back to the input, with the scale of the row treated as a constant.

        name, x: the stages of the output and of the input.
        """

    @abstractmethod
    def group(self, width: int) -> Group:
        """The group of weights for rows of this width."""

    def affine(self, z: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """The output, from the normalized rows z."""
        return z * weight if bias is None else z * weight + bias

    def stage(self, name: str, x: str, parent: str, y: str = "", shape: str = "(T, D)", hook: str = "") -> Stage:
        """The stage of the output, with the formula y = Normalize(x). parent: the stage of the input."""
        formula = f"{y} = Normalize({x})" if y else f"Normalize({x})"
        return Stage(name, shape, formula, self.function, hook, (parent,))


@dataclass(frozen=True)
class LayerNorm(Norm):
    """(x - E[x]) / sqrt(Var[x] + eps) * weight + bias: `layer_norm` with its eps. Ba et al., 2016, section 3.

    Parameters
    ----------
    eps : float
    bias : bool, the weights include a bias
    """

    eps: float = 1e-12
    bias: bool = True

    function = "functions.layer_norm"

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        return layer_norm(x, **weights, eps=self.eps, out=out)

    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return layer_norm_backward(grad, x, **weights, eps=self.eps)

    def pull(self, direction: Direction, name: str, x: str, **weights: np.ndarray) -> None:
        """u . Normalize(x) = s (gamma u - E[gamma u]) . x + u . beta, for a constant s = 1 / sqrt(Var[x] + eps)."""
        if "bias" in weights:
            direction.add_bias(name, weights)
        scaled = direction.u * weights["weight"] if "weight" in weights else direction.u
        deviation = np.sqrt(direction.at(x).astype(np.float64).var() + self.eps)
        direction.u = (scaled - scaled.mean()) / deviation

    def group(self, width: int) -> Group:
        """The group of the weight, and of the bias if the norm has one."""
        return Group((width,), width if self.bias else None, "norm")


# --- mistakes --------------------------------------------------------------------------------------------------------

EPS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-7, 1e-8, 1e-10, 1e-4, 0.0)


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-1, keepdims=True)


def variance(x: np.ndarray) -> np.ndarray:
    return np.square(centred(x)).mean(-1, keepdims=True)


def unbiased(x: np.ndarray) -> np.ndarray:
    return variance(x) * x.shape[-1] / (x.shape[-1] - 1)


def standard(x: np.ndarray, eps: float) -> np.ndarray:
    """(x - E[x]) / sqrt(Var[x] + eps)."""
    return centred(x) / np.sqrt(variance(x) + eps)


def of_norms(rule: Rule) -> Rules:
    """Rules that apply a rule to every norm, whether of rows or of the heads of queries and keys."""
    return {"*norm": rule, "*_normed": lambda y, at: of_heads(rule, y, at)}


def of_heads(rule: Rule, y: np.ndarray, at: Any) -> np.ndarray:
    """Applies the rule of a norm of rows to the norm of each head: y (T, H K) as (T, H, K)."""
    made = np.asarray(rule(y.reshape(len(y), -1, at.d_head), at.of_each_head))
    return made.reshape(y.shape)


def everywhere(changes: Mapping[str, Rules] | Callable[[Any], Ways]) -> Callable[[Any], Ways]:
    """Ways to make a mistake in all norms and, in a model with norms of heads, in norms of one kind only."""

    def ways(port: Any) -> Ways:
        has_both = any(name.endswith("_normed") for name in port.span) and any(
            name.endswith("norm") for name in port.span
        )
        for way, rules in changes.items() if isinstance(changes, Mapping) else changes(port):
            yield way, rules
            if has_both and len(rules) > 1:
                for said, pattern in (("in norms of heads", "*_normed"), ("in norms of rows", "*norm")):
                    yield f"{way}, only {said}".removeprefix(", "), {pattern: rules[pattern]}

    return ways


def normed(formula: Callable[[np.ndarray, float], np.ndarray], eps: float | None = None) -> Rules:
    """Rules that replace the formula of every norm with a function of x and eps, before weight and bias are applied."""
    return of_norms(lambda y, at: at.affine(formula(at.source, at.config.eps if eps is None else eps)))


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


def in_groups(formula: Callable[[np.ndarray, float], np.ndarray]) -> Callable[[Any], Ways]:
    """Ways to normalize groups of a row's columns, such as those of each head, with a formula of x and eps."""

    def ways(port: Any) -> Ways:
        for count in dict.fromkeys((port.n_heads, 2, 4, 8, 16)):

            def rule(y: np.ndarray, at: Any, count: int = count) -> Any:
                groups = at.source.reshape(*at.source.shape[:-1], count, -1)
                return at.affine(formula(groups, at.config.eps).reshape(y.shape))

            if count > 1 and port.config.d_model % count == 0:
                yield f"{count} groups{', one per head' if count == port.n_heads else ''}", {"*norm": rule}

    return ways


IN_GROUPS = "a row is normalized over all its columns at once"
LEFT_OUT = {
    "the embeddings'": "embeddings.norm",
    "after attention": "*.attention_norm",
    "after the FFN": "*.ffn_norm",
    "the last": "norm",
    "the head's": "head.norm",
}
LayerNorm.mistakes = (
    Mistake("another layer norm eps", "torch's default is 1e-5; config.json of BERT models says 1e-12", _other_eps),
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


LAYER_NORM = LayerNorm()  # the eps of BERT
