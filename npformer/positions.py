"""How attention depends on how far a key is from its query: relative biases, rotary embeddings and local windows.

Shaw et al., 2018; Raffel et al., 2020, section 2.1; Su et al., 2021; Beltagy et al., 2020. `embeddings.py` has the
tables of absolute positions, and `attention.py` uses what is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from npformer.functions import SparseRows, embedding, embedding_backward

MAX_DISTANCE = 128  # all greater distances share a bucket


@dataclass(frozen=True)
class Relative:
    """What a layer's attention reads of its tokens' places. Distances of M or more count as M - 1.

    Parameters
    ----------
    places : (T,) integer array, each row's place in its text
    bias : (H, 2 M - 1) array, optional: what a key at distance d adds to the score, in column M - 1 + d
    row_indices : integer array, the rows that attend; all unless given
    """

    places: np.ndarray
    bias: np.ndarray | None = None
    row_indices: np.ndarray | None = None

    @property
    def own(self) -> np.ndarray:
        """The places of the rows that attend."""
        return self.places if self.row_indices is None else self.places[self.row_indices]

    def added(self, rows: slice, keys: np.ndarray, count: int, n_heads: int) -> dict[str, np.ndarray]:
        """What is added to the scores of `count` texts of equal lengths: {"bias": (N, H, L, S)}.

        rows: those of the texts among the rows that attend; keys: the places of the texts' keys.
        """
        if self.bias is None:
            return {}
        queries, keys = self.own[rows].reshape(count, -1), keys.reshape(count, -1)
        shape = (count, n_heads, queries.shape[1], keys.shape[1])
        return {"bias": np.broadcast_to(at_distances(self.bias, queries, keys), shape)}

    def bias_backward(self, grad: np.ndarray, rows: slice, source_rows: slice) -> np.ndarray:
        """Backward of the bias in `added`: dbias (H, 2 M - 1) from (N, H, L, S)."""
        assert self.bias is not None
        queries, keys = (each.reshape(len(grad), -1) for each in (self.own[rows], self.places[source_rows]))
        return at_distances_backward(grad, queries, keys, self.bias.shape[-1])


def at_distances(values: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """values[h, M - 1 + key - query], (H, 2 M - 1) and places (N, L), (N, S) -> (N or 1, H, L, S).

    It is a view where places follow one another, as in any text without gaps: then no number is computed or copied.
    """
    length, width = queries.shape[1], keys.shape[1]
    if queries.size == 0:
        return np.empty((1, len(values), 0, width), values.dtype)
    ahead = keys[:, 0] - queries[:, 0]
    if (np.diff(queries) == 1).all() and (np.diff(keys) == 1).all() and (ahead == ahead[0]).all():
        runs = np.lib.stride_tricks.sliding_window_view(values, width, axis=-1)  # [h, s, j] = values[h, s + j]
        first = values.shape[-1] // 2 + int(ahead[0])  # the run of query 0; each later one begins a column earlier
        return runs[None, :, first - length + 1 : first + 1][:, :, ::-1]
    return np.moveaxis(values[:, _columns(queries, keys, values.shape[-1])], 0, 1)


def at_distances_backward(grad: np.ndarray, queries: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Backward of `at_distances`: dvalues (H, count), each the sum of grad (N, H, L, S) where its value was read."""
    columns = _columns(queries, keys, count).ravel()
    heads = np.moveaxis(grad, 1, 0).reshape(grad.shape[1], -1)
    return np.stack([np.bincount(columns, head, minlength=count) for head in heads]).astype(grad.dtype)


def _columns(queries: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """M - 1 + key - query, of `count` = 2 M - 1 columns."""
    return np.clip(count // 2 + keys[:, None, :] - queries[:, :, None], 0, count - 1)


# --- relative biases -------------------------------------------------------------------------------------------------


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
    Raffel et al., 2020, section 2.1, as its code has it, for attention in both directions.

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
