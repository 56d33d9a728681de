"""Scalings of rotary embeddings: changes to the frequencies for texts longer than those in training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from npformer.common import checks


class Scaling(ABC):
    """A change of the frequencies theta^(-2 i / K). Subclasses are frozen dataclasses."""

    @property
    def magnitude(self) -> float:
        """The factor of cosines and sines."""
        return 1.0

    @abstractmethod
    def scaled(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        """The changed frequencies, (K / 2,) -> (K / 2,) in float32."""


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions divided by a factor. Chen et al., 2023, Position Interpolation, section 3.

    Parameters
    ----------
    factor : float
    """

    factor: float

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def scaled(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        return frequencies / np.float32(self.factor)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Low frequencies are divided by a factor, high ones are unchanged, and frequencies between them are interpolated.

    Grattafiori et al., 2024, The Llama 3 Herd of Models, and the code published with Llama 3.1.

    Parameters
    ----------
    factor : float
    low, high : float; a frequency is low below `low` rotations in `original` positions, and high above `high`
    original : int, number of positions in training before the scaling
    """

    factor: float
    low: float
    high: float
    original: int

    def __post_init__(self) -> None:
        for name in ("factor", "low", "high", "original"):
            checks.positive({"low": "low_freq_factor", "high": "high_freq_factor"}.get(name, name), getattr(self, name))

    def scaled(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        rotations = np.float32(self.original) / (np.float32(2 * math.pi) / frequencies)
        kept = np.clip((rotations - np.float32(self.low)) / np.float32(self.high - self.low), 0, 1)
        return ((1 - kept) * frequencies / np.float32(self.factor) + kept * frequencies).astype(np.float32)


@dataclass(frozen=True)
class Yarn(Scaling):
    """Linear scaling of low frequencies, with a ramp to unscaled high ones. Peng et al., 2023, YaRN, section 3.2.

    Parameters
    ----------
    factor : float
    original : int, number of positions in training before the scaling
    fast, slow : float, number of rotations in `original` positions at the ends of the ramp
    attention : float, factor of cosines and sines; 0: 0.1 ln(factor) + 1
    truncate : bool, the ends of the ramp are rounded to whole columns
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "original", "fast", "slow"):
            checks.positive({"fast": "beta_fast", "slow": "beta_slow"}.get(name, name), getattr(self, name))

    @property
    def magnitude(self) -> float:
        return self.attention or (1.0 if self.factor <= 1 else 0.1 * math.log(self.factor) + 1.0)

    def scaled(self, frequencies: np.ndarray, theta: float) -> np.ndarray:
        d_head = 2 * len(frequencies)

        def column(rotations: float) -> float:
            return d_head * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = column(self.fast), column(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d_head - 1)
        high += 0.001 if low == high else 0.0
        ramp = np.clip((np.arange(d_head // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
        return (frequencies / np.float32(self.factor) * ramp + frequencies * (1 - ramp)).astype(np.float32)
