"""Disentangled attention: scores of content and of distance are added up. DeBERTa (He et al., 2021), section 3.1.

A word has one vector for what it is and one for how far it stands from another; `attention.py` has the first part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from npformer.functions import linear, linear_backward
from npformer.runtime.products import inner_products_in_room


@dataclass(frozen=True)
class Distances:
    """The table of distances as far as the texts need it, and its projections in one layer.

    Parameters
    ----------
    table : (R, D) array
    zero : int, the row of distance 0
    max_distance, n_buckets : int, as in `log_buckets`; max_distance is 0 where each distance has a row of its own
    key, query : (R, D) arrays, the table as keys and as queries, in one layer
    """

    table: np.ndarray
    zero: int
    max_distance: int
    n_buckets: int
    key: np.ndarray | None = None
    query: np.ndarray | None = None

    @classmethod
    def within(cls, farthest: int, table: np.ndarray, max_distance: int) -> Distances:
        """The rows for distances of at most `farthest`, of a whole table, whose middle row is distance 0."""
        n_buckets = len(table) // 2
        reach = int(log_buckets(np.array(farthest), n_buckets, max_distance)) if max_distance else farthest
        first = max(n_buckets - reach, 0)
        return cls(table[first : n_buckets + reach + 1], n_buckets - first, max_distance, n_buckets)

    def projected(self, key: Mapping[str, np.ndarray], query: Mapping[str, np.ndarray]) -> Distances:
        """The same with the projections of one layer, x W_k + b_k and x W_q + b_q."""
        return replace(self, key=linear(self.table, **key), query=linear(self.table, **query))

    def heads(self, n_heads: int) -> dict[str, np.ndarray]:
        """The projections as `distance_scores` takes them, (H, R, K) each."""
        assert self.key is not None
        assert self.query is not None
        named = {"distance_key": self.key, "distance_query": self.query}
        return {name: each.reshape(len(each), n_heads, -1).swapaxes(0, 1) for name, each in named.items()}

    def projected_backward(
        self, grads: Mapping[str, np.ndarray], **layers: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
        """Backward of `projected`: dtable (R, D) and the gradients of the two layers, which are given as key and query.

        grads: those of the projections, (H, R, K) each, under "distance_key" and "distance_query".
        """
        total, of_layers = np.zeros_like(self.table), {}
        for name, layer in layers.items():
            grad = grads[f"distance_{name.removeprefix('distance_')}"].swapaxes(0, 1).reshape(self.table.shape)
            d_table, of_layers[name] = linear_backward(grad, self.table, **layer)
            total += d_table
        return total, of_layers

    def rows(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The table's row for each query and key, (N, L), (N, S) -> (N or 1, L, S): `distance_rows`."""
        return distance_rows(queries, keys, self.zero, len(self.table), self.max_distance, self.n_buckets)


