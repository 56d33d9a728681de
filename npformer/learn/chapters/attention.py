"""Chapter 2: attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.contents import right
from npformer.learn.exercise import Exercise, array, drawn

SOFTMAX = Exercise(
    "softmax",
    lambda: [
        (array([[0, 1, 2], [1, 1, 3]]),),
        (array([[0, -np.inf, 1]]),),
        (drawn(1, 2, 3, 3),),
        (array([[1000, 1001], [-1000, -999], [0, 1]]),),
        (array([0.5, 0.25, 4]),),
        (drawn(2, 3, 3),),  # square, so that sums without keepdims broadcast along the columns
        (drawn(3, 3, 4), 0),
    ],
    (
        "The numbers along the axis add up to 1, so the sum is over this axis, with keepdims=True.",
        "exp(1000) overflows. Subtracting the same number from a whole row does not change the result, so "
        "subtract the row's maximum.",
        "Take the maximum over the axis with keepdims=True and subtract it, take exp, and divide by the sum.",
    ),
    """
    over the first axis: Each column adds up to 1, because the sum is over axis 0. It should be over the last axis, so
        that each row adds up to 1.
        x.max(axis=axis -> x.max(axis=0
        e.sum(axis=axis -> e.sum(axis=0
    over axis 1: The sum is over axis 1. That is the last axis of a matrix only: use axis -1.
        x.max(axis=axis -> x.max(axis=1
        e.sum(axis=axis -> e.sum(axis=1
    over the whole array: All numbers together add up to 1. Each row should add up to 1: sum over the last axis.
        x.max(axis=axis -> x.max(axis=None
        e.sum(axis=axis -> e.sum(axis=None
    axis ignored: The argument axis is not used: the sum is always over the last axis.
        x.max(axis=axis -> x.max(axis=-1
        e.sum(axis=axis -> e.sum(axis=-1
    maximum not subtracted: exp overflows for large x. Subtract the largest x of each row before exp.
        x - x.max(axis=axis, keepdims=True) -> x
    maximum of the whole array: The largest x of the whole array is subtracted, so exp is 0 in a row far below it, and
        0 / 0 is NaN. Subtract the largest x of each row.
        x.max(axis=axis, keepdims=True) -> x.max()
    maximum of each column: The largest x of each column is subtracted. Subtract the largest x of each row, over the
        last axis.
        x.max(axis=axis -> x.max(axis=0
    sum of each column: exp is divided by the sum of each column. Divide by the sum of each row, over the last axis.
        e.sum(axis=axis -> e.sum(axis=0
    sum without keepdims: The sum lacks keepdims=True, so it broadcasts along the columns. Each row should be divided by
        its own sum.
        e.sum(axis=axis, keepdims=True) -> e.sum(axis=axis)
    maximum without keepdims: The maximum lacks keepdims=True, so it broadcasts along the columns. From each row,
        subtract the row's maximum.
        x.max(axis=axis, keepdims=True) -> x.max(axis=axis)
    maximum and sum without keepdims: The maximum and the sum lack keepdims=True, so they broadcast along the columns.
        Each row needs its own maximum and sum.
        x.max(axis=axis, keepdims=True) -> x.max(axis=axis)
        e.sum(axis=axis, keepdims=True) -> e.sum(axis=axis)
    maximum subtracted in the numerator only: The maximum is subtracted from x in exp(x), but not in the sum. Subtract
        it once, before exp.
        e.sum(axis=axis -> np.exp(x).sum(axis=axis
    not divided by the sum: This is exp(x - max(x)). It should be divided by the sum over the row.
        e / e.sum(axis=axis, keepdims=True) -> e
    divided by the mean: exp is divided by its mean. It should be divided by its sum.
        e.sum( -> e.mean(
    sum over the whole array: exp of each row is divided by the sum over all rows. Divide by the sum over the last axis.
        e.sum(axis=axis, keepdims=True) -> e.sum()
    log softmax: This is the logarithm of softmax.
        e / e.sum(axis=axis, keepdims=True) -> np.log(e / e.sum(axis=axis, keepdims=True))
    sign: exp is applied to -x. It should be applied to x.
        x - x.max(axis=axis, keepdims=True) -> x.min(axis=axis, keepdims=True) - x
    base 2: This is 2^x divided by its sum. It should be e^x divided by its sum.
        np.exp( -> np.exp2(
    x divided by its sum: x is divided by its sum. It should be exp(x), divided by the sum of exp(x).
        e / e.sum( -> x / x.sum(
    sigmoid: This is 1 / (1 + exp(-x)), the sigmoid.
        e / e.sum(axis=axis, keepdims=True) -> 1 / (1 + np.exp(-x))
    constant added to the sum [1e-4 1]: {number} is added to the sum, so the numbers of a row do not add up to 1.
        e / e.sum(axis=axis, keepdims=True) -> e / (e.sum(axis=axis, keepdims=True) + number)
    x multiplied: exp is applied to x times {number}. It should be applied to x.
        x - x.max(axis=axis, keepdims=True) -> number * (x - x.max(axis=axis, keepdims=True))
    """,
)


# --- heads ------------------------------------------------------------------------------------------------------------


def _split_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]), 2),
        (drawn(1, 2, 6), 2),
        (drawn(2, 4, 12), 3),
        (drawn(3, 3, 4), 1),
        (drawn(4, 3, 9), 3),
        (drawn(5, 2, 3, 4), 2),
    ]


SPLIT_HEADS = Exercise(
    "split_heads",
    _split_cases,
    (
        "Two steps: cut the columns of each token into heads, then put the axis of heads before the axis of tokens.",
        "reshape to (..., L, H, K) cuts the columns. It must not be followed by another reshape.",
        "Reshape to (*x.shape[:-1], n_heads, D // n_heads), then exchange the axes -2 and -3 with swapaxes.",
    ),
    """
    reshaped without the transpose: x is reshaped to (H, L, K), which mixes tokens. Reshape to (L, H, K), then exchange
        these two axes.
        *x.shape[:-1], n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3) -> *x.shape[:-2], n_heads, x.shape[-2], x.shape[-1] // n_heads)
    not transposed: The result is (L, H, K). Exchange its axes of tokens and heads.
        .swapaxes(-2, -3) ->
    interleaved: Head h has the columns h, h + H, h + 2 H, ... It should have adjacent columns, h K ... (h + 1) K - 1.
        n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3) -> x.shape[-1] // n_heads, n_heads).swapaxes(-1, -2).swapaxes(-2, -3)
    rows and columns of a head exchanged: Each head is (K, L). It should be (L, K).
        .swapaxes(-2, -3) -> .swapaxes(-2, -3).mT
    first and last axis exchanged: The heads are (K, H, L): the axes L and K of (L, H, K) are exchanged. Exchange L and
        H.
        .swapaxes(-2, -3) -> .swapaxes(-1, -2).swapaxes(-2, -3).mT
    axes of the heads in the wrong order: The axes of the result are (K, L, H). They should be (H, L, K).
        .swapaxes(-2, -3) -> .swapaxes(-2, -3).swapaxes(-1, -3)
    number and width of heads exchanged: There are K heads of width H. There should be n_heads heads of width
        D / n_heads.
        n_heads, x.shape[-1] // n_heads) -> x.shape[-1] // n_heads, n_heads)
    heads in reverse order: The heads are in reverse order.
        .swapaxes(-2, -3) -> .swapaxes(-2, -3)[..., ::-1, :, :]
    axes counted from the front: The axes are counted from the front, so that x can only be (L, D). Count them from the
        end: the tokens are axis -2.
        x.reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3) -> x.reshape(len(x), n_heads, -1).swapaxes(0, 1)
    """,
)

COMBINE_HEADS = Exercise(
    "combine_heads",
    lambda: [(right("split_heads")(*case),) for case in _split_cases()],
    (
        "Undo the two steps of split_heads, in reverse order.",
        "First exchange the axes of heads and tokens: (..., H, L, K) becomes (..., L, H, K).",
        "Exchange the axes -2 and -3 with swapaxes, then reshape to (..., L, H * K).",
    ),
    """
    reshaped without the transpose: x is reshaped to (L, D), which mixes tokens. Exchange the axes of heads and tokens
        first.
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> x.reshape(*x.shape[:-3], x.shape[-2], -1)
    interleaved: The first columns of all heads are side by side. Put the columns of each head side by side.
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> np.moveaxis(x, -3, -1).reshape(*x.shape[:-3], x.shape[-2], -1)
    heads in reverse order: The heads are in reverse order.
        np.moveaxis(x, -3, 0) -> np.moveaxis(x, -3, 0)[::-1]
    heads stacked vertically: The heads are stacked vertically. They should be side by side: (L, H K).
        axis=-1 -> axis=-2
    all axes reversed: x.T reverses all axes. Exchange the axes of heads and tokens only: x.swapaxes(-2, -3).
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> x.T.reshape(x.shape[1], -1)
    heads added: The heads are added. They should be side by side.
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> x.sum(axis=-3)
    mean of the heads: This is the mean of the heads. The heads should be side by side.
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> x.mean(axis=-3)
    not reshaped: The result is (L, H, K). Reshape it to (L, H K).
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> x.swapaxes(-2, -3)
    axes counted from the front: The axes are counted from the front, so that x can only be (H, L, K). Count them from
        the end: the heads are axis -3.
        np.concatenate(np.moveaxis(x, -3, 0), axis=-1) -> x.swapaxes(0, 1).reshape(x.shape[1], -1)
    axes counted from the front: The first axis is taken for the heads, so that x can only be (H, L, K). The heads are
        axis -3.
        np.moveaxis(x, -3, 0) -> x
    """,
)


# --- causal mask ------------------------------------------------------------------------------------------------------

CAUSAL_MASK = Exercise(
    "causal_mask",
    lambda: [(3, 3), (2, 4), (1, 3), (1, 1), (4, 5), (3,)],
    (
        "With as many keys as queries, the mask is a lower triangle that includes the diagonal: use np.tri or np.tril.",
        "The last query sees all keys, the previous query all but the last. Query i is token n_keys - n_queries + i.",
        "Compare np.arange(n_keys) with a column of the queries' positions, or give np.tri its third argument. Without "
        "n_keys, there are as many keys as queries.",
    ),
    """
    own token hidden: A query does not see its own token. It should see its own and all earlier tokens.
        max(n_keys - n_queries, 0) -> max(n_keys - n_queries, 0) - 1
    one token too late: A query sees the token after its own. It should see only its own and earlier tokens.
        max(n_keys - n_queries, 0) -> max(n_keys - n_queries, 0) + 1
    upper triangle: The mask is an upper triangle: a query sees its own and later tokens. It should see its own and
        earlier tokens.
        np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), -> ~np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0) - 1,
    upper triangle: The mask is an upper triangle, and query i is treated as token i. A query should see its own and
        earlier tokens, and the queries are the last tokens of the text.
        np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), -> ~np.tri(n_queries, max(n_queries, n_keys), -1,
    moved by n_queries: The diagonal is shifted by n_queries. It should be shifted by n_keys - n_queries.
        max(n_keys - n_queries, 0) -> n_queries
    moved by n_queries - 1: The diagonal is shifted by n_queries - 1. It should be shifted by n_keys - n_queries.
        max(n_keys - n_queries, 0) -> n_queries - 1
    shifted in the wrong direction: The diagonal is shifted by n_queries - n_keys. It should be shifted by
        n_keys - n_queries.
        max(n_keys - n_queries, 0) -> min(n_queries - n_keys, 0)
    inverted: True and False are exchanged. True means that a query may attend to the key.
        np.tri( -> ~np.tri(
    queries are the first tokens: Query i is treated as token i. The queries are the last tokens, so the last query sees
        every key.
        max(n_keys - n_queries, 0) -> 0
    numbers to add to scores: The mask has numbers to add to scores, 0 and -inf, as in torch's attn_mask. Return
        booleans: True where a query may attend to a key.
        np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), dtype=bool) -> np.where(np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), dtype=bool), 0, -np.inf)
    everything visible: Every key is visible to every query.
        np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), dtype=bool) -> np.ones((n_queries, max(n_queries, n_keys)), bool)
    transposed: Rows and columns are exchanged. Rows should be queries, columns keys.
        dtype=bool) -> dtype=bool).T
    reversed: The rows are in reverse order. The last query should see every key.
        dtype=bool) -> dtype=bool)[::-1]
    n_keys is 0: Without n_keys, the mask has no columns. It should then have as many keys as queries.
        max(n_queries, n_keys) -> n_keys
    """,
)


# --- attention --------------------------------------------------------------------------------------------------------

MASK = np.array([[True, False, True], [True, True, False], [False, True, True]])
TEXTS = np.array([[[[True, True, True]]], [[[True, True, False]]]])  # two texts, the second with padding

MASKED_SOFTMAX = Exercise(
    "masked_softmax",
    lambda: [
        (array([[0, 1], [2, 0], [1, 0]]), np.array([[True, True], [True, False], [False, False]])),
        (drawn(1, 2, 3, 3), MASK),
        (drawn(2, 2, 3, 4), True),
        (drawn(3, 2, 3, 5), np.tri(3, 5, 2, dtype=bool)),
        (drawn(4, 2, 2, 3, 3), TEXTS),
    ],
    (
        "Hide keys before the softmax: np.where(mask, scores, low) puts a very low number where the mask is False.",
        "-inf gives NaN in a row without any key. np.finfo(scores.dtype).min is low enough, and finite.",
        "Apply softmax to np.where(mask, scores, low), and multiply by the mask.",
    ),
    """
    mask ignored: The mask is not used. Where it is False, the weights should be 0, and the other weights of the row
        should add up to 1.
        softmax(np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> softmax(scores)
    truth of the mask: `if mask` asks whether the whole array is true. Use np.where(mask, ...), which tests each of its
        numbers.
        np.where(mask, scores, np.finfo(scores.dtype).min) -> np.where(mask, scores, np.finfo(scores.dtype).min) if mask else scores
    mask times infinity: The mask is multiplied by infinity, and 0 times infinity is NaN. Use np.where(mask, ...).
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> scores + (1 - mask) * -np.inf)
    no key: A query that may attend to no key gets NaN, because all of its scores are -inf. It should get zeros.
        np.finfo(scores.dtype).min)) * mask -> -np.inf))
    no key: A query that may attend to no key gets equal weights. It should get zeros: multiply by the mask.
        np.finfo(scores.dtype).min)) * mask -> np.finfo(scores.dtype).min))
    no key: A query that may attend to no key gets the softmax of its scores. It should get zeros: multiply by the mask.
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> np.where(mask, scores, scores.astype(float) - 1e9))
    always causal: Later tokens are always hidden. Only the mask should hide keys.
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf))
    mask inverted: Keys are hidden where the mask is True. True means that a query may attend to the key.
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> np.where(mask, -np.inf, scores))
    mask inverted: Keys are hidden where the mask is True, and weights are 0 there. True means that a query may attend
        to the key.
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> np.where(mask, np.finfo(scores.dtype).min, scores)) * np.logical_not(mask)
    mask inverted: Scores become a large negative number where the mask is True, which hides those keys. True means that
        a query may attend to the key.
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> np.where(mask, -1e9, scores))
    mask after the softmax: Weights of hidden keys are set to 0 after the softmax, so the remaining weights no longer
        add up to 1. Hide the scores before the softmax.
        np.where(mask, scores, np.finfo(scores.dtype).min) -> scores
    mask added to the weights: -inf is added to the weights, after the softmax. Hide the scores before the softmax.
        softmax(np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> np.where(mask, softmax(scores), -np.inf)
    masked scores are 0: Scores of hidden keys become 0, and e^0 = 1 still counts. They should become very low.
        np.finfo(scores.dtype).min)) * mask -> 0.0))
    masked scores are 0: Scores of hidden keys become 0, and e^0 = 1 counts in the sum. They should become very low.
        np.finfo(scores.dtype).min -> 0.0
    mask added to the scores: The mask is added to the scores as zeros and ones. Where it is False, the scores should
        become very low.
        np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> scores + mask)
    mask transposed: The mask is transposed. Its rows should be queries and its columns keys, as in the scores.
        np.where(mask, -> np.where(np.transpose(mask),
        * mask -> * np.transpose(mask)
    softmax left out: The scores are returned without a softmax, with 0 for hidden keys.
        softmax(np.where(mask, scores, np.finfo(scores.dtype).min)) * mask -> scores * mask
    masked scores are a number [-3 0.1]: Scores of hidden keys become {number}, which still counts. They should become
        very low.
        np.finfo(scores.dtype).min)) * mask -> number))
    """,
    optional="mask",
)

ATTENTION = Exercise(
    "scaled_dot_product_attention",
    lambda: [
        (array([[[2, 0], [0, 2]]]), array([[[1, 0], [1, 1]]]), array([[[1, 0], [0, 10]]])),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 3, 4)),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 3, 4), MASK),
        (drawn(4, 2, 3, 4), drawn(5, 2, 5, 4), drawn(6, 2, 5, 4)),
        (drawn(4, 2, 3, 4), drawn(5, 2, 5, 4), drawn(6, 2, 5, 4), np.tri(3, 5, 2, dtype=bool)),
        (drawn(7, 2, 2, 2), drawn(8, 2, 2, 2), drawn(9, 2, 2, 2)),  # all sizes are equal, so that k.T causes no error
        (drawn(10, 2, 3, 3, 4), drawn(11, 2, 3, 3, 4), drawn(12, 2, 3, 3, 4), TEXTS),
    ],
    (
        "k.swapaxes(-1, -2), or k.mT, transposes the last two axes of k. The scores are (..., L, S).",
        "Your masked_softmax takes the scores and the mask. sqrt(K) is math.sqrt(q.shape[-1]).",
        "Multiply q by the transpose of k, divide by sqrt(K), apply masked_softmax, multiply by v.",
    ),
    """
    scores not divided: The scores are not divided by sqrt(K).
        k.mT / math.sqrt(q.shape[-1]) -> k.mT
    scores divided by K: The scores are divided by K, the width of a head. Divide by its square root.
        math.sqrt(q.shape[-1]) -> q.shape[-1]
    scores multiplied by sqrt(K): The scores are multiplied by sqrt(K). They should be divided by it.
        / math.sqrt -> * math.sqrt
    scores divided by sqrt(D): The scores are divided by the square root of the model's width, H K. Divide by the square
        root of a head's width, K.
        math.sqrt(q.shape[-1]) -> math.sqrt(q.shape[-3] * q.shape[-1])
    scores divided by the square root of the number of queries: The scores are divided by sqrt(L), where L is the number
        of queries. Divide by sqrt(K), where K is the width of a head, q.shape[-1].
        math.sqrt(q.shape[-1]) -> math.sqrt(q.shape[-2])
    scores divided by the square root of the number of keys: The scores are divided by sqrt(S), where S is the number of
        keys. Divide by sqrt(K), where K is the width of a head, k.shape[-1].
        math.sqrt(q.shape[-1]) -> math.sqrt(k.shape[-2])
    weights divided by sqrt(K): The weights are divided by sqrt(K), after the softmax. Divide the scores instead, before
        the softmax.
        k.mT / math.sqrt(q.shape[-1]) -> k.mT
        weights @ v -> weights / math.sqrt(q.shape[-1]) @ v
    softmax over the queries: The softmax is over the queries. It should be over the keys, the last axis, so that the
        weights of each query add up to 1.
        masked_softmax(scores, mask) -> softmax(np.where(mask, scores, -np.inf), axis=-2)
    softmax over the heads: The softmax is over the heads. It should be over the keys, the last axis.
        masked_softmax(scores, mask) -> softmax(np.where(mask, scores, -np.inf), axis=-3)
    softmax left out: The scores are multiplied by v without a softmax.
        masked_softmax(scores, mask) -> np.where(mask, scores, -np.inf)
    softmax left out: The scores are multiplied by v without a softmax, with 0 for hidden keys.
        masked_softmax(scores, mask) -> scores * mask
    weights returned: The attention weights are returned. Multiply them by v.
        weights @ v -> weights
    softmax taken twice: The softmax is taken twice.
        weights @ v -> softmax(weights) @ v
    q and k exchanged: The scores are k q^T. They should be q k^T, with a row for each query.
        q @ k.mT -> k @ q.mT
    k and v exchanged: The queries are compared with v, and the weights are multiplied by k. Exchange k and v.
        q @ k.mT -> q @ v.mT
        weights @ v -> weights @ k
    v for k: The queries are compared with v. Compare them with k.
        q @ k.mT -> q @ v.mT
    k for v: The weights are multiplied by k. Multiply them by v.
        weights @ v -> weights @ k
    weights transposed: The transposed weights are multiplied by v. The product should be weights @ v.
        weights @ v -> weights.mT @ v
    all axes of k reversed: k.T reverses all axes of k. Exchange the last two only: k.mT, or k.swapaxes(-1, -2).
        k.mT -> k.T
    mask ignored: The mask is not used. Pass it to masked_softmax.
        masked_softmax(scores, mask) -> softmax(scores)
    scores divided by a constant: The scores are divided by {number} for any width. Divide by sqrt(K), where K is the
        width of a head.
        math.sqrt(q.shape[-1]) -> number
    scores multiplied: The scores are divided by sqrt(K) and multiplied by {number}. Leave that factor out.
        k.mT / -> k.mT * number /
    """,
    optional="mask",
)
