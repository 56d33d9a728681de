"""Attention: masks, heads, scaled dot-product attention, and the block that projects in and out of it.

Attention Is All You Need (Vaswani et al., 2017), section 3.2. Its users are `encoder.py` and `decoder.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from npformer.errors import NpformerError
from npformer.functions import linear, linear_backward, linears, softmax, softmax_backward
from npformer.runtime.batch import equal_runs
from npformer.runtime.blocks import in_place, over_heads
from npformer.runtime.products import inner_products, inner_products_in_room, row_products
from npformer.runtime.sums import TERMS, matmul_in_order, sum_in_order
from npformer.runtime.threads import all_gather
from npformer.tap import tap
from npformer.tape import Stages

Linear = Mapping[str, np.ndarray]

_softmax = partial(softmax, total=sum_in_order)


def padding_mask(lengths: np.ndarray, width: int | None = None) -> np.ndarray:
    """True where a key is a token, False where it is padding: lengths (B,) -> (B, 1, 1, width), width max(lengths)."""
    lengths = np.asarray(lengths)
    return (np.arange(lengths.max() if width is None else width) < lengths[:, None])[:, None, None, :]


def causal_mask(queries: int, keys: int | None = None) -> np.ndarray:
    """True where key j is no later than query i, (queries, keys); the last query sees the last key. Section 3.2.3.

    >>> causal_mask(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    keys = queries if keys is None else keys
    return np.tri(queries, keys, keys - queries, dtype=bool)


def split_heads(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(..., L, D) -> (..., H, L, K): head h is columns h K ... (h + 1) K. A view of x."""
    *lead, length, width = x.shape
    if n_heads < 1 or width % n_heads:
        raise NpformerError(f"split_heads: the width of x {x.shape} must be a multiple of n_heads, got {n_heads}")
    return x.reshape(*lead, length, n_heads, width // n_heads).swapaxes(-2, -3)


def combine_heads(x: np.ndarray) -> np.ndarray:
    """(..., H, L, K) -> (..., L, D): the inverse of split_heads."""
    *lead, n_heads, length, width = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, length, n_heads * width)


def scaled_dot_product_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> np.ndarray:
    """softmax(q k^T * scale) v, (..., L, K), (..., S, K), (..., S, W) -> (..., L, W); scale 1 / sqrt(K). Equation 1.

    mask broadcasts to (..., L, S): booleans, True = may attend, or numbers that are added to the scores. is_causal
    lets query i see keys 0 ... i, as in torch. A row that may attend to nothing gives zeros.
    Raises NpformerError where shapes do not fit, or for a mask and is_causal together.
    """
    if not _agree(q.shape, k.shape, v.shape):
        got = f"{q.shape}, {k.shape}, {v.shape}"
        raise NpformerError(f"attention: q (..., L, K), k (..., S, K) and v (..., S, W) must agree, got {got}")
    if is_causal:
        if mask is not None:
            raise NpformerError("attention: give a mask or is_causal, not both")
        mask = np.tri(q.shape[-2], k.shape[-2], dtype=bool)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)  # a NumPy number would widen float32
    if mask is not None:
        return masked_attention(q * scale, k, v, mask)
    scores = tap("scores", inner_products(q, k, scale))  # q @ k.mT * scale
    weights = tap("weights", in_place(_softmax, scores))  # softmax(scores)
    return tap("context", row_products(weights, v))  # weights @ v


def scaled_dot_product_attention_backward(
    grad: np.ndarray, stages: Stages, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of softmax(q k^T * scale) v = W v: the gradients of q, k and v. A mask needs no word here: W is 0 where it is.

    dv = W^T grad; dW = grad v^T; dS = softmax_backward(dW, W); dq = dS k * scale; dk = dS^T q * scale.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    grad = stages.through_edit("context", grad)
    weights = stages["weights"]
    dv = weights.mT @ grad
    keys_are_rows = weights.strides[-1] > weights.strides[-2]  # as the forward leaves them: the product lies likewise
    dweights = (v @ grad.mT).mT if keys_are_rows else grad @ v.mT
    dscores = softmax_backward(stages.through_edit("weights", dweights), stages.made("weights"))
    dscores = stages.through_edit("scores", dscores)
    dq, dk = dscores @ k, dscores.mT @ q
    dq *= scale
    dk *= scale
    return dq, dk, dv


def _agree(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> bool:
    """Whether the shapes fit, their leading axes broadcasting."""
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        return False
    try:
        return q[:-2] == k[:-2] == v[:-2] or np.broadcast_shapes(q[:-2], k[:-2], v[:-2]) is not None
    except ValueError:
        return False


def masked_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, terms: int = TERMS) -> np.ndarray:
    """softmax(q k^T, where mask admits the key) v, the same bits whatever masked keys stand between or after.

    So a decoder may keep keys where there is room for more, or those of several beams in one place, and gets the bits
    of a pass without. A masked key's weight is 0 exactly, and adding 0 changes no sum whose order is fixed: sums over
    keys are cut every `terms` keys.
    """
    scores = tap("scores", inner_products_in_room(q, k))  # q @ k.mT
    weights = tap("weights", masked_softmax(scores, mask, terms))
    return tap("context", matmul_in_order(weights, v, terms))  # weights @ v


def masked_softmax(scores: np.ndarray, mask: np.ndarray, terms: int = TERMS) -> np.ndarray:
    """softmax over the keys mask admits: boolean, or added to the scores; rows that admit none are zeros.

    The exponentials are added up key after key, cut every `terms` keys.
    """
    if mask.dtype != bool and mask.dtype.kind != "f":
        raise NpformerError(f"attention: mask must be booleans, or floats to be added to the scores, got {mask.dtype}")
    admitted = mask if mask.dtype == bool else mask != -np.inf
    seen = admitted.any(axis=-1, keepdims=True)
    try:
        np.broadcast_to(admitted, scores.shape)
    except ValueError:
        raise NpformerError(f"attention: mask must broadcast to the scores {scores.shape}, got {mask.shape}") from None
    if not scores.size or not seen.any():
        return np.zeros_like(scores)
    if mask.dtype != bool:
        scores = scores + mask.astype(scores.dtype, copy=False)
    every_row = bool(seen.all())
    weights = np.where(admitted, scores, -np.inf).astype(scores.dtype, copy=False)
    if not every_row:
        weights = np.where(seen, weights, 0).astype(scores.dtype, copy=False)
    with np.errstate(invalid="ignore", under="ignore"):
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= sum_in_order(weights, terms=terms)
    return weights if every_row else weights * seen


# --- on packed rows --------------------------------------------------------------------------------------------------


def multi_head_attention(
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    is_causal: bool = False,
    mask: np.ndarray | None = None,
    cache: AttentionCache | None = None,
) -> np.ndarray:
    """MultiHead(x, source) = Concat(head_1, ..., head_H) W_O on packed rows, (T, D), (S, D) -> (T, D). Section 3.2.2.

    Text i is lengths[i] rows of x, which attend to the source_lengths[i] rows of source that are its own, as
    is_causal or a mask, the same for every text, admits. A cache stands in for both: it keeps keys and values
    from call to call, and once it is complete no more are computed.
    """
    if cache is not None and cache.complete:
        q = tap("query", linear(x, **query))
        return tap("output", linear(tap("combined", cache.attend(q, None, None, n_heads)), **output))
    if x is source:  # x W_q + b_q, x W_k + b_k, x W_v + b_v
        q, k, v = linears(x, query, key, value)
    else:
        q, (k, v) = linear(x, **query), linears(source, key, value)
    q, k, v = tap("query", q), tap("key", k), tap("value", v)
    if cache is not None:
        combined = cache.attend(q, k, v, n_heads)
    else:
        combined = packed_attention(q, k, v, lengths, source_lengths, n_heads, is_causal, mask)
    return tap("output", linear(tap("combined", combined), **output))


def multi_head_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
) -> tuple[np.ndarray, np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Of Concat(head_1, ..., head_H) W_O: the gradients of x and of source, (T, D) and (S, D), and of the weights.

    Where a text attends to itself, x and source are the same rows, whose gradient is the sum of the two.
    """
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["combined"], **output)
    dq, dk, dv = packed_attention_backward(
        stages.through_edit("combined", grad), stages, lengths, source_lengths, n_heads
    )
    dx, d_query = linear_backward(stages.through_edit("query", dq), x, **query)
    dsource, d_key = linear_backward(stages.through_edit("key", dk), source, **key)
    from_values, d_value = linear_backward(stages.through_edit("value", dv), source, **value)
    dsource += from_values
    return dx, dsource, {"query": d_query, "key": d_key, "value": d_value, "output": d_output}


def self_attention(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    is_causal: bool = False,
    row_indices: np.ndarray | None = None,
    **projections: Any,
) -> np.ndarray:
    """`multi_head_attention` of each text to itself, (T, D) -> (T, D); projections: query, key, value, output.

    row_indices: the rows that are to attend, as many of each text; without it all.
    """
    rows, row_lengths = _attending(x, lengths, row_indices)
    return multi_head_attention(rows, row_lengths, x, lengths, n_heads, is_causal=is_causal, **projections)


def self_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    row_indices: np.ndarray | None = None,
    **projections: Any,
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Of each text's attention to itself: the gradients of x, (T, D), as queries, keys and values, and of weights."""
    rows, row_lengths = _attending(x, lengths, row_indices)
    drows, dx, grads = multi_head_attention_backward(
        grad, stages, rows, row_lengths, x, lengths, n_heads, **projections
    )
    dx[slice(None) if row_indices is None else row_indices] += drows
    return dx, grads


def _attending(x: np.ndarray, lengths: np.ndarray, row_indices: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows of x that attend, and how many of each text."""
    if row_indices is None:
        return x, lengths
    return x[row_indices], np.full_like(lengths, len(row_indices) // len(lengths))


class AttentionCache(Protocol):
    """Keys and values that a decoder keeps from step to step; the two kinds are in `generation/kv_cache.py`."""

    complete: bool  # whether it has all the keys and values there will be

    def attend(self, q: np.ndarray, k: np.ndarray | None, v: np.ndarray | None, n_heads: int) -> np.ndarray:
        """Keep k and v; then let each row of q attend to those that are its own, (T, D) -> (T, D)."""


def packed_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    is_causal: bool = False,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Concat(head_1, ..., head_H) of each text, (T, D), (S, D), (S, D) -> (T, D): texts of equal length together."""
    own_rows = len(k)
    k, v = all_gather(k, v)
    if len(k) > own_rows:  # a piece of one text, whose other rows are computed elsewhere
        source_lengths = np.array([len(k)])
    combined = np.empty((len(q), v.shape[-1]), q.dtype)
    combined[lengths.sum() :] = 0  # rows that fill a batch up, of no text
    for rows, source_rows, count in equal_runs(lengths, source_lengths):
        q_heads, k_heads, v_heads = (
            tap(name, split_heads(array.reshape(count, -1, array.shape[-1]), n_heads))
            for name, array in (
                ("query_heads", q[rows]),
                ("key_heads", k[source_rows]),
                ("value_heads", v[source_rows]),
            )
        )
        context = split_heads(combined[rows].reshape(count, -1, v.shape[-1]), n_heads)  # a view: combined is written

        def attend(some: Any, run: Any = (q_heads, k_heads, v_heads, context)) -> None:
            q, k, v, context = (heads[some] for heads in run)
            context[...] = scaled_dot_product_attention(q, k, v, mask, is_causal)

        length, source_length = q_heads.shape[-2], k_heads.shape[-2]
        over_heads(attend, count, n_heads, scores=length * source_length, width=q_heads.shape[-1])
    return combined


def packed_attention_backward(
    grad: np.ndarray, stages: Stages, lengths: np.ndarray, source_lengths: np.ndarray, n_heads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `packed_attention`: the gradients of q (T, D), k and v (S, D), their heads combined."""
    names, rows_of_source = ("query_heads", "key_heads", "value_heads"), int(source_lengths.sum())
    dq, dk, dv = (np.empty((rows, grad.shape[-1]), grad.dtype) for rows in (len(grad), rows_of_source, rows_of_source))
    for index, (rows, source_rows, count) in enumerate(equal_runs(lengths, source_lengths)):
        run = stages.run(index)
        dcontext = split_heads(grad[rows].reshape(count, -1, grad.shape[-1]), n_heads)
        q, k, v = (run[name] for name in names)
        grads = scaled_dot_product_attention_backward(dcontext, run, q, k, v)
        for whole, part, name, dhead in zip((dq, dk, dv), (rows, source_rows, source_rows), names, grads, strict=True):
            heads = split_heads(whole[part].reshape(count, -1, grad.shape[-1]), n_heads)
            heads[...] = run.through_edit(name, dhead)
    return dq, dk, dv
