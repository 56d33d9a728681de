"""The attention of every head on packed rows. Texts of equal length form tiles, which are distributed to threads.

`attention.py` has the formula. Next: `multi_head.py`, which adds the linear layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npformer.engine.attention import (
    AddBackward,
    kv_heads,
    queries_of,
    repeat_heads,
    repeat_heads_backward,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
    split_heads,
)
from npformer.engine.runtime.packing import Run, equal_runs
from npformer.engine.runtime.threads import all_gather
from npformer.engine.runtime.tiles import Tile, over_heads
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

Formula = Callable[[Tile, np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # tile, q, k, v: returns the context


@dataclass
class PackedAttention:
    """Concat(head_1, ..., head_H) of each text, (T, H K), (S, G K), (S, G K) -> (T, H K).

    Text i has lengths[i] queries, which attend to its source_lengths[i] keys. H / G query heads share each head of keys
    and values. G = H except in grouped-query attention.

    Parameters
    ----------
    n_heads : int, H
    lengths, source_lengths : (B,) integer arrays
    scale : float, factor of q k^T; 1 / sqrt(K) if None
    """

    n_heads: int
    lengths: np.ndarray
    source_lengths: np.ndarray
    scale: float | None

    def __call__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        n_keys, n_kv_heads = len(k), kv_heads(q, k, self.n_heads)
        k, v = all_gather(k, v)  # threads may share a text, but every query attends to the whole text
        source_lengths = self.source_lengths if len(k) == n_keys else np.array([len(k)])
        combined = np.empty_like(q)
        end = 0
        for run in equal_runs(self.lengths, source_lengths):
            q_heads = tap("query_heads", _heads(q[run.queries], run.n_texts, self.n_heads))
            k_heads = tap("key_heads", _heads(k[run.keys], run.n_texts, n_kv_heads))
            v_heads = tap("value_heads", _heads(v[run.keys], run.n_texts, n_kv_heads))
            context = _heads(combined[run.queries], run.n_texts, self.n_heads)  # a view of `combined`
            self._write(context, run, q_heads, k_heads, v_heads)
            end = run.queries.stop
        if end < len(q):  # rows after the last text, which were added to speed up products
            combined[end:] = 0
        return combined

    def backward(self, grad: np.ndarray, stages: Stages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Backward of `__call__`: dq (T, H K), dk and dv (S, G K)."""
        names, (_, n_kv_heads, _, d_head) = ("query_heads", "key_heads", "value_heads"), stages["key_heads"].shape
        scale, n_heads = self.scale_of(d_head), self.n_heads
        of_source = int(self.source_lengths.sum()), grad.shape[-1] * n_kv_heads // n_heads
        dq, dk, dv = (np.empty(shape, grad.dtype) for shape in (grad.shape, of_source, of_source))
        for index, run in enumerate(equal_runs(self.lengths, self.source_lengths)):
            of_run = stages.run(index)
            q, k, v = (repeat_heads(of_run[name], n_heads) for name in names)
            dcontext = _heads(grad[run.queries], run.n_texts, n_heads)
            added = self.add_backward(run, of_run, q, k)
            grads = scaled_dot_product_attention_backward(dcontext, of_run, q, k, v, scale, added)
            parts = (dq[run.queries], n_heads), (dk[run.keys], n_kv_heads), (dv[run.keys], n_kv_heads)
            for (part, count), name, dhead in zip(parts, names, grads, strict=True):
                heads = _heads(part, run.n_texts, count)
                heads[...] = of_run.through_edit(name, repeat_heads_backward(dhead, count))
        return dq, dk, dv

    def _write(self, context: np.ndarray, run: Run, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Computes the heads of a run from q (N, H, L, K), k and v (N, G, S, K). Writes to context (N, H, L, K)."""
        (_, n_heads, length, d_head), (n_texts, n_kv_heads, n_keys, _) = q.shape, k.shape
        formula, group = self.formula(run, self.scale_of(d_head)), n_heads // n_kv_heads

        def work(keys: Tile) -> None:
            queries = keys[0], queries_of(keys[1], group)
            context[queries] = formula(queries, q[queries], k[keys], v[keys])

        over_heads(work, n_texts, n_kv_heads, scores=group * length * n_keys, width=d_head)

    def scale_of(self, d_head: int) -> float:
        """The factor of q k^T for heads of this width."""
        return 1 / math.sqrt(d_head) if self.scale is None else float(self.scale)

    def formula(self, run: Run, scale: float) -> Formula:
        """Returns the function that computes the attention of one tile: some texts of the run, and some heads."""
        return lambda tile, q, k, v: scaled_dot_product_attention(q, k, v, scale)

    def add_backward(self, run: Run, stages: Stages, q: np.ndarray, k: np.ndarray) -> AddBackward | None:
        """Backward of the terms that `formula` adds to the scores of a run; None without such terms."""
        return None


def _heads(x: np.ndarray, n_texts: int, n_heads: int) -> np.ndarray:
    """The heads of texts of equal lengths, (N L, D) -> (N, H, L, K), a view."""
    return split_heads(x.reshape(n_texts, -1, x.shape[-1]), n_heads)
