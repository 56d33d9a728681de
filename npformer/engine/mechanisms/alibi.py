"""ALiBi: scores decrease with the distance to the key, at a different rate in each head.

Press et al., 2022, Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.engine.descriptions.mistake import Mistake, Rules, Ways
from npformer.engine.mechanisms.distances import of_all
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.runtime.packing import Batch


@dataclass(frozen=True)
class Alibi(Mechanism):
    """score_ij = q_i . k_j / sqrt(K) + m_h (j - i), where m_h is the slope of head h. Press et al., 2022, section 3.

    Parameters
    ----------
    n_heads : int
    slopes : (H,) array, `alibi_slopes` in the dtype of the model
    """

    n_heads: int = 0
    slopes: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False, repr=False)

    cached = True

    def for_model(self, config: Any) -> Alibi:
        return replace(self, n_heads=config.n_heads)

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> Alibi:
        return replace(self, slopes=alibi_slopes(self.n_heads).astype(weights["embeddings"]["token"]["weight"].dtype))

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray]:
        queries, keys = of_all(queries, keys)
        distances = (keys[:, None, None, :] - queries[:, None, :, None]).astype(self.slopes.dtype)
        return {"bias": self.slopes[:, None, None] * distances}

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        scores += terms["bias"]
        return scores

    def formula(self, scores: str) -> str:
        return f"{scores} + m_h (j - i)"


def alibi_slopes(n_heads: int) -> np.ndarray:
    """The slopes of ALiBi: m_h = 2^(-8 h / H) for h = 1 ... H, if H is a power of two.

    If H is not a power of two, the slopes for the next lower power come first, then every second slope for the next
    higher power.

    Parameters
    ----------
    n_heads : int

    Returns
    -------
    (H,) float32 array

    References
    ----------
    Press et al., 2022, section 3, and the published code for numbers of heads that are not powers of two.

    Examples
    --------
    >>> 1 / alibi_slopes(6)
    array([  4.,  16.,  64., 256.,   2.,   8.], dtype=float32)
    """
    below = 2 ** math.floor(math.log2(n_heads))
    rest = _geometric(2 * below)[::2][: n_heads - below]
    return np.concatenate([_geometric(below), rest])


def _geometric(count: int) -> np.ndarray:
    """2^(-8 h / count) for h = 1 ... count: powers of a float32 ratio, as in the training of the checkpoints."""
    return np.power(np.float32(2.0 ** (-8 / count)), np.arange(1, count + 1), dtype=np.float32)


# --- mistakes --------------------------------------------------------------------------------------------------------

SCORES = "*.attention.scores"


def alibi_of(at: Any, scores: np.ndarray) -> np.ndarray | float:
    """The biases of scores (H, L, S), or 0 in a model without ALiBi."""
    if not any(isinstance(each, Alibi) for each in at.mechanisms):
        return 0.0
    distances = np.arange(scores.shape[-1]) - np.arange(scores.shape[-2])[:, None]
    found: np.ndarray = alibi_slopes(len(scores)).astype(scores.dtype)[:, None, None] * distances
    return found


def _changed(change: Callable[[np.ndarray, Any], Any]) -> Rules:
    """Rules that add change(bias, at) to the scores instead of the model's biases."""

    def rule(scores: np.ndarray, at: Any) -> np.ndarray:
        bias = np.asarray(alibi_of(at, scores))
        made: np.ndarray = scores + (change(bias, at) - bias)
        return made

    return {SCORES: rule}


def _sloped(slopes: np.ndarray) -> Rules:
    """Rules that add biases with these slopes."""
    own = alibi_slopes(len(slopes))
    return _changed(lambda bias, at: bias * (slopes / own)[:, None, None])


def _other_slopes(port: Any) -> Ways:
    count = port.config.n_heads
    above = 2 ** math.ceil(math.log2(count))
    others = {
        "2^(-8 h / H), even if H is not a power of two": 2.0 ** (-8 * np.arange(1, count + 1) / count),
        "the first slopes of the next higher power of two": _geometric(above)[:count],
        "in ascending order": np.sort(alibi_slopes(count)),
        "in descending order": np.sort(alibi_slopes(count))[::-1],
        "from h = 0": 2.0 ** (-8 * np.arange(count) / count),
        "the same in all heads": np.full(count, alibi_slopes(count)[0]),
    }
    for way, slopes in others.items():
        if not np.allclose(slopes, alibi_slopes(count)):
            yield way, _sloped(slopes)


Alibi.mistakes = (
    Mistake(
        "ALiBi left out",
        "each head adds slope * (key position - query position) to its scores",
        {"": _changed(lambda bias, at: 0 * bias)},
    ),
    Mistake(
        "ALiBi with the wrong sign",
        "the bias of an earlier key is negative: slope * (key position - query position), not slope * distance",
        {
            "": _changed(lambda bias, at: -bias),
            "the absolute distance": _changed(lambda bias, at: np.abs(bias)),
        },
    ),
    Mistake(
        "ALiBi scaled",
        "scores are divided by sqrt(d_head) before the bias is added",
        {
            "divided by sqrt(d_head) too": _changed(lambda bias, at: bias * at.d_head**-0.5),
            "multiplied by sqrt(d_head)": _changed(lambda bias, at: bias * at.d_head**0.5),
        },
    ),
    Mistake(
        "ALiBi with wrong slopes",
        "slopes are 2^(-8 h / H) if H is a power of two; else they combine the slopes for the two nearest powers",
        _other_slopes,
    ),
)
