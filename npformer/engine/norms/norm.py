"""`Norm`: the base class of norms, which are parts of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction


class Norm(ABC):
    """The base class of norms of rows, (..., D) -> (..., D). Subclasses are frozen dataclasses."""

    function: ClassVar[str]  # module and name of the formula, relative to npformer

    @abstractmethod
    def __call__(self, x: np.ndarray, out: np.ndarray | None = None, **weights: np.ndarray) -> np.ndarray:
        """Returns Normalize(x), written to `out` if given."""

    @abstractmethod
    def backward(
        self, grad: np.ndarray, x: np.ndarray, **weights: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Backward of `__call__`: dx and the gradients of the weights."""

    @abstractmethod
    def pull(self, direction: Direction, name: str, x: str, **weights: np.ndarray) -> None:
        """Pulls a direction in the output back to the input, with the scale of the row treated as a constant.

        name, x: the stages of the output and of the input.
        """

    @abstractmethod
    def group(self, width: int) -> Group:
        """The group of weights for rows of this width."""

    def affine(self, z: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """The output of the norm, given the normalized rows z."""
        return z * weight if bias is None else z * weight + bias

    def stage(self, name: str, x: str, parent: str, y: str = "", shape: str = "(T, D)", hook: str = "") -> Stage:
        """The stage of the output, with the formula y = Normalize(x). parent: the stage of the input."""
        formula = f"{y} = Normalize({x})" if y else f"Normalize({x})"
        return Stage(name, shape, formula, self.function, hook, (parent,))
