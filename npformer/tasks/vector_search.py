"""Similarities of vectors, and exact nearest-neighbour search in blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from npformer.common.arraylike import as_numbers, in_float32
from npformer.common.checks import one_of, whole
from npformer.common.errors import NpformerError
from npformer.engine.runtime.runner import Runner
from npformer.engine.runtime.threads import run_tasks
from npformer.tasks.pooling import normalize

BLOCK = 2**19  # count of numbers in a block of the corpus, which fits in the cache of a core
QUERIES = 256  # number of queries compared with each block in one product
PENDING = 1024  # number of (query, vector) pairs to score at a time


def _distances(a: np.ndarray, b: np.ndarray, length: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns the similarities -|a_i - b_j|. `length` computes the lengths (M,) of differences (M, D)."""
    return np.stack([-length(b - row) for row in a])


#: The similarity of each row of a to each row of b, (N, D) and (M, D) -> (N, M).
SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda a, b: normalize(a) @ normalize(b).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: _distances(a, b, lambda x: np.sqrt((x * x).sum(axis=1))),
    "manhattan": lambda a, b: _distances(a, b, lambda x: np.abs(x).sum(axis=1)),
}


def similarity(a: Any, b: Any, function: str = "cosine") -> np.ndarray:
    """Returns the similarities, by one of SIMILARITIES, of vectors in a and b, (N, D) and (M, D) -> (N, M)."""
    one_of("function", function, SIMILARITIES)
    arrays = [np.atleast_2d(np.asarray(each)) for each in (a, b)]
    shapes = [each.shape for each in arrays]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise NpformerError(f"similarity: expected vectors (N, D) and (M, D), got {shapes[0]} and {shapes[1]}")
    if not all(map(len, arrays)):
        return np.empty((shapes[0][0], shapes[1][0]))
    found: np.ndarray = in_float32(SIMILARITIES[function])(*arrays)
    return found


# --- search ----------------------------------------------------------------------------------------------------------


class Hits(NamedTuple):
    """The result of a search: for each query, the corpus indices of the nearest vectors, and the scores, best first.

    Parameters
    ----------
    indices : (k,) or (Q, k) integers; -1 at the end if fewer than k vectors have no NaN
    scores : float32 of the same shape; -inf for an index of -1
    """

    indices: np.ndarray
    scores: np.ndarray


