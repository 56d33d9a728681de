"""Gemma's RMSNorm, which multiplies by 1 + weight, and mistakes that are common in ports of it.

Gemma Team, 2024, Gemma. The 1 is in the published code, not in config.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.engine.descriptions.mistake import Mistake
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import rms_norm, rms_norm_backward
from npformer.engine.norms.norm_mistakes import everywhere, of_norms
from npformer.engine.norms.root_mean_square import RMSNorm, over_root_mean_square, without_weight


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


# --- mistakes --------------------------------------------------------------------------------------------------------


def _weight_alone(y: np.ndarray, at: Any) -> Any:
    return over_root_mean_square(at.source, at.config.eps) * at.weight(at.name)


def _weight_first(y: np.ndarray, at: Any) -> Any:
    return over_root_mean_square(at.source * (1 + at.weight(at.name)), at.config.eps)


MISUSED = Mistake(
    "1 + weight of RMSNorm misused",
    "the normalized row is multiplied by 1 + weight, as in Gemma",
    everywhere(
        {
            "weight instead of 1 + weight": of_norms(_weight_alone),
            "left out": of_norms(without_weight),
            "1 + weight multiplied before normalizing": of_norms(_weight_first),
            "1 added to the row, not to the weight": of_norms(lambda y, at: 1 + _weight_alone(y, at)),
        }
    ),
)
ZeroCentredRMSNorm.mistakes = (
    MISUSED,
    *(each for each in RMSNorm.mistakes if each.name != "weight of RMSNorm misused"),
)
