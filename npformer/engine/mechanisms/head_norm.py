"""Norms of heads: each head of queries and keys is normalized before the rotation, as in Qwen3 and Gemma 3.

`row_norm.py` normalizes all heads together. Henry et al., 2020, Query-Key Normalization for Transformers; Dehghani et
al., 2023, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.functions import Linear
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.norms.root_mean_square import RMSNorm
from npformer.engine.norms.zero_centred import ZeroCentredRMSNorm
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

NAMES = ("query", "key")


@dataclass(frozen=True)
class HeadNorm(Mechanism):
    """q_h = Normalize(q_h) and k_h = Normalize(k_h), each with a weight (K,) that the heads of a layer share.

    Parameters
    ----------
    eps : float
    widths : pair of int, the widths of the weights for queries and for keys
    weights : dict with the weights of the two norms, by "query" and "key"
    """

    eps: float = 1e-6
    widths: tuple[int, int] = (0, 0)
    weights: Mapping[str, Linear] = field(default_factory=dict, compare=False, repr=False)

    cached = True
    read = NAMES
    normalized: ClassVar[str] = "each head of {}, normalized"  # formula of the stages

    def for_model(self, config: Any) -> HeadNorm:
        return replace(self, eps=config.eps, widths=(config.d_head,) * 2)

    @property
    def norm(self) -> RMSNorm:
        return RMSNorm(self.eps)

    def projections(self, d_model: int) -> dict[str, Group]:
        return {f"{name}_norm": self.norm.group(width) for name, width in zip(NAMES, self.widths, strict=True)}

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
            weights = self.weights[name]
            grad = grouped(stages.through_edit(f"{name}_normed", grad), **weights)
            dx, own = self.norm.backward(grad, grouped(stages[name], **weights), **weights)
            found.append(dx.reshape(stages[name].shape))
            sums[name] = own["weight"]
        return found[0], found[1], sums

    def _normed(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.norm(grouped(x, **self.weights[name]), **self.weights[name]).reshape(x.shape)

    @property
    def turned(self) -> tuple[Stage, ...]:
        return tuple(
            Stage(f"{name}_normed", "(T, D)", self.normalized.format(letter), self.norm.function, kept=False)
            for name, letter in zip(NAMES, ("Q", "K"), strict=True)
        )


class ZeroCentredHeadNorm(HeadNorm):
    """`HeadNorm` with factors 1 + weight, as in Gemma 3."""

    @property
    def norm(self) -> RMSNorm:
        return ZeroCentredRMSNorm(self.eps)


def grouped(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Splits rows x into groups of columns that are as wide as the weight: for a weight (K,), (T, H K) -> (T, H, K)."""
    return x.reshape(len(x), x.shape[-1] // len(weight), len(weight))
