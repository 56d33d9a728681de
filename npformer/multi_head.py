"""Multi-head attention: linear layers around the attention of every head, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.2.2. `encoder_layers.py` and `decoder_layers.py`
build layers of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from npformer.attention import (
    attend,
    scaled_dot_product_attention_backward,
    split_heads,
)
from npformer.functions import linear, linear_backward, linears
from npformer.mechanisms.causal import Causal
from npformer.mechanisms.mechanism import Mechanism, Sums
from npformer.mechanisms.placed import InRun, Placed
from npformer.runtime.packing import equal_runs, places_of
from npformer.runtime.threads import all_gather
from npformer.runtime.tiles import over_heads
from npformer.tape import Stages
from npformer.taps import tap

Linear = Mapping[str, np.ndarray]


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
    mask: np.ndarray | None = None,
    cache: AttentionCache | None = None,
    placed: Placed | None = None,
    **distances: Linear,
) -> np.ndarray:
    """MultiHead(x, source) = Concat(head_1, ..., head_H) W_O on packed rows, (T, D), (S, D) -> (T, D). Section 3.2.2.

    Text i is lengths[i] rows of x, which attend to its source_lengths[i] rows of source, as mask admits. A cache
    replaces it: it keeps keys and values of earlier calls, and when it is complete no new ones are computed.
    placed: the mechanisms by which attention depends on the places of the rows of source; distances: projections that
    only mechanisms read.
    """
    if cache is not None and cache.complete:
        combined = cache.attend(tap("query", linear(x, **query)), None, None, n_heads)
        assert combined is not None
        return tap("output", linear(tap("combined", combined), **output))
    if x is source:  # x W_q + b_q, x W_k + b_k, x W_v + b_v
        q, k, v = linears(x, query, key, value)
    else:
        q, (k, v) = linear(x, **query), linears(source, key, value)
    q, k, v = tap("query", q), tap("key", k), tap("value", v)
    if placed is not None:
        q, k = placed.turn(q, k)
    combined = None if cache is None else cache.attend(q, k, v, n_heads)
    if combined is None:
        placed = placed and placed.in_layer({"query": query, "key": key, **distances})
        combined = packed_attention(q, k, v, lengths, source_lengths, n_heads, mask, placed)
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
    placed: Placed | None = None,
    **distances: Linear,
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Backward of `multi_head_attention`: dx (T, D), dsource (S, D) and the gradients of the four linear layers.

    In self-attention x and source are the same rows, and their gradient is dx + dsource. The gradients of the
    mechanisms' arrays, which layers may share, are under "mechanisms".
    """
    projections = {"query": query, "key": key, **distances}
    placed = placed and placed.in_layer(projections)
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["combined"], **output)
    dq, dk, dv, sums = packed_attention_backward(
        stages.through_edit("combined", grad), stages, lengths, source_lengths, n_heads, placed
    )
    if placed is not None:
        dq, dk = placed.turn_backward(dq, dk, stages)
    dx, d_query = linear_backward(stages.through_edit("query", dq), x, **query)
    dsource, d_key = linear_backward(stages.through_edit("key", dk), source, **key)
    from_values, d_value = linear_backward(stages.through_edit("value", dv), source, **value)
    dsource += from_values
    grads: dict[str, Any] = {"query": d_query, "key": d_key, "value": d_value, "output": d_output}
    if sums and placed is not None:
        grads["mechanisms"] = placed.in_layer_backward(sums, projections, grads)
    return dx, dsource, grads


def self_attention(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    is_causal: bool = False,
    row_indices: np.ndarray | None = None,
    *,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
) -> np.ndarray:
    """Multi-head attention of each text to itself, on packed rows, (T, D) -> (T, D). Section 3.2.2.

    Parameters
    ----------
    x : (T, D) array, the tokens of the texts one after another
    lengths : (B,) integer array, tokens of each text
    n_heads : int
    is_causal : bool, a token sees itself and earlier tokens only
    row_indices : integer array, the rows that attend and are returned, equally many of each text; all unless given
    query, key, value, output : linear layers, each {"weight": (D, D), "bias": (D,)}

    Returns
    -------
    (T, D) array, or a row for each of row_indices

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> x = np.ones((5, model.config.d_model), np.float32)  # a text of 3 tokens and one of 2
    >>> npformer.self_attention(x, np.array([3, 2]), 12, **model.weights["layers"][0]["attention"]).shape
    (5, 384)
    """
    placed = Placed(places_of(lengths), (Causal(),), row_indices) if is_causal else None
    rows, row_lengths = attending(x, lengths, row_indices)
    return multi_head_attention(rows, row_lengths, x, lengths, n_heads, query, key, value, output, placed=placed)


