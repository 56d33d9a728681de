"""Chapter 3, the blocks of a layer: multi-head attention and the feed-forward network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from npformer.activations import relu
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn, linear_weights
from npformer.learn.right import combine_heads, feed_forward, gelu, linear, split_heads

Array = np.ndarray
Linear = Mapping[str, Array]


# --- multi-head attention ---------------------------------------------------------------------------------------------


PROJECTIONS = ("query", "key", "value", "output")


def _multi_head_cases() -> list[tuple[Any, ...]]:
    small = [linear_weights(seed, 2, 2) for seed in range(4)]
    wide = [linear_weights(seed, 6, 6) for seed in range(10, 14)]
    return [
        (array([[1, 0], [0, 2]]), 1, *small),
        (drawn(1, 4, 6), 2, *wide),
        (drawn(2, 4, 6), 3, *wide, np.tri(4, dtype=bool)),
    ]


def _multi_head(
    x: Array,
    n_heads: int,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    mask: Array | None = None,
    *,
    layers: Any = lambda q, k, v: (q, k, v),
    inputs: Any = linear,
    masked: bool = True,
    count: Any = lambda x, n_heads: n_heads,
    split: Any = split_heads,
    combine: Any = combine_heads,
    scale: Any = lambda k: 1.0,
    project: Any = lambda heads, value, output: linear(heads, **output),
    add_x: float = 0.0,
) -> Array:
    """`right.multi_head_attention` with one of its steps replaced."""
    n_heads = count(x, n_heads)
    q, k, v = (split(inputs(x, **layer), n_heads) for layer in layers(query, key, value))
    heads = right.scaled_dot_product_attention(q * scale(k), k, v, mask if masked else None)
    return add_x * x + project(combine(heads), value, output)


def _unbiased(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight


def _bare(layer: Linear) -> dict[str, Array]:
    """The layer with a bias of zeros."""
    return {"weight": layer["weight"], "bias": 0 * layer["bias"]}


def _blocks(x: Array, n_heads: int) -> Array:
    return x.reshape(n_heads, len(x), -1)


def _unblocked(heads: Array) -> Array:
    return heads.reshape(heads.shape[1], -1)


def _interleaved(x: Array, n_heads: int) -> Array:
    return x.reshape(len(x), -1, n_heads).transpose(2, 0, 1)


def _uninterleaved(x: Array) -> Array:
    return x.transpose(1, 2, 0).reshape(x.shape[1], -1)


MULTI_HEAD = Exercise(
    "multi_head_attention",
    right.multi_head_attention,
    _multi_head_cases,
    (
        "linear(x, **query) applies the query layer. The results of query, key and value are split into heads.",
        "Your scaled_dot_product_attention takes the mask, and all heads at once.",
        "Apply query, key and value to x, split the results into heads, attend, combine the heads, and apply output.",
    ),
    ("npformer.learn.right:multi_head_attention", "npformer.plain.formulas:multi_head_attention"),
    (
        Slip(
            "W_O left out",
            "The combined heads are returned. They should pass through the output layer first.",
            partial(_multi_head, project=lambda heads, value, output: heads),
        ),
        Slip(
            "mask not passed on",
            "The mask is not passed to scaled_dot_product_attention.",
            partial(_multi_head, masked=False),
        ),
        Slip(
            "query and key exchanged",
            "The query and key layers are exchanged.",
            partial(_multi_head, layers=lambda q, k, v: (k, q, v)),
        ),
        Slip(
            "key and value exchanged",
            "The key and value layers are exchanged.",
            partial(_multi_head, layers=lambda q, k, v: (q, v, k)),
        ),
        Slip(
            "query and value exchanged",
            "The query and value layers are exchanged.",
            partial(_multi_head, layers=lambda q, k, v: (v, k, q)),
        ),
        Slip(
            "keys from the query layer",
            "The keys are computed by the query layer. They should be computed by the key layer.",
            partial(_multi_head, layers=lambda q, k, v: (q, q, v)),
        ),
        Slip(
            "values from the key layer",
            "The values are computed by the key layer. They should be computed by the value layer.",
            partial(_multi_head, layers=lambda q, k, v: (q, k, k)),
        ),
        Slip(
            "values from the query layer",
            "The values are computed by the query layer. They should be computed by the value layer.",
            partial(_multi_head, layers=lambda q, k, v: (q, k, q)),
        ),
        Slip(
            "value layer left out",
            "The values are x itself. They should be computed by the value layer.",
            partial(_multi_head, layers=lambda q, k, v: (q, k, _bare({**v, "weight": np.eye(len(v["weight"]))}))),
        ),
        Slip(
            "one layer for queries, keys and values",
            "Queries, keys and values are all computed by the query layer. Use a separate layer for each.",
            partial(_multi_head, layers=lambda q, k, v: (q, q, q)),
        ),
        Slip(
            "value layer instead of output",
            "The combined heads pass through the value layer. They should pass through the output layer.",
            partial(_multi_head, project=lambda heads, value, output: linear(heads, **value)),
        ),
        Slip(
            "bias of the output layer left out",
            "The bias of the output layer is not added.",
            partial(_multi_head, project=lambda heads, value, output: _unbiased(heads, **output)),
        ),
        Slip(
            "biases left out",
            "The biases of the four layers are not added.",
            partial(_multi_head, inputs=_unbiased, project=lambda heads, value, output: _unbiased(heads, **output)),
        ),
        Slip(
            "biases of query, key and value left out",
            "The biases of query, key and value are not added.",
            partial(_multi_head, inputs=_unbiased),
        ),
        Slip(
            "not split into heads",
            "Queries, keys and values are not split, so there is one head with the whole width.",
            partial(_multi_head, count=lambda x, n_heads: 1),
        ),
        Slip(
            "number and width of heads exchanged",
            "There are K heads of width H. There should be n_heads heads of width D / n_heads.",
            partial(_multi_head, count=lambda x, n_heads: x.shape[1] // n_heads),
        ),
        Slip(
            "heads not combined",
            "The heads, (H, L, K), are not combined. combine_heads turns them into (L, D).",
            partial(_multi_head, combine=lambda heads: heads),
        ),
        Slip(
            "heads reshaped without the transpose",
            "(L, D) is reshaped to (H, L, K), which mixes tokens. split_heads splits each token's columns into heads.",
            partial(_multi_head, split=_blocks),
        ),
        Slip(
            "heads combined without the transpose",
            "(H, L, K) is reshaped to (L, D), which mixes tokens. combine_heads puts the heads of a token side "
            "by side.",
            partial(_multi_head, combine=_unblocked),
        ),
        Slip(
            "heads split and combined without the transpose",
            "(L, D) is reshaped to (H, L, K) and back, which mixes tokens. Use split_heads and combine_heads.",
            partial(_multi_head, split=_blocks, combine=_unblocked),
        ),
        Slip(
            "heads interleaved",
            "Head h has the columns h, h + H, h + 2 H, ... Its columns should be contiguous.",
            partial(_multi_head, split=_interleaved, combine=_uninterleaved),
        ),
        Slip(
            "scores divided twice",
            "The scores are divided by sqrt(K) twice. scaled_dot_product_attention already divides them once.",
            partial(_multi_head, scale=lambda k: 1 / math.sqrt(k.shape[-1])),
        ),
        Slip(
            "input added",
            "x is added to the result. The residual sum belongs in the encoder layer, not here.",
            partial(_multi_head, add_x=1.0),
        ),
    ),
    optional="mask",
)


# --- feed-forward network ---------------------------------------------------------------------------------------------


def _feed_forward_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2], [0, -1]]), np.tanh, linear_weights(1, 2, 2), linear_weights(2, 2, 2)),
        (drawn(1, 3, 2), relu, linear_weights(3, 2, 5), linear_weights(4, 5, 2)),
        (drawn(2, 3, 4), gelu, linear_weights(5, 4, 6), linear_weights(6, 6, 4)),
    ]


def _same(x: Array) -> Array:
    return x


FEED_FORWARD = Exercise(
    "feed_forward",
    right.feed_forward,
    _feed_forward_cases,
    (
        "linear(x, **hidden) applies the first layer.",
        "activation is a function. Call it between the two layers: activation(h).",
        "Apply hidden, then activation, then output.",
    ),
    ("npformer.plain.formulas:feed_forward",),
    (
        Slip(
            "activation left out",
            "The activation is not applied. Without it the two layers are one linear map.",
            lambda x, act, hidden, output: feed_forward(x, _same, hidden, output),
        ),
        Slip(
            "hidden bias after the activation",
            "The bias of hidden is added after the activation. It should be added before the activation.",
            lambda x, act, hidden, output: linear(act(x @ hidden["weight"]) + hidden["bias"], **output),
        ),
        Slip(
            "activation after the output",
            "The activation is applied after the second layer. It should be applied between the two layers.",
            lambda x, act, hidden, output: act(feed_forward(x, _same, hidden, output)),
        ),
        Slip(
            "activation before the first layer",
            "The activation is applied to x. It should be applied between the two layers.",
            lambda x, act, hidden, output: feed_forward(act(x), _same, hidden, output),
        ),
        Slip(
            "activation after both layers",
            "The activation is applied after each of the two layers. It should be applied between them only.",
            lambda x, act, hidden, output: act(feed_forward(x, act, hidden, output)),
        ),
        Slip(
            "activation applied twice",
            "The activation is applied twice between the layers. It should be applied once.",
            lambda x, act, hidden, output: feed_forward(x, lambda h: act(act(h)), hidden, output),
        ),
        Slip(
            "activation is always gelu",
            "The activation is always gelu. It should be the argument activation.",
            lambda x, act, hidden, output: feed_forward(x, gelu, hidden, output),
        ),
        Slip(
            "activation is always relu",
            "The activation is always relu. It should be the argument activation.",
            lambda x, act, hidden, output: feed_forward(x, relu, hidden, output),
        ),
        Slip(
            "input added",
            "x is added to the result. The residual sum belongs in the encoder layer, not here.",
            lambda x, act, hidden, output: x + feed_forward(x, act, hidden, output),
        ),
        Slip(
            "second layer left out",
            "The output layer is not applied.",
            lambda x, act, hidden, output: act(linear(x, **hidden)),
        ),
        Slip(
            "layers exchanged",
            "The output layer is applied before the hidden layer.",
            lambda x, act, hidden, output: feed_forward(x, act, output, hidden),
        ),
        Slip(
            "first bias left out",
            "The bias of hidden is not added.",
            lambda x, act, hidden, output: feed_forward(x, act, _bare(hidden), output),
        ),
        Slip(
            "second bias left out",
            "The bias of output is not added.",
            lambda x, act, hidden, output: feed_forward(x, act, hidden, _bare(output)),
        ),
        Slip(
            "biases left out",
            "The biases of the two layers are not added.",
            lambda x, act, hidden, output: feed_forward(x, act, _bare(hidden), _bare(output)),
        ),
    ),
)