def search(query: Any, corpus: Any, k: int = 10, similarity: str = "cosine", threads: int | None = None) -> Hits:
    """Finds the k vectors of a corpus most similar to each query, by exact search.

    The corpus is read in blocks, so memory grows only with the result. A query's result
    has the same bits whether the query is alone or in a batch. Vectors with equal scores are in the order of the
    corpus. A vector with NaN is never found.

    Parameters
    ----------
    query : (D,) array, or (Q, D) for several queries
    corpus : (N, D) array, which may be mapped from a file
    k : int, maximum number of results
    similarity : "cosine" or "dot", the dot product
    threads : int, cores to use; by default all

    Returns
    -------
    Hits, with indices and scores of shape (k,), or (Q, k) for several queries

    Raises
    ------
    NpformerError
        The shapes do not match, or a query is not finite.

    Examples
    --------
    >>> corpus = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> hits = npformer.search([0.0, 1.0], corpus, k=2)
    >>> hits.indices.tolist(), hits.scores.astype(float).round(4).tolist()
    ([1, 2], [1.0, 0.7071])
    >>> np.save("vectors.npy", corpus)
    >>> npformer.search([0.0, 1.0], np.load("vectors.npy", mmap_mode="r"), k=2).indices.tolist()  # not read into memory
    [1, 2]
    """
    one_of("similarity", similarity, ("cosine", "dot"))
    whole("k", k, 1)
    queries, corpus = as_numbers("search: query", query), as_numbers("search: corpus", corpus, keeps=True)
    if queries.ndim not in (1, 2) or corpus.ndim != 2 or queries.shape[-1] != corpus.shape[1]:
        raise NpformerError(f"search: expected (D,) or (Q, D), and (N, D), got {queries.shape} and {corpus.shape}")
    if not np.isfinite(queries).all():
        raise NpformerError("search: expected finite queries, got NaN or infinity")
    rows = np.atleast_2d(queries).astype(np.float32)
    rows = normalize(rows.astype(np.float64)).astype(np.float32) if similarity == "cosine" else rows
    runner, k = Runner(threads), min(k, len(corpus))
    found = [Hits(np.empty((0, k), np.int64), np.empty((0, k), np.float32))]
    edges = [len(corpus) * i // runner.threads for i in range(runner.threads + 1)]
    with runner.cores(1), np.errstate(invalid="ignore", over="ignore"):
        for at in range(0, len(rows), QUERIES):
            some = rows[at : at + QUERIES]
            parts = [partial(_nearest, some, corpus, *ends, k, similarity) for ends in pairwise(edges)]
            found.append(_merged(run_tasks(parts, runner.threads), k))
    hits = Hits(*(np.concatenate(each) for each in zip(*found, strict=True)))
    return hits if queries.ndim == 2 else Hits(hits.indices[0], hits.scores[0])


def _nearest(queries: np.ndarray, corpus: np.ndarray, start: int, stop: int, k: int, similarity: str) -> Hits:
    """Returns the k nearest of rows start ... stop - 1 for each query, (Q, k). For the cosine, queries have length 1.

    The last bits of a matrix product depend on the row's position, so the product only selects candidates, within its
    error bound, and each candidate's score is computed separately.
    """
    best = Hits(np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32))
    limits = np.full(len(queries), -np.inf)  # vectors with scores below these limits are not among the nearest
    width, rows, places = corpus.shape[1], [], []
    # A sum of D products has at most D rounding errors: Higham, 2002, section 3.1.
    errors = 2 * (width + 4) * np.finfo(np.float32).eps * np.sqrt((queries * queries).sum(axis=1))
    step = max(BLOCK // max(width, 1), 1)
    for at in range(start, stop, step):
        block = np.asarray(corpus[at : min(at + step, stop)], np.float32)
        scores = queries @ block.T  # (Q, B)
        norms = np.sqrt(np.vecdot(block, block))
        bad, longest = ~np.isfinite(norms), 1.0
        if similarity == "cosine":
            scores /= np.maximum(norms, 1e-12)
        else:
            longest = norms[~bad].max(initial=0)
        scores[:, bad] = -np.inf
        if at == start and 0 < k < len(block):
            limits = np.partition(scores, -k)[:, -k] - errors * longest
        near = scores >= (limits - errors * longest).astype(np.float32)[:, None]
        near[:, bad] = False
        row, place = np.divmod(np.flatnonzero(near), len(block))  # np.nonzero would take ten times as long
        rows.append(row)
        places.append(at + place)
        if sum(map(len, rows)) > PENDING or at + step >= stop:
            best = _with_scored(best, queries, corpus, np.concatenate(rows), np.concatenate(places), similarity)
            limits, rows, places = np.maximum(limits, best.scores.min(axis=1, initial=np.inf)), [], []
    return best


def _with_scored(
    best: Hits, queries: np.ndarray, corpus: np.ndarray, rows: np.ndarray, places: np.ndarray, similarity: str
) -> Hits:
    """Returns the k best hits among `best` and the pairs (rows[i], places[i]). Equal scores keep this order."""
    (count, k), scores = best.indices.shape, [best.scores.ravel()]
    for at in range(0, len(rows), PENDING):
        some = corpus[places[at : at + PENDING]].astype(np.float64)
        exact = (some * queries[rows[at : at + PENDING]]).sum(axis=1)
        if similarity == "cosine":
            exact /= np.maximum(np.sqrt(np.square(some).sum(axis=1)), 1e-12)
        scores.append(exact.astype(np.float32))
    values = np.concatenate(scores)
    indices = np.concatenate([best.indices.ravel(), places])
    of = np.concatenate([np.repeat(np.arange(count), k), rows])
    order = np.lexsort((-values, of))  # stable, so equal scores stay in the order of the corpus
    first = order[np.searchsorted(of[order], np.arange(count))[:, None] + np.arange(k)]
    return Hits(indices[first], values[first])


def _merged(parts: list[Hits], k: int) -> Hits:
    """Returns the k best hits, given the hits from several parts of the corpus in corpus order."""
    indices, scores = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    first = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Hits(np.take_along_axis(indices, first, axis=1), np.take_along_axis(scores, first, axis=1))
