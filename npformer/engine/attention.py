"""Scaled dot-product attention, and functions that split rows into heads.

Attention Is All You Need (Vaswani et al., 2017), section 3.2.1. Next: `multi_head.py`, which adds the linear layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax, softmax_backward
from npformer.engine.masks import masked_softmax
from npformer.engine.runtime.products import Scratch, in_columns, inner_products, inner_products_in_room, row_products
from npformer.engine.runtime.sums import TERMS, matmul_in_order, sum_in_order
from npformer.engine.runtime.tiles import in_place
from npformer.engine.tape import Stages
from npformer.engine.taps import listening, spare, tap

Add = Callable[[np.ndarray], np.ndarray]  # adds terms to the scores, and may overwrite its argument
#: Backward of an `Add`: given the gradient of the new scores, returns the gradient of the old scores, and the terms
#: to add to dq and dk.
AddBackward = Callable[[np.ndarray], tuple[np.ndarray, Any, Any]]

QUERIES = 64  # queries per block: enough for a fast product, and few enough that most masked keys are skipped

_softmax = partial(softmax, total=sum_in_order)


def split_heads(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(..., L, D) -> (..., H, L, K), a view of x: head h is columns h K ... (h + 1) K - 1. H must divide D."""
    *lead, length, width = x.shape
    if n_heads < 1 or width % n_heads:
        raise NpformerError(f"split_heads: the width of x {x.shape} must be a multiple of n_heads, got {n_heads}")
    return x.reshape(*lead, length, n_heads, width // n_heads).swapaxes(-2, -3)


def combine_heads(x: np.ndarray) -> np.ndarray:
    """(..., H, L, K) -> (..., L, D): the inverse of `split_heads`."""
    *lead, n_heads, length, width = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, length, n_heads * width)


def scaled_dot_product_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    mask: np.ndarray | None = None,
    add: Add | None = None,
    in_order: bool = True,
) -> np.ndarray:
    """softmax(add(q k^T * scale)) v over the keys that the mask allows. Shapes are not checked.

    in_order: with a mask, sum over keys in the fixed order of `masked_attention`. If in_order is False, every query
    must have a key to which it may attend.
    """
    if mask is not None and in_order:
        return masked_attention(q * scale, k, v, mask, add=add)
    scores = _by_group(partial(inner_products, scale=scale), q, k)  # q @ k.mT * scale
    if add is not None:
        scores = add(scores)
    scores = tap("scores", scores)
    if mask is not None:
        scores = scores.copy(order="K") if spare(scores) is None else scores
        np.copyto(scores, -np.inf, where=~mask)
    weights = tap("weights", in_place(_softmax, scores))  # softmax(scores)
    return tap("context", _by_group(row_products, weights, v))  # weights @ v


