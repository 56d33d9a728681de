"""`LayerNorm`, layer norm as a part of a model.

Ba et al., 2016, Layer Normalization, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import layer_norm, layer_norm_backward
from npformer.engine.norms.norm import Norm


@dataclass(frozen=True)
class LayerNorm(Norm):
    """(x - E[x]) / sqrt(Var[x] + eps) * weight + bias: `layer_norm` with a fixed eps. Ba et al., 2016, section 3.

    Parameters
    ----------
    eps : float
    bias : bool, the weights include a bias
    """

    eps: float = 1e-12
    bias: bool = True

    function = "functions.layer_norm"

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        return layer_norm(x, **weights, eps=self.eps, out=out)

    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return layer_norm_backward(grad, x, **weights, eps=self.eps)

    def pull(self, direction: Direction, name: str, x: str, **weights: np.ndarray) -> None:
        """u . Normalize(x) = s (gamma u - E[gamma u]) . x + u . beta, for a constant s = 1 / sqrt(Var[x] + eps)."""
        if "bias" in weights:
            direction.add_bias(name, weights)
        scaled = direction.u * weights["weight"] if "weight" in weights else direction.u
        deviation = np.sqrt(direction.at(x).astype(np.float64).var() + self.eps)
        direction.u = (scaled - scaled.mean()) / deviation

    def group(self, width: int) -> Group:
        """The group of the weight, and of the bias if the norm has one."""
        return Group((width,), width if self.bias else None, "norm")


LAYER_NORM = LayerNorm()  # the eps of BERT
