"""Chapter 2, scaled dot-product attention and the causal mask. The chapter starts in `softmax_and_heads.py`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn
from npformer.learn.right import softmax

Array = np.ndarray


# --- attention --------------------------------------------------------------------------------------------------------

MASK = np.array([[True, False, True], [True, True, False], [False, True, True]])


def _attention_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[[2, 0], [0, 2]]]), array([[[1, 0], [1, 1]]]), array([[[1, 0], [0, 10]]])),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 3, 4)),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 3, 4), MASK),
        (drawn(4, 2, 3, 4), drawn(5, 2, 5, 4), drawn(6, 2, 5, 4)),
        (drawn(4, 2, 3, 4), drawn(5, 2, 5, 4), drawn(6, 2, 5, 4), np.tri(3, 5, 2, dtype=bool)),
        (drawn(7, 2, 2, 2), drawn(8, 2, 2, 2), drawn(9, 2, 2, 2)),  # cubes, so that k.T causes no error
    ]


def _masked(scores: Array, mask: Array | None, low: float = -np.inf) -> Array:
    return scores if mask is None else np.where(mask, scores, low)


def attend(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    scale: Any = lambda q, k: 1.0,
    hide: Any = _masked,
    axis: int | None = -1,
    times: Any = lambda weights, v: weights @ v,
) -> Array:
    """Attention with some of its steps replaced. The scores are divided by sqrt(K) and multiplied by scale(q, k)."""
    scores = q @ k.mT * (scale(q, k) / math.sqrt(q.shape[-1]))
    return times(softmax(hide(scores, mask), axis), v)  # type: ignore[arg-type]


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
        "Before the softmax, np.where(mask, scores, -np.inf) hides keys. sqrt(K) is math.sqrt(q.shape[-1]).",
        "Multiply q by the transpose of k, divide by sqrt(K), hide keys if there is a mask, apply softmax, "
        "multiply by v.",
    ),
    ("npformer.plain.formulas:scaled_dot_product_attention", "npformer.plain.formulas:masked_softmax"),
    (
        Slip(
            "scores not divided",
            "The scores are not divided by sqrt(K).",
            partial(attend, scale=lambda q, k: math.sqrt(q.shape[-1])),
        ),
        Slip(
            "scores divided by K",
            "The scores are divided by K, the width of a head. Divide by its square root.",
            partial(attend, scale=lambda q, k: 1 / math.sqrt(q.shape[-1])),
        ),
        Slip(
            "scores multiplied by sqrt(K)",
            "The scores are multiplied by sqrt(K). They should be divided by it.",
            partial(attend, scale=lambda q, k: q.shape[-1]),
        ),
        Slip(
            "scores divided by sqrt(D)",
            "The scores are divided by the square root of the model's width, H K. Divide by the square root of a "
            "head's width, K.",
            partial(attend, scale=lambda q, k: 1 / math.sqrt(len(q))),
        ),
        Slip(
            "scores divided by the square root of the number of queries",
            "The scores are divided by sqrt(L), where L is the number of queries. Divide by sqrt(K), where K is the "
            "width of a head, q.shape[-1].",
            partial(attend, scale=lambda q, k: math.sqrt(q.shape[-1] / q.shape[-2])),
        ),
        Slip(
            "scores divided by the square root of the number of keys",
            "The scores are divided by sqrt(S), where S is the number of keys. Divide by sqrt(K), where K is the "
            "width of a head, k.shape[-1].",
            partial(attend, scale=lambda q, k: math.sqrt(k.shape[-1] / k.shape[-2])),
        ),
        Slip(
            "weights divided by sqrt(K)",
            "The weights are divided by sqrt(K), after the softmax. Divide the scores instead, before the softmax.",
            partial(
                attend,
                scale=lambda q, k: math.sqrt(q.shape[-1]),
                times=lambda weights, v: weights / math.sqrt(v.shape[-1]) @ v,
            ),
        ),
        Slip(
            "softmax over the queries",
            "The softmax is over the queries. It should be over the keys, the last axis, so that the weights of each "
            "query add up to 1.",
            partial(attend, axis=-2),
        ),
        Slip(
            "softmax over the heads",
            "The softmax is over the heads. It should be over the keys, the last axis.",
            partial(attend, axis=0),
        ),
        Slip(
            "softmax left out",
            "The scores are multiplied by v without a softmax.",
            lambda q, k, v, mask=None: (_scores(q, k) if mask is None else np.where(mask, _scores(q, k), -np.inf)) @ v,
        ),
        Slip(
            "softmax left out",
            "The scores are multiplied by v without a softmax, with 0 for hidden keys.",
            lambda q, k, v, mask=None: (_scores(q, k) if mask is None else _scores(q, k) * mask) @ v,
        ),
        Slip(
            "weights returned",
            "The attention weights are returned. Multiply them by v.",
            partial(attend, times=lambda weights, v: weights),
        ),
        Slip(
            "softmax taken twice",
            "The softmax is taken twice.",
            partial(attend, times=lambda weights, v: softmax(weights) @ v),
        ),
        Slip(
            "q and k exchanged",
            "The scores are k q^T. They should be q k^T, with a row for each query.",
            lambda q, k, v, mask=None: attend(k, q, v, mask),
        ),
        Slip(
            "k and v exchanged",
            "The queries are compared with v, and the weights are multiplied by k. Exchange k and v.",
            lambda q, k, v, mask=None: attend(q, v, k, mask),
        ),
        Slip(
            "v for k",
            "The queries are compared with v. Compare them with k.",
            lambda q, k, v, mask=None: attend(q, v, v, mask),
        ),
        Slip(
            "k for v",
            "The weights are multiplied by k. Multiply them by v.",
            lambda q, k, v, mask=None: attend(q, k, k, mask),
        ),
        Slip(
            "weights transposed",
            "The transposed weights are multiplied by v. The product should be weights @ v.",
            partial(attend, times=lambda weights, v: weights.mT @ v),
        ),
        Slip(
            "all axes of k reversed",
            "k.T reverses all three axes of k. Exchange the last two only: k.mT, or k.swapaxes(-1, -2).",
            lambda q, k, v, mask=None: (
                softmax(_masked(q @ k.T / math.sqrt(q.shape[-1]), mask)) @ v  # not `attend`, which uses k.mT
            ),
        ),
        Slip(
            "truth of the mask",
            "`if mask` asks whether the whole array is true. Ask whether there is a mask: `if mask is not None`.",
            partial(attend, hide=lambda scores, mask: _masked(scores, mask if mask else None)),
        ),
        Slip(
            "mask times infinity",
            "The mask is multiplied by infinity, and 0 times infinity is NaN. Use np.where(mask, scores, -np.inf).",
            partial(
                attend,
                hide=lambda scores, mask: (
                    scores if mask is None else scores + (1 - mask.astype(scores.dtype)) * -np.inf
                ),
            ),
        ),
        Slip(
            "mask ignored",
            "The mask is not used. Where it is False, the scores should become -inf, before the softmax.",
            partial(attend, hide=lambda scores, mask: scores),
        ),
        Slip(
            "always causal",
            "Later tokens are always hidden. Only the mask should hide keys.",
            partial(attend, hide=lambda scores, mask: _masked(scores, np.tri(*scores.shape[-2:], dtype=bool))),
        ),
        Slip(
            "mask inverted",
            "Keys are hidden where the mask is True. True means that a query may attend to the key.",
            partial(attend, hide=lambda scores, mask: _masked(scores, None if mask is None else ~mask)),
        ),
        Slip(
            "mask inverted",
            "A large number is subtracted where the mask is True, which hides those keys. True means that a query may "
            "attend to the key.",
            partial(attend, hide=lambda scores, mask: _masked(scores, None if mask is None else ~mask, -1e9)),
        ),
        Slip(
            "mask after the softmax",
            "Weights of hidden keys are set to 0 after the softmax, so the remaining weights no longer add up to 1. "
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
            partial(attend, hide=partial(_masked, low=0.0)),
        ),
        Slip(
            "mask added to the scores",
            "The mask is added to the scores as zeros and ones. Where it is False, the scores should become -inf.",
            partial(attend, hide=lambda scores, mask: scores + (0 if mask is None else mask)),
        ),
        Slip(
            "mask transposed",
            "The mask is transposed. Its rows should be queries and its columns keys, like those of the scores.",
            partial(attend, hide=lambda scores, mask: _masked(scores, None if mask is None else mask.T)),
        ),
    ),
    optional="mask",
    constants=(
        Constant(
            "scores divided by a constant",
            "The scores are divided by {number} for any width. Divide by sqrt(K), where K is the width of a head.",
            lambda number: partial(attend, scale=lambda q, k: math.sqrt(q.shape[-1]) / number),
        ),
        Constant(
            "scores multiplied",
            "The scores are divided by sqrt(K) and multiplied by {number}. Leave that factor out.",
            lambda number: partial(attend, scale=lambda q, k: number),
        ),
        Constant(
            "masked scores are a number",
            "Scores of hidden keys become {number}, which still counts. They should become -inf.",
            lambda number: partial(attend, hide=partial(_masked, low=number)),
            (-3.0, 0.1),
        ),
    ),
)


# --- causal mask ------------------------------------------------------------------------------------------------------

CAUSAL_MASK = Exercise(
    "causal_mask",
    right.causal_mask,
    lambda: [(3, 3), (2, 4), (1, 3), (1, 1), (4, 5)],
    (
        "With as many keys as queries, the mask is a lower triangle that includes the diagonal: use np.tri or np.tril.",
        "The last query sees all keys, the previous query all but the last. Query i is token n_keys - n_queries + i.",
        "Compare np.arange(n_keys) with a column of the queries' positions, or give np.tri its third argument.",
    ),
    ("npformer.plain.formulas:causal_mask",),
    (
        Slip(
            "own token hidden",
            "A query does not see its own token. It should see its own and all earlier tokens.",
            lambda n, m: np.tri(n, m, m - n - 1, dtype=bool),
        ),
        Slip(
            "one token too late",
            "A query sees the token after its own. It should see only its own and earlier tokens.",
            lambda n, m: np.tri(n, m, m - n + 1, dtype=bool),
        ),
        Slip(
            "upper triangle",
            "The mask is an upper triangle: a query sees its own and later tokens. It should see its own and earlier "
            "tokens.",
            lambda n, m: ~np.tri(n, m, m - n - 1, dtype=bool),
        ),
        Slip(
            "upper triangle",
            "The mask is an upper triangle, and query i is treated as token i. A query should see its own and earlier "
            "tokens, and the queries are the last tokens of the text.",
            lambda n, m: ~np.tri(n, m, -1, dtype=bool),
        ),
        *(
            Slip(
                f"moved by {size}",
                f"The diagonal is shifted by {size}. It should be shifted by n_keys - n_queries.",
                lambda n, m, less=less: np.tri(n, m, n - less, dtype=bool),
            )
            for size, less in (("n_queries", 0), ("n_queries - 1", 1))
        ),
        Slip(
            "shifted in the wrong direction",
            "The diagonal is shifted by n_queries - n_keys. It should be shifted by n_keys - n_queries.",
            lambda n, m: np.tri(n, m, n - m, dtype=bool),
        ),
        Slip(
            "inverted",
            "True and False are exchanged. True means that a query may attend to the key.",
            lambda n, m: ~np.tri(n, m, m - n, dtype=bool),
        ),
        Slip(
            "queries are the first tokens",
            "Query i is treated as token i. The queries are the last tokens, so the last query sees every key.",
            lambda n, m: np.tri(n, m, dtype=bool),
        ),
        Slip(
            "numbers to add to scores",
            "The mask has numbers to add to scores, 0 and -inf, as in torch's attn_mask. Return booleans: True where a "
            "query may attend to a key.",
            lambda n, m: np.where(np.tri(n, m, m - n, dtype=bool), 0, -np.inf),
        ),
        Slip("everything visible", "Every key is visible to every query.", lambda n, m: np.ones((n, m), bool)),
        Slip(
            "transposed",
            "Rows and columns are exchanged. Rows should be queries, columns keys.",
            lambda n, m: np.tri(n, m, m - n, dtype=bool).T,
        ),
        Slip(
            "reversed",
            "The rows are in reverse order. The last query should see every key.",
            lambda n, m: np.tri(n, m, m - n, dtype=bool)[::-1],
        ),
    ),
)
