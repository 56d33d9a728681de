"""Attention: masks, heads, scaled dot-product attention, and the block that projects in and out of it.

Attention Is All You Need (Vaswani et al., 2017), section 3.2. Its users are `encoder.py` and `decoder.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from npformer.errors import NpformerError
from npformer.functions import linear, linear_backward, linears, softmax, softmax_backward
from npformer.runtime.products import column_products, matmul, row_products, with_margins
from npformer.runtime.threads import fork, gather, parts
from npformer.tap import listening, spare, tap
from npformer.tape import Stages

Linear = Mapping[str, np.ndarray]

RUN = 16  # keys a sum adds up before it is cut: few, as a run may hold the keys of many beams
SCORES = 1 << 16  # scores worked on at a time: softmax's passes over them stay in the core's own cache


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
    # Keys are rows in memory, so that softmax adds up whole vectors, key after key: quicker than many short sums, and
    # in the same order for one query as for many.
    scores = tap("scores", column_products(k, q.mT, scale).mT)
    weights = tap("weights", _softmax(scores))
    return tap("context", row_products(weights, v))


def _softmax(scores: np.ndarray) -> np.ndarray:
    """softmax(scores); in place where nobody listens, and of the margins too, as one sweep over memory is quickest."""
    if spare(scores) is None:
        return softmax(scores, run=RUN)
    whole = with_margins(scores.mT).mT
    softmax(whole, out=whole, run=RUN)
    return scores


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


def masked_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, run: int = RUN) -> np.ndarray:
    """softmax(q k^T, where mask admits the key) v, the same bits whatever masked keys stand between or after.

    So a decoder may keep keys in a buffer with room at its end, or those of several beams in one, and gets the
    bits of a pass without. Three things see to it. A product whose columns lie in memory one after another adds
    up each score alike, however many there are. A masked key's weight is 0 exactly, and adding 0 changes no sum
    that goes key after key, as NumPy's own sum of a row does not. And a BLAS cuts a long sum at places that
    depend on its length, so we cut it ourselves, every `run` keys.
    """
    keys = k.mT if k.mT.strides[-1] == k.itemsize else np.ascontiguousarray(k.mT)
    scores = tap("scores", matmul(q, keys))
    weights = tap("weights", masked_softmax(scores, mask, run))
    context = matmul(weights[..., :run], v[..., :run, :])
    for start in range(run, v.shape[-2], run):
        context += matmul(weights[..., start : start + run], v[..., start : start + run, :])
    return tap("context", context)


def masked_softmax(scores: np.ndarray, mask: np.ndarray, run: int = RUN) -> np.ndarray:
    """softmax over the keys mask admits: boolean, or added to the scores; rows that admit none are zeros.

    The exponentials are added up key after key within runs of `run` keys, and then run after run.
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
        runs = (weights[..., start : start + run] for start in range(0, weights.shape[-1], run))
        weights /= functools.reduce(np.add, (np.add.accumulate(each, axis=-1)[..., -1:] for each in runs))
    return weights if every_row else weights * seen


def attention(
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
    memory: Memory | None = None,
) -> np.ndarray:
    """MultiHead(x, source) = Concat(head_1, ..., head_H) W_O on packed rows, (T, D), (S, D) -> (T, D). Section 3.2.2.

    Text i is lengths[i] rows of x, which attend to the source_lengths[i] rows of source that are its own, as
    is_causal or a mask, the same for every text, admits. A memory stands in for both: it keeps keys and values
    from call to call, and once it is complete no more are computed.
    """
    if memory is not None and memory.complete:
        combined = memory.attend(tap("query", linear(x, **query)), None, None, n_heads)
        return tap("output", linear(tap("combined", combined), **output))
    if x is source:
        q, k, v = linears(x, query, key, value)
    else:
        q, (k, v) = linear(x, **query), linears(source, key, value)
    q, k, v = tap("query", q), tap("key", k), tap("value", v)
    k, v = gather(k, v)
    if len(k) > len(source):  # one long text, whose rows several cores share
        source_lengths = np.array([len(k)])
    if memory is not None:
        combined = memory.attend(q, k, v, n_heads)
    else:
        combined = attend(q, k, v, lengths, source_lengths, n_heads, is_causal, mask)
    return tap("output", linear(tap("combined", combined), **output))


