"""Gemma's RMSNorm, which multiplies by 1 + weight.

Gemma Team, 2024, Gemma. The 1 is in the published code, not in config.json.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import rms_norm, rms_norm_backward
from npformer.engine.norms.root_mean_square import RMSNorm


@dataclass(frozen=True)
class ZeroCentredRMSNorm(RMSNorm):
    """x / sqrt(E[x^2] + eps) * (1 + weight): a weight of 0 leaves the normalized row unchanged. Gemma Team, 2024.

    Parameters
    ----------
    eps : float
    """

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        return rms_norm(x, 1 + weights["weight"], eps=self.eps, out=out)

    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return rms_norm_backward(grad, x, 1 + weights["weight"], eps=self.eps)

    def pull(self, direction: Direction, name: str, x: str, **weights: np.ndarray) -> None:
        super().pull(direction, name, x, weight=1 + weights["weight"])

    def group(self, width: int) -> Group:
        return super().group(width)._replace(start=0.0)

    def affine(self, z: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        return z * (1 + weight)
