"""Chapter 2: softmax, heads, scaled dot-product attention and the causal mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npformer.functions import log_softmax
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn
from npformer.learn.right import softmax

Array = np.ndarray


# --- softmax ----------------------------------------------------------------------------------------------------------


def _softmax_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[0, 1, 2], [1, 1, 3]]),),
        (array([[0, -np.inf, 1]]),),
        (drawn(1, 2, 3, 3),),
        (array([[1000, 1001], [-1000, -999], [0, 1]]),),
        (array([0.5, 0.25, 4]),),
    ]


def _over(x: Array, total: Any) -> Array:
    """e^x over a total of it, from x - max(x)."""
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / total(y)


SOFTMAX = Exercise(
    "softmax",
    right.softmax,
    _softmax_cases,
    (
        "Numbers of a row add up to 1: the sum is over the last axis, -1, with keepdims=True.",
        "exp(1000) overflows. Subtracting the same number from a whole row does not change the result, so subtract its "
        "maximum.",
        "Take the maximum over the last axis with keepdims=True and subtract it, take exp, and divide by the sum.",
    ),
    ("npformer.functions:softmax",),
    (
        Slip(
            "over the first axis",
            "Each column adds up to 1: the sum is over axis 0. It should be over the last axis, so that each row "
            "adds up to 1.",
            lambda x: softmax(x, 0),
        ),
        Slip(
            "over axis 1",
            "The sum is over axis 1. That is the last axis of a matrix only: use axis -1.",
            lambda x: softmax(x, 1),
        ),
        Slip(
            "over the whole array",
            "All numbers together add up to 1. Each row adds up to 1: sum over the last axis.",
            lambda x: softmax(x, None),  # type: ignore[arg-type]
        ),
        Slip(
            "maximum not subtracted",
            "exp overflows for large x. Subtract the largest x of each row before exp.",
            lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        ),
        Slip(
            "maximum of the whole array",
            "The largest x of the whole array is subtracted, so exp of a row far below it is 0, and 0 / 0 is NaN. "
            "Subtract the largest x of each row.",
            lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(-1, keepdims=True),
        ),
        Slip(
            "maximum subtracted above the line only",
            "The maximum is subtracted from x in exp(x), but not in the sum. Subtract it once, before exp.",
            lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x).sum(-1, keepdims=True),
        ),
        Slip(
            "not divided by the sum",
            "This is exp(x - max(x)). It should be divided by the sum over the row.",
            lambda x: np.exp(x - x.max(-1, keepdims=True)),
        ),
        Slip(
            "divided by the mean",
            "exp is divided by its mean. It should be divided by its sum.",
            lambda x: _over(x, lambda y: y.mean(-1, keepdims=True)),
        ),
        Slip(
            "sum over the whole array",
            "exp of each row is divided by the sum over all rows. Divide by the sum over the last axis.",
            lambda x: _over(x, np.sum),
        ),
        Slip("log softmax", "This is the logarithm of softmax.", log_softmax),
        Slip("sign", "exp is taken of -x. It should be taken of x.", lambda x: softmax(-x)),
        Slip("base 2", "This is 2^x over its sum. Softmax has e^x.", lambda x: softmax(x * math.log(2))),
        Slip(
            "x divided by its sum",
            "x is divided by its sum. exp(x) is divided by the sum of exp(x).",
            lambda x: x / x.sum(-1, keepdims=True),
        ),
        Slip("sigmoid", "This is 1 / (1 + exp(-x)), the sigmoid.", lambda x: 1 / (1 + np.exp(-x))),
    ),
)


# --- heads ------------------------------------------------------------------------------------------------------------


def _split_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]), 2),
        (drawn(1, 2, 6), 2),
        (drawn(2, 4, 12), 3),
        (drawn(3, 3, 4), 1),
        (drawn(4, 3, 9), 3),
    ]


def _k(x: Array, n_heads: int) -> int:
    return x.shape[1] // n_heads


SPLIT_HEADS = Exercise(
    "split_heads",
    right.split_heads,
    _split_cases,
    (
        "Two steps: cut the columns of each token into heads, then put the axis of heads first.",
        "reshape to (L, H, K) cuts the columns. It must not be followed by another reshape.",
        "Reshape to (L, n_heads, D // n_heads), then exchange the first two axes with transpose or swapaxes.",
    ),
    ("npformer.attention:split_heads",),
    (
        Slip(
            "reshaped without the transpose",
            "x is reshaped to (H, L, K), which mixes tokens. Reshape to (L, H, K), then exchange the first two axes.",
            lambda x, n_heads: x.reshape(n_heads, len(x), _k(x, n_heads)),
        ),
        Slip(
            "not transposed",
            "The result is (L, H, K). Exchange its first two axes.",
            lambda x, n_heads: x.reshape(len(x), n_heads, _k(x, n_heads)),
        ),
        Slip(
            "interleaved",
            "Head h has the columns h, h + H, h + 2 H, ... It should have neighbouring columns, h K ... (h + 1) K - 1.",
            lambda x, n_heads: x.reshape(len(x), _k(x, n_heads), n_heads).transpose(2, 0, 1),
        ),
        Slip(
            "rows and columns of a head exchanged",
            "Each head is (K, L). It should be (L, K).",
            lambda x, n_heads: right.split_heads(x, n_heads).swapaxes(1, 2),
        ),
        Slip(
            "number and width of heads exchanged",
            "There are K heads of width H. There should be n_heads heads of width D / n_heads.",
            lambda x, n_heads: right.split_heads(x, _k(x, n_heads)),
        ),
        Slip(
            "heads in reverse order",
            "The heads are in reverse order.",
            lambda x, n_heads: right.split_heads(x, n_heads)[::-1],
        ),
    ),
)

COMBINE_HEADS = Exercise(
    "combine_heads",
    right.combine_heads,
    lambda: [(right.split_heads(*case),) for case in _split_cases()],
    (
        "Undo the two steps of split_heads, in reverse order.",
        "First exchange the axes of heads and tokens: (H, L, K) becomes (L, H, K).",
        "Exchange the first two axes with transpose or swapaxes, then reshape to (L, H * K).",
    ),
    ("npformer.attention:combine_heads",),
    (
        Slip(
            "reshaped without the transpose",
            "x is reshaped to (L, D), which mixes tokens. Exchange the axes of heads and tokens first.",
            lambda x: x.reshape(x.shape[1], -1),
        ),
        Slip(
            "interleaved",
            "The first columns of all heads stand side by side. The columns of one head stand side by side.",
            lambda x: x.transpose(1, 2, 0).reshape(x.shape[1], -1),
        ),
        Slip("heads in reverse order", "The heads are in reverse order.", lambda x: right.combine_heads(x[::-1])),
        Slip(
            "one below another",
            "The heads stand one below another. They should stand side by side: (L, H K).",
            lambda x: x.reshape(-1, x.shape[2]),
        ),
        Slip("heads added", "The heads are added. They should stand side by side.", lambda x: x.sum(0)),
        Slip(
            "mean of the heads", "This is the mean of the heads. They should stand side by side.", lambda x: x.mean(0)
        ),
        Slip(
            "not reshaped",
            "The result is (L, H, K). Reshape it to (L, H K).",
            lambda x: x.swapaxes(0, 1),
        ),
    ),
)


# --- attention --------------------------------------------------------------------------------------------------------

MASK = np.array([[True, False, True], [True, True, False], [False, True, True]])


def _attention_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[[2, 0], [0, 2]]]), array([[[1, 0], [1, 1]]]), array([[[1, 0], [0, 10]]])),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 3, 4)),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 3, 4), MASK),
        (drawn(4, 2, 3, 4), drawn(5, 2, 5, 4), drawn(6, 2, 5, 4)),
        (drawn(4, 2, 3, 4), drawn(5, 2, 5, 4), drawn(6, 2, 5, 4), np.tri(3, 5, 2, dtype=bool)),
    ]


def attend(
    q: Array, k: Array, v: Array, mask: Array | None, scale: float = 1.0, axis: int = -1, low: float = -np.inf
) -> Array:
    """Attention with scores that are divided by sqrt(K) and multiplied by scale, and a softmax over this axis."""
    scores = q @ k.mT * (scale / math.sqrt(q.shape[-1]))
    return softmax(scores if mask is None else np.where(mask, scores, low), axis) @ v


def _weights(q: Array, k: Array, mask: Array | None) -> Array:
    return attend(q, k, np.broadcast_to(np.eye(k.shape[1]), (len(k), k.shape[1], k.shape[1])), mask)


def _scores(q: Array, k: Array) -> Array:
    return q @ k.mT / math.sqrt(q.shape[-1])


ATTENTION = Exercise(
    "scaled_dot_product_attention",
    right.scaled_dot_product_attention,
    _attention_cases,
    (
        "k.swapaxes(-1, -2), or k.mT, transposes the last two axes of k. The scores are (H, L, S).",
        "np.where(mask, scores, -np.inf) hides keys, before the softmax. Divide by math.sqrt of the last axis of q.",
        "Multiply q by the transpose of k, divide by sqrt(K), hide keys if there is a mask, take softmax, "
        "multiply by v.",
    ),
    ("npformer.attention:scaled_dot_product_attention", "npformer.attention:attend"),
    (
        Slip(
            "scores not divided",
            "The scores are not divided by sqrt(K).",
            lambda q, k, v, mask=None: attend(q, k, v, mask, math.sqrt(q.shape[-1])),
        ),
        Slip(
            "scores divided by K",
            "The scores are divided by K, the width of a head. Divided by its square root they would be right.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, 1 / math.sqrt(q.shape[-1])),
        ),
        Slip(
            "scores multiplied by sqrt(K)",
            "The scores are multiplied by sqrt(K). They should be divided by it.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, q.shape[-1]),
        ),
        Slip(
            "scores divided by sqrt(D)",
            "The scores are divided by the root of the model's width, H K. Divide by the root of a head's width, K.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, 1 / math.sqrt(len(q))),
        ),
        Slip(
            "scores divided by the root of the number of queries",
            "The scores are divided by sqrt(L), the number of queries. Divide by sqrt(K), the width of a head: "
            "q.shape[-1].",
            lambda q, k, v, mask=None: attend(q, k, v, mask, math.sqrt(q.shape[-1] / q.shape[-2])),
        ),
        Slip(
            "scores divided by the root of the number of keys",
            "The scores are divided by sqrt(S), the number of keys. Divide by sqrt(K), the width of a head: "
            "k.shape[-1].",
            lambda q, k, v, mask=None: attend(q, k, v, mask, math.sqrt(k.shape[-1] / k.shape[-2])),
        ),
        Slip(
            "weights divided by sqrt(K)",
            "sqrt(K) divides the weights, after the softmax. It should divide the scores, before the softmax.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, math.sqrt(q.shape[-1])) / math.sqrt(q.shape[-1]),
        ),
        Slip(
            "softmax over the queries",
            "The softmax is over the queries. It should be over the keys, the last axis: the weights of each "
            "query add up to 1.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, axis=-2),
        ),
        Slip(
            "softmax over the heads",
            "The softmax is over the heads. It should be over the keys, the last axis.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, axis=0),
        ),
        Slip(
            "softmax left out",
            "The scores are multiplied by v without a softmax.",
            lambda q, k, v, mask=None: (_scores(q, k) if mask is None else np.where(mask, _scores(q, k), -np.inf)) @ v,
        ),
        Slip(
            "softmax taken twice",
            "The softmax is taken twice.",
            lambda q, k, v, mask=None: softmax(_weights(q, k, mask)) @ v,
        ),
        Slip(
            "q and k exchanged",
            "The scores are k q^T. They should be q k^T: a row for each query.",
            lambda q, k, v, mask=None: attend(k, q, v, mask),
        ),
        Slip(
            "k and v exchanged",
            "Queries are compared with v, and k is added up. Compare q with k, and multiply the weights by v.",
            lambda q, k, v, mask=None: attend(q, v, k, mask),
        ),
        Slip(
            "weights transposed",
            "The transposed weights are multiplied by v. The product should be weights @ v.",
            lambda q, k, v, mask=None: _weights(q, k, mask).mT @ v,
        ),
        Slip(
            "mask ignored",
            "The mask is not used. Where it is False, the scores should become -inf, before the softmax.",
            lambda q, k, v, mask=None: attend(q, k, v, None),
        ),
        Slip(
            "mask inverted",
            "Keys are hidden where the mask is True. True means that a query may attend to the key.",
            lambda q, k, v, mask=None: attend(q, k, v, None if mask is None else ~mask),
        ),
        Slip(
            "mask after the softmax",
            "Weights of hidden keys are set to 0 after the softmax, so the others no longer add up to 1. "
            "Set the scores to -inf before the softmax.",
            lambda q, k, v, mask=None: (_weights(q, k, None) if mask is None else _weights(q, k, None) * mask) @ v,
        ),
        Slip(
            "mask added to the weights",
            "-inf is added to the weights, after the softmax. Set the scores to -inf before the softmax.",
            lambda q, k, v, mask=None: (
                (_weights(q, k, None) if mask is None else np.where(mask, _weights(q, k, None), -np.inf)) @ v
            ),
        ),
        Slip(
            "masked scores are 0",
            "Scores of hidden keys become 0, and e^0 = 1 still counts. They should become -inf.",
            lambda q, k, v, mask=None: attend(q, k, v, mask, low=0.0),
        ),
        Slip(
            "mask added to the scores",
            "The mask is added to the scores as 0 and 1. Where it is False, the scores should become -inf.",
            lambda q, k, v, mask=None: softmax(_scores(q, k) + (0 if mask is None else mask)) @ v,
        ),
        Slip(
            "mask transposed",
            "The mask is transposed. Its rows should be queries and its columns keys, like those of the scores.",
            lambda q, k, v, mask=None: attend(q, k, v, None if mask is None else mask.T),
        ),
    ),
    optional="mask",
)


# --- causal mask ------------------------------------------------------------------------------------------------------

CAUSAL_MASK = Exercise(
    "causal_mask",
    right.causal_mask,
    lambda: [(3, 3), (2, 4), (1, 3), (1, 1), (4, 5)],
    (
        "With as many keys as queries it is a lower triangle with the diagonal: np.tri or np.tril makes one.",
        "The last query sees all keys, the one before it all but the last. Query i is token n_keys - n_queries + i.",
        "Compare np.arange(n_keys) with the tokens of the queries as a column, or give np.tri its third argument.",
    ),
    ("npformer.masks:causal_mask",),
    (
        Slip(
            "own token hidden",
            "A query does not see its own token. Key j is visible if it is not later than the query, so j = i is.",
            lambda n, m: np.tri(n, m, m - n - 1, dtype=bool),
        ),
        Slip(
            "one token too late",
            "A query sees the token after its own. Key j is visible if it is not later than the query.",
            lambda n, m: np.tri(n, m, m - n + 1, dtype=bool),
        ),
        Slip(
            "upper triangle",
            "This is an upper triangle: a query sees its own token and later ones. It should see its own and "
            "earlier ones.",
            lambda n, m: ~np.tri(n, m, m - n - 1, dtype=bool),
        ),
        Slip(
            "inverted",
            "True and False are exchanged. True means that a query may attend to the key.",
            lambda n, m: ~np.tri(n, m, m - n, dtype=bool),
        ),
        Slip(
            "queries are the first tokens",
            "Query i is taken for token i. The queries are the last tokens of the text: the last query sees every key.",
            lambda n, m: np.tri(n, m, dtype=bool),
        ),
        Slip("everything visible", "Every key is visible to every query.", lambda n, m: np.ones((n, m), bool)),
        Slip(
            "transposed",
            "Rows and columns are exchanged. Rows are queries, columns are keys.",
            lambda n, m: np.tri(n, m, m - n, dtype=bool).T,
        ),
        Slip(
            "reversed",
            "The rows are in reverse order. The last query sees every key.",
            lambda n, m: np.tri(n, m, m - n, dtype=bool)[::-1],
        ),
    ),
)