def attention_backward(
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
    dq, dk, dv = attend_backward(stages.through_edit("combined", grad), stages, lengths, source_lengths, n_heads)
    dx, d_query = linear_backward(stages.through_edit("query", dq), x, **query)
    dsource, d_key = linear_backward(stages.through_edit("key", dk), source, **key)
    from_values, d_value = linear_backward(stages.through_edit("value", dv), source, **value)
    dsource += from_values
    return dx, dsource, {"query": d_query, "key": d_key, "value": d_value, "output": d_output}


class Memory(Protocol):
    """Keys and values that a decoder keeps from step to step; the two kinds are in `generation/kv_cache.py`."""

    complete: bool  # whether it has all the keys and values there will be

    def attend(self, q: np.ndarray, k: np.ndarray | None, v: np.ndarray | None, n_heads: int) -> np.ndarray:
        """Keep k and v; then let each row of q attend to those that are its own, (T, D) -> (T, D)."""


def self_attention(
    x: np.ndarray, lengths: np.ndarray, n_heads: int, is_causal: bool = False, **projections: Any
) -> np.ndarray:
    """`attention` of each text to itself, (T, D) -> (T, D); projections: query, key, value, output."""
    return attention(x, lengths, x, lengths, n_heads, is_causal=is_causal, **projections)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    is_causal: bool = False,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Each text's heads attended and combined, (T, D), (S, D), (S, D) -> (T, D): texts of equal length together."""
    combined = np.empty((len(q), v.shape[-1]), q.dtype)
    combined[lengths.sum() :] = 0  # rows that fill a batch up, of no text
    for rows, source_rows, count in equal_runs(lengths, source_lengths):
        heads = [
            tap(name, split_heads(array.reshape(count, -1, array.shape[-1]), n_heads))
            for name, array in (
                ("query_heads", q[rows]),
                ("key_heads", k[source_rows]),
                ("value_heads", v[source_rows]),
            )
        ]
        context = split_heads(combined[rows].reshape(count, -1, v.shape[-1]), n_heads)
        size = heads[0].shape[-2] * heads[1].shape[-2]

        def part(index: int, of: int, run: Any = (heads, context, count, size)) -> None:
            (q, k, v), context, count, size = run
            for block in _blocks(count, n_heads * index // of, n_heads * (index + 1) // of, size):
                context[block] = scaled_dot_product_attention(q[block], k[block], v[block], mask, is_causal)

        fork(part, min(n_heads, parts(nanoseconds=count * n_heads * size * (2 + 0.02 * heads[0].shape[-1]))))
    return combined


def attend_backward(
    grad: np.ndarray, stages: Stages, lengths: np.ndarray, source_lengths: np.ndarray, n_heads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `attend`: run by run of equal lengths the gradients of q (T, D), k and v (S, D), their heads combined."""
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


def _blocks(texts: int, first: int, last: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Texts and heads first ... last in blocks whose scores, `size` a head, fit a core's cache; a listener gets all."""
    some = texts * (last - first) if listening() else max(1, SCORES // max(1, size))
    n_heads = min(last - first, some)
    n_texts = max(1, some // (last - first))
    for text in range(0, texts, n_texts):
        for head in range(first, last, n_heads):
            yield slice(text, text + n_texts), slice(head, min(head + n_heads, last))


def equal_runs(lengths: np.ndarray, source_lengths: np.ndarray) -> Iterator[tuple[slice, slice, int]]:
    """Neighbouring texts of equal lengths: their rows, their source rows, how many texts they are."""
    pairs = list(zip(lengths.tolist(), source_lengths.tolist(), strict=True))
    first = row = source_row = 0
    for i in range(1, len(pairs) + 1):
        if i == len(pairs) or pairs[i] != pairs[first]:
            count, (length, source_length) = i - first, pairs[first]
            yield slice(row, row + count * length), slice(source_row, source_row + count * source_length), count
            first, row, source_row = i, row + count * length, source_row + count * source_length
