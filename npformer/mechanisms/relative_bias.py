"""Relative biases: each head adds a learned number to a score, by the bucket of the distance.

Raffel et al., 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.common.mistake import Mistake, Rules
from npformer.functions import SparseRows, embedding, embedding_backward
from npformer.group import Group, table
from npformer.mechanisms.distances import at_distances, at_distances_backward
from npformer.mechanisms.mechanism import Mechanism, Sums
from npformer.runtime.packing import Batch
from npformer.tape import Stages

MAX_DISTANCE = 128  # all greater distances share a bucket


@dataclass(frozen=True)
class RelativeBias(Mechanism):
    """score_ij = q_i . k_j * scale + b_h[bucket(j - i)], one table for all layers. Raffel et al., 2020, section 2.1.

    Parameters
    ----------
    n_buckets, n_heads : int, rows and columns of the table
    max_length : int, tokens of the longest text
    bias : (H, 2 M - 1) array, in column M - 1 + d the term of a score with a key at distance d
    """

    n_buckets: int
    n_heads: int = 0
    max_length: int = 0
    bias: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)), compare=False, repr=False)

    def check(self, config: Any) -> None:
        checks.whole("relative_bias.n_buckets", self.n_buckets, 4)

    def for_model(self, config: Any) -> RelativeBias:
        return replace(self, n_heads=config.n_heads, max_length=config.max_length)

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"relative_bias": table(self.n_buckets, self.n_heads)}

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> RelativeBias:
        return replace(self, bias=relative_bias(**weights["relative_bias"], max_length=self.max_length))

    def end_backward(self, sums: Sums, weights: Mapping[str, Any]) -> dict[str, Any]:
        return {"relative_bias": relative_bias_backward(sums["bias"], **weights["relative_bias"])}

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray]:
        if len(self.bias) != n_heads:
            raise NpformerError(f"relative_bias: expected a column for each of {n_heads} heads, got {len(self.bias)}")
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
    ) -> tuple[float, float, Sums]:
        return 0.0, 0.0, {"bias": at_distances_backward(grad, queries, keys, self.bias.shape[-1])}


def relative_buckets(distances: np.ndarray, n_buckets: int, max_distance: int = MAX_DISTANCE) -> np.ndarray:
    """The bucket of each distance from a query to a key, key - query, any shape -> integers of the same shape.

    Of B = n_buckets / 2 buckets for each direction, E = B / 2 hold one distance |d| < E each; the others take greater
    ones at equal steps of the logarithm: E + (B - E) log(|d| / E) / log(max_distance / E), rounded down, at most B - 1.
    Keys after the query have the upper half of the buckets.

    Parameters
    ----------
    distances : integer array
    n_buckets : int
    max_distance : int, all distances of at least this share a bucket

    Returns
    -------
    integer array

    References
    ----------
    Raffel et al., 2020, section 2.1, as in its code, for attention in both directions.

    Examples
    --------
    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9, 200]), 32)
    array([15,  8,  1,  0, 17, 24, 31])
    """
    half = n_buckets // 2
    exact, away = half // 2, np.abs(distances)
    steps = np.log(np.maximum(away, 1) / exact) / math.log(max_distance / exact) * (half - exact)
    # 16 = 8 * 2 and the like lie on a border, where the logarithms' rounding must not decide
    far = np.minimum(exact + np.floor(steps + 1e-6).astype(np.int64), half - 1)
    return np.where(away < exact, away, far) + half * (distances > 0)


def relative_bias(weight: np.ndarray, max_length: int) -> np.ndarray:
    """b[h, M - 1 + d] = weight[bucket(d), h] for each distance d, a table (B, H) -> (H, 2 M - 1).

    M is max_length, or MAX_DISTANCE + 1 if that is more: in a text with gaps a key may be farther away than the text is
    long. All layers add it to their scores. Raffel et al., 2020, section 2.1; Song et al., 2020, for MPNet.
    """
    farthest = max(max_length - 1, MAX_DISTANCE)
    distances = np.arange(-farthest, farthest + 1)
    return np.ascontiguousarray(embedding(relative_buckets(distances, len(weight)), weight).T)


def relative_bias_backward(grad: np.ndarray, weight: np.ndarray) -> dict[str, SparseRows]:
    """Backward of `relative_bias`: dweight from db (H, 2 M - 1), as `SparseRows`."""
    farthest = grad.shape[-1] // 2
    distances = np.arange(-farthest, farthest + 1)
    return {"weight": embedding_backward(grad.T, relative_buckets(distances, len(weight)))}


# --- mistakes --------------------------------------------------------------------------------------------------------


def _changed(change: Callable[[np.ndarray, Any], np.ndarray]) -> dict[str, Rules]:
    """Adds another array to the scores than the bias (H, T, T)."""

    def rule(scores: np.ndarray, at: Any) -> np.ndarray:
        length, places = scores.shape[-1], np.arange(scores.shape[-1])[None]
        bias = at_distances(relative_bias(at.weight("relative_bias"), length), places, places)[0]
        return scores - bias + change(bias, at)

    return {"": {"*.attention.scores": rule}}


RelativeBias.mistakes = (
    Mistake(
        "relative bias with the wrong sign",
        "the bucket is that of key position minus query position; keys after the query have the upper half",
        _changed(lambda bias, at: bias.swapaxes(-1, -2)),
    ),
    Mistake("relative bias left out", "every layer adds the bias to its scores", _changed(lambda bias, at: 0 * bias)),
    Mistake(
        "relative bias scaled",
        "scores are divided by sqrt(d_head) before the bias is added",
        _changed(lambda bias, at: bias * at.d_head**-0.5),
    ),
)
