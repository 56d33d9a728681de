"""multi-vector-embedding: a vector for each token, computed by the head in a folder like BGE-M3's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import NpformerError, load, pipeline
from tests.support import tiny
from tests.support.sentence_folders import write_token_heads

pytestmark = pytest.mark.numbers

LAYER = np.random.default_rng(5).standard_normal((6, 33)).astype(np.float32)
TEXTS = ["I love ice cream", "", "not my music " * 9, "the news"]


def folder(path: Path, layer: np.ndarray | None = LAYER) -> Path:
    return write_token_heads(tiny.folder(path, "bert", "base"), colbert=layer)


@pytest.fixture
def embed(tmp_path: Path) -> Any:
    return pipeline("multi-vector-embedding", folder(tmp_path / "m"), dtype=np.float64)


def test_vectors_and_similarities_are_those_of_plain_loops(embed: Any) -> None:
    """Compares with FlagEmbedding's `colbert_vecs` and `colbert_score`, written as loops over tokens."""
    encoder, expected = load(embed.model.folder, dtype=np.float64), []
    for text, answer in zip(TEXTS, embed(TEXTS), strict=True):
        rows = encoder(encoder.tokenizer.encode(text).ids).last_hidden_state[0, 1:]
        made = [LAYER[:, :-1].astype(np.float64) @ row + LAYER[:, -1] for row in rows]
        expected.append([each / np.sqrt(sum(number**2 for number in each)) for each in made])
        np.testing.assert_allclose(answer, expected[-1], rtol=0, atol=1e-12)
    right = [[np.mean([max(q @ d for d in text) for q in query]) for text in expected] for query in expected[:2]]
    np.testing.assert_allclose(embed.similarity(embed(TEXTS[:2]), embed(TEXTS)), right, rtol=0, atol=1e-12)
    np.testing.assert_allclose(embed.similarity(embed(TEXTS[0]), embed(TEXTS)), right[:1], rtol=0, atol=1e-12)
    assert embed.similarity_fn_name == "meanmaxsim"
    assert embed.get_embedding_dimension() == 6


def test_a_text_has_the_same_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    embed = pipeline("multi-vector-embedding", folder(tmp_path / "m"))
    for options in ({}, {"long": "window", "max_length": 16}):
        for text, answer in zip(TEXTS, embed(TEXTS, **options), strict=True):
            np.testing.assert_array_equal(embed(text, **options), answer)
    assert len(embed(TEXTS[2], long="window", max_length=16)) == 3 * 9 + 1  # each token once, without [CLS]


def test_answers_as_rows_and_lines(embed: Any) -> None:
    answer = embed(TEXTS[0])
    assert embed.columns() == {"vectors": [(np.floating, 6)]}
    np.testing.assert_array_equal(embed.row(answer)["vectors"], answer)
    assert embed.findings(TEXTS[0], answer) == ["5 vectors of 6 numbers"]


def test_folders_and_vectors_that_do_not_fit_are_refused(tmp_path: Path, embed: Any) -> None:
    with pytest.raises(
        NpformerError, match=r"multi-vector-embedding: expected colbert_linear.pt in the model's folder"
    ):
        pipeline("multi-vector-embedding", folder(tmp_path / "none", None))
    with pytest.raises(
        NpformerError, match=r"colbert_linear.pt: weight: expected floating point \(6, 32\), got \(6, 31"
    ):
        pipeline("multi-vector-embedding", folder(tmp_path / "narrow", LAYER[:, 1:]))
    for odd in (np.zeros((2, 5)), [np.zeros(6)], [np.zeros((0, 6))]):
        with pytest.raises(NpformerError, match=r"similarity: expected vectors \(L, 6\) of each text, got shape"):
            embed.similarity(odd, embed(TEXTS))
