"""`Block`: the base of a layer's parts, each of which adds its output to the layer's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from npformer.blocks.rows import Rows
from npformer.mechanisms.mechanism import Sums
from npformer.tape import Stages

Activation = Callable[..., np.ndarray]
Linear = Mapping[str, np.ndarray]
Shared = dict[Hashable, Sums]  # owner of arrays that several layers read, a mechanism for one -> their gradients
Backward = tuple[np.ndarray, dict[str, Any], Shared]  # dx, the gradients of the block's weights, those of shared arrays

SOURCE = "source"  # the owner of the rows that cross-attention reads
EMBEDDED = "embedded"  # the owner of the rows that the stack reads


class Block(ABC):
    """A function of packed rows and weights, (T, D) -> (T, D). Subclasses are frozen dataclasses of their choices."""

    @abstractmethod
    def __call__(self, x: np.ndarray, rows: Rows, **weights: Any) -> np.ndarray:
        """The block's output for the rows that attend, all unless `rows` says otherwise."""

    @abstractmethod
    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, **weights: Any) -> Backward:
        """Backward of `__call__`: dx (T, D), and the gradients of the weights and of shared arrays."""
