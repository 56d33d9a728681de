"""Causes outside the tables: mistakes in one branch, in a copied step, in pairs, and in some of the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npformer.learn.answers import Case, call, in_form_of, mapped, truth
from npformer.learn.causes import _in_some_values, cause
from npformer.learn.chapters import EXERCISES
from npformer.learn.judge import judge
from npformer.learn.programs import Edit, edited, program
from npformer.learn.shown import difference, value_name
from npformer.learn.template import signatures
from npformer.plain.decoding import gpt2_step
from npformer.plain.formulas import (
    causal_mask,
    combine_heads,
    feed_forward,
    layer_norm,
    linear,
    multi_head_attention,
    scaled_dot_product_attention,
    softmax,
    split_heads,
)
from npformer.plain.gradients import distilbert_backward


def named(name: str, function: Callable[..., Any]) -> tuple[str, str]:
    """Returns the cause found if this function is the solution of an exercise."""
    return cause(EXERCISES[name], cases_of(name, function))


def cases_of(name: str, function: Callable[..., Any]) -> list[Case]:
    """Returns the function's answers in every case of an exercise."""
    cases = []
    for args in EXERCISES[name].cases():
        true, outcome = truth(EXERCISES[name].right, args), call(function, args)
        if not outcome.raised:
            outcome = type(outcome)(in_form_of(mapped(as_float32, outcome.answer), true.outcome.answer))
        cases.append(Case.of(args, outcome, true))
    return cases


def as_float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def with_edits(name: str, *edits: str) -> Callable[..., Any]:
    """Returns the page's function with edits, given as alternating old and new texts."""
    return program(name, {name: edited(name, [Edit(*each) for each in zip(edits[::2], edits[1::2], strict=True)])})


def extend(past: Any, *new: Any) -> Any:
    return [np.concatenate(pair, axis=-2) for pair in zip(past, new, strict=True)]


def cached_attention(x: Any, past: Any, n_heads: int, query: Any, key: Any, value: Any, output: Any, *,
                     mask: Any = causal_mask, join: Any = extend, eps: float | None = None) -> Any:  # fmt: skip
    q, k, v = (split_heads(linear(x, **each), n_heads) for each in (query, key, value))
    keys, values = join(past, k, v)
    context = scaled_dot_product_attention(q, keys, values, mask(q.shape[-2], keys.shape[-2]))
    return linear(combine_heads(context), **output), (keys, values)


def mask_without_a_past(*args: Any) -> Any:
    return cached_attention(*args, mask=lambda n, m: causal_mask(n, m) if n == m else True)


def joined_on_axis_0(*args: Any) -> Any:
    def join(past: Any, *new: Any) -> Any:
        return [np.concatenate([a, b]) if a.size else b for a, b in zip(past, new, strict=True)]

    return cached_attention(*args, join=join)


def unmasked_and_exchanged(x: Any, past: Any, n_heads: int, query: Any, key: Any, value: Any, output: Any) -> Any:
    return cached_attention(x, past, n_heads, key, query, value, output, mask=lambda n, m: True)


def unbiased_layer(
    x: Any, mask: Any, n_heads: int, act: Any, eps: float, attention: Any, norm_1: Any, ffn: Any, norm_2: Any
) -> Any:
    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps) * weight + bias

    y = norm(x + multi_head_attention(x, x, mask, n_heads, **attention), **norm_1)
    return norm(y + feed_forward(y, act, **ffn), **norm_2)