def log_buckets(distance: np.ndarray, n_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance i - j, from -n_buckets + 1 to n_buckets - 1: itself, or far away by its logarithm.

    With m = n_buckets / 2, distances of at most m are their own buckets. Beyond,
    bucket(d) = sign(d) (m + ceil(log(|d| / m) / log((max_distance - 1) / m) (m - 1))).

    Parameters
    ----------
    distance : integer array
    n_buckets : int, buckets of each sign
    max_distance : int, the least distance without a bucket

    References
    ----------
    He et al., 2021, in the code of its second version; Raffel et al., 2020, section 2.1, for the idea.

    Examples
    --------
    >>> log_buckets(np.array([-3, 0, 4, 5, 100, 511]), n_buckets=8, max_distance=512)
    array([-3,  0,  4,  5,  6,  7])
    """
    middle = n_buckets // 2
    far = np.maximum(np.abs(distance), middle).astype(np.float32) / np.float32(middle)
    # In float32, as torch computes it: the logarithm of a bucket's last distance is a whole number, or just above it.
    step = np.log(far) / np.log(np.float32((max_distance - 1) / middle)) * np.float32(middle - 1)
    return np.where(np.abs(distance) <= middle, distance, np.sign(distance) * (np.ceil(step).astype(int) + middle))


def distance_rows(
    queries: np.ndarray, keys: np.ndarray, zero: int, n_rows: int, max_distance: int, n_buckets: int
) -> np.ndarray:
    """The row of each distance query - key in the table of distances, (N, L), (N, S) -> (N or 1, L, S).

    Distance 0 has row `zero`, and those beyond the table have its first or last row. N is 1 where all texts agree.

    Parameters
    ----------
    queries, keys : (N, L) and (N, S) integer arrays, places in their texts
    zero, n_rows : int, the row of distance 0, and the table's rows
    max_distance, n_buckets : int, as in `log_buckets`; max_distance is 0 where each distance has a row of its own
    """
    if (queries - keys[:, :1] == queries[:1] - keys[:1, :1]).all() and (np.diff(keys) == np.diff(keys[:1])).all():
        queries, keys = queries[:1], keys[:1]
    distance = queries[:, :, None] - keys[:, None, :]
    bucket = log_buckets(distance, n_buckets, max_distance) if max_distance else distance
    return np.clip(bucket + zero, 0, n_rows - 1)


def distance_scores(
    q: np.ndarray, k: np.ndarray, distance_key: np.ndarray, distance_query: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """q_i . K_r(i, j) + k_j . Q_r(i, j): content to distance, and distance to content. Equation 4 of the paper.

    Parameters
    ----------
    q, k : (..., H, L, K), (..., H, S, K) arrays
    distance_key, distance_query : (..., H, R, K) arrays, the table of distances as keys and as queries
    rows : (N or 1, L, S) integer array, r, from `distance_rows`

    Returns
    -------
    (..., H, L, S) array, to be added to q k^T
    """
    to_distance = inner_products_in_room(q, distance_key)  # q @ K.mT: the same bits for any number of rows of the table
    to_content = inner_products_in_room(k, distance_query)
    return _gathered(to_distance, rows) + _gathered(to_content, rows.mT).mT


def distance_scores_backward(
    grad: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    distance_key: np.ndarray,
    distance_query: np.ndarray,
    rows: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Backward of `distance_scores`: dq (..., H, L, K), dk (..., H, S, K), and dK, dQ (..., H, R, K) of the tables.

    Row i of C has in column r the sum of grad[i, j] over all j with r(i, j) = r: dq = C K, dK = C^T q. In the same way
    dk and dQ come from the columns of grad.
    """
    n_rows = distance_key.shape[-2]
    to_distance, to_content = _scattered(grad, rows, n_rows), _scattered(grad.mT, rows.mT, n_rows)
    dq, dk = to_distance @ distance_key, to_content @ distance_query
    return dq, dk, to_distance.mT @ q, to_content.mT @ k


def _gathered(products: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """products[..., i, rows[n, i, j]], (N, H, L, R) -> (N, H, L, S); rows are each text's own, or one for all."""
    if len(rows) > 1:
        return np.take_along_axis(products, rows[:, None], axis=-1)
    length, n_rows = products.shape[-2:]
    flat = products.reshape(*products.shape[:-2], length * n_rows)
    return flat.take(rows[0] + np.arange(length)[:, None] * n_rows, axis=-1)


def _scattered(grad: np.ndarray, rows: np.ndarray, n_rows: int) -> np.ndarray:
    """Backward of `_gathered`: (N, H, L, S) -> (N, H, L, R)."""
    total = np.zeros((*grad.shape[:-1], n_rows), grad.dtype)
    for text, of_text in enumerate(rows):
        here = slice(None) if len(rows) == 1 else slice(text, text + 1)
        for i, row in enumerate(of_text):
            order = np.argsort(row, kind="stable")  # equal ones become neighbours, which are added up
            starts = np.flatnonzero(np.diff(row[order], prepend=-1))
            total[here, ..., i, row[order[starts]]] = np.add.reduceat(grad[here, ..., i, order], starts, axis=-1)
    return total
