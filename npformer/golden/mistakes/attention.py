"""Mistakes in attention: its heads, its scale and its softmax. `masks.py` has those in which tokens may see which."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np

from npformer.attention import combine_heads, split_heads
from npformer.functions import softmax
from npformer.golden.graph import QKV
from npformer.golden.mistakes.activation import sigmoid
from npformer.golden.port import Mistake, Port, Rule, Ways

SCORES, WEIGHTS, CONTEXT = "*.attention.scores", "*.attention.weights", "*.attention.context"
HEADS, COMBINED = "*.attention.*_heads", "*.attention.combined"


def of_scores(formula: Callable[[np.ndarray], np.ndarray]) -> dict[str, Rule]:
    """Makes the weights of the scores by another formula."""
    return {WEIGHTS: lambda y, at: formula(at.scores)}


# --- query, key and value ----------------------------------------------------------------------------------------

ORDERS = [order for order in permutations(range(3)) if order != (0, 1, 2)]
#: Which of the three are exchanged -> the mistake's name.
SWAPS = {(1, 0, 2): "query and key swapped", (2, 1, 0): "query and value swapped", (0, 2, 1): "key and value swapped"}


def swapped(*orders: tuple[int, ...]) -> Callable[[Port], Ways]:
    """Takes query, key and value in another order: their weights, or their heads."""

    def ways(port: Port) -> Ways:
        for order in orders:
            named = dict(zip(QKV, (QKV[i] for i in order), strict=True))
            said = "" if order in SWAPS else f"{', '.join(named.values())} for {', '.join(QKV)}: "
            weights = {
                name: port.weights[name.replace(f".{own}.", f".{other}.")]
                for name in port.weights
                for own, other in named.items()
                if f"attention.{own}." in name
            }
            yield f"{said}their weights", port.weighing(weights)
            if order == (1, 0, 2):
                yield "K Q^T for Q K^T", port.ruling({SCORES: lambda scores, at: _transposed(scores)})
            elif order in SWAPS:
                yield "in the products", _in_products(port, named)

    return ways


def _transposed(x: np.ndarray) -> np.ndarray:
    """x^T where there are as many queries as keys, which attention to a source need not have; else x."""
    return x.swapaxes(-1, -2) if x.shape[-1] == x.shape[-2] else x


def _in_products(port: Port, named: dict[str, str]) -> Port:
    q, k, v = (f"attention.{named[name]}_heads" for name in QKV)
    scale = port.d_head**-0.5
    return port.ruling(
        {
            SCORES: lambda y, at: at(q) @ at(k).swapaxes(-1, -2) * scale,
            CONTEXT: lambda y, at: at("attention.weights") @ at(v),
        }
    )


def fused(port: Port) -> Ways:
    """Takes query, key and value from one (D, 3 D) weight, but not as thirds of its columns."""
    heads, width = port.n_heads, port.config.d_model
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


def query_scaled(port: Port) -> Ways:
    """Only where the query itself is in question: from there on it is the same as scaling the scores twice."""
    if port.stage.endswith(("attention.query", "attention.query_heads")):
        root = port.d_head**-0.5
        yield "by 1 / sqrt(d_head)", port.ruling({f"*.{port.stage.rpartition('.')[2]}": lambda q, at: q * root})


# --- heads -------------------------------------------------------------------------------------------------------


def heads_not_transposed(port: Port) -> Ways:
    """Reshapes (L, D) to (H, L, K), and back, without the transpose from (L, H, K)."""
    heads = port.n_heads
    splitting: dict[str, Rule] = {HEADS: lambda x, at: combine_heads(x).reshape(x.shape)}
    combining: dict[str, Rule] = {COMBINED: lambda x, at: split_heads(x, heads).copy().reshape(x.shape)}
    yield "when splitting", port.ruling(splitting)
    yield "when combining", port.ruling(combining)
    yield "when splitting and combining", port.ruling(splitting | combining)


def heads_interleaved(port: Port) -> Ways:
    """Head h of columns h, h + H, ... and not of K columns side by side."""
    heads, d_head = port.n_heads, port.d_head
    splitting: dict[str, Rule] = {
        HEADS: lambda x, at: combine_heads(x).reshape(-1, d_head, heads).transpose(2, 0, 1),
    }
    combining: dict[str, Rule] = {
        COMBINED: lambda x, at: at("attention.context").transpose(1, 2, 0).reshape(x.shape),
    }
    yield "when splitting", port.ruling(splitting)
    yield "when combining", port.ruling(combining)
    yield "when splitting and combining", port.ruling(splitting | combining)


def heads_reordered(port: Port) -> Ways:
    splitting: dict[str, Rule] = {HEADS: lambda x, at: x[::-1]}
    combining: dict[str, Rule] = {COMBINED: lambda x, at: combine_heads(at("attention.context")[::-1])}
    yield "reversed when splitting", port.ruling(splitting)
    yield "reversed when combining", port.ruling(combining)
    for name in QKV:
        yield f"reversed, the {name}'s", port.ruling({f"*.attention.{name}_heads": lambda x, at: x[::-1]})
    rolled: dict[str, Rule] = {COMBINED: lambda x, at: combine_heads(np.roll(at("attention.context"), 1, axis=0))}
    yield "moved by one when combining", port.ruling(rolled)


def other_heads(port: Port) -> Ways:
    heads, width = port.n_heads, port.config.d_model
    for count in dict.fromkeys((heads // 2, heads * 2, heads // 4, heads * 4, 1, heads // 3, heads * 3, 8, 12, 16)):
        if 0 < count <= width and width % count == 0 and count != heads:
            said = f"{count} for {heads}"
            yield said, port.with_heads(count, COMBINED)
            yield (
                f"{said}, scaled for {heads}",
                port.with_heads(count, COMBINED).ruling(
                    {SCORES: lambda y, at, count=count: y * (heads / count) ** 0.5}
                ),
            )


def same_head(port: Port) -> Ways:
    for name in ("key", "value"):
        yield (
            f"the first head's {name}",
            port.ruling({f"*.attention.{name}_heads": lambda x, at: x[:1].repeat(len(x), 0)}),
        )
    yield "their mean", port.ruling({COMBINED: lambda x, at: combine_heads(0 * y_(at) + y_(at).mean(0))})


def y_(at: Callable[[str], np.ndarray]) -> np.ndarray:
    return at("attention.context")


# --- scores and softmax ------------------------------------------------------------------------------------------


def scaled(**factors: Callable[[Port], float]) -> Callable[[Port], Ways]:
    def ways(port: Port) -> Ways:
        for way, factor in factors.items():
            if (c := factor(port)) != 1:
                yield way.replace("_", " "), port.ruling({SCORES: lambda scores, at, c=c: scores * c})

    return ways


unscaled = scaled(**{"": lambda port: port.d_head**0.5})
doubly_scaled = scaled(**{"": lambda port: port.d_head**-0.5})
scaled_by_model = scaled(**{"": lambda port: port.n_heads**-0.5})
scaled_otherwise = scaled(
    **{
        "multiplied by sqrt(d_head), not divided": lambda port: port.d_head,
        "by 1 / sqrt(number of heads)": lambda port: (port.d_head / port.n_heads) ** 0.5,
        "by 1 / d_model": lambda port: port.d_head**0.5 / port.config.d_model,
        "by 1 / 8": lambda port: 1 if port.d_head == 8 else port.d_head**0.5 / 8,
        "by d_head ** -0.25": lambda port: port.d_head**0.25,
        "by 1 / sqrt(d_head / 2)": lambda port: 2**0.5,
        "by 1 / sqrt(2 d_head)": lambda port: 2**-0.5,
        "with the wrong sign": lambda port: -1.0,
    }
)


def softmax_axis(port: Port) -> Ways:
    for axis, over in ((-2, "over the queries"), (-3, "over the heads")):
        yield over, port.ruling(of_scores(lambda scores, axis=axis: softmax(scores, axis=axis)))
    yield (
        "over queries and keys together",
        port.ruling(of_scores(lambda scores: softmax(scores.reshape(len(scores), -1)).reshape(scores.shape))),
    )


def other_softmax(port: Port) -> Ways:
    formulas: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "2^x for e^x": lambda x: softmax(x * np.log(2)),
        "left out": lambda x: x,
        "applied twice": lambda x: softmax(softmax(x)),
        "sigmoid": sigmoid,
        "its logarithm": lambda x: np.log(softmax(x)),
        "e^x, not divided by the sum": np.exp,
        "divided by 1 + the sum": lambda x: np.exp(x) / (1 + np.exp(x).sum(-1, keepdims=True)),
        "x over the sum, without e^x": lambda x: x / x.sum(-1, keepdims=True),
        "relu": lambda x: np.maximum(x, 0),
        "relu over the sum": lambda x: np.maximum(x, 0) / np.maximum(x, 0).sum(-1, keepdims=True),
        "1 at the largest": lambda x: (x == x.max(-1, keepdims=True)).astype(x.dtype),
        "uniform weights": lambda x: np.full_like(x, 1 / x.shape[-1]),
        "softmin": lambda x: softmax(-x),
        "e^x over the root of the sum of squares": lambda x: np.exp(x) / np.sqrt(np.exp(2 * x).sum(-1, keepdims=True)),
    }
    for way, formula in formulas.items():
        yield way, port.ruling(of_scores(formula))


def weights_transposed(port: Port) -> Ways:
    yield (
        "",
        port.ruling({CONTEXT: lambda y, at: _transposed(at("attention.weights")) @ at("attention.value_heads")}),
    )


def no_output(port: Port) -> Ways:
    yield "", port.ruling({"*.attention.output": lambda y, at: at("attention.combined")})


def rotary(port: Port) -> Ways:
    """Turns queries and keys by their positions; RoFormer, equation 34, in its two layouts."""
    if port.d_head % 2:
        return
    for way, halves in (("halves", True), ("pairs", False)):
        yield (
            way,
            port.ruling(
                {f"*.attention.{name}_heads": lambda x, at, halves=halves: _turned(x, halves) for name in QKV[:2]}
            ),
        )


def _turned(x: np.ndarray, halves: bool) -> np.ndarray:
    angle = np.arange(x.shape[-2])[:, None] / 10000 ** (np.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = np.split(x, 2, axis=-1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    return np.concatenate(turned, axis=-1) if halves else np.stack(turned, axis=-1).reshape(x.shape)


MISTAKES = (
    *(
        Mistake(name, "queries look for keys, and the values of what they find are added up", swapped(order))
        for order, name in SWAPS.items()
    ),
    Mistake(
        "query, key and value in another order",
        "each has its own weight",
        swapped(*[o for o in ORDERS if o not in SWAPS]),
    ),
    Mistake(
        "fused query, key and value split wrongly", "one weight of all three is cut another way than it was made", fused
    ),
    Mistake("query scaled already", "the scores are then not to be divided by sqrt(d_head) again", query_scaled),
    Mistake(
        "heads reshaped without the transpose",
        "(L, D) becomes (L, H, K) and then, transposed, (H, L, K); the same shape without it mixes tokens",
        heads_not_transposed,
    ),
    Mistake("heads interleaved", "head h is columns h K ... (h + 1) K - 1, side by side", heads_interleaved),
    Mistake("heads in another order", "they are split and put side by side in the same order", heads_reordered),
    Mistake("another number of heads", "the width of one head is d_model / n_heads", other_heads),
    Mistake("one head for all", "each head has its own key and value", same_head),
    Mistake("unscaled scores", "q k^T is not divided by sqrt(d_head)", unscaled),
    Mistake("doubly scaled scores", "q k^T is divided by sqrt(d_head) twice, perhaps once in q", doubly_scaled),
    Mistake(
        "scores scaled by sqrt(d_model)", "the width of one head, d_model / n_heads, is what counts", scaled_by_model
    ),
    Mistake("scores scaled otherwise", "q k^T is to be divided by sqrt(d_head)", scaled_otherwise),
    Mistake(
        "softmax over the wrong axis", "each query's weights over the keys, the last axis, add up to 1", softmax_axis
    ),
    Mistake("another softmax", "the weights are e^x over the sum of e^x of a query's scores", other_softmax),
    Mistake(
        "attention weights transposed", "the context is weights @ v, weights (L queries, L keys)", weights_transposed
    ),
    Mistake("W_O left out", "the heads side by side pass through another linear layer", no_output),
    Mistake(
        "rotary positions", "this model adds positions to the embeddings and does not turn queries and keys", rotary
    ),
)
