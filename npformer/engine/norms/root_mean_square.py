"""RMSNorm as a part of a model.

Zhang and Sennrich, 2019, Root Mean Square Layer Normalization.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import rms_norm, rms_norm_backward
from npformer.engine.norms.norm import Norm


@dataclass(frozen=True)
class RMSNorm(Norm):
    """x / sqrt(E[x^2] + eps) * weight, computed by `rms_norm`. Zhang and Sennrich, 2019, equation 4.

    Parameters
    ----------
    eps : float
    """

    eps: float = 1e-6

    function = "functions.rms_norm"

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        return rms_norm(x, **weights, eps=self.eps, out=out)

    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return rms_norm_backward(grad, x, **weights, eps=self.eps)

    def pull(self, direction: Direction, name: str, x: str, **weights: np.ndarray) -> None:
        """u . Normalize(x) = s gamma u . x, for a constant s = 1 / sqrt(E[x^2] + eps)."""
        square = np.square(direction.at(x).astype(np.float64)).mean()
        direction.u = direction.u * weights["weight"] / np.sqrt(square + self.eps)

    def group(self, width: int) -> Group:
        return Group((width,), None, "norm")
