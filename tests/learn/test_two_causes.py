"""Two mistakes in one function are both named, and no cause is named unless it explains every number shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npformer.learn.chapters import EXERCISES
from npformer.learn.contents import right
from npformer.learn.judge import judge
from npformer.learn.programs import Edit, edited, program
from npformer.learn.template import signatures
from tests.learn.test_exercises import as_learner


def named(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Returns the cause found for a function; the search has enough time on any machine."""
    monkeypatch.setattr("npformer.learn.judge.SECONDS", 600.0)
    name = function.__name__
    verdict = judge(EXERCISES[name], as_learner(function, name), signatures()[name], "").with_cause()
    return verdict.cause, verdict.sentence


def exercise(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def rename(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__name__ = name
        return function

    return rename


def norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


@exercise("softmax")
def columns_without_maximum(x: Any, axis: int = -1) -> Any:
    return np.exp(x) / np.exp(x).sum(0, keepdims=True)


@exercise("scaled_dot_product_attention")
def divided_by_k_without_mask(q: Any, k: Any, v: Any, mask: Any = True) -> Any:
    return right("softmax")(q @ k.mT / q.shape[-1]) @ v


@exercise("layer_norm")
def unbiased_with_another_default(x: Any, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-12) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps) * weight + bias


@exercise("layer_norm")
def eps_outside_without_bias(x: Any, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) * weight


@exercise("classify")
def tanh_of_the_last_row(x: Any, pooler: Any, head: Any) -> Any:
    pooled = np.tanh(right("linear")(x[..., -1, :], **pooler))
    return {"logits": right("linear")(pooled, **head["output"])}


@exercise("feed_forward")
def linear_without_second_bias(x: Any, activation: Any, hidden: Any, output: Any) -> Any:
    return (x @ hidden["weight"] + hidden["bias"]) @ output["weight"]


@exercise("encoder")
def relu_and_eps_in_layers(x: Any, mask: Any, n_heads: int, activation: Any, eps: float, layers: Any) -> Any:
    for layer in layers:
        attended = right("multi_head_attention")(x, x, mask, n_heads, **layer["attention"])
        y = norm(x + attended, **layer["attention_norm"], eps=1e-5)
        x = norm(y + right("feed_forward")(y, relu, **layer["ffn"]), **layer["ffn_norm"], eps=1e-5)
    return x


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (columns_without_maximum, "maximum not subtracted; sum of each column"),
        (divided_by_k_without_mask, "scores divided by K; mask ignored"),
        (unbiased_with_another_default, "unbiased variance; wrong default for eps"),
        (eps_outside_without_bias, "eps outside the root; bias left out"),
        (tanh_of_the_last_row, "last row; tanh instead of relu"),
        (linear_without_second_bias, "activation left out; second bias left out"),
        pytest.param(
            relu_and_eps_in_layers, "eps not passed on; relu instead of the activation", marks=pytest.mark.slow
        ),
    ],
)
def test_two_mistakes_are_both_named(function: Callable[..., Any], cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sentence = named(function, monkeypatch)
    assert found == cause
    assert "Two mistakes. First: " in sentence


@pytest.mark.parametrize("name", ["encoder_layer", "encoder", "layer_norm", "embed", "distilbert", "cached_gpt2_layer"])
def test_the_cases_show_another_eps(name: str) -> None:
    """If no case noticed a wrong eps, only the second mistake of such a function would be named."""
    other = edited("layer_norm", [Edit("variance + eps", "variance + max(eps, 2e-5)")])
    function = program(name, {"layer_norm": other})
    verdict = judge(EXERCISES[name], as_learner(function, name), signatures()[name], "").verdict
    assert verdict.kind == "numbers"


@exercise("linear")
def bias_alone(x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return np.broadcast_to(bias, (*x.shape[:-1], weight.shape[1])).astype(x.dtype)


@exercise("layer_norm")
def shift_alone(x: Any, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    return np.broadcast_to(bias, x.shape)


@exercise("linear")
def bias_of_matrices(x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return x @ weight + (bias if x.ndim == 2 else 0)


@exercise("gelu")
def relu_of_matrices(x: Any) -> Any:
    return relu(x) if x.ndim == 2 else right("gelu")(x)


@exercise("gelu")
def zeros(x: Any) -> Any:
    return np.zeros_like(x)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (bias_alone, "Only bias is returned, for every row. It should be added to x @ weight."),
        (
            shift_alone,
            "Only bias is returned, for every row. It should be added to the normalized x times weight.",
        ),
        (bias_of_matrices, "If x has 1 or 3 axes: bias is not added."),
        (relu_of_matrices, "If x has 2 axes: This is relu, max(x, 0). GELU is x Phi(x)."),
        (zeros, "All numbers: all are 0."),
    ],
)
def test_a_lost_term_and_a_mistake_in_some_shapes_are_named(
    function: Callable[..., Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named(function, monkeypatch)[1] == sentence


@exercise("linear")
def right_for_one_shape(x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return x @ weight * (1 if x.shape == (4, 3) else 1.5) + bias


def test_no_cause_is_named_that_does_not_give_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named(right_for_one_shape, monkeypatch) == ("", "")
