"""Mistakes that ports make in attention: in its projections, heads, scale, softmax and masks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from npformer.engine.attention import combine_heads, split_heads
from npformer.engine.functions import softmax
from npformer.engine.mechanisms.soft_cap import UNCAPPED_SCORES
from npformer.engine.mechanisms.window import Window
from npformer.golden.graph import QKV
from npformer.golden.mistake import Mistake, Rule, Rules, Ways
from npformer.golden.mistakes.parts.causal import AFTER, SHIFTED, Picture, misused, pictured
from npformer.golden.mistakes.parts.ffn import sigmoid

SCORES, WEIGHTS, CONTEXT = "*.attention.scores", "*.attention.weights", "*.attention.context"
HEADS, COMBINED = "*.attention.*_heads", "*.attention.combined"


def _before_cap(rule: Rule) -> Rules:
    """Rules that change the scores, before their soft cap if the layer has one."""
    return {
        f"*.attention.{UNCAPPED_SCORES}": rule,
        SCORES: lambda scores, at: rule(scores, at) if at.cap is None else scores,
    }


# --- query, key and value --------------------------------------------------------------------------------------------

#: New order of query, key and value -> name of the mistake.
SWAPS = {(1, 0, 2): "query and key swapped", (2, 1, 0): "query and value swapped", (0, 2, 1): "key and value swapped"}
ROTATIONS = ((1, 2, 0), (2, 0, 1))


def _swapped(*orders: tuple[int, ...]) -> Callable[[Any], Ways]:
    """Ways to swap query, key and value: their weights, or their heads in the products."""

    def ways(port: Any) -> Ways:
        for order in orders:
            named = dict(zip(QKV, (QKV[i] for i in order), strict=True))
            said = "" if order in SWAPS else f"{', '.join(named.values())} instead of {', '.join(QKV)}: "
            weights = {
                name: port.weights[name.replace(f".{own}.", f".{other}.")]
                for name in port.weights
                for own, other in named.items()
                if f"attention.{own}." in name
            }
            if all(weights[name].shape == port.weights[name].shape for name in weights):
                yield f"{said}their weights", port.weighing(weights)
            if order in SWAPS:
                exchanged = {
                    f"*.attention.{own}_heads": _heads_of(other) for own, other in named.items() if own != other
                }
                yield "their heads", exchanged
            if order == (1, 0, 2):
                yield "K Q^T for Q K^T", _before_cap(lambda scores, at: _transposed(scores))
            elif order in SWAPS:
                yield "in the products", _in_products(named)

    return ways


def _heads_of(name: str) -> Rule:
    """The heads of "query", "key" or "value", rotated if the model rotates them."""

    def rule(y: np.ndarray, at: Any) -> np.ndarray:
        for stage in (f"attention.{name}_rotated", f"attention.{name}"):
            with suppress(KeyError):
                return split_heads(at(stage), len(y))
        raise KeyError(name)

    return rule


def _transposed(x: np.ndarray) -> np.ndarray:
    """x^T if x has as many queries as keys, else x, because in cross-attention the two numbers may differ."""
    return x.swapaxes(-1, -2) if x.shape[-1] == x.shape[-2] else x


def _in_products(named: dict[str, str]) -> Rules:
    q, k, v = (named[name] for name in QKV)
    return {
        **_before_cap(lambda y, at: at.heads(q) @ at.heads(k).swapaxes(-1, -2) * at.scale + at.bias(y)),
        CONTEXT: lambda y, at: at("attention.weights") @ at.heads(v),
    }


def _fused(port: Any) -> Ways:
    """Ways to split a joint (D, 3 D) weight into query, key and value other than by thirds of its columns."""
    heads, width = port.n_heads, port.n_heads * port.d_head
    if port.config.kv_heads != port.config.n_heads:
        return
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # (..., 3 D) -> (3, ..., D)
        "head by head": lambda w: np.stack(
            [part.reshape(*w.shape[:-1], width) for part in np.moveaxis(w.reshape(*w.shape[:-1], heads, 3, -1), -2, 0)]
        ),
        "column by column": lambda w: np.moveaxis(w.reshape(*w.shape[:-1], width, 3), -1, 0),
    }
    for way, cut in ways.items():
        changes: dict[str, np.ndarray] = {}
        for block in (name.removesuffix("query.weight") for name in port.weights if name.endswith(".query.weight")):
            for part in ("weight", "bias"):
                names = [f"{block}{name}.{part}" for name in QKV]
                if all(name in port.weights for name in names):
                    whole = np.concatenate([port.weights[name] for name in names], axis=-1)
                    changes |= dict(zip(names, cut(whole), strict=True))
        yield way, port.weighing(changes)


def _query_scaled(port: Any) -> Ways:
    """Scales the query. Tried only for stages of the query, because in the scores this looks like scaling twice."""
    if port.stage.endswith(("attention.query", "attention.query_heads")):
        yield "by 1 / sqrt(d_head)", {f"*.{port.stage.rpartition('.')[2]}": lambda q, at: q * at.d_head**-0.5}


# --- heads -----------------------------------------------------------------------------------------------------------


def _split_otherwise(split: Rule, combine: Rule) -> Callable[[Any], Ways]:
    """Ways to split rows of query, key and value into the wrong heads, or to combine heads in the wrong order.

    split : maps rows (T, D) to rows that the correct split turns into the wrong heads; applied before a rotation
    """

    def ways(port: Any) -> Ways:
        rows = {f"*.attention.{name}": split for name in QKV}
        splitting = port.rereading(rows, HEADS, "*.attention.*_rotated")
        yield "when splitting", splitting
        yield "when combining", {COMBINED: combine}
        exported: Rules = {CONTEXT: lambda y, at: split_heads(combine(combine_heads(y), at), len(y))}
        yield "when combining, before the context is exported", exported
        yield "when splitting and combining", splitting.ruling({COMBINED: combine})
        if any(name.endswith("_rotated") for name in port.known):
            yield "when splitting rotated rows", port.rereading({"*.attention.*_rotated": split}, HEADS)

    return ways


def _other_heads(port: Any) -> Ways:
    heads, width = port.n_heads, port.config.d_model
    for count in dict.fromkeys((heads // 2, heads * 2, heads // 4, heads * 4, 1, heads // 3, heads * 3, 8, 12, 16)):
        if 0 < count <= width and width % count == 0 and count != heads:
            changed = port.with_heads(count, COMBINED)
            yield f"{count} instead of {heads}", changed
            scaled: Rules = {SCORES: lambda y, at, count=count: y * (heads / count) ** 0.5}
            yield f"{count} instead of {heads}, but scaled for {heads}", changed.ruling(scaled)


def _averaged(y: np.ndarray, at: Any) -> np.ndarray:
    context = at("attention.context")
    return combine_heads(0 * context + context.mean(0))


def _tiled(port: Any) -> Ways:
    """Ways to share heads of keys and values wrongly: query head h reads head h mod G, or all read the first."""
    if port.config.kv_heads == port.n_heads:
        return

    def partners(of: Callable[[int, int, int], int], keys: bool = True, values: bool = True) -> Rules:
        def chosen(heads: np.ndarray, at: Any) -> np.ndarray:
            return heads[[of(h, len(heads), at.n_heads) for h in range(at.n_heads)]]

        def of_partners(y: np.ndarray, at: Any) -> Any:
            keys = chosen(at("attention.key_heads"), at)
            return at("attention.query_heads") @ keys.swapaxes(-1, -2) * at.scale + at.bias(y)

        scores = _before_cap(of_partners)
        context: Rules = {CONTEXT: lambda y, at: at("attention.weights") @ chosen(at("attention.value_heads"), at)}
        return {**(scores if keys else {}), **(context if values else {})}

    for said, kinds in (("keys and values", (True, True)), ("keys", (True, False)), ("values", (False, True))):
        yield f"heads tiled, not each repeated: {said}", partners(lambda h, g, n: h % g, *kinds)
        yield f"the first head for all: {said}", partners(lambda h, g, n: 0, *kinds)


# --- scores and softmax ----------------------------------------------------------------------------------------------


def _scaled(factor: Callable[[Any], float]) -> Rules:
    """Rules that multiply q k^T by factor(at) instead of the model's factor. Biases and caps do not change."""

    def rule(scores: np.ndarray, at: Any) -> Any:
        bias = at.bias(scores)
        return (scores - bias) * (factor(at) / at.scale) + bias

    return _before_cap(rule)


