"""search: results equal those of a full sort, in blocks of any size, on any number of threads, and for one or several
queries."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import npformer
from npformer import NpformerError

pytestmark = pytest.mark.numbers

RANDOM = np.random.default_rng(0)
CORPUS = RANDOM.standard_normal((700, 24)).astype(np.float32) * RANDOM.random((700, 1)).astype(np.float32)
CORPUS[500:600] = CORPUS[100:200]  # each of these texts occurs twice
QUERIES = RANDOM.standard_normal((9, 24)).astype(np.float32)


def plain(queries, corpus, k, similarity):
    """Sorts by score, computed in float64 and rounded to seven decimals, and then by index in the corpus."""
    a, b = queries.astype(np.float64), corpus.astype(np.float64)
    if similarity == "cosine":
        a = (a / np.linalg.norm(a, axis=1, keepdims=True)).astype(np.float32).astype(np.float64)
        b = b / np.maximum(np.linalg.norm(b, axis=1, keepdims=True), 1e-12)
    scores = a @ b.T
    order = np.lexsort((np.broadcast_to(np.arange(len(b)), scores.shape), -scores.round(7)), axis=1)[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


@pytest.mark.parametrize(("block", "pending"), [(24, 1), (24 * 64, 1), (24 * 64, 100), (2**19, 1024)])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_nearest_match_a_plain_sort(similarity, block, pending, monkeypatch):
    monkeypatch.setattr(import_module("npformer.tasks.vector_search"), "BLOCK", block)
    monkeypatch.setattr(import_module("npformer.tasks.vector_search"), "PENDING", pending)
    monkeypatch.setattr(import_module("npformer.tasks.vector_search"), "QUERIES", 4)
    order, scores = plain(QUERIES, CORPUS, 12, similarity)
    each_alone = [npformer.search(query, CORPUS, 12, similarity) for query in QUERIES]
    for threads in (1, 2, 3):
        hits = npformer.search(QUERIES, CORPUS, 12, similarity, threads=threads)
        assert hits.scores.dtype == np.float32
        assert np.array_equal(hits.indices, order)
        np.testing.assert_allclose(hits.scores, scores, rtol=1e-6, atol=1e-7)
        for alone, indices, found in zip(each_alone, *hits, strict=True):
            assert np.array_equal(alone.indices, indices)
            assert np.array_equal(alone.scores, found)


def test_equal_vectors_are_in_the_order_of_the_corpus():
    corpus = np.repeat(CORPUS[:1], 3000, axis=0)
    for similarity in ("cosine", "dot"):
        hits = npformer.search(QUERIES, corpus, 7, similarity)
        assert (hits.indices == np.arange(7)).all()
        assert (hits.scores == hits.scores[:, :1]).all()


def test_a_mapped_file_in_half_precision(tmp_path):
    np.save(tmp_path / "v.npy", CORPUS.astype(np.float16))
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    order, _ = plain(QUERIES, mapped, 3, "cosine")
    assert np.array_equal(npformer.search(QUERIES, mapped, 3).indices, order)


def test_rows_of_unreadable_texts_are_not_found():
    """`npformer embed -o` writes rows of NaN for texts that it could not read."""
    corpus = CORPUS[:5].copy()
    corpus[[0, 3]] = np.nan
    for similarity in ("cosine", "dot"):
        hits = npformer.search(QUERIES[0], corpus, 4, similarity)
        assert sorted(hits.indices[:3].tolist()) == [1, 2, 4]
        assert (hits.indices[3], hits.scores[3]) == (-1, -np.inf)


def test_shapes():
    assert npformer.search(QUERIES[0], CORPUS[:4]).indices.shape == (4,)
    assert npformer.search(QUERIES[:0], CORPUS, 3).scores.shape == (0, 3)
    assert npformer.search(QUERIES, CORPUS[:0], 3).scores.shape == (9, 0)
    assert npformer.search(np.zeros(24), CORPUS, 2).indices.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((QUERIES[0], CORPUS, 0), "k: expected a whole number of at least 1, got 0"),
        ((QUERIES[:, :3], CORPUS), r"search: expected \(D,\) or \(Q, D\), and \(N, D\), got \(9, 3\) and \(700, 24\)"),
        ((QUERIES, CORPUS[0]), r"and \(N, D\), got \(9, 24\) and \(24,\)"),
        ((QUERIES, CORPUS, 3, "euclidean"), "similarity: expected one of cosine, dot, got 'euclidean'"),
        ((QUERIES * np.nan, CORPUS), "expected finite queries"),
        (("ice", CORPUS), "search: query: expected an array of real numbers, got <U3"),
        ((QUERIES, CORPUS.astype(complex)), "search: corpus: expected an array of real numbers, got complex128"),
    ],
)
def test_impossible_searches_are_refused(arguments, message):
    with pytest.raises(NpformerError, match=message):
        npformer.search(*arguments)
