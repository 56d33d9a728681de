"""A block whose output is normalized before the residual addition, as in Gemma 2 and 3.

Gemma Team, 2024, Gemma 2: Improving Open Language Models at a Practical Size, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.engine.blocks.block import Around, Backward, Block
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.norms.norm import Norm
from npformer.engine.tape import Stages
from npformer.engine.taps import spare, tap

NAME = "output_norm"  # name of the stage and of the group of weights


@dataclass(frozen=True)
class Normed(Block):
    """Normalize(Block(X)). Gemma Team, 2024, Gemma 2, section 2.

    Parameters
    ----------
    block : Block
    norm : Norm of the block's output
    """

    block: Block
    norm: Norm

    written = NAME

    @property
    def around(self) -> Around:  # type: ignore[override]
        return self.block.around

    @property
    def dropped(self) -> str:  # type: ignore[override]
        return self.block.dropped

    @property
    def core(self) -> Block:
        return self.block.core

    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        norm = weights.pop(NAME)
        y = self.block(x, texts, **weights)
        return tap(NAME, self.norm(y, out=spare(y), **norm))

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        norm = weights.pop(NAME)
        grad, d_norm = self.norm.backward(stages.through_edit(NAME, grad), stages[self.block.written], **norm)
        dx, grads, shared = self.block.backward(grad, stages, x, texts, **weights)
        return dx, {**grads, NAME: d_norm}, shared

    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        """As in `Block`. The scale of the norm is treated as a constant."""
        norm, u = weights.pop(NAME), direction.u
        self.norm.pull(direction, f"{at}{NAME}", f"{at}{self.block.written}", **norm)
        found = self.block.pull(direction, at, **weights)
        direction.u = u
        return found

    def groups(self, d_model: int) -> dict[str, Group]:
        return {**self.block.groups(d_model), NAME: self.norm.group(d_model)}

    @property
    def stages(self) -> list[Stage]:
        *others, output = self.block.stages
        letter = self.around.output
        read = output._replace(formula=output.formula.replace(f"{letter} =", f"{letter}' ="), hook="", kept=True)
        normed = self.norm.stage(NAME, f"{letter}'", output.name, letter, hook=output.hook)
        return [*others, read, normed._replace(kept=False)]
