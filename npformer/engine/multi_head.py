"""Multi-head attention: linear layers around the attention of every head, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.2.2. `blocks/attention.py` has the attention of a layer:
self-attention with mechanisms, and cross-attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from npformer.engine.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
    score_scale,
    split_heads,
)
from npformer.engine.functions import linear, linear_backward, linears
from npformer.engine.runtime.packing import equal_runs
from npformer.engine.runtime.threads import all_gather
from npformer.engine.runtime.tiles import over_heads
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

Linear = Mapping[str, np.ndarray]
#: Slices of texts and heads, and their q, k and v -> softmax(q k^T * scale) v, (N, H, L, K).
Formula = Callable[[tuple[slice, slice], np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: Rows of texts of equal lengths, their rows of the source, and the number of texts -> the formula for them.
Formulas = Callable[[slice, slice, int], Formula]


def every_key(rows: slice, source_rows: slice, count: int) -> Formula:
    """Attention of each row to all rows of its text's source."""
    return lambda some, q, k, v: scaled_dot_product_attention(q, k, v, score_scale(None, q.shape[-1]))


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
    attention: Callable[..., np.ndarray] | None = None,
) -> np.ndarray:
    """MultiHead(x, source) = Concat(head_1, ..., head_H) W_O on packed rows, (T, D), (S, D) -> (T, D). Section 3.2.2.

    Text i has lengths[i] rows of x, which attend to its source_lengths[i] rows of source. attention: a function that
    computes the heads, `packed_attention` unless given.
    """
    if x is source:  # x W_q + b_q, x W_k + b_k, x W_v + b_v
        q, k, v = linears(x, query, key, value)
    else:
        q, (k, v) = linear(x, **query), linears(source, key, value)
    q, k, v = tap("query", q), tap("key", k), tap("value", v)
    combined = (attention or packed_attention)(q, k, v, lengths, source_lengths, n_heads)
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
    attention_backward: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None,
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Backward of `multi_head_attention`: dx (T, D), dsource (S, D) and the gradients of the four linear layers.

    In self-attention x and source are the same rows, and their gradient is dx + dsource.
    """
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["combined"], **output)
    grad = stages.through_edit("combined", grad)
    dq, dk, dv = (attention_backward or packed_attention_backward)(grad, stages, lengths, source_lengths, n_heads)
    dx, d_query = linear_backward(stages.through_edit("query", dq), x, **query)
    dsource, d_key = linear_backward(stages.through_edit("key", dk), source, **key)
    from_values, d_value = linear_backward(stages.through_edit("value", dv), source, **value)
    dsource += from_values
    return dx, dsource, {"query": d_query, "key": d_key, "value": d_value, "output": d_output}


def packed_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    formulas: Formulas = every_key,
) -> np.ndarray:
    """Concat(head_1, ..., head_H) of each text, (T, H K), (S, G K), (S, G K) -> (T, H K).

    H / G query heads share each head of keys and values; G = H except in grouped-query attention. Texts of equal
    lengths are computed together.
    """
    own_rows, n_kv_heads = len(k), kv_heads(q, k, n_heads)
    k, v = all_gather(k, v)  # threads may share a text, but each row attends to the whole text
    if len(k) > own_rows:
        source_lengths = np.array([len(k)])
    combined = np.empty_like(q)
    end = 0
    for rows, source_rows, count in equal_runs(lengths, source_lengths):
        q_heads = tap("query_heads", _heads(q[rows], count, n_heads))
        k_heads = tap("key_heads", _heads(k[source_rows], count, n_kv_heads))
        v_heads = tap("value_heads", _heads(v[source_rows], count, n_kv_heads))
        context = _heads(combined[rows], count, n_heads)  # a view, so that heads are written to `combined`
        of_run = formulas(rows, source_rows, count)

        def work(
            some: tuple[slice, slice],
            formula: Formula = of_run,
            heads: Any = (q_heads, k_heads, v_heads, context),
        ) -> None:
            texts, of_keys = some
            queries = texts, queries_of(of_keys, n_heads // n_kv_heads)
            q, k, v, context = heads[0][queries], heads[1][some], heads[2][some], heads[3][queries]
            context[...] = formula(queries, q, k, v)

        scores = n_heads // n_kv_heads * q_heads.shape[-2] * k_heads.shape[-2]
        over_heads(work, count, n_kv_heads, scores=scores, width=q_heads.shape[-1])
        end = rows.stop
    if end < len(q):  # rows after the last text, added to speed up products
        combined[end:] = 0
    return combined


def packed_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    scale: float | None = None,
    add_backward: Callable[..., tuple[np.ndarray, Any, Any]] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Backward of `packed_attention`: dq (T, H K), dk and dv (S, G K).

    scale: factor of q k^T, 1 / sqrt(K) if None. add_backward: as in `scaled_dot_product_attention_backward`, for the
    terms that mechanisms add to the scores.
    """
    names, (_, n_kv_heads, _, d_head) = ("query_heads", "key_heads", "value_heads"), stages["key_heads"].shape
    scale = score_scale(scale, d_head)
    of_source = int(source_lengths.sum()), grad.shape[-1] * n_kv_heads // n_heads
    dq, dk, dv = (np.empty(shape, grad.dtype) for shape in (grad.shape, of_source, of_source))
    for index, (rows, source_rows, count) in enumerate(equal_runs(lengths, source_lengths)):
        run = stages.run(index)
        dcontext = _heads(grad[rows], count, n_heads)
        q, k, v = (repeat_heads(run[name], n_heads) for name in names)
        own = {"q": q, "k": k, "scale": scale, "rows": rows, "source_rows": source_rows, "stages": run}
        through = None if add_backward is None else partial(add_backward, **own)
        grads = scaled_dot_product_attention_backward(dcontext, run, q, k, v, scale, through)
        of_heads = (n_heads, n_kv_heads, n_kv_heads)
        parts = zip((dq, dk, dv), (rows, source_rows, source_rows), names, of_heads, grads, strict=True)
        for whole, part, name, own_heads, dhead in parts:
            heads = _heads(whole[part], count, own_heads)
            heads[...] = run.through_edit(name, repeat_heads_backward(dhead, own_heads))
    return dq, dk, dv


def _heads(x: np.ndarray, count: int, n_heads: int) -> np.ndarray:
    """The heads of `count` texts of equal lengths, (N L, D) -> (N, H, L, K), a view."""
    return split_heads(x.reshape(count, -1, x.shape[-1]), n_heads)


# --- grouped queries --------------------------------------------------------------------------------------------------


def kv_heads(q: np.ndarray, k: np.ndarray, n_heads: int) -> int:
    """G, the number of heads in rows of keys (S, G K) for queries (T, H K). Ainslie et al., 2023, GQA, section 2.2."""
    return k.shape[-1] * n_heads // q.shape[-1]


def queries_of(heads: slice, size: int) -> slice:
    """The query heads that share these key heads. Each key head has `size` query heads."""
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
