"""`OutputScale`, which scales the rows before the projection to the vocabulary.

The published code of Raffel et al., 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.tape import Stages
from npformer.engine.taps import tap


@dataclass(frozen=True)
class OutputScale:
    """y = x * factor, where factor is 1 / sqrt(D) if the projection is the token table.

    Parameters
    ----------
    factor : float
    """

    factor: float

    output: ClassVar[str] = "head.scaled"

    def groups(self, d_model: int) -> dict[str, Group]:
        return {}

    def __call__(self, read: np.ndarray, weights: Mapping[str, Any]) -> np.ndarray:
        return tap(self.output, read * self.factor)

    def backward(
        self, grad: np.ndarray, stages: Stages, read: np.ndarray, weights: Mapping[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return stages.through_edit(self.output, grad) * self.factor, {}

    def pull(self, direction: Direction, weights: Mapping[str, Any]) -> None:
        """Pulls a direction in the output back to the input."""
        direction.u = direction.u * self.factor

    def stages(self, x: str) -> list[Stage]:
        return [Stage(self.output, "(T, D)", "Z / sqrt(D)", "output_heads.OutputScale", parents=(x,))]
