"""How attention depends on how far a key is from its query: relative biases, rotary embeddings and local windows.

Shaw et al., 2018; Raffel et al., 2020, section 2.1; Su et al., 2021; Beltagy et al., 2020. `embeddings.py` has the
tables of absolute positions, and `attention.py` uses what is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from npformer.disentangled import Distances, distance_scores_backward
from npformer.errors import NpformerError
from npformer.functions import SparseRows, embedding, embedding_backward
from npformer.tape import Stages
from npformer.taps import tap

MAX_DISTANCE = 128  # all greater distances share a bucket


@dataclass(frozen=True)
class Relative:
    """What a layer's attention reads of its tokens' places. Distances of M or more count as M - 1.

    Parameters
    ----------
    places : (T,) integer array, each row's place in its text
    bias : (H, 2 M - 1) array, optional: what a key at distance d adds to the score, in column M - 1 + d
    window : int, the greatest distance to a key that a query may attend to; 0: all
    rotation : cosines and sines of `rotary_angles`, (T, K / 2) each, optional
    row_indices : integer array, the rows that attend; all unless given
    distances : `Distances`, optional: a table of distances, for disentangled attention
    is_causal : bool, a query attends to keys at its own place and before it only
    """

    places: np.ndarray
    bias: np.ndarray | None = None
    window: int = 0
    rotation: tuple[np.ndarray, np.ndarray] | None = None
    row_indices: np.ndarray | None = None
    distances: Distances | None = None
    is_causal: bool = False

    @property
    def parts(self) -> int:
        """The products that a score is the sum of: q k^T, and two with the table of distances."""
        return 1 if self.distances is None else 3

    def in_layer(self, key: Mapping[str, np.ndarray], query: Mapping[str, np.ndarray]) -> Relative:
        """The same with the layer's projections of the table of distances."""
        return self if self.distances is None else replace(self, distances=self.distances.projected(key, query))

    @property
    def own(self) -> np.ndarray:
        """The places of the rows that attend."""
        return self.places if self.row_indices is None else self.places[self.row_indices]

    def added(self, rows: slice, keys: np.ndarray, count: int, n_heads: int) -> dict[str, np.ndarray]:
        """What is added to the scores of `count` texts of equal lengths: bias and window, (N, H, L, S), where in use.

        The window is 0, or -inf where it hides the key; there is none where it hides nothing. rows: those of the texts
        among the rows that attend; keys: the places of the texts' keys.
        """
        if self.bias is not None and len(self.bias) != n_heads:
            raise NpformerError(f"relative_bias: expected a column for each of {n_heads} heads, got {len(self.bias)}")
        queries, keys = self.own[rows].reshape(count, -1), keys.reshape(count, -1)
        values = {} if self.bias is None else {"bias": self.bias}
        if self.window and queries.size:
            farthest = int(max(keys.max() - queries.min(), queries.max() - keys.min()))
            if farthest > self.window:
                distances = np.abs(np.arange(-farthest, farthest + 1))
                values["window"] = np.where(distances <= self.window, 0, -np.inf)[None].astype(np.float32)
        shape = (count, n_heads, queries.shape[1], keys.shape[1])
        added = {name: np.broadcast_to(at_distances(each, queries, keys), shape) for name, each in values.items()}
        if self.distances is not None:
            added["rows"] = np.broadcast_to(self.distances.rows(queries, keys)[:, None], shape)
            for name, table in self.distances.heads(n_heads).items():
                added[name] = np.broadcast_to(table, (count, *table.shape))
        return added

    def causal_mask(self, rows: slice, keys: np.ndarray, count: int) -> np.ndarray:
        """True where a key is not later than the query, (N, 1, L, S), or N = 1 for texts that are alike.

        rows and keys: as in `added`.
        """
        queries, keys = self.own[rows].reshape(count, -1), keys.reshape(count, -1)
        alike = count == 1 or ((queries == queries[:1]).all() and (keys == keys[:1]).all())
        queries, keys = (queries[:1], keys[:1]) if alike else (queries, keys)
        return keys[:, None, None, :] <= queries[:, None, :, None]

    def rotated(self, q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of queries and keys, rotated by their angles; themselves without a rotation."""
        if self.rotation is None:
            return q, k
        own = slice(None) if self.row_indices is None else self.row_indices
        q = tap("query_rotated", rotate(q, *(each[own] for each in self.rotation)))
        return q, tap("key_rotated", rotate(k, *self.rotation))

    def rotated_backward(self, dq: np.ndarray, dk: np.ndarray, stages: Stages) -> tuple[np.ndarray, np.ndarray]:
        """Backward of `rotated`: dq and dk turned back."""
        if self.rotation is None:
            return dq, dk
        own = slice(None) if self.row_indices is None else self.row_indices
        dq = rotate_backward(stages.through_edit("query_rotated", dq), *(each[own] for each in self.rotation))
        return dq, rotate_backward(stages.through_edit("key_rotated", dk), *self.rotation)

    def gradients(self, n_heads: int) -> dict[str, np.ndarray]:
        """Zeros for the gradients of what is added, by name; `added_backward` adds to them."""
        if self.distances is not None:
            return {name: np.zeros_like(each) for name, each in self.distances.heads(n_heads).items()}
        return {} if self.bias is None else {"bias": np.zeros_like(self.bias)}

    def added_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        rows: slice,
        source_rows: slice,
        total: dict[str, np.ndarray],
    ) -> tuple[np.ndarray | float, np.ndarray | float]:
        """Backward of `added`, from the gradient of the scores (N, H, L, S): adds to total, and returns dq and dk."""
        queries, keys = (each.reshape(len(grad), -1) for each in (self.own[rows], self.places[source_rows]))
        if self.distances is None:
            total["bias"] += at_distances_backward(grad, queries, keys, total["bias"].shape[-1])
            return 0.0, 0.0
        tables, places = self.distances.heads(q.shape[-3]), self.distances.rows(queries, keys)
        dq, dk, d_key, d_query = distance_scores_backward(grad, q, k, **tables, rows=places)
        total["distance_key"] += d_key.sum(axis=0)
        total["distance_query"] += d_query.sum(axis=0)
        return dq, dk


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


# --- rotary embeddings -----------------------------------------------------------------------------------------------


def rotary_angles(
    positions: np.ndarray, d_head: int, theta: float, dtype: np.dtype | type = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * theta^(-2 i / K), i = 0 ... K / 2 - 1, positions (T,) -> (T, K / 2) each.

    The frequencies are rounded to float32 in any dtype, as in the checkpoints' own training; the angles are not.

    References
    ----------
    Su et al., 2021, RoFormer, section 3.2.2.

    Examples
    --------
    >>> rotary_angles(np.array([0, 1]), 4, 100.0)[1].round(4)
    array([[0.    , 0.    ],
           [0.8415, 0.0998]], dtype=float32)
    """
    exponents = (np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)).astype(np.float64)
    frequencies = np.float32(1) / (theta**exponents).astype(np.float32)
    angles = positions[:, None] * frequencies.astype(np.float64)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """y_1 = x_1 cos - x_2 sin; y_2 = x_2 cos + x_1 sin, with x_1, x_2 the halves of each head's columns.

    x (T, D), cos and sin (T, K / 2) -> (T, D). The product of a rotated query with a rotated key depends on their
    positions' distance only. The paper takes neighbouring columns as pairs, checkpoints take the halves.

    References
    ----------
    Su et al., 2021, RoFormer, section 3.2.2 and equation 34.

    Examples
    --------
    >>> rotate(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
    array([[-3.,  2.,  1.,  4.]])
    """
    if x.shape[-1] % (2 * cos.shape[-1]):
        raise NpformerError(f"rotate: expected heads of {2 * cos.shape[-1]} columns, got rows of {x.shape[-1]}")
    halves = x.reshape(len(x), x.shape[-1] // (2 * cos.shape[-1]), 2, cos.shape[-1])  # (T, H, 2, K / 2)
    cos, sin, y = cos[:, None], sin[:, None], np.empty_like(halves)
    first, second = halves[:, :, 0], halves[:, :, 1]
    y[:, :, 0] = first * cos - second * sin
    y[:, :, 1] = second * cos + first * sin
    return y.reshape(x.shape)


def rotate_backward(grad: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Backward of `rotate`, whose matrix is orthogonal: dx is grad rotated by the opposite angles."""
    return rotate(grad, cos, -sin)
