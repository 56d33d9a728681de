"""Methods named as in sentence-transformers return the same answers and settings, for folders that it saved."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

from npformer import pipeline
from tests.oracle.test_ranking import PAIRS, TOKENIZER
from tests.oracle.test_sentences import CASES, TEXTS, save
from tests.oracle.test_sparse import saved
from tests.support import tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:input"),  # the warning that long inputs are truncated
    pytest.mark.filterwarnings("ignore:.*has been renamed:FutureWarning"),
]
CALLS: list[dict[str, Any]] = [
    {},
    {"prompt": "ice: "},
    {"prompt_name": "query"},
    {"prompt_name": "document", "normalize_embeddings": True},
    {"truncate_dim": 3, "batch_size": 2, "show_progress_bar": False, "convert_to_numpy": True, "device": "cpu"},
]


#: Folders with default pooling, and one that excludes prompts from the mean. `test_sentences` tries every pooling.
OF_METHODS = [case for case, options in CASES.items() if "poolings" not in options] + ["mean, prompt left out"]


@pytest.mark.parametrize("case", OF_METHODS)
def test_sentence_transformer(case, tmp_path):
    """Vectors agree to 1e-6 of their length, as in `test_sentences`."""
    folder = save(tmp_path, **CASES[case])
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), pipeline(model=folder)
    for method in ("encode", "encode_query", "encode_document"):
        for i, call in enumerate(CALLS):
            for given in (TEXTS, (TEXTS[0], tuple(TEXTS[:2]))[i % 2]):
                expected, found = (getattr(model, method)(given, **call) for model in (theirs, ours))
                assert found.shape == expected.shape
                size = np.linalg.norm(expected, axis=-1, keepdims=True) + 1
                assert np.abs((found - expected) / size).max() <= 1e-6, (method, call)
    vectors, bits = theirs.encode(TEXTS), theirs.encode(TEXTS, precision="ubinary")
    assert np.array_equal(np.packbits(vectors > 0, axis=-1), bits)  # npformer's error suggests this expression
    for name in ("get_embedding_dimension", "get_sentence_embedding_dimension"):
        assert getattr(ours, name)() == getattr(theirs, name)()
    assert ours.max_seq_length == theirs.max_seq_length
    assert ours.similarity_fn_name == theirs.similarity_fn_name
    ours.max_seq_length = theirs.max_seq_length = 7
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), rtol=1e-5, atol=1e-5)
    assert ours.max_seq_length == theirs.max_seq_length == 7


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_sparse_encoder(strategy, tmp_path):
    """Weights agree to 1e-5 of their size, and the words of `decode` are in the same order."""
    folder = saved(tmp_path / "m", pooling_strategy=strategy)
    theirs, ours = SparseEncoder(str(folder), device="cpu"), pipeline(model=folder)
    for method in ("encode", "encode_query", "encode_document"):
        for call in ({}, {"prompt": "ice: "}, {"prompt_name": "q", "max_active_dims": 9}):
            for given in (TEXTS, TEXTS[0]):
                expected, found = (getattr(model, method)(given, **call) for model in (theirs, ours))
                np.testing.assert_allclose(found, expected.to_dense().numpy(), rtol=1e-5, atol=1e-5)
    tensor = theirs.encode(TEXTS, max_active_dims=9)
    array = tensor.to_dense().numpy()
    assert ours.decode(array, top_k=5) == theirs.decode(tensor, top_k=5)
    assert ours.decode(array[0]) == theirs.decode(tensor[0])
    assert ours.sparsity(array) == pytest.approx(theirs.sparsity(tensor))
    np.testing.assert_allclose(ours.similarity(array, array), theirs.similarity(tensor, tensor), rtol=1e-5)
    assert ours.similarity_fn_name == theirs.similarity_fn_name == "dot"
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert ours.max_seq_length == theirs.max_seq_length


@pytest.mark.parametrize("settings", [{}, {"prompts": {"web": "the news "}, "default_prompt_name": "web"}])
@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.Sigmoid()])
def test_cross_encoder(activation, settings, tmp_path):
    """Scores agree to 1e-6, as in `test_ranking`, and the order of ranked texts is the same."""
    bare = tiny.folder(tmp_path / "bare", "bert", labels=("SCORE",), seed=3)
    (bare / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    CrossEncoder(str(bare), device="cpu", activation_fn=activation, **settings).save_pretrained(str(tmp_path / "m"))
    theirs, ours = CrossEncoder(str(tmp_path / "m"), device="cpu"), pipeline(model=tmp_path / "m")
    query, texts = PAIRS[0][0], ["ice cream", "not my music", "", "ice " * 90, "the news of paris", "she was in kyoto"]
    calls: list[dict[str, Any]] = [{}, {"prompt": "ice "}, {"activation_fn": torch.nn.Sigmoid()}]
    calls += [{"activation_fn": torch.nn.Identity(), "batch_size": 2, "show_progress_bar": False}]
    for call in calls:
        for given in (PAIRS, PAIRS[0], [list(each) for each in PAIRS], list(PAIRS[0])):
            expected, found = theirs.predict(given, **call), ours.predict(given, **call)
            assert type(found) is type(expected)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        for more in ({}, {"top_k": 3, "return_documents": True}):
            ranked, expected = ours.rank(query, texts, **more, **call), theirs.rank(query, texts, **more, **call)
            assert [each["corpus_id"] for each in ranked] == [each["corpus_id"] for each in expected]
            assert [each.get("text") for each in ranked] == [each.get("text") for each in expected]
            scores = ([each["score"] for each in several] for several in (ranked, expected))
            np.testing.assert_allclose(*scores, rtol=0, atol=1e-6)
