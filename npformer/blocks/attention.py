"""Attention as a block of a layer: to the texts themselves, or to a source. `multi_head.py` has the formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.blocks.block import SOURCE, Backward, Block
from npformer.blocks.rows import Rows
from npformer.mechanisms.mechanism import Mechanism
from npformer.multi_head import (
    attending,
    multi_head_attention,
    multi_head_attention_backward,
    self_attention_backward,
)
from npformer.tape import Stages

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


@dataclass(frozen=True)
class CrossAttention(Block):
    """Multi-head attention of each text to its source. Vaswani et al., 2017, section 3.2.3.

    Parameters
    ----------
    n_heads : int
    """

    n_heads: int

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

    @staticmethod
    def _source(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        assert rows.source is not None
        assert rows.source_lengths is not None
        return rows.source, rows.source_lengths
