"""Scalings of rotary embeddings: changes to the frequencies for texts that are longer than in training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError


def powers(theta: float, d_head: int) -> np.ndarray:
    """theta^(2 i / K) for i = 0 ... K / 2 - 1, rounded to float32, as in the training of the checkpoints."""
    exponents = (np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)).astype(np.float64)
    powers: np.ndarray = (theta**exponents).astype(np.float32)
    return powers


class Scaling(ABC):
    """A change to the frequencies theta^(-2 i / K). Subclasses are frozen dataclasses."""

    @property
    def magnitude(self) -> float:
        """The factor by which cosines and sines are multiplied."""
        return 1.0

    def check(self, config: Any, d_head: int) -> None:  # noqa: B027, most scalings fit every model
        """Raises NpformerError if the `Config` contradicts the scaling. d_head: number of rotated columns in a head."""

    def same_until(self, length: int) -> int | None:
        """The length of the longest text with the frequencies of a text of this length; None if there is no limit."""
        return None

    @abstractmethod
    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        """The changed frequencies for a text of this length, (K / 2,) -> (K / 2,) in float32."""


@dataclass(frozen=True)
class Linear(Scaling):
    """Positions divided by a factor. Chen et al., 2023, Position Interpolation, section 2.3.

    Parameters
    ----------
    factor : float
    """

    factor: float

    def __post_init__(self) -> None:
        checks.positive("factor", self.factor)

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        return frequencies / np.float32(self.factor)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Low frequencies are divided by a factor, high frequencies are unchanged, and the rest are interpolated.

    Grattafiori et al., 2024, The Llama 3 Herd of Models, and the code published with Llama 3.1.

    Parameters
    ----------
    factor : float
    low, high : float; a low frequency makes fewer than `low` rotations in `original` positions, and a high frequency
        more than `high`
    original : int, number of positions in training before the scaling
    """

    factor: float
    low: float
    high: float
    original: int

    def __post_init__(self) -> None:
        for name in ("factor", "low", "high", "original"):
            checks.positive({"low": "low_freq_factor", "high": "high_freq_factor"}.get(name, name), getattr(self, name))

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        rotations = np.float32(self.original) / (np.float32(2 * math.pi) / frequencies)
        kept = np.clip((rotations - np.float32(self.low)) / np.float32(self.high - self.low), 0, 1)
        return ((1 - kept) * frequencies / np.float32(self.factor) + kept * frequencies).astype(np.float32)


@dataclass(frozen=True)
class Yarn(Scaling):
    """Low frequencies are divided by a factor, high frequencies are unchanged, and a ramp blends the rest.

    Peng et al., 2023, YaRN, section 3.2.

    Parameters
    ----------
    factor : float
    original : int, number of positions in training before the scaling
    fast, slow : float, number of rotations in `original` positions at the ends of the ramp
    attention : float, factor of cosines and sines; 0 means 0.1 ln(factor) + 1
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

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
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


@dataclass(frozen=True)
class Dynamic(Scaling):
    """The base grows with the length n of a text: theta (factor n / original - factor + 1)^(K / (K - 2)).

    For texts of at most `original` tokens, the base is theta. The longest text has factor * original tokens. Peng et
    al., 2023, YaRN, section 3.3.

    Parameters
    ----------
    factor : float, at least 1
    original : int, number of positions in training, `max_position_embeddings` in config.json
    """

    factor: float
    original: int

    def __post_init__(self) -> None:
        checks.number("factor", self.factor, 1, 1e6)
        checks.positive("original", self.original)

    @property
    def longest(self) -> int:
        return int(self.factor * self.original)

    def check(self, config: Any, d_head: int) -> None:
        if config.max_length != self.longest:
            raise NpformerError(
                f"max_length: expected {self.longest}, because dynamic scaling by {self.factor:g} extends "
                f"{self.original} positions to this number, got {config.max_length}"
            )
        if d_head < 4:
            raise NpformerError(f"rotary.scaling: dynamic scaling needs at least 4 rotated columns, got {d_head}")

    def same_until(self, length: int) -> int:
        return max(length, self.original)

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        d_head, one = 2 * len(frequencies), np.float32
        grown = one(self.factor) * one(max(length, self.original)) / one(self.original) - one(self.factor - 1)
        base = one(theta) * one(float(grown) ** (d_head / (d_head - 2)))
        return one(1) / powers(float(base), d_head)


@dataclass(frozen=True)
class LongRope(Scaling):
    """A divisor for each frequency: `short` in texts of at most `original` tokens, `long` in longer texts.

    Ding et al., 2024, LongRoPE, section 3, and the code published with Phi-3.

    Parameters
    ----------
    short, long : tuples of K / 2 floats
    original : int, number of positions in training before the scaling
    factor : float, length of the longest text / original
    attention : float, factor of cosines and sines; 0 means sqrt(1 + ln(factor) / ln(original))
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    factor: float
    attention: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("original_max_position_embeddings", self.original, 2)
        checks.positive("factor", self.factor)
        for name in ("short", "long"):
            for each in getattr(self, name):
                checks.positive(f"{name}_factor", each)

    @property
    def magnitude(self) -> float:
        unscaled = self.factor <= 1
        return self.attention or (1.0 if unscaled else math.sqrt(1 + math.log(self.factor) / math.log(self.original)))

    def check(self, config: Any, d_head: int) -> None:
        for name in ("short", "long"):
            if (count := len(getattr(self, name))) != d_head // 2:
                raise NpformerError(
                    f"{name}_factor: expected {d_head // 2} numbers, one for each pair of rotated columns, got {count}"
                )

    def same_until(self, length: int) -> int | None:
        return self.original if length <= self.original else None

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        divisors = np.array(self.short if length <= self.original else self.long, np.float32)
        return np.float32(1) / (divisors * powers(theta, 2 * len(frequencies)))


def rotary_frequencies(d_head: int, theta: float, scaling: Scaling | None, length: int) -> np.ndarray:
    """theta^(-2 i / K) in float32, scaled for a text of this length, (K / 2,)."""
    frequencies = np.float32(1) / powers(theta, d_head)
    return frequencies if scaling is None else scaling.scaled(frequencies, theta, length)
