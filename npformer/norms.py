"""Norms as parts of a model: the choices of a norm, and the function that computes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npformer.functions import layer_norm, layer_norm_backward
from npformer.stage import Stage


@dataclass(frozen=True)
class LayerNorm:
    """(x - E[x]) / sqrt(Var[x] + eps) * weight + bias: `layer_norm` with its eps. Ba et al., 2016, section 3."""

    eps: float = 1e-12

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        return layer_norm(x, **weights, eps=self.eps, out=out)

    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return layer_norm_backward(grad, x, **weights, eps=self.eps)

    @staticmethod
    def stage(name: str, x: str, parent: str, y: str = "", shape: str = "(T, D)", hook: str = "") -> Stage:
        """The stage of a norm's output: y = Normalize(x), with y and x as formulas name them."""
        formula = f"{y} = Normalize({x})" if y else f"Normalize({x})"
        return Stage(name, shape, formula, "functions.layer_norm", hook, (parent,))