def self_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    row_indices: np.ndarray | None = None,
    placed: Placed | None = None,
    **projections: Any,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `self_attention`: dx (T, D), as queries, keys and values, and the gradients of the linear layers."""
    rows, row_lengths = attending(x, lengths, row_indices)
    drows, dx, grads = multi_head_attention_backward(
        grad, stages, rows, row_lengths, x, lengths, n_heads, **projections, placed=placed
    )
    dx[slice(None) if row_indices is None else row_indices] += drows
    return dx, grads


def attending(x: np.ndarray, lengths: np.ndarray, row_indices: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Selects the rows of x that attend; returns them and their number in each text."""
    if row_indices is None:
        return x, lengths
    return x[row_indices], np.full_like(lengths, len(row_indices) // len(lengths))


class AttentionCache(Protocol):
    """Keys and values that a decoder keeps from step to step; `generation/kv_cache.py` has the two kinds."""

    complete: bool  # it holds all keys and values, so that attend needs no new ones

    def attend(self, q: np.ndarray, k: np.ndarray | None, v: np.ndarray | None, n_heads: int) -> np.ndarray | None:
        """Keeps k and v, then lets each row of q attend to the kept keys of its text, (T, D) -> (T, D).

        None if the rows attend as without a cache.
        """


def packed_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    mask: np.ndarray | None = None,
    placed: Placed | None = None,
) -> np.ndarray:
    """Concat(head_1, ..., head_H) of each text, (T, D), (S, D), (S, D) -> (T, D); equal lengths together."""
    in_order = placed is None or placed.in_order
    own_rows, places = len(k), [] if placed is None else [placed.places]
    k, v, *places = all_gather(k, v, *places)  # of the whole text, where this call has only some of its rows
    if len(k) > own_rows:
        source_lengths = np.array([len(k)])
    combined = np.empty((len(q), v.shape[-1]), q.dtype)
    end = 0
    for rows, source_rows, count in equal_runs(lengths, source_lengths):
        q_heads = tap("query_heads", _heads(q[rows], count, n_heads))
        k_heads = tap("key_heads", _heads(k[source_rows], count, n_heads))
        v_heads = tap("value_heads", _heads(v[source_rows], count, n_heads))
        context = _heads(combined[rows], count, n_heads)  # a view: combined is written
        length, source_length = q_heads.shape[-2], k_heads.shape[-2]
        run = None if placed is None else placed.in_run(rows, places[0][source_rows], count, n_heads)
        scale = 1 / math.sqrt(q_heads.shape[-1] * (1 if placed is None else placed.products))

        def work(
            some: tuple[slice, slice],
            heads: Any = (q_heads, k_heads, v_heads, context),
            run: InRun | None = run,
            scale: float = scale,
        ) -> None:
            q, k, v, context = [each[some] for each in heads]
            add, admitted = (None, mask) if run is None else run.of(some, q, k, scale)
            context[...] = attend(q, k, v, scale, admitted, add, in_order)

        over_heads(work, count, n_heads, scores=length * source_length, width=q_heads.shape[-1])
        end = rows.stop
    if end < len(q):  # rows after the last text, which only fill up the batch
        combined[end:] = 0
    return combined


def _heads(x: np.ndarray, count: int, n_heads: int) -> np.ndarray:
    """The heads of `count` texts of equal lengths, (N L, D) -> (N, H, L, K), a view."""
    return split_heads(x.reshape(count, -1, x.shape[-1]), n_heads)


def packed_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    placed: Placed | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[Mechanism, Sums]]:
    """Backward of `packed_attention`: dq (T, D), dk and dv (S, D), and the gradients of the mechanisms' arrays."""
    names, rows_of_source = ("query_heads", "key_heads", "value_heads"), int(source_lengths.sum())
    dq, dk, dv = (np.empty((rows, grad.shape[-1]), grad.dtype) for rows in (len(grad), rows_of_source, rows_of_source))
    sums: dict[Mechanism, Sums] = {}
    products, adds = (1, False) if placed is None else (placed.products, placed.adds)
    for index, (rows, source_rows, count) in enumerate(equal_runs(lengths, source_lengths)):
        run = stages.run(index)
        dcontext = _heads(grad[rows], count, n_heads)
        q, k, v = (run[name] for name in names)
        scale = 1 / math.sqrt(q.shape[-1] * products)
        dscores = np.empty((*q.shape[:-1], k.shape[-2]), q.dtype) if adds else None
        grads = scaled_dot_product_attention_backward(dcontext, run, q, k, v, scale, dscores)
        if placed is not None and dscores is not None:
            more = placed.add_backward(dscores, q, k, scale, rows, source_rows, run, sums)
            grads = (grads[0] + more[0], grads[1] + more[1], grads[2])
        for whole, part, name, dhead in zip((dq, dk, dv), (rows, source_rows, source_rows), names, grads, strict=True):
            heads = _heads(whole[part], count, n_heads)
            heads[...] = run.through_edit(name, dhead)
    return dq, dk, dv, sums
