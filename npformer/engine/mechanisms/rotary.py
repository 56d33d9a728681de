"""Rotary embeddings: queries and keys are rotated by their positions, so that scores depend on distances only.

Su et al., 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.engine.descriptions.stage import Stage
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.mechanisms.rotary_scaling import (
    Scaling,
    rotary_frequencies,
)
from npformer.engine.runtime.packing import Batch
from npformer.engine.runtime.threads import all_gather
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

Formula = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # rows (T, D), cosines, sines -> rows (T, D)


@dataclass(frozen=True)
class Rotary(Mechanism):
    """q_i' = R(i) q_i and k_j' = R(j) k_j, so that q_i' . k_j' = q_i . R(j - i) k_j. Su et al., 2021, section 3.2.2.

    Parameters
    ----------
    theta : float, base of the frequencies
    d_head : int, K, even
    scaling : Scaling of the frequencies to longer texts, optional
    angles : cosines and sines of `rotary_angles` for a batch, (T, K / 2) each
    """

    theta: float
    d_head: int = 0
    scaling: Scaling | None = None
    angles: tuple[np.ndarray, ...] = field(default=(), compare=False, repr=False)

    cached = True

    def check(self, config: Any) -> None:
        checks.positive("rotary.theta", self.theta)
        if config.d_head % 2:
            raise NpformerError(f"d_head: expected an even number for rotary embeddings, got {config.d_head}")
        if self.scaling is not None:
            self.scaling.check(config, config.d_head)

    def for_model(self, config: Any) -> Rotary:
        return replace(self, d_head=config.d_head)

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> Rotary:
        dtype = weights["embeddings"]["token"]["weight"].dtype
        if self.same_until(1) is None:
            return replace(self, angles=self.angles_at(batch.positions, dtype, 1))
        lengths, groups = _lengths(batch), dict[int | None, list[int]]()
        for length in np.unique(lengths).tolist():
            groups.setdefault(self.same_until(length), []).append(length)
        angles = tuple(np.empty((len(lengths), self.rotated_columns // 2), dtype) for _ in range(2))
        for some in groups.values():
            same = np.isin(lengths, some)
            for table, own in zip(angles, self.angles_at(batch.positions[same], dtype, some[-1]), strict=True):
                table[same] = own
        return replace(self, angles=angles)

    def same_until(self, length: int) -> int | None:
        return None if self.scaling is None else self.scaling.same_until(length)

    @property
    def rotated_columns(self) -> int:
        """The number of rotated columns in each head."""
        return self.d_head

    def angles_at(
        self, positions: np.ndarray, dtype: np.dtype | type, length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`rotary_angles` at positions (T,)."""
        return rotary_angles(positions, self.rotated_columns, self.theta, dtype, self.scaling, length)

    def turn(self, q: np.ndarray, k: np.ndarray, attending: Any) -> tuple[np.ndarray, np.ndarray]:
        cos, sin = self.angles
        q = tap("query_rotated", self.rotated(q, cos[attending], sin[attending]))
        return q, tap("key_rotated", self.rotated(k, cos, sin))

    def turn_backward(
        self, dq: np.ndarray, dk: np.ndarray, attending: Any, stages: Stages
    ) -> tuple[np.ndarray, np.ndarray, Sums]:
        cos, sin = self.angles
        dq = self.rotated(stages.through_edit("query_rotated", dq), cos[attending], sin[attending], rotate_backward)
        return dq, self.rotated(stages.through_edit("key_rotated", dk), cos, sin, rotate_backward), {}

    def rotated(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, formula: Formula | None = None) -> np.ndarray:
        """Applies `formula`, by default `rotate`, to the rotated columns of x (T, D)."""
        return (formula or rotate)(x, cos, sin)

    @property
    def turned(self) -> tuple[Stage, ...]:
        formula, function = "each head rotated by its position", "mechanisms.rotary.rotate"
        return tuple(
            Stage(f"{name}_rotated", "(T, D)", f"{letter}, {formula}", function, kept=False)
            for name, letter in (("query", "Q"), ("key", "K"))
        )


def rotary_angles(
    positions: np.ndarray,
    d_head: int,
    theta: float,
    dtype: np.dtype | type = np.float32,
    scaling: Scaling | None = None,
    length: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * theta^(-2 i / K) for i = 0 ... K / 2 - 1, positions (T,) -> (T, K / 2) each.

    For every dtype, frequencies are rounded to float32, as in the training of the checkpoints. Angles are not rounded.
    `scaling` changes the frequencies and multiplies cosines and sines by its `magnitude`. length: number of positions
    in the text; by default the largest position plus 1. Su et al., 2021, RoFormer, section 3.2.2.
    """
    length = int(positions.max(initial=0)) + 1 if length is None else length
    angles = positions[:, None] * rotary_frequencies(d_head, theta, scaling, length).astype(np.float64)
    magnitude = 1.0 if scaling is None else scaling.magnitude
    return (np.cos(angles) * magnitude).astype(dtype), (np.sin(angles) * magnitude).astype(dtype)


def _lengths(batch: Batch) -> np.ndarray:
    """The number of positions in the text of each row, (T,)."""
    [whole] = all_gather(batch.positions)
    if len(whole) != len(batch.positions):  # each thread has only some rows of a single text
        return np.full(len(batch.positions), whole.max() + 1)
    text = np.searchsorted(np.cumsum(batch.lengths), np.arange(len(whole)), side="right")
    longest: np.ndarray = np.maximum.reduceat(whole, batch.first) + 1
    return longest[np.minimum(text, len(longest) - 1)]  # the last rows of a batch may belong to no text


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """y_1 = x_1 cos - x_2 sin; y_2 = x_2 cos + x_1 sin, where x_1 and x_2 are the halves of the columns of each head.

    x (T, D), cos and sin (T, K / 2) -> (T, D). The product of a rotated query and a rotated key depends only on the
    distance between their positions. The paper pairs neighbouring columns, but checkpoints pair the two halves. Su et
    al., 2021, section 3.2.2 and equation 34.
    """
    if x.shape[-1] % (2 * cos.shape[-1]):
        raise NpformerError(f"rotate: expected heads of {2 * cos.shape[-1]} columns, got rows of {x.shape[-1]}")
    halves = x.reshape(len(x), x.shape[-1] // (2 * cos.shape[-1]), 2, cos.shape[-1])  # (T, H, 2, K / 2)
    cos, sin, y = cos[:, None], sin[:, None], np.empty_like(halves)
    first, second = halves[:, :, 0], halves[:, :, 1]
    y[:, :, 0] = first * cos - second * sin
    y[:, :, 1] = second * cos + first * sin
    return y.reshape(x.shape)


def rotate_backward(grad: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Backward of `rotate`: dx is grad rotated by the opposite angles, because the matrix of `rotate` is orthogonal."""
    return rotate(grad, cos, -sin)
