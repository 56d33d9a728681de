"""Mistakes that ports make in ALiBi."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npformer.engine.mechanisms.alibi import alibi_slopes, geometric
from npformer.golden.mistake import Mistake, Rules, Ways
from npformer.golden.mistakes.parts.relative_bias import biased


def _sloped(slopes: np.ndarray) -> Rules:
    """Rules that add biases with these slopes."""
    own = alibi_slopes(len(slopes))
    return biased(lambda bias, at: bias * (slopes / own)[:, None, None])


def _other_slopes(port: Any) -> Ways:
    count = port.config.n_heads
    above = 2 ** math.ceil(math.log2(count))
    others = {
        "2^(-8 h / H), even if H is not a power of two": 2.0 ** (-8 * np.arange(1, count + 1) / count),
        "the first slopes of the next higher power of two": geometric(above)[:count],
        "in ascending order": np.sort(alibi_slopes(count)),
        "in descending order": np.sort(alibi_slopes(count))[::-1],
        "from h = 0": 2.0 ** (-8 * np.arange(count) / count),
        "the same in all heads": np.full(count, alibi_slopes(count)[0]),
    }
    for way, slopes in others.items():
        if not np.allclose(slopes, alibi_slopes(count)):
            yield way, _sloped(slopes)


MISTAKES = (
    Mistake(
        "ALiBi left out",
        "each head adds slope * (key position - query position) to its scores",
        {"": biased(lambda bias, at: 0 * bias)},
    ),
    Mistake(
        "ALiBi with the wrong sign",
        "the bias of an earlier key is negative: slope * (key position - query position), not slope * distance",
        {"": biased(lambda bias, at: -bias), "the absolute distance": biased(lambda bias, at: np.abs(bias))},
    ),
    Mistake(
        "ALiBi scaled",
        "scores are divided by sqrt(d_head) before the bias is added",
        {
            "divided by sqrt(d_head) too": biased(lambda bias, at: bias * at.d_head**-0.5),
            "multiplied by sqrt(d_head)": biased(lambda bias, at: bias * at.d_head**0.5),
        },
    ),
    Mistake(
        "ALiBi with wrong slopes",
        "slopes are 2^(-8 h / H) if H is a power of two; else they combine the slopes for the two nearest powers",
        _other_slopes,
    ),
)