def flat(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def two_wrong_gradients(grad: Any, x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return grad @ weight.T, {"weight": flat(grad).T @ flat(x), "bias": flat(grad).min(0)}


def right_gradients(grad: Any, x: Any, weight: Any, bias: Any = 0.0) -> Any:
    return grad @ weight.T, {"weight": flat(x).T @ flat(grad), "bias": flat(grad).sum(0)}


def factor(*args: Any) -> Any:
    dx, grads = right_gradients(*args)
    return dx, {**grads, "bias": grads["bias"] * 0.7}


def transposed(grad: Any, x: Any, weight: Any, bias: Any = 0.0) -> Any:
    dx, grads = right_gradients(grad, x, weight)
    return dx.mT, grads


def sum_and_a_constant(x: Any, axis: int = -1) -> Any:
    y = np.exp(x - x.max(axis, keepdims=True))
    return y / (y.sum(axis, keepdims=True) + 0.003)


def eps_of_my_own(x: Any, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    return layer_norm(x, weight, bias, 3e-6)


def sum_without_its_axis(x: Any, axis: int = -1) -> Any:
    y = np.exp(x - x.max(axis, keepdims=True))
    return y / y.sum(axis)


def infinity_times_the_mask(scores: Any, mask: Any) -> Any:
    return softmax(scores + (1 - mask) * -np.inf)


def sum_over_the_labels(*args: Any) -> Any:
    return mapped(lambda array: array / len(args[-1]["output"]["bias"]), distilbert_backward(*args))


@pytest.mark.parametrize(
    ("name", "function", "expected"),
    [
        pytest.param(
            "softmax",
            sum_and_a_constant,
            "0.003 is added to the sum, so the numbers of a row do not add up to 1.",
            id="constant",
        ),
        pytest.param(
            "layer_norm",
            eps_of_my_own,
            "eps is 3e-06, regardless of the argument. Use the argument, which is 1e-5 by default.",
            id="small constant",
        ),
        pytest.param(
            "linear_backward",
            factor,
            "gradients.bias: 0.7 times the right numbers.",
            id="factor",
        ),
        pytest.param(
            "cached_attention",
            lambda *args: mapped(lambda array: -array, cached_attention(*args)),
            "rows, past: the sign is wrong.",
            id="sign",
        ),
        pytest.param(
            "split_heads",
            lambda x, n_heads: split_heads(x, n_heads) / n_heads,
            "All numbers: the right numbers divided by n_heads.",
            id="size",
        ),
        pytest.param(
            "linear_backward",
            transposed,
            "dx: rows and columns are exchanged.",
            id="transposed",
        ),
        pytest.param(
            "softmax",
            sum_without_its_axis,
            "The sum lacks keepdims=True, so it broadcasts along the columns. Each row should be divided by its own sum.",
            id="keepdims",
        ),
        pytest.param(
            "masked_softmax",
            infinity_times_the_mask,
            "The mask is multiplied by infinity, and 0 times infinity is NaN. Use np.where(mask, ...).",
            id="infinity",
        ),
        pytest.param(
            "multi_head_attention",
            with_edits(
                "multi_head_attention",
                "linear(source, **key)",
                "linear(x, **key)",
                "linear(source, **value)",
                "linear(x, **value)",
            ),
            "Keys and values are computed from x. They should be computed from source.",
            id="operand",
        ),
        pytest.param(
            "layer_norm_backward",
            with_edits(
                "layer_norm_backward",
                "(g - g.mean",
                "g - g.mean",
                "keepdims=True)) / s\n    return",
                "keepdims=True) / s\n    return",
            ),
            "Only the last term, n E[g n], is divided by the root. Divide the whole difference: put it in brackets.",
            id="brackets",
        ),
        pytest.param(
            "encoder_layer_backward",
            with_edits(
                "encoder_layer_backward",
                "multi_head_attention_backward(d_total,",
                "multi_head_attention_backward(d_sum + through_ffn,",
            ),
            "The gradient does not go through the layer_norm_backward of the first norm on its way to attention. It does "
            "on its way to x.",
            id="one of two ways",
        ),
        pytest.param(
            "cached_attention",
            mask_without_a_past,
            "If past has tokens: The tokens also attend to later tokens. Use causal_mask.",
            id="branch",
        ),
        pytest.param(
            "cached_attention",
            joined_on_axis_0,
            "The old and the new keys are joined along the wrong axis. The arrays are (H, P, K) and (H, L, K), so join "
            "them along axis -2, the tokens.",
            id="exception",
        ),
        pytest.param(
            "encoder_layer",
            unbiased_layer,
            "In the step layer_norm: The divisor of the variance is D - 1. It should be D.",
            id="part",
        ),
        pytest.param(
            "cached_attention",
            unmasked_and_exchanged,
            "Two mistakes. First: The tokens also attend to later tokens. Use causal_mask. Second: The query and key "
            "layers are exchanged.",
            id="pair",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cross_entropy",
            lambda logits, targets: np.log(np.take_along_axis(softmax(logits), targets[..., None], -1)).mean(),
            "Two mistakes. First: softmax rounds to 0 for a target far below the maximum, and its logarithm is -inf. "
            "Compute s - log(sum(exp(s))) with s = x - max(x) instead. Second: The minus sign is missing: this is log "
            "softmax.",
            id="short pair",
        ),
        pytest.param(
            "linear_backward",
            two_wrong_gradients,
            "dW is grad^T x. It should be x^T grad. This explains your gradients.weight, but not your gradients.bias.",
            id="values",
        ),
        pytest.param(
            "scaled_dot_product_attention_backward",
            with_edits(
                "scaled_dot_product_attention_backward",
                "k.mT / math.sqrt(q.shape[-1])",
                "k.mT / q.shape[-1]",
                "d_products @ k",
                "d_products @ k * 1.1",
                "d_products.mT @ q",
                "d_products.mT @ q * 1.3",
            ),
            "The scores are divided by K before the softmax. They should be divided by its square root. This explains "
            "your dv, but not your dq, dk.",
            id="one value",
        ),
    ],
)
def test_a_cause_beyond_the_table(name: str, function: Callable[..., Any], expected: str) -> None:
    assert named(name, function)[1] == expected


def another_error(*args: Any) -> Any:
    raise ValueError("of another kind")


@pytest.mark.parametrize("name", ["linear", "split_heads", "linear_backward", "multi_head_attention", "gelu"])
def test_an_exception_with_another_message_has_no_known_cause(name: str) -> None:
    """A ValueError alone identifies no mistake, because many programs raise ValueError."""
    assert named(name, another_error) == ("", "")


@pytest.mark.parametrize("name", ["linear", "softmax", "layer_norm"])
@pytest.mark.parametrize("answer", [None, "text"])
def test_an_answer_without_numbers_has_no_cause(name: str, answer: Any) -> None:
    """A known mistake that raises an exception gives no numbers either, but is not named as the cause."""
    assert named(name, lambda *args: answer) == ("", "")


def off(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: mapped(lambda a: a * 1.001 if a.dtype.kind == "f" else a, function(*args))


@pytest.mark.parametrize("function", [mask_without_a_past, unmasked_and_exchanged])
@pytest.mark.slow
def test_nearly_the_numbers_of_a_program_have_no_cause(function: Callable[..., Any]) -> None:
    assert named("cached_attention", off(function)) == ("", "")


def test_nearly_the_numbers_of_a_step_have_no_cause() -> None:
    assert named("encoder_layer", off(unbiased_layer)) == ("", "")


@pytest.mark.slow
def test_a_value_that_is_always_0_shows_no_cause() -> None:
    """The gradient of key.bias is 0 up to rounding. A difference in rounding is not a mistake."""
    half = with_edits(
        "multi_head_attention_backward", "linear_backward(grad, combined", "linear_backward(grad / 2, combined"
    )
    cases = cases_of("multi_head_attention_backward", half)
    assert _in_some_values(EXERCISES["multi_head_attention_backward"], cases) == ("", "")


def test_a_value_has_its_name() -> None:
    assert value_name(EXERCISES["cached_attention"].values, "1.0") == "past[0]"
    assert value_name(EXERCISES["multi_head_attention_backward"].values, "2.query.weight") == "gradients.query.weight"
    assert value_name((), "") == ""


def test_the_largest_difference_is_named_by_its_value() -> None:
    step = EXERCISES["gpt2_step"]
    true = truth(step.right, step.cases()[1])
    logits, past = mapped(np.copy, true.outcome.answer)
    past[1][0][1, 5, 1] += 9
    assert difference((logits, past), true, step.values).startswith(", most at past[1][0][1, 5, 1]: yours ")


@pytest.mark.parametrize("least", [0, 1])
def test_the_last_token_of_the_set_left_out_is_named_with_and_without_an_empty_set(least: int) -> None:
    def top_p(logits: Any, p: float) -> Any:
        probabilities = softmax(logits)
        order = np.argsort(-probabilities)
        kept = order[: max(least, int((np.cumsum(probabilities[order]) < p).sum()))]
        found = np.zeros_like(probabilities)
        found[kept] = probabilities[kept] / probabilities[kept].sum()
        return found if len(kept) else found * np.float32(np.nan)

    found = judge(EXERCISES["top_p"], top_p, signatures()["top_p"], "mine.py").with_cause()
    assert found.cause == "last token of the set left out"


def test_a_changed_list_of_arrays_is_named_with_its_place() -> None:
    def step(ids, past, n_heads, activation, eps, embeddings, layers, norm, head):  # type: ignore[no-untyped-def]
        given = list(past)
        past[0] = tuple(2 * each for each in past[0])
        return gpt2_step(ids, given, n_heads, activation, eps, embeddings, layers, norm, head)

    found = judge(EXERCISES["gpt2_step"], step, signatures()["gpt2_step"], "mine.py").with_cause()
    assert found.sentence.startswith("It changes its argument past, at 0.0. ")