def _unscaled(port: Any) -> Ways:
    if port.config.score_scale != 1:
        yield "", _scaled(lambda at: 1.0)


def _doubly_scaled(port: Any) -> Ways:
    if port.config.score_scale != 1:
        yield "", _scaled(lambda at: at.scale**2)


def _scaled_by_width(port: Any) -> Ways:
    if port.config.score_scale:
        yield "", _scaled(lambda at: at.d_head**-0.5)


def _scaled_otherwise(port: Any) -> Ways:
    """Wrong factors of q k^T: values computed from sizes of the model, and values found in ports."""
    if port.config.d_model != port.n_heads * port.d_head:
        yield "by 1 / sqrt(d_model / n_heads)", _scaled(lambda at: (at.config.d_model / at.n_heads) ** -0.5)
    yield "by d_head ** -0.25", _scaled(lambda at: at.d_head**-0.25)
    yield "by 1 / sqrt(d_head / 2)", _scaled(lambda at: (at.d_head / 2) ** -0.5)
    yield "with the wrong sign", _scaled(lambda at: -at.scale)
    of_number: dict[tuple[float, ...], list[str]] = {}  # factor for each text -> its formulas, the likeliest first
    factors = {"1 / 8": lambda text: 1 / 8, **port.factors}
    for said in sorted(factors, key=lambda said: "n_layers" in said or "F" in said):
        numbers = tuple(float(f"{factors[said](i):.12g}") for i in range(len(port.texts)))
        of_number.setdefault(numbers, []).append(said)
    named = [1.0, port.scale**2, port.config.d_model**-0.5]  # other mistakes cover these factors
    named += [port.d_head**-0.5] if port.config.score_scale else []
    for numbers, said in of_number.items():
        if not any(np.isclose(numbers[0], factor) for factor in named):
            number = f", {numbers[0]:.6g}" if len(said) > 1 and len(set(numbers)) == 1 else ""
            yield f"by {' or '.join(said)}{number}", _scaled(lambda at, of=factors[said[0]]: of(at.text))


