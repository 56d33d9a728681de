"""Causes beyond the tables: mistakes in one branch, in a copied step, in pairs, and in some of the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npformer.learn import right
from npformer.learn.answers import Case, call, in_form_of, mapped, truth
from npformer.learn.causes import _in_some_values, cause
from npformer.learn.chapters import EXERCISES
from npformer.learn.chapters.attention_gradients import _backward
from npformer.learn.chapters.more_gradients import _mean, _norm
from npformer.learn.chapters.whole_gradient import _gradients, _of_rows
from npformer.learn.judge import judge
from npformer.learn.right import (
    causal_mask,
    combine_heads,
    feed_forward,
    gelu,
    gelu_tanh,
    layer_norm,
    linear,
    multi_head_attention,
    scaled_dot_product_attention,
    split_heads,
)
from npformer.learn.shown import difference, value_name
from npformer.learn.template import signatures


def named(name: str, function: Callable[..., Any]) -> tuple[str, str]:
    """Returns the cause found when this function is the solution of an exercise."""
    return cause(EXERCISES[name], cases_of(name, function))


def cases_of(name: str, function: Callable[..., Any]) -> list[Case]:
    """The function's answers in every case of an exercise."""
    cases = []
    for args in EXERCISES[name].cases():
        true, outcome = truth(EXERCISES[name].right, args), call(function, args)
        if not outcome.raised:
            outcome = type(outcome)(in_form_of(mapped(as_float32, outcome.answer), true.outcome.answer))
        cases.append(Case.of(args, outcome, true))
    return cases


def as_float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def decoder_layer(x: Any, n_heads: int, cache: Any, attention: Any, attention_norm: Any, ffn: Any, ffn_norm: Any,
                  eps: float = 1e-5, *, mask: Any = causal_mask, axis: int = 1) -> Any:  # fmt: skip
    n = layer_norm(x, **attention_norm, eps=eps)
    q, k, v = (split_heads(linear(n, **attention[name]), n_heads) for name in ("query", "key", "value"))
    if cache is not None:
        k, v = (np.concatenate([old, new], axis) for old, new in zip(cache, (k, v), strict=True))
    allowed = mask(q.shape[1], k.shape[1])
    y = x + linear(combine_heads(scaled_dot_product_attention(q, k, v, allowed)), **attention["output"])
    return y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), gelu_tanh, **ffn), (k, v)


def mask_without_a_cache(*args: Any) -> Any:
    return decoder_layer(*args, mask=lambda n, m: causal_mask(n, m) if n == m else None)


def joined_on_axis_0(*args: Any) -> Any:
    return decoder_layer(*args, axis=0)


def unmasked_with_another_eps(x: Any, h: int, cache: Any, a: Any, an: Any, f: Any, fn: Any, eps: float = 1e-12) -> Any:
    return decoder_layer(x, h, cache, a, an, f, fn, eps, mask=lambda n, m: None)


def unbiased_layer(x: Any, n_heads: int, attention: Any, attention_norm: Any, ffn: Any, ffn_norm: Any) -> Any:
    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + 1e-12) * weight + bias

    y = norm(x + multi_head_attention(x, n_heads, **attention), **attention_norm)
    return norm(y + feed_forward(y, gelu, **ffn), **ffn_norm)


def two_wrong_gradients(grad: Any, x: Any, weight: Any) -> Any:
    return grad @ weight.T, grad.T @ x, grad.mean(0)


def divided_too_often(grad: Any, q: Any, k: Any, v: Any) -> Any:
    return _backward(grad, q, k, v, forward=-1, scale=-2)


def sum_and_a_constant(x: Any) -> Any:
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / (y.sum(-1, keepdims=True) + 0.003)


def eps_of_my_own(x: Any, weight: Any, bias: Any, eps: float = 1e-12) -> Any:
    return layer_norm(x, weight, bias, 3e-6)


def last_term_divided(grad: Any, x: Any, weight: Any, eps: float = 1e-12) -> Any:
    return _norm(grad, x, weight, eps, dx=lambda g, n, s: g - _mean(g) - n * _mean(g * n) / s)


