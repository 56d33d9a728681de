"""Multi-head attention: linear layers around the attention of every head, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.2.2. `blocks/attention.py` is a layer's attention: to the
texts themselves, by mechanisms that depend on places, or to a source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from npformer.attention import attend, scaled_dot_product_attention_backward, split_heads
from npformer.functions import linear, linear_backward, linears
from npformer.runtime.packing import equal_runs
from npformer.runtime.threads import all_gather
from npformer.runtime.tiles import over_heads
from npformer.tape import Stages
from npformer.taps import tap

Linear = Mapping[str, np.ndarray]
#: (texts, heads) and their q, k, v -> softmax(q k^T * scale) v, (N, H, L, K)
Formula = Callable[[tuple[slice, slice], np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: The formula of texts of equal lengths, given their rows, their rows of the source, and their number.
Formulas = Callable[[slice, slice, int], Formula]


def every_key(rows: slice, source_rows: slice, count: int) -> Formula:
    """Each row attends to all rows of its text's source."""
    return lambda some, q, k, v: attend(q, k, v, 1 / math.sqrt(q.shape[-1]))


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

    Text i is lengths[i] rows of x, which attend to its source_lengths[i] rows of source.
    attention: computes the heads; `packed_attention` unless given.
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
    """Concat(head_1, ..., head_H) of each text, (T, D), (S, D), (S, D) -> (T, D); equal lengths together."""
    own_rows = len(k)
    k, v = all_gather(k, v)  # of the whole text, where this call has only some of its rows
    if len(k) > own_rows:
        source_lengths = np.array([len(k)])
    combined = np.empty((len(q), v.shape[-1]), q.dtype)
    end = 0
    for rows, source_rows, count in equal_runs(lengths, source_lengths):
        q_heads = tap("query_heads", _heads(q[rows], count, n_heads))
        k_heads = tap("key_heads", _heads(k[source_rows], count, n_heads))
        v_heads = tap("value_heads", _heads(v[source_rows], count, n_heads))
        context = _heads(combined[rows], count, n_heads)  # a view: combined is written
        of_run = formulas(rows, source_rows, count)

        def work(
            some: tuple[slice, slice],
            formula: Formula = of_run,
            heads: Any = (q_heads, k_heads, v_heads, context),
        ) -> None:
            q, k, v, context = [each[some] for each in heads]
            context[...] = formula(some, q, k, v)

        scores = q_heads.shape[-2] * k_heads.shape[-2]
        over_heads(work, count, n_heads, scores=scores, width=q_heads.shape[-1])
        end = rows.stop
    if end < len(q):  # rows after the last text, which only fill up the batch
        combined[end:] = 0
    return combined


def packed_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    lengths: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    products: int = 1,
    add_backward: Callable[..., tuple[Any, Any]] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Backward of `packed_attention`: dq (T, D), dk and dv (S, D).

    products: the number of products in a score, which is divided by sqrt(products * K). add_backward: the terms of dq
    and dk from arrays that mechanisms add to the scores.
    """
    names, rows_of_source = ("query_heads", "key_heads", "value_heads"), int(source_lengths.sum())
    dq, dk, dv = (np.empty((rows, grad.shape[-1]), grad.dtype) for rows in (len(grad), rows_of_source, rows_of_source))
    for index, (rows, source_rows, count) in enumerate(equal_runs(lengths, source_lengths)):
        run = stages.run(index)
        dcontext = _heads(grad[rows], count, n_heads)
        q, k, v = (run[name] for name in names)
        scale = 1 / math.sqrt(q.shape[-1] * products)
        dscores = None if add_backward is None else np.empty((*q.shape[:-1], k.shape[-2]), q.dtype)
        grads = scaled_dot_product_attention_backward(dcontext, run, q, k, v, scale, dscores)
        if add_backward is not None:
            more = add_backward(dscores, q, k, scale, rows, source_rows, run)
            grads = (grads[0] + more[0], grads[1] + more[1], grads[2])
        for whole, part, name, dhead in zip((dq, dk, dv), (rows, source_rows, source_rows), names, grads, strict=True):
            heads = _heads(whole[part], count, n_heads)
            heads[...] = run.through_edit(name, dhead)
    return dq, dk, dv


def _heads(x: np.ndarray, count: int, n_heads: int) -> np.ndarray:
    """The heads of `count` texts of equal lengths, (N L, D) -> (N, H, L, K), a view."""
    return split_heads(x.reshape(count, -1, x.shape[-1]), n_heads)
