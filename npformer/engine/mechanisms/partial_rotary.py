"""Rotary embeddings of part of each head: only its first columns are rotated.

Black et al., 2022, GPT-NeoX-20B: An Open-Source Autoregressive Language Model, section 2.1, "Rotary
Positional Embeddings".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.engine.descriptions.mistake import Mistake, Rules, Ways
from npformer.engine.descriptions.stage import Stage
from npformer.engine.mechanisms.rotary import ROTATED, Formula, Rotary, rotary_in, rotate
from npformer.engine.mechanisms.rotary_scaling import LongRope


@dataclass(frozen=True)
class PartialRotary(Rotary):
    """`Rotary` of the first columns of each head, with frequencies theta^(-2 i / columns). Black et al., 2022, 2.1.

    Parameters
    ----------
    theta, d_head, scaling, angles : as in `Rotary`
    columns : int, even, number of rotated columns in each head
    """

    columns: int = 0

    def check(self, config: Any) -> None:
        checks.positive("rotary.theta", self.theta)
        if checks.whole("rotary.columns", self.columns, 2, config.d_head) % 2:
            raise NpformerError(f"rotary.columns: expected an even number, got {self.columns}")
        if self.scaling is not None:
            self.scaling.check(config, self.columns)

    @property
    def rotated_columns(self) -> int:
        return self.columns

    def rotated(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, formula: Formula | None = None) -> np.ndarray:
        n_heads = x.shape[-1] // self.d_head
        y = x.reshape(len(x), n_heads, self.d_head).copy()
        first = y[..., : self.columns]
        first[...] = (formula or rotate)(first.reshape(len(x), n_heads * self.columns), cos, sin).reshape(first.shape)
        return y.reshape(x.shape)

    @property
    def turned(self) -> tuple[Stage, ...]:
        return tuple(
            each._replace(formula=each.formula.replace("each head", f"the first {self.columns} columns of each head"))
            for each in super().turned
        )


# --- mistakes --------------------------------------------------------------------------------------------------------


def _whole_heads(y: np.ndarray, at: Any) -> np.ndarray:
    rotary = rotary_in(at)
    if isinstance(rotary.scaling, LongRope):  # the scaling has divisors for the rotated columns only
        return y
    whole = Rotary(rotary.theta, rotary.d_head, rotary.scaling)
    return whole.rotated(at.source, *whole.angles_at(np.arange(len(y)), y.dtype))


def _last_columns(y: np.ndarray, at: Any) -> np.ndarray:
    """Rotates the last columns of each head, not the first."""
    rotary, heads = rotary_in(at), at.source.reshape(len(y), -1, at.d_head)
    count = rotary.columns  # type: ignore[attr-defined]
    last_first = np.roll(heads, count, axis=-1).reshape(y.shape)
    made = rotary.rotated(last_first, *rotary.angles_at(np.arange(len(y)), y.dtype))
    return np.roll(made.reshape(heads.shape), -count, axis=-1).reshape(y.shape)


def _other_frequencies(y: np.ndarray, at: Any) -> np.ndarray:
    rotary = rotary_in(at)
    slower = replace(rotary, theta=rotary.theta ** (rotary.columns / rotary.d_head))  # type: ignore[attr-defined]
    return rotary.rotated(at.source, *slower.angles_at(np.arange(len(y)), y.dtype))


def _other_columns(port: Any) -> Ways:
    rules: dict[str, Rules] = {
        "whole heads": dict.fromkeys(ROTATED, _whole_heads),
        "the last columns instead of the first": dict.fromkeys(ROTATED, _last_columns),
        "with d_head in the frequencies": dict.fromkeys(ROTATED, _other_frequencies),
    }
    yield from rules.items()


PartialRotary.mistakes = (
    Mistake(
        "rotation of the wrong columns",
        "the first columns of each head are rotated, and the frequencies depend on the number of rotated columns",
        _other_columns,
    ),
    *Rotary.mistakes,
)
