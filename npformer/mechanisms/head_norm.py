"""Norms of heads: each head of queries and keys is normalized before it is rotated, as in Qwen3 and Gemma 3.

Henry et al., 2020, Query-Key Normalization for Transformers; with RMSNorm, Dehghani et al., 2023, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.group import Group
from npformer.mechanisms.mechanism import Linear, Mechanism, Sums
from npformer.root_mean_square import RMSNorm
from npformer.stage import Stage
from npformer.tape import Stages
from npformer.taps import tap

NAMES = ("query", "key")


@dataclass(frozen=True)
class HeadNorm(Mechanism):
    """q_h = Normalize(q_h) and k_h = Normalize(k_h), each with a weight (K,) that the layer's heads share.

    Parameters
    ----------
    eps : float
    d_head : int, K
    weights : of the two norms, by the name of the projection
    """

    eps: float = 1e-6
    d_head: int = 0
    weights: Mapping[str, Linear] = field(default_factory=dict, compare=False, repr=False)

    cached = True
    read = NAMES

    def for_model(self, config: Any) -> HeadNorm:
        return replace(self, eps=config.eps, d_head=config.d_head)

    @property
    def norm(self) -> RMSNorm:
        return RMSNorm(self.eps)

    def projections(self, d_model: int) -> dict[str, Group]:
        return {f"{name}_norm": self.norm.group(self.d_head) for name in NAMES}

    def in_layer(self, projections: Mapping[str, Linear]) -> HeadNorm:
        return replace(self, weights={name: projections[f"{name}_norm"] for name in NAMES})

    def in_layer_backward(self, sums: Sums, projections: Mapping[str, Linear], grads: dict[str, Any]) -> Sums:
        for name in NAMES:
            grads[f"{name}_norm"] = {"weight": sums[name]}
        return {}

    def turn(self, q: np.ndarray, k: np.ndarray, attending: Any) -> tuple[np.ndarray, np.ndarray]:
        return tap("query_normed", self._normed("query", q)), tap("key_normed", self._normed("key", k))

    def turn_backward(
        self, dq: np.ndarray, dk: np.ndarray, attending: Any, stages: Stages
    ) -> tuple[np.ndarray, np.ndarray, Sums]:
        found, sums = [], Sums()
        for name, grad in zip(NAMES, (dq, dk), strict=True):
            grad = self._heads(stages.through_edit(f"{name}_normed", grad))
            dx, own = self.norm.backward(grad, self._heads(stages[name]), **self.weights[name])
            found.append(dx.reshape(stages[name].shape))
            sums[name] = own["weight"]
        return found[0], found[1], sums

    def _normed(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.norm(self._heads(x), **self.weights[name]).reshape(x.shape)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        """The heads of all rows, (T, H K) -> (T, H, K)."""
        return x.reshape(len(x), x.shape[-1] // self.d_head, self.d_head)

    @property
    def turned(self) -> tuple[Stage, ...]:
        return tuple(
            Stage(f"{name}_normed", "(T, D)", f"each head of {letter}, normalized", self.norm.function, kept=False)
            for name, letter in zip(NAMES, ("Q", "K"), strict=True)
        )