def sum_without_its_axis(x: Any) -> Any:
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1)


def infinity_times_the_mask(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return right.softmax(scores if mask is None else scores + (1 - mask) * -np.inf) @ v


def keys_and_values_without_the_norm(
    x: Any, h: int, cache: Any, a: Any, an: Any, f: Any, fn: Any, eps: float = 1e-5
) -> Any:
    n = layer_norm(x, **an, eps=eps)
    q, k, v = (split_heads(linear(each, **a[name]), h) for each, name in ((n, "query"), (x, "key"), (x, "value")))
    if cache is not None:
        k, v = (np.concatenate([old, new], 1) for old, new in zip(cache, (k, v), strict=True))
    heads = scaled_dot_product_attention(q, k, v, causal_mask(q.shape[1], k.shape[1]))
    y = x + linear(combine_heads(heads), **a["output"])
    return y + feed_forward(layer_norm(y, **fn, eps=eps), gelu_tanh, **f), (k, v)


def mean_over_the_tokens(ids: Any, target: int, n_heads: int, weights: Any) -> Any:
    loss, grads = right.loss_and_gradients(ids, target, n_heads, weights)
    return loss, mapped(lambda array: array / len(ids), grads)


def norm_skipped_to_attention(ids: Any, target: int, n_heads: int, weights: Any) -> Any:
    return _gradients(ids, target, n_heads, weights, skips=("attention",))


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
            "eps is 3e-06, regardless of the argument. Use the argument, which is 1e-12 by default.",
            id="small constant",
        ),
        pytest.param(
            "linear_backward",
            lambda grad, x, weight: (grad @ weight.T, x.T @ grad, grad.sum(0) * 0.7),
            "dbias: 0.7 times the right numbers.",
            id="factor",
        ),
        pytest.param(
            "decoder_layer",
            lambda *args: mapped(lambda array: -array, decoder_layer(*args)),
            "z, cache: the sign is wrong.",
            id="sign",
        ),
        pytest.param(
            "loss_and_gradients",
            mean_over_the_tokens,
            "gradients: the right numbers divided by ids.shape[0].",
            id="size",
        ),
        pytest.param(
            "linear_backward",
            lambda grad, x, weight: (weight @ grad.T, x.T @ grad, grad.sum(0)),
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
            "scaled_dot_product_attention",
            infinity_times_the_mask,
            "The mask is multiplied by infinity, and 0 times infinity is NaN. Use np.where(mask, scores, -np.inf).",
            id="infinity",
        ),
        pytest.param(
            "decoder_layer",
            keys_and_values_without_the_norm,
            "Keys and values are computed from X. They should be computed from Normalize(X), like the queries.",
            id="operand",
        ),
        pytest.param(
            "layer_norm_backward",
            last_term_divided,
            "Only the last term, n E[g n], is divided by the root. Divide the whole difference: put it in brackets.",
            id="brackets",
        ),
        pytest.param(
            "loss_and_gradients",
            norm_skipped_to_attention,
            "The gradient does not go through layer_norm_backward on its way to attention. It does on its way to x.",
            id="one of two ways",
        ),
        pytest.param(
            "decoder_layer",
            mask_without_a_cache,
            "If cache is given: The tokens also attend to later tokens. Use causal_mask.",
            id="branch",
        ),
        pytest.param(
            "decoder_layer",
            joined_on_axis_0,
            "The cached and the new keys are joined along the wrong axis. The arrays are (H, S, K) and (H, L, K), so "
            "join them along axis 1, the tokens.",
            id="exception",
        ),
        pytest.param(
            "encoder_layer",
            unbiased_layer,
            "In the step layer_norm: The divisor of the variance is D - 1. It should be D.",
            id="part",
        ),
        pytest.param(
            "decoder_layer",
            unmasked_with_another_eps,
            "Two mistakes. First: The tokens also attend to later tokens. Use causal_mask. Second: eps is 1e-12 by "
            "default. The default should be 1e-5, as in GPT-2.",
            id="pair",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "cross_entropy",
            lambda logits, target: np.log(right.softmax(logits)[target]),
            "Two mistakes. First: softmax rounds to 0 for a target far below the maximum, and its logarithm is -inf. "
            "Compute s - log(sum(exp(s))) with s = x - max(x) instead. Second: The minus sign is missing: this is log "
            "softmax.",
            id="short pair",
        ),
        pytest.param(
            "linear_backward",
            two_wrong_gradients,
            "dweight is grad^T x. It should be x^T grad. This explains your dweight, but not your dbias.",
            id="values",
        ),
        pytest.param(
            "attention_backward",
            divided_too_often,
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
    """A ValueError alone identifies no mistake, because many programs raise one."""
    assert named(name, another_error) == ("", "")


def off(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: mapped(lambda a: a * 1.001 if a.dtype.kind == "f" else a, function(*args))


@pytest.mark.parametrize("function", [mask_without_a_cache, unmasked_with_another_eps])
@pytest.mark.slow
def test_nearly_the_numbers_of_a_program_have_no_cause(function: Callable[..., Any]) -> None:
    assert named("decoder_layer", off(function)) == ("", "")


def test_nearly_the_numbers_of_a_step_have_no_cause() -> None:
    assert named("encoder_layer", off(unbiased_layer)) == ("", "")


def every_row_of_half(ids: Any, target: int, n_heads: int, weights: Any) -> Any:
    """No known mistake: each row of the logits gets half of its gradient."""
    given = {"read": slice(None), "of_row": lambda logits: logits, "dlogits": lambda *args: _of_rows(*args) / 2}
    return _gradients(ids, target, n_heads, weights, **given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_value_that_is_always_0_shows_no_cause() -> None:
    """The gradient of key.bias is 0 up to rounding. Its rounding errors differ, but show no mistake."""
    cases = cases_of("loss_and_gradients", every_row_of_half)
    assert _in_some_values(EXERCISES["loss_and_gradients"], cases) == ("", "")


def test_a_value_has_its_name() -> None:
    assert value_name(EXERCISES["decoder_layer"].values, "1.0") == "cache[0]"
    assert value_name(EXERCISES["loss_and_gradients"].values, "1.query.weight") == "gradients.query.weight"
    assert value_name((), "") == ""


def test_the_largest_difference_is_named_by_its_value() -> None:
    decoder_step = EXERCISES["decoder_step"]
    true = truth(decoder_step.right, decoder_step.cases()[1])
    logits, caches = mapped(np.copy, true.outcome.answer)
    caches[1][0][1, 5, 1] += 9
    assert difference((logits, caches), true, decoder_step.values).startswith(", most at caches[1][0][1, 5, 1]: yours ")


@pytest.mark.parametrize("is_in_set", [np.less, np.less_equal])
def test_the_last_word_of_the_set_left_out_is_named_if_at_least_one_word_is_kept(is_in_set: Any) -> None:
    """At top_p = 1, rounding decides whether all words are kept."""

    def sample(logits: Any, temperature: float, top_p: float, u: float) -> int:
        p = right.softmax(logits / temperature)
        order = np.argsort(-p)
        kept = order[is_in_set(np.cumsum(p[order]), top_p)]
        kept = kept if len(kept) else order[:1]
        q = np.zeros_like(p)
        q[kept] = p[kept] / p[kept].sum()
        return int(np.argmax(np.cumsum(q) > u))

    found = judge(EXERCISES["sample"], sample, signatures()["sample"], "mine.py").with_cause()
    assert found.cause == "last word of the set left out"


def test_a_changed_list_of_arrays_is_named_with_its_place() -> None:
    def decoder_step(ids: Any, n_heads: int, weights: Any, caches: Any = None) -> Any:
        given = caches and list(caches)
        if caches:
            caches[0] = tuple(2 * each for each in caches[0])
        return right.decoder_step(ids, n_heads, weights, given)

    found = judge(EXERCISES["decoder_step"], decoder_step, signatures()["decoder_step"], "mine.py").with_cause()
    assert found.sentence.startswith("It changes its argument caches, at 0.0. ")
