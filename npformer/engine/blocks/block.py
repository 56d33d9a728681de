"""`Block`: the base class of the parts of a layer, such as attention. A layer adds each block's output to its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.mechanisms.mechanism import Sums
from npformer.engine.tape import Stages

Activation = Callable[..., np.ndarray]
Shared = dict[Hashable, Sums]  # gradients of shared arrays, by their owner, for example a mechanism
Backward = tuple[np.ndarray, dict[str, Any], Shared]  # dx, gradients of the block's weights, gradients of shared arrays


class Around(NamedTuple):
    """The letters of the arrays around a block in formulas, and TransformerLens's names for the sum and the norm."""

    x: str  # the residual rows before the block
    output: str
    total: str  # x + output, normalized if norms follow blocks
    normed: str  # normalized x, if norms precede blocks
    total_hook: str = ""
    norm_hook: str = ""


class Block(ABC):
    """A function of packed rows and weights, (T, D) -> (T, D). Subclasses are frozen dataclasses."""

    around: ClassVar[Around]
    dropped: ClassVar[str] = "output"  # the stage with dropout in training
    written: ClassVar[str] = "output"  # the last stage, which the layer adds to its rows

    @property
    def core(self) -> Block:
        """The block itself, or the block inside a `Normed`."""
        return self

    @abstractmethod
    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        """The output for the attending rows. By default (without `texts.attending`), these are all rows."""

    @abstractmethod
    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        """Backward of `__call__`: dx (T, D), and the gradients of the weights and of shared arrays."""

    @abstractmethod
    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        """The contribution of the block to a logit: one number, or one number for each token, (..., T).

        Adds the contributions of biases to `direction.biases`. at: the prefix of the names of the stages.
        """

    @abstractmethod
    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, by name. The name "" means that the block itself is the group."""

    @property
    @abstractmethod
    def stages(self) -> list[Stage]:
        """The stages in order of computation, with the output last. {x} in a formula is the letter of the input."""
