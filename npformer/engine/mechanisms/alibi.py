"""ALiBi: scores decrease with the distance to the key, at a different rate in each head.

Press et al., 2022, Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

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
    """The slopes of ALiBi, (H,): m_h = 2^(-8 h / H) for h = 1 ... H, if H is a power of two.

    Otherwise, these are the slopes for the next lower power of two, then every second slope for the next higher power,
    as in the published code.
    """
    below = 2 ** math.floor(math.log2(n_heads))
    rest = geometric(2 * below)[::2][: n_heads - below]
    return np.concatenate([geometric(below), rest])


def geometric(count: int) -> np.ndarray:
    """2^(-8 h / count) for h = 1 ... count, as powers of a float32 ratio, as in the training of the checkpoints."""
    return np.power(np.float32(2.0 ** (-8 / count)), np.arange(1, count + 1), dtype=np.float32)