def scaled_dot_product_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    add_backward: AddBackward | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Backward of `scaled_dot_product_attention` = W v, W = softmax(S), S = q k^T * scale (W is 0 where masked):

    dv = W^T grad; dW = grad v^T; dS = softmax_backward(dW, W); dq = dS k * scale; dk = dS^T q * scale.
    add_backward: backward of `add` in `scaled_dot_product_attention`.
    """
    grad = stages.through_edit("context", grad)
    weights = stages["weights"]
    dv = weights.mT @ grad
    keys_are_rows = weights.strides[-1] > weights.strides[-2]  # dweights is laid out in memory like weights
    dweights = (v @ grad.mT).mT if keys_are_rows else grad @ v.mT
    ds = softmax_backward(stages.through_edit("weights", dweights), stages.made("weights"))
    ds = stages.through_edit("scores", ds)
    ds, more_q, more_k = (ds, 0.0, 0.0) if add_backward is None else add_backward(ds)
    dq, dk = ds @ k, ds.mT @ q
    dq *= scale
    dk *= scale
    dq += more_q
    dk += more_k
    return dq, dk, dv


def masked_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray,
    terms: int = TERMS,
    front: int = 0,
    add: Add | None = None,
) -> np.ndarray:
    """softmax(add(q k^T)) v over the keys that the mask allows, where q is already scaled.

    Masked keys do not change the bits of the result: their weight is exactly 0, and sums over keys have the fixed order
    of `runtime.sums.groups`. A decoder can therefore keep its keys in an array with free space, or the keys of several
    beams in one array. If no terms are added to the scores, many queries are computed in blocks. A block reads only the
    keys from the first to the last key to which any of its queries may attend.
    """
    square = mask.shape[-2:] == (q.shape[-2], k.shape[-2])
    if q.shape[-2] > QUERIES and square and add is None and not listening():
        return _in_blocks(q, k, v, mask)
    scores = _by_group(inner_products_in_room, q, k)  # q @ k.mT
    scores = tap("scores", scores if add is None else add(scores))
    weights = tap("weights", masked_softmax(scores, mask, partial(sum_in_order, terms=terms, front=front)))
    return tap("context", _by_group(partial(matmul_in_order, terms=terms, front=front), weights, v))  # weights @ v


def _in_blocks(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`masked_attention` in blocks of QUERIES queries, each with whole groups of keys (`runtime.sums.groups`)."""
    n_rows = QUERIES * (q.shape[-3] // k.shape[-3] if is_grouped(q, k) else 1)
    columns = in_columns(k.mT, n_rows)
    context = np.empty_like(q, order="C", shape=(*q.shape[:-1], v.shape[-1]))
    of_scores, of_context = Scratch(q), Scratch(q)
    for start in range(0, q.shape[-2], QUERIES):
        block = slice(start, start + QUERIES)
        seen = np.flatnonzero(mask[..., block, :].reshape(-1, mask.shape[-1]).any(axis=0))
        first, last = (int(seen[0]) // TERMS * TERMS, int(seen[-1]) // TERMS * TERMS + TERMS) if len(seen) else (0, 0)

        def product(a: np.ndarray, b: np.ndarray, first: int = first, last: int = last) -> np.ndarray:
            return columns.times(a, first, last, of_scores)

        scores = _by_group(product, q[..., block, :], k)  # q @ k.mT
        weights = masked_softmax(scores, mask[..., block, first:last], out=scores)
        weighted = partial(matmul_in_order, scratch=of_context)
        context[..., block, :] = _by_group(weighted, weights, v[..., first:last, :])
    return context


# --- grouped queries --------------------------------------------------------------------------------------------------


def _by_group(product: Callable[[np.ndarray, np.ndarray], np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """product(a, b) of heads a (..., H, L, W) and b (..., G, S, W); H / G consecutive heads of a share a head of b.

    The heads of a that share a head of b are multiplied as a single matrix. This does not change the bits of the
    result, because each row of a product is independent of the other rows. Ainslie et al., 2023, GQA, section 2.2.
    """
    if not is_grouped(a, b):
        return product(a, b)
    *lead, n_heads, length, width = a.shape
    y = product(a.reshape(*lead, b.shape[-3], n_heads // b.shape[-3] * length, width), b)
    return y.reshape(*y.shape[:-3], n_heads, length, y.shape[-1])


def is_grouped(q: np.ndarray, k: np.ndarray) -> bool:
    """Whether several heads of q share each head of k."""
    return q.ndim == k.ndim > 2 and q.shape[-3] > k.shape[-3] > 0


def kv_heads(q: np.ndarray, k: np.ndarray, n_heads: int) -> int:
    """G, the number of heads in rows of keys (S, G K) for queries (T, H K). Ainslie et al., 2023, GQA, section 2.2."""
    return k.shape[-1] * n_heads // q.shape[-1]


def queries_of(heads: slice, size: int) -> slice:
    """The query heads that share these key heads. Each key head is shared by `size` query heads."""
    return heads if heads.start is None else slice(heads.start * size, heads.stop * size)


def repeat_heads(x: np.ndarray, n_heads: int) -> np.ndarray:
    """Repeats each head H / G times, once for each query head that shares it: (..., G, L, K) -> (..., H, L, K)."""
    return x if x.shape[-3] == n_heads else np.repeat(x, n_heads // x.shape[-3], axis=-3)


def repeat_heads_backward(grad: np.ndarray, n_kv_heads: int) -> np.ndarray:
    """Backward of `repeat_heads`: sums over the repetitions of each head, (..., H, L, K) -> (..., G, L, K)."""
    *lead, n_heads, length, width = grad.shape
    if n_heads == n_kv_heads:
        return grad
    return grad.reshape(*lead, n_kv_heads, n_heads // n_kv_heads, length, width).sum(axis=-3)
