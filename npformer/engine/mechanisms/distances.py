"""Looks up values that depend on the distance between a query and a key."""

from __future__ import annotations

import numpy as np


def of_all(queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of queries (N, L) and keys (N, S), reduced to the first text if all texts have the same distances."""
    if len(keys) < 2:
        return queries, keys
    first = keys[:, :1]
    if (queries - first == queries[:1] - first[:1]).all() and (np.diff(keys) == np.diff(keys[:1])).all():
        return queries[:1], keys[:1]
    return queries, keys


def at_distances(values: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """values[h, M - 1 + key - query], (H, 2 M - 1) and places (N, L), (N, S) -> (N or 1, H, L, S).

    Distances of M or more count as M - 1. The result is a view, not a copy, if the places have no gaps and all
    distances are below M.
    """
    length, width = queries.shape[1], keys.shape[1]
    if queries.size == 0:
        return np.empty((1, len(values), 0, width), values.dtype)
    ahead = keys[:, 0] - queries[:, 0]
    first = values.shape[-1] // 2 + int(ahead[0])  # column of query 0 and key 0
    within = length <= first + 1 and first + width <= values.shape[-1]
    if within and (np.diff(queries) == 1).all() and (np.diff(keys) == 1).all() and (ahead == ahead[0]).all():
        runs = np.lib.stride_tricks.sliding_window_view(values, width, axis=-1)  # [h, s, j] = values[h, s + j]
        return runs[None, :, first - length + 1 : first + 1][:, :, ::-1]
    return np.moveaxis(values[:, _columns(queries, keys, values.shape[-1])], 0, 1)


def at_distances_backward(grad: np.ndarray, queries: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Backward of `at_distances`: sums grad over all uses of each value, (N, H, L, S) -> (H, count)."""
    columns = _columns(queries, keys, count).ravel()
    heads = np.moveaxis(grad, 1, 0).reshape(grad.shape[1], -1)
    return np.stack([np.bincount(columns, head, minlength=count) for head in heads]).astype(grad.dtype)


def _columns(queries: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """The column M - 1 + key - query for each query and key, limited to the `count` = 2 M - 1 columns."""
    return np.clip(count // 2 + keys[:, None, :] - queries[:, :, None], 0, count - 1)