def _of_scores(formula: Callable[[np.ndarray], np.ndarray]) -> Rules:
    """Rules that compute the attention weights from the scores with a wrong formula."""
    return {WEIGHTS: lambda y, at: formula(at.scores)}


SOFTMAXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "2^x for e^x": lambda x: softmax(x * np.log(2)),
    "left out": lambda x: x,
    "applied twice": lambda x: softmax(softmax(x)),
    "sigmoid": sigmoid,
    "its logarithm": lambda x: np.log(softmax(x)),
    "e^x, not divided by the sum": np.exp,
    "divided by 1 + the sum, as with an empty key": lambda x: np.exp(x) / (1 + np.exp(x).sum(-1, keepdims=True)),
    "x over the sum, without e^x": lambda x: x / x.sum(-1, keepdims=True),
    "relu": lambda x: np.maximum(x, 0),
    "relu over the sum": lambda x: np.maximum(x, 0) / np.maximum(np.maximum(x, 0).sum(-1, keepdims=True), 1e-9),
    "1 at the largest": lambda x: (x == x.max(-1, keepdims=True)).astype(x.dtype),
    "uniform weights": lambda x: np.full_like(x, 1 / x.shape[-1]),
    "softmin": lambda x: softmax(-x),
    "e^x over the root of the sum of squares": lambda x: np.exp(x) / np.sqrt(np.exp(2 * x).sum(-1, keepdims=True)),
}


