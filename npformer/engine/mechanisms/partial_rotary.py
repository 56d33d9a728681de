"""Rotary embeddings of part of each head: only the first columns of a head are rotated.

Black et al., 2022, GPT-NeoX-20B: An Open-Source Autoregressive Language Model, section 2.1, "Rotary
Positional Embeddings".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.engine.descriptions.stage import Stage
from npformer.engine.mechanisms.rotary import Formula, Rotary, rotate


@dataclass(frozen=True)
class PartialRotary(Rotary):
    """`Rotary` of the first columns of each head, with frequencies theta^(-2 i / columns). Black et al., 2022, 2.1.

    Parameters
    ----------
    theta, d_head, scaling, angles : as in `Rotary`
    columns : int, even, number of rotated columns in each head
    """

    columns: int = 0

    def check(self, config: Any) -> None:
        checks.positive("rotary.theta", self.theta)
        if checks.whole("rotary.columns", self.columns, 2, config.d_head) % 2:
            raise NpformerError(f"rotary.columns: expected an even number, got {self.columns}")
        if self.scaling is not None:
            self.scaling.check(config, self.columns)

    @property
    def rotated_columns(self) -> int:
        return self.columns

    def rotated(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, formula: Formula | None = None) -> np.ndarray:
        n_heads = x.shape[-1] // self.d_head
        y = x.reshape(len(x), n_heads, self.d_head).copy()
        first = y[..., : self.columns]
        first[...] = (formula or rotate)(first.reshape(len(x), n_heads * self.columns), cos, sin).reshape(first.shape)
        return y.reshape(x.shape)

    @property
    def turned(self) -> tuple[Stage, ...]:
        return tuple(
            each._replace(formula=each.formula.replace("each head", f"the first {self.columns} columns of each head"))
            for each in super().turned
        )
