"""Causal attention: a token attends only to itself and to earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npformer.engine.mechanisms.distances import of_all
from npformer.engine.mechanisms.mechanism import Mechanism


@dataclass(frozen=True)
class Causal(Mechanism):
    """score_ij = -inf where key j is after query i. Vaswani et al., 2017, section 3.2.3."""

    cached = in_order = True

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        queries, keys = of_all(queries, keys)
        return keys[:, None, None, :] <= queries[:, None, :, None]