def _rotary(port: Any) -> Ways:
    """Ways to rotate queries and keys by their positions, in two layouts. Su et al., 2021, RoFormer, equation 34."""
    if port.d_head % 2 == 0:
        for way, halves in (("halves", True), ("pairs", False)):
            yield way, {f"*.attention.{name}_heads": lambda x, at, h=halves: _turned(x, h) for name in QKV[:2]}


def _turned(x: np.ndarray, halves: bool) -> np.ndarray:
    angle = np.arange(x.shape[-2])[:, None] / 10000 ** (np.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = np.split(x, 2, axis=-1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    return np.concatenate(turned, axis=-1) if halves else np.stack(turned, axis=-1).reshape(x.shape)


# --- masks -----------------------------------------------------------------------------------------------------------


PICTURES: dict[str, Picture] = {
    "a token sees itself and earlier ones": lambda n: np.tri(n, dtype=bool),
    **AFTER,
    **SHIFTED,
    "a token does not see itself": lambda n: ~np.eye(n, dtype=bool),
}


def _causal(port: Any) -> Ways:
    if not port.config.causal:
        pattern = "encoder.*.attention.weights" if port.config.decoder else WEIGHTS
        yield from ((way, pictured(pattern, picture)) for way, picture in PICTURES.items())
        yield from misused(pattern)


def _window(port: Any) -> Ways:
    if any(isinstance(each, Window) for kind in port.config.layer_kinds for each in kind):
        return  # `Window` has its own mistakes
    for size in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256):
        if size < max(port.lengths):
            said = f"only the last {size + 1} keys" if port.config.causal else f"only {size} keys to each side"
            yield said, _of_scores(lambda x, n=size: softmax(np.where(_near(x, n), x, -np.inf)))


def _near(x: np.ndarray, size: int) -> np.ndarray:
    rows, columns = map(np.arange, x.shape[-2:])
    return np.abs(columns - rows[:, None]) <= size


def _special_hidden(port: Any) -> Ways:
    for way, hide in {"the first": [0], "the last": [-1], "the first and the last": [0, -1]}.items():
        if min(port.lengths) > len(hide):
            rules = _of_scores(lambda x, hide=hide: softmax(_without(x, hide)))
            yield way, rules
            for padded in port.paddings.values() if port.has_padding else ():
                yield f"{way}, and padding is seen", padded.ruling(rules)


def _without(x: np.ndarray, hide: list[int]) -> np.ndarray:
    x = x.copy()
    x[..., hide] = -np.inf
    return x


MISTAKES = (
    *(
        Mistake(name, "scores are products of queries and keys; the context is a sum of values", _swapped(order))
        for order, name in SWAPS.items()
    ),
    Mistake(
        "query, key and value in the wrong order",
        "query, key and value each have their own weight",
        _swapped(*ROTATIONS),
    ),
    Mistake(
        "fused query, key and value split wrongly",
        "the joint weight of query, key and value must be split the way it was joined",
        _fused,
        of_weights=True,
    ),
    Mistake(
        "query scaled already",
        "the query already has the factor 1 / sqrt(d_head); do not scale the scores again",
        _query_scaled,
    ),
    Mistake(
        "heads reshaped without the transpose",
        "(L, D) is reshaped to (L, H, K) and transposed to (H, L, K); a reshape alone mixes tokens",
        _split_otherwise(
            lambda x, at: combine_heads(x.reshape(-1, len(x), at.d_head)),
            lambda x, at: split_heads(x, at.n_heads).copy().reshape(x.shape),
        ),
    ),
    Mistake(
        "heads interleaved",
        "head h has the consecutive columns h K ... (h + 1) K - 1",
        _split_otherwise(
            lambda x, at: x.reshape(len(x), at.d_head, -1).swapaxes(1, 2).reshape(x.shape),
            lambda x, at: split_heads(x, at.n_heads).transpose(1, 2, 0).reshape(x.shape),
        ),
    ),
    Mistake(
        "heads in the wrong order",
        "heads are split and concatenated in the same order",
        {
            "reversed when splitting": {HEADS: lambda x, at: x[::-1]},
            "reversed when combining": {COMBINED: lambda x, at: combine_heads(at("attention.context")[::-1])},
            **{f"{name} heads reversed": {f"*.attention.{name}_heads": lambda x, at: x[::-1]} for name in QKV},
            "shifted by one when combining": {
                COMBINED: lambda x, at: combine_heads(np.roll(at("attention.context"), 1, axis=0))
            },
        },
    ),
    Mistake("wrong number of heads", "the width of one head is d_model / n_heads", _other_heads),
    Mistake(
        "all heads share one head",
        "each head has its own key and value",
        {
            **{
                f"the first head's {name}": {f"*.attention.{name}_heads": lambda x, at: x[:1].repeat(len(x), 0)}
                for name in ("key", "value")
            },
            "their mean": {COMBINED: _averaged},
        },
    ),
    Mistake(
        "grouped heads paired wrongly",
        "n_heads / n_kv_heads consecutive query heads share each head of keys and values",
        _tiled,
    ),
    Mistake("unscaled scores", "q k^T must be divided by sqrt(d_head), or have the factor in config.json", _unscaled),
    Mistake(
        "doubly scaled scores", "divide either q or q k^T by sqrt(d_head), not both, and only once", _doubly_scaled
    ),
    Mistake(
        "scores divided by sqrt(d_head)",
        "the factor of q k^T is not 1 / sqrt(d_head) in every model: it is 1 in T5, and in others in config.json",
        _scaled_by_width,
    ),
    Mistake(
        "scores divided by sqrt(d_model)",
        "scores are divided by the square root of the width of a head, d_model / n_heads",
        {"": _scaled(lambda at: at.config.d_model**-0.5)},
    ),
    Mistake(
        "scores divided by the layer's number",
        "all layers have the same factor of q k^T, unless scale_attn_by_inverse_layer_idx is true in config.json",
        {"": _scaled(lambda at: at.scale / (at.layer + 1))},
    ),
    Mistake(
        "scores scaled differently",
        "q k^T is scaled once, by 1 / sqrt(d_head) or the factor in config.json; T5 does not scale it",
        _scaled_otherwise,
    ),
    Mistake(
        "softmax over the wrong axis",
        "the weights of each query sum to 1 over the keys, the last axis",
        {
            "over the queries": _of_scores(lambda scores: softmax(scores, axis=-2)),
            "over the heads": _of_scores(lambda scores: softmax(scores, axis=-3)),
            "over queries and keys together": _of_scores(
                lambda scores: softmax(scores.reshape(len(scores), -1)).reshape(scores.shape)
            ),
        },
    ),
    Mistake(
        "wrong softmax",
        "the weights are e^x over the sum of e^x, for the scores x of a query",
        {way: _of_scores(formula) for way, formula in SOFTMAXES.items()},
    ),
    Mistake(
        "attention weights transposed",
        "the context is weights @ v, where the rows of the weights are queries and the columns are keys",
        {"": {CONTEXT: lambda y, at: _transposed(at("attention.weights")) @ at.heads("value")}},
    ),
    Mistake(
        "W_O left out",
        "the concatenated heads pass through one more linear layer, W_O",
        {"": {"*.attention.output": lambda y, at: at("attention.combined")}},
    ),
    Mistake("rotary positions", "only models with rotary positions rotate queries and keys", _rotary),
    Mistake("causal mask", "in an encoder every token attends to all tokens before and after it", _causal),
    Mistake("attention in a window", "only layers with a window limit the distance between two tokens", _window),
    Mistake(
        "special tokens hidden",
        "tokens attend to [CLS] and [SEP], or to the first token in a cache, as to any other",
        _special_hidden,
    ),
)
