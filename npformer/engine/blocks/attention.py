"""Self-attention and cross-attention as blocks of a layer. `multi_head.py` has the formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.engine.attention import repeat_heads, scaled_dot_product_attention
from npformer.engine.blocks.attention_with_mechanisms import AttentionWithMechanisms
from npformer.engine.blocks.block import Around, Backward, Block
from npformer.engine.blocks.packed_texts import PackedTexts, Source
from npformer.engine.descriptions.stage import INPUT, SOURCE, Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.descriptions.weight_group import linear as linear_group
from npformer.engine.direction import Direction
from npformer.engine.functions import Linear, linear, linears
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.multi_head import multi_head_attention, multi_head_attention_backward
from npformer.engine.packed_attention import Formula, PackedAttention
from npformer.engine.runtime.packing import Run
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
    output_bias : bool, the output layer has a bias; None means the same as `bias`
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

    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        queries, lengths = texts.attend(x)
        if not self.mechanisms:
            heads = PackedAttention(self.n_heads, lengths, texts.lengths, self.scale)
            return multi_head_attention(queries, x, heads, weights)
        return multi_head_attention(queries, x, self._with_mechanisms(texts, lengths, weights), weights)

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        queries, lengths = texts.attend(x)
        attention = self._with_mechanisms(texts, lengths, weights)
        dqueries, dx, grads = multi_head_attention_backward(grad, stages, queries, x, attention, weights)
        dx[attention.attending] += dqueries
        return dx, grads, attention.in_layer_backward(weights, grads)

    def _with_mechanisms(
        self, texts: PackedTexts, lengths: np.ndarray, weights: Mapping[str, Linear]
    ) -> AttentionWithMechanisms:
        begun = tuple([texts.mechanisms.get(each, each).in_layer(weights) for each in self.mechanisms])
        attending = slice(None) if texts.attending is None else texts.attending
        places = texts.places and (texts.places[0][attending], texts.places[1])
        cache = texts.cache and texts.cache.own
        given = self.n_heads, lengths, texts.lengths, self.scale
        return AttentionWithMechanisms(*given, begun, attending, places, cache)

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

    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        source, attention = self._source(texts)
        if texts.cache is None or texts.cache.source is None:
            return multi_head_attention(x, source.rows, attention, weights)
        cache = texts.cache.source
        q = tap("query", linear(x, **weights["query"]))
        if not cache.complete:
            k, v = linears(source.rows, weights["key"], weights["value"])
            cache.keep_source(tap("key", k), tap("value", v), self.n_heads)
        combined = cache.attend(q, self.n_heads, attention.scale_of(q.shape[-1] // self.n_heads))
        return tap("output", linear(tap("combined", combined), **weights["output"]))

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        source, attention = self._source(texts)
        dx, dsource, grads = multi_head_attention_backward(grad, stages, x, source.rows, attention, weights)
        return dx, grads, {SOURCE: {"rows": dsource}}

    def _source(self, texts: PackedTexts) -> tuple[Source, PackedAttention]:
        """Returns the source of the texts, and the `PackedAttention` of the heads to that source."""
        assert texts.source is not None
        return texts.source, InOrder(self.n_heads, texts.lengths, texts.source.lengths, self.scale)

    def groups(self, d_model: int) -> dict[str, Group]:
        return Attention(self.n_heads, (), self.bias, d_head=self.d_head).groups(d_model)

    @property
    def stages(self) -> list[Stage]:
        return attention_stages(SOURCE, (), self.scale, self.bias)


class InOrder(PackedAttention):
    """Attention to every key, with sums in the same order as in the steps of generation."""

    def formula(self, run: Run, scale: float) -> Formula:
        return lambda tile, q, k, v: scaled_dot_product_attention(q, k, v, scale, EVERY_KEY)


# --- stages -----------------------------------------------------------------------------------------------------------


def attention_stages(
    source: str,
    mechanisms: Sequence[Mechanism],
    scale: float | None = None,
    bias: bool = True,
    output_bias: bool | None = None,
    kv_heads: str = "H",
) -> list[Stage]:
    """The stages of multi-head attention. source: INPUT for self-attention, or SOURCE for cross-attention.

    kv_heads: the letter for the number of key and value heads.
    """
    x, s = ("{x}", "T") if source == INPUT else ("source", "S")
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
        Stage("key", f"({s}, D)", f"K = {x} W_K{b_k}", made_by, parents=(source,), kept="key" in read),
        Stage("value", f"({s}, D)", f"V = {x} W_V{b_v}", made_by, parents=(source,), kept=False),
        *turned,
        Stage("query_heads", "(H, T, K)", "Q_h, the columns of head h in Q", split, "attn.hook_q", (query,)),
        Stage("key_heads", f"({kv_heads}, {s}, K)", "K_h, the columns of head h in K", split, "attn.hook_k", (key,)),
        Stage(
            "value_heads", f"({kv_heads}, {s}, K)", "V_h, the columns of head h in V", split, "attn.hook_v", ("value",)
        ),
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
