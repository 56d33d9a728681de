"""Similarities of vectors, and the search for the nearest by them: exact, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.checks import one_of
from npformer.errors import NpformerError
from npformer.pooling import normalize


def _distances(a: np.ndarray, b: np.ndarray, length: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """-|a_i - b_j| by a function from differences (M, D) to their lengths (M,)."""
    return np.stack([-length(b - row) for row in a])


#: How alike each row of a is to each row of b, (N, D) and (M, D) -> (N, M): the larger, the more.
SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda a, b: normalize(a) @ normalize(b).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: _distances(a, b, lambda x: np.sqrt((x * x).sum(axis=1))),
    "manhattan": lambda a, b: _distances(a, b, lambda x: np.abs(x).sum(axis=1)),
}


def similarity(a: Any, b: Any, function: str = "cosine") -> np.ndarray:
    """The similarity of each vector of a to each of b, (N, D) and (M, D) -> (N, M), by one of SIMILARITIES."""
    one_of("function", function, SIMILARITIES)
    arrays = [np.atleast_2d(np.asarray(each)) for each in (a, b)]
    shapes = [each.shape for each in arrays]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise NpformerError(f"similarity: expected vectors (N, D) and (M, D), got {shapes[0]} and {shapes[1]}")
    return SIMILARITIES[function](*arrays) if all(map(len, arrays)) else np.empty((shapes[0][0], shapes[1][0]))
