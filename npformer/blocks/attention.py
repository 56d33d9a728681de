"""Attention as a block of a layer: to the texts themselves, or to a source. `multi_head.py` has the formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.blocks import attention_mistakes, cross_attention_mistakes
from npformer.blocks.block import Around, Backward, Block
from npformer.blocks.rows import Rows
from npformer.direction import Direction
from npformer.group import Group, linear
from npformer.mechanisms.mechanism import Mechanism
from npformer.multi_head import (
    attending,
    multi_head_attention,
    multi_head_attention_backward,
    self_attention_backward,
)
from npformer.stage import INPUT, SOURCE, Stage
from npformer.tape import Stages

PROJECTIONS = ("query", "key", "value", "output")
EVERY_KEY = np.ones(1, bool)  # the mask of cross-attention: a row may attend to its whole source


@dataclass(frozen=True)
class Attention(Block):
    """Multi-head attention of each text to itself. Vaswani et al., 2017, section 3.2.2.

    Parameters
    ----------
    n_heads : int
    mechanisms : how attention depends on places
    """

    n_heads: int
    mechanisms: tuple[Mechanism, ...] = ()

    around = Around("X", "A", "Y", "N", "hook_resid_mid", "ln1.hook_normalized")
    mistakes = attention_mistakes.MISTAKES

    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        own, lengths = attending(x, rows.lengths, rows.attending)
        placed, cache = rows.placed(self.mechanisms), rows.cache and rows.cache.own
        return multi_head_attention(own, lengths, x, rows.lengths, self.n_heads, placed=placed, cache=cache, **weights)

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        placed = rows.placed(self.mechanisms)
        dx, grads = self_attention_backward(
            grad, stages, x, rows.lengths, self.n_heads, rows.attending, placed, **weights
        )
        return dx, grads, grads.pop("mechanisms", {})

    def groups(self, d_model: int) -> dict[str, Group]:
        found = dict.fromkeys(PROJECTIONS, linear(d_model, d_model))
        for each in self.mechanisms:
            found |= each.projections(d_model)
        return found

    @property
    def stages(self) -> list[Stage]:
        return attention_stages(INPUT, self.mechanisms)

    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        return attention_pull(direction, at, weights["output"])


@dataclass(frozen=True)
class CrossAttention(Block):
    """Multi-head attention of each text to its source. Vaswani et al., 2017, section 3.2.3.

    Parameters
    ----------
    n_heads : int
    """

    n_heads: int

    around = Attention.around
    mistakes = cross_attention_mistakes.MISTAKES

    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        cache = rows.cache and rows.cache.source
        return multi_head_attention(
            x, rows.lengths, *self._source(rows), self.n_heads, mask=EVERY_KEY, cache=cache, **weights
        )

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        dx, dsource, grads = multi_head_attention_backward(
            grad, stages, x, rows.lengths, *self._source(rows), self.n_heads, **weights
        )
        return dx, grads, {SOURCE: {"rows": dsource}}

    def groups(self, d_model: int) -> dict[str, Group]:
        return dict.fromkeys(PROJECTIONS, linear(d_model, d_model))

    @property
    def stages(self) -> list[Stage]:
        return attention_stages(SOURCE, ())

    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        return attention_pull(direction, at, weights["output"])

    @staticmethod
    def _source(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        assert rows.source is not None
        assert rows.source_lengths is not None
        return rows.source, rows.source_lengths


def attention_stages(source: str, mechanisms: Sequence[Mechanism]) -> list[Stage]:
    """The stages of multi-head attention to the rows of INPUT or SOURCE."""
    rows = "{x}" if source == INPUT else "X"
    linear, split = "functions.linear", "attention.split_heads"
    attend = "attention.scaled_dot_product_attention"
    turned = [stage for each in mechanisms for stage in each.turned]
    added = [stage for each in mechanisms for stage in each.added]
    query, key = [each.name for each in turned[-2:]] or ("query", "key")
    scored = ("query_heads", "key_heads", *(each.name for each in added))
    return [
        Stage("query", "(T, D)", "Q = {x} W_Q + b_Q", linear, parents=(INPUT,), kept=False),
        Stage("key", "(T, D)", f"K = {rows} W_K + b_K", linear, parents=(source,), kept=False),
        Stage("value", "(T, D)", f"V = {rows} W_V + b_V", linear, parents=(source,), kept=False),
        *turned,
        Stage("query_heads", "(H, T, K)", "Q_h, K columns of Q", split, "attn.hook_q", (query,)),
        Stage("key_heads", "(H, T, K)", "K_h, K columns of K", split, "attn.hook_k", (key,)),
        Stage("value_heads", "(H, T, K)", "V_h, K columns of V", split, "attn.hook_v", ("value",)),
        *added,
        Stage(
            *("scores", "(H, T, T)", "Q_h K_h^T / sqrt(K) [+ bias]", attend, "attn.hook_attn_scores"),
            parents=scored,
            kept=False,
        ),
        Stage("weights", "(H, T, T)", "W_h = softmax(scores)", "functions.softmax", "attn.hook_pattern", ("scores",)),
        Stage("context", "(H, T, K)", "W_h V_h", attend, "attn.hook_z", ("weights", "value_heads"), kept=False),
        Stage("combined", "(T, D)", "Concat(context)", "attention.combine_heads", parents=("context",)),
        Stage("output", "(T, D)", "A = combined W_O + b_O", linear, "hook_attn_out", ("combined",), kept=False),
    ]


def attention_pull(direction: Direction, at: str, output: Mapping[str, np.ndarray]) -> np.ndarray:
    """W_h[row, j] V_h[j] W_O_h u of each head h and token j, (H, T); b_O is noted."""
    direction.add_bias(f"{at}output", output)
    weights = direction.stages[f"{at}weights"][:, direction.row]  # (H, T)
    values = direction.stages[f"{at}value_heads"]  # (H, T, K)
    directions = (output["weight"].astype(np.float64) @ direction.u).reshape(len(values), -1, 1)  # W_O_h u, (H, K, 1)
    return weights * (values @ directions)[..., 0]
