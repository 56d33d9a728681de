"""`Block`: the base of a layer's parts, each of which adds its output to the layer's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npformer.blocks.rows import Rows
from npformer.common.mistake import Mistake
from npformer.direction import Direction
from npformer.mechanisms.mechanism import Sums
from npformer.stage import Stage
from npformer.tape import Stages
from npformer.weight_group import Group

Activation = Callable[..., np.ndarray]
Linear = Mapping[str, np.ndarray]
Shared = dict[Hashable, Sums]  # a mechanism, or other owner of shared arrays -> their gradients
Backward = tuple[np.ndarray, dict[str, Any], Shared]  # dx, the gradients of the block's weights, those of shared arrays


class Around(NamedTuple):
    """How formulas name the rows around a block, and TransformerLens's hooks at its sum and norm."""

    x: str  # the rows before it
    output: str
    total: str  # their sum, normalised where norms follow blocks
    normed: str  # the rows before it, normalised, where norms precede blocks
    total_hook: str = ""
    norm_hook: str = ""


class Block(ABC):
    """A function of packed rows and weights, (T, D) -> (T, D). Subclasses are frozen dataclasses of their choices."""

    around: ClassVar[Around]
    dropped: ClassVar[str] = "output"  # the stage with dropout in training
    written: ClassVar[str] = "output"  # the last stage, which is added to the layer's rows
    mistakes: ClassVar[tuple[Mistake, ...]] = ()  # that ports make in it

    @property
    def core(self) -> Block:
        """The block without a norm of its output."""
        return self

    @abstractmethod
    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        """The block's output for the rows that attend, all unless `rows` says otherwise."""

    @abstractmethod
    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        """Backward of `__call__`: dx (T, D), and the gradients of the weights and of shared arrays."""

    @abstractmethod
    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        """The part of the block's output in a logit, a number or (..., T) by token; the parts of biases are noted.

        at: the beginning of the names of the block's stages.
        """

    @abstractmethod
    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights of the block, by name; "" is the block's own."""

    @property
    @abstractmethod
    def stages(self) -> list[Stage]:
        """The block's stages in firing order, the last of which is its output. {x} stands for the rows it reads."""
