"""Relative biases: each head adds a learned number to a score, selected by the bucket of the distance.

Raffel et al., 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.engine.descriptions.weight_group import Group, table
from npformer.engine.functions import SparseRows, embedding, embedding_backward
from npformer.engine.mechanisms.distances import at_distances, at_distances_backward
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.runtime.packing import Batch
from npformer.engine.tape import Stages

MAX_DISTANCE = 128  # this distance and all larger distances share a bucket


@dataclass(frozen=True)
class RelativeBias(Mechanism):
    """score_ij = q_i . k_j * scale + b_h[bucket(j - i)], with one table b for all layers. Raffel et al., 2020, 2.1.

    Parameters
    ----------
    n_buckets, n_heads : int, rows and columns of the table
    max_distance : int, this distance and all larger distances share a bucket
    bidirectional : bool, keys after the query have separate buckets; if False (T5's decoder), these keys share bucket 0
    bias : (H, 2 M - 1) array, the bias for distance d in column M - 1 + d
    """

    n_buckets: int
    n_heads: int = 0
    max_distance: int = MAX_DISTANCE
    bidirectional: bool = True
    bias: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)), compare=False, repr=False)

    cached = True

    def check(self, config: Any) -> None:
        checks.whole("relative_bias.n_buckets", self.n_buckets, 4 if self.bidirectional else 2)
        exact = self.n_buckets // (4 if self.bidirectional else 2)
        checks.whole("relative_bias.max_distance", self.max_distance, exact + 1)

    def for_model(self, config: Any) -> RelativeBias:
        return replace(self, n_heads=config.n_heads)

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"relative_bias": table(self.n_buckets, self.n_heads)}

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> RelativeBias:
        return replace(self, bias=relative_bias(**weights["relative_bias"], farthest=batch.farthest, **self._buckets))

    def end_backward(self, sums: Sums, weights: Mapping[str, Any]) -> dict[str, Any]:
        return {"relative_bias": relative_bias_backward(sums["bias"], **weights["relative_bias"], **self._buckets)}

    @property
    def _buckets(self) -> dict[str, Any]:
        return {"max_distance": self.max_distance, "bidirectional": self.bidirectional}

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray]:
        if len(self.bias) != n_heads:
            raise NpformerError(f"relative_bias: expected {n_heads} columns, one per head, got {len(self.bias)}")
        return {"bias": at_distances(self.bias, queries, keys)}

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        scores += terms["bias"]
        return scores

    def add_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        scale: float,
        queries: np.ndarray,
        keys: np.ndarray,
        stages: Stages,
    ) -> tuple[np.ndarray, float, float, Sums]:
        return grad, 0.0, 0.0, {"bias": at_distances_backward(grad, queries, keys, self.bias.shape[-1])}

    def formula(self, scores: str) -> str:
        return f"{scores} + b_h[bucket(j - i)]"


def relative_buckets(
    distances: np.ndarray, n_buckets: int, max_distance: int = MAX_DISTANCE, bidirectional: bool = True
) -> np.ndarray:
    """The bucket of each distance d = key - query. Raffel et al., 2020, section 2.1, and the published code.

    Each direction has B = n_buckets / 2 buckets. A distance |d| < E = B / 2 has the bucket |d|. A larger distance has
    the bucket E + (B - E) log(|d| / E) / log(max_distance / E), rounded down, but at most B - 1. If the key is after
    the query, B is added. If not bidirectional, B = n_buckets, and keys after the query have bucket 0.
    """
    if not bidirectional:
        return _away(np.maximum(-distances, 0), n_buckets, max_distance)
    half = n_buckets // 2
    return _away(np.abs(distances), half, max_distance) + half * (distances > 0)


def _away(away: np.ndarray, count: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance in one direction with `count` buckets."""
    exact = count // 2
    steps = np.log(np.maximum(away, 1) / exact) / math.log(max_distance / exact) * (count - exact)
    # Without 1e-6, distances at the boundary of a bucket, such as 16 = 8 * 2, could be rounded into the bucket below.
    far = np.minimum(exact + np.floor(steps + 1e-6).astype(np.int64), count - 1)
    return np.where(away < exact, away, far)


def relative_bias(
    weight: np.ndarray, farthest: int, max_distance: int = MAX_DISTANCE, bidirectional: bool = True
) -> np.ndarray:
    """b[h, M - 1 + d] = weight[bucket(d), h] for each distance d, from a table (B, H) -> (H, 2 M - 1).

    M - 1 is max_distance, or the largest distance in the batch if that is larger. Raffel et al., 2020, section 2.1;
    Song et al., 2020, for MPNet.
    """
    last = max(farthest, max_distance)
    buckets = relative_buckets(np.arange(-last, last + 1), len(weight), max_distance, bidirectional)
    return embedding(buckets, weight).T.copy()


def relative_bias_backward(
    grad: np.ndarray, weight: np.ndarray, max_distance: int = MAX_DISTANCE, bidirectional: bool = True
) -> dict[str, SparseRows]:
    """Backward of `relative_bias`: dweight from db (H, 2 M - 1), as `SparseRows`."""
    last = grad.shape[-1] // 2
    buckets = relative_buckets(np.arange(-last, last + 1), len(weight), max_distance, bidirectional)
    return {"weight": embedding_backward(grad.T, buckets)}
