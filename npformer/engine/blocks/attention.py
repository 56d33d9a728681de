"""Self-attention and cross-attention as blocks of a layer. `multi_head.py` has the formulas.

`_Applied` applies the mechanisms of a layer to queries, keys and scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from npformer.engine.attention import scaled_dot_product_attention, score_scale
from npformer.engine.blocks.block import Around, Backward, Block, Shared
from npformer.engine.blocks.rows import OwnCache, Rows
from npformer.engine.blocks.terms import adding, part, terms_of
from npformer.engine.descriptions.stage import INPUT, SOURCE, Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.descriptions.weight_group import linear as linear_group
from npformer.engine.direction import Direction
from npformer.engine.functions import linear, linears
from npformer.engine.mechanisms.mechanism import Linear, Mechanism, Sums, add_up
from npformer.engine.multi_head import (
    Formula,
    multi_head_attention,
    multi_head_attention_backward,
    packed_attention,
    packed_attention_backward,
    repeat_heads,
)
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

PROJECTIONS = ("query", "key", "value", "output")
EVERY_KEY = np.ones(1, bool)  # mask of cross-attention: a row may attend to its whole source


@dataclass(frozen=True)
class Attention(Block):
    """Multi-head self-attention. Vaswani et al., 2017, section 3.2.2.

    Parameters
    ----------
    n_heads : int
    mechanisms : how attention depends on positions
    bias : bool, the linear layers have a bias
    n_kv_heads : int, number of key and value heads, each shared by n_heads / n_kv_heads query heads; 0 means n_heads
    d_head : int, width of a head; 0 means d_model / n_heads
    output_bias : bool, the output layer has a bias; None means as `bias`
    scale : float, factor of q k^T; 1 / sqrt(K) if None

    References
    ----------
    Ainslie et al., 2023, GQA, section 2.2, for n_kv_heads.
    """

    n_heads: int
    mechanisms: tuple[Mechanism, ...] = ()
    bias: bool = True
    n_kv_heads: int = 0
    d_head: int = 0
    output_bias: bool | None = None
    scale: float | None = None

    around = Around("X", "A", "Y", "N", "hook_resid_mid", "ln1.hook_normalized")

    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        own, lengths = rows.attend(x)
        layers = weights["query"], weights["key"], weights["value"], weights["output"]
        attention = _applied(self, rows, weights).attention if self.mechanisms or self.scale else packed_attention
        return multi_head_attention(own, lengths, x, rows.lengths, self.n_heads, *layers, attention)

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        own, lengths = rows.attend(x)
        layers = weights["query"], weights["key"], weights["value"], weights["output"]
        applied = _applied(self, rows, weights).in_layer() if self.mechanisms or self.scale else None
        attention_backward = packed_attention_backward if applied is None else applied.attention_backward
        drows, dx, grads = multi_head_attention_backward(
            grad, stages, own, lengths, x, rows.lengths, self.n_heads, *layers, attention_backward
        )
        dx[slice(None) if rows.attending is None else rows.attending] += drows
        return dx, grads, {} if applied is None else applied.in_layer_backward(grads)

    def groups(self, d_model: int) -> dict[str, Group]:
        d_head = self.d_head or d_model // self.n_heads
        width, kv_width = self.n_heads * d_head, (self.n_kv_heads or self.n_heads) * d_head
        widths = zip(PROJECTIONS, (width, kv_width, kv_width), strict=False)
        found = {name: linear_group(d_model, each, self.bias, joined=3) for name, each in widths}
        for each in self.mechanisms:
            found |= each.projections(d_model)
        output_bias = self.bias if self.output_bias is None else self.output_bias
        return {**found, "output": linear_group(width, d_model, output_bias, joined=1)}

    @property
    def stages(self) -> list[Stage]:
        kv_heads = "H" if self.n_kv_heads in (0, self.n_heads) else "G"
        return attention_stages(INPUT, self.mechanisms, self.scale, self.bias, self.output_bias, kv_heads)

    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        return attention_pull(direction, at, weights["output"])


@dataclass(frozen=True)
class CrossAttention(Block):
    """Multi-head attention of each text to its source. Vaswani et al., 2017, section 3.2.3.

    Parameters
    ----------
    n_heads : int
    bias : bool, the linear layers have a bias
    d_head : int, width of a head; 0 means d_model / n_heads
    scale : float, factor of q k^T; 1 / sqrt(K) if None
    """

    n_heads: int
    bias: bool = True
    d_head: int = 0
    scale: float | None = None

    around = Attention.around
    pull = Attention.pull

    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        if rows.cache is None or rows.cache.source is None:
            return multi_head_attention(
                x,
                rows.lengths,
                *self._source(rows),
                self.n_heads,
                **weights,
                attention=partial(packed_attention, formulas=partial(_in_order, self.scale)),
            )
        cache = rows.cache.source
        q = tap("query", linear(x, **weights["query"]))
        if not cache.complete:
            k, v = linears(self._source(rows)[0], weights["key"], weights["value"])
            cache.keep_source(tap("key", k), tap("value", v), self.n_heads)
        scale = score_scale(self.scale, q.shape[-1] // self.n_heads)
        return tap("output", linear(tap("combined", cache.attend(q, self.n_heads, scale)), **weights["output"]))

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        dx, dsource, grads = multi_head_attention_backward(
            *(grad, stages, x, rows.lengths, *self._source(rows), self.n_heads),
            **weights,
            attention_backward=partial(packed_attention_backward, scale=self.scale),
        )
        return dx, grads, {SOURCE: {"rows": dsource}}

    def groups(self, d_model: int) -> dict[str, Group]:
        return Attention(self.n_heads, (), self.bias, d_head=self.d_head).groups(d_model)

    @property
    def stages(self) -> list[Stage]:
        return attention_stages(SOURCE, (), self.scale, self.bias)

    @staticmethod
    def _source(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        assert rows.source is not None
        assert rows.source_lengths is not None
        return rows.source, rows.source_lengths


def _in_order(scale: float | None, rows: slice, source_rows: slice, count: int) -> Formula:
    """Attention of each row to its whole source. Sums are in the same order as in the steps of generation."""
    return lambda some, q, k, v: scaled_dot_product_attention(q, k, v, score_scale(scale, q.shape[-1]), EVERY_KEY)


# --- mechanisms -------------------------------------------------------------------------------------------------------


class _Applied(NamedTuple):
    """The mechanisms of a layer, applied to its rows.

    Parameters
    ----------
    mechanisms : the mechanisms after `Mechanism.begin`
    weights : the weights of the attention of the layer
    scale : float, factor of q k^T; 1 / sqrt(n K) if None, where n is the largest `products` of a mechanism
    places : (T,) and (S,) integer arrays, as in `Rows`; None without mechanisms
    attending : slice or integer array, the rows that attend
    cache : OwnCache with keys and values of earlier rows, optional
    sums : gradients of the arrays of the mechanisms, to which the backward pass adds
    """

    mechanisms: tuple[Mechanism, ...]
    weights: Mapping[str, Linear]
    scale: float | None
    places: tuple[np.ndarray, np.ndarray] | None
    attending: Any
    cache: OwnCache | None
    sums: dict[Mechanism, Sums]

    def scale_of(self, d_head: int) -> float:
        """The factor of q k^T for heads of this width."""
        return score_scale(self.scale, d_head * max([1, *(each.products for each in self.mechanisms)]))

    def in_layer(self) -> _Applied:
        return self._replace(mechanisms=tuple([each.in_layer(self.weights) for each in self.mechanisms]))

    def in_layer_backward(self, grads: dict[str, Any]) -> Shared:
        found = [each for each in self.mechanisms if each in self.sums]
        return {each: each.in_layer_backward(self.sums[each], self.weights, grads) for each in found}

    def attention(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        lengths: np.ndarray,
        source_lengths: np.ndarray,
        n_heads: int,
    ) -> np.ndarray:
        """`packed_attention` with all steps of the mechanisms: rotated queries and keys, added terms, masks."""
        applied = self.in_layer()
        for each in applied.mechanisms:
            q, k = each.turn(q, k, self.attending)
        if self.cache is not None:
            cached = self.cache.attend(q, k, v, n_heads, self.mechanisms, self.scale_of(q.shape[-1] // n_heads))
            if cached is not None:
                return cached
            if len(self.cache.keys) > len(k):  # the cache has earlier rows of one text
                k, v = self.cache.keys, self.cache.values
                source_lengths = np.array([len(k)])
                places = self.places and (self.places[0], np.arange(len(k)))
                applied = applied._replace(places=places)
        return packed_attention(q, k, v, lengths, source_lengths, n_heads, partial(applied._formula, n_heads))

    def attention_backward(
        self, grad: np.ndarray, stages: Stages, lengths: np.ndarray, source_lengths: np.ndarray, n_heads: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        adds = any(type(each).add is not Mechanism.add for each in self.mechanisms)
        dq, dk, dv = packed_attention_backward(
            *(grad, stages, lengths, source_lengths, n_heads, self.scale_of(grad.shape[-1] // n_heads)),
            self._add_backward if adds else None,
        )
        for each in reversed(self.mechanisms):
            dq, dk, own = each.turn_backward(dq, dk, self.attending, stages)
            if own:
                add_up(self.sums.setdefault(each, {}), own)
        return dq, dk, dv

    def _places_of(self, rows: slice, source_rows: slice, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The places of queries (N, L) and keys (N, S) of N texts of equal length."""
        if self.places is None:
            return np.empty((count, 0)), np.empty((count, 0))
        queries, keys = self.places
        return queries[self.attending][rows].reshape(count, -1), keys[source_rows].reshape(count, -1)

    def _formula(self, n_heads: int, rows: slice, source_rows: slice, count: int) -> Formula:
        places = self._places_of(rows, source_rows, count)
        added = terms_of(self.mechanisms, *places, n_heads)
        masks = [mask for each in self.mechanisms if (mask := each.mask(*places)) is not None]
        in_order = any(each.in_order for each in self.mechanisms)
        mask = reduce(np.logical_and, masks) if masks else None

        def formula(some: tuple[slice, slice], q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            scale = self.scale_of(q.shape[-1])
            admitted = None if mask is None else part(mask, some)
            return scaled_dot_product_attention(q, k, v, scale, admitted, adding(added, some, q, k, scale), in_order)

        return formula

    def _add_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        scale: float,
        rows: slice,
        source_rows: slice,
        stages: Stages,
    ) -> tuple[np.ndarray, np.ndarray | float, np.ndarray | float]:
        """Backward of `add` of all mechanisms, from the gradient of the scores (N, H, L, S).

        Returns the gradient of the scores before `add`, and terms of dq and dk. Adds the gradients of mechanisms to
        `sums`.
        """
        places = self._places_of(rows, source_rows, len(grad))
        dq: np.ndarray | float = 0.0
        dk: np.ndarray | float = 0.0
        for each in reversed(self.mechanisms):
            grad, more_q, more_k, own = each.add_backward(grad, q, k, scale, *places, stages)
            dq, dk = dq + more_q, dk + more_k
            add_up(self.sums.setdefault(each, {}), own)  # even if empty, because an unused table has a zero gradient
        return grad, dq, dk


