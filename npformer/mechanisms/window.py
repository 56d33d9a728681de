"""Local attention: a token attends to the tokens near it only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npformer.mechanisms.distances import at_distances
from npformer.mechanisms.mechanism import Mechanism


@dataclass(frozen=True)
class Window(Mechanism):
    """score_ij = -inf where query i and key j stand more than `reach` places apart. Beltagy et al., 2020, section 3.1.

    Parameters
    ----------
    reach : int, the greatest distance to a key on either side
    """

    reach: int

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray | None:
        if not queries.size:
            return None
        farthest = int(max(keys.max() - queries.min(), queries.max() - keys.min()))
        if farthest <= self.reach:
            return None
        near = np.abs(np.arange(-farthest, farthest + 1)) <= self.reach
        return at_distances(near[None], queries, keys)
