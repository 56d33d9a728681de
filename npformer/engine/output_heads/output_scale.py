"""`OutputScale`, which scales the rows before the projection to the vocabulary, and mistakes that ports make in it.

The published code of Raffel et al., 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.engine.descriptions.mistake import Mistake
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
    mistakes: ClassVar[tuple[Mistake, ...]] = (
        Mistake(
            "rows before the projection not scaled",
            "the decoder's rows are divided by sqrt(d_model) before they are projected with the token table",
            {
                "": {"head.scaled": lambda y, at: at.source},
                "multiplied by sqrt(d_model)": {"head.scaled": lambda y, at: at.source * at.config.d_model**0.5},
                "divided by d_model": {"head.scaled": lambda y, at: at.source / at.config.d_model},
                "divided by sqrt(d_head)": {"head.scaled": lambda y, at: at.source * at.d_head**-0.5},
            },
        ),
    )

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
