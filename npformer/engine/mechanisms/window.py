"""Local attention: a token attends only to nearby tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.engine.mechanisms.distances import at_distances
from npformer.engine.mechanisms.mechanism import Mechanism


@dataclass(frozen=True)
class Window(Mechanism):
    """score_ij = -inf where query i and key j are more than `reach` places apart. Beltagy et al., 2020, section 3.1.

    Parameters
    ----------
    reach : int, the largest distance of a key before or after the query
    """

    reach: int

    cached = True

    def check(self, config: Any) -> None:
        checks.whole("window.reach", self.reach, 0)

    def farthest(self) -> int:
        return self.reach

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray | None:
        if not queries.size:
            return None
        farthest = int(max(keys.max() - queries.min(), queries.max() - keys.min()))
        if farthest <= self.reach:
            return None
        near = np.abs(np.arange(-farthest, farthest + 1)) <= self.reach
        return at_distances(near[None], queries, keys)