def _applied(block: Attention, rows: Rows, weights: Mapping[str, Linear]) -> _Applied:
    begun = tuple([rows.mechanisms.get(each, each) for each in block.mechanisms])
    attending = slice(None) if rows.attending is None else rows.attending
    return _Applied(begun, weights, block.scale, rows.places, attending, rows.cache and rows.cache.own, {})


# --- stages -----------------------------------------------------------------------------------------------------------


def attention_stages(
    source: str,
    mechanisms: Sequence[Mechanism],
    scale: float | None = None,
    bias: bool = True,
    output_bias: bool | None = None,
    kv_heads: str = "H",
) -> list[Stage]:
    """The stages of multi-head attention. source: INPUT for self-attention, SOURCE for cross-attention.

    kv_heads: the letter for the number of key and value heads.
    """
    rows, s = ("{x}", "T") if source == INPUT else ("source", "S")
    b_q, b_k, b_v = (f" + b_{name}" if bias else "" for name in "QKV")
    b_o = " + b_O" if (bias if output_bias is None else output_bias) else ""
    made_by, split = "functions.linear", "attention.split_heads"
    attend, softmax = "attention.scaled_dot_product_attention", "functions.softmax"
    turned, (query, key) = _turned(mechanisms)
    added = [stage for each in mechanisms for stage in each.added]
    read = {name for each in mechanisms for name in each.read}
    products = max([1, *(each.products for each in mechanisms)])
    k = f"{products} K" if products > 1 else "K"
    formula = "Q_h K_h^T" + (f" / sqrt({k})" if not scale else "" if scale == 1 else f" * {scale:.6g}")
    for each in mechanisms:
        formula = each.formula(formula)
    scored = ("query_heads", "key_heads", *(each.name for each in added))
    return [
        Stage("query", "(T, D)", f"Q = {{x}} W_Q{b_q}", made_by, parents=(INPUT,), kept="query" in read),
        Stage("key", f"({s}, D)", f"K = {rows} W_K{b_k}", made_by, parents=(source,), kept="key" in read),
        Stage("value", f"({s}, D)", f"V = {rows} W_V{b_v}", made_by, parents=(source,), kept=False),
        *turned,
        Stage("query_heads", "(H, T, K)", "Q_h, K columns of Q", split, "attn.hook_q", (query,)),
        Stage("key_heads", f"({kv_heads}, {s}, K)", "K_h, K columns of K", split, "attn.hook_k", (key,)),
        Stage("value_heads", f"({kv_heads}, {s}, K)", "V_h, K columns of V", split, "attn.hook_v", ("value",)),
        *added,
        Stage("scores", f"(H, T, {s})", formula, attend, "attn.hook_attn_scores", scored, kept=False),
        Stage("weights", f"(H, T, {s})", "W_h = softmax(scores)", softmax, "attn.hook_pattern", ("scores",)),
        Stage("context", "(H, T, K)", "W_h V_h", attend, "attn.hook_z", ("weights", "value_heads"), kept=False),
        Stage("combined", "(T, D)", "Concat(context)", "attention.combine_heads", parents=("context",)),
        Stage("output", "(T, D)", f"A = combined W_O{b_o}", made_by, "hook_attn_out", ("combined",), kept=False),
    ]


def _turned(mechanisms: Sequence[Mechanism]) -> tuple[list[Stage], tuple[str, str]]:
    """The `turn` stages of all mechanisms, and the names of the last query stage and the last key stage."""
    found, last = list[Stage](), ("query", "key")
    for each in mechanisms:
        if each.turned:
            found += [stage._replace(parents=(parent,)) for stage, parent in zip(each.turned, last, strict=True)]
            last = found[-2].name, found[-1].name
    return found, last


def attention_pull(direction: Direction, at: str, output: Mapping[str, np.ndarray]) -> np.ndarray:
    """W_h[row, j] V_h[j] W_O_h u for each head h and token j, (H, T). Adds b_O's contribution to direction.biases."""
    direction.add_bias(f"{at}output", output)
    weights = direction.stages[f"{at}weights"][:, direction.row]  # (H, T)
    values = repeat_heads(direction.stages[f"{at}value_heads"], len(weights))  # (H, T, K)
    directions = (output["weight"].astype(np.float64) @ direction.u).reshape(len(values), -1, 1)  # W_O_h u, (H, K, 1)
    return weights * (values @ directions)[..., 0]
