"""sparse-embedding compared with sentence-transformers' `SparseEncoder.encode`, for old and new folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from npformer import pipeline
from tests.support import tiny
from tests.support.sentence_folders import TOKENIZER, write_splade

TEXTS = ["I love ice cream", "", "not my music", "what [MASK] [SEP] the news 我爱 😀", "ice " * 90]


def bare(path, family="bert"):
    folder = tiny.folder(path, family, "masked-lm", seed=2)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    return folder


def saved(path, **pooling):
    modules = [Transformer(str(bare(path / "bare")), transformer_task="fill-mask"), SpladePooling(**pooling)]
    SparseEncoder(modules=modules, device="cpu", prompts={"q": "news: "}, default_prompt_name="q").save(str(path))
    return path


def older(path, **pooling):
    """Writes a folder in the form of sentence-transformers 5.0 to 5.3, which stores the maximum number of words."""
    return write_splade(
        bare(path), {**pooling, "word_embedding_dimension": None}, model_type="SparseEncoder", max_active_dims=7
    )


@pytest.mark.filterwarnings("ignore:input 4")  # the warning that an input is truncated
@pytest.mark.parametrize("make", [saved, older])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_vectors_match_a_sparse_encoder(make, activation, strategy, tmp_path):
    folder = make(tmp_path / "m", pooling_strategy=strategy, activation_function=activation)
    compared(folder, None)


@pytest.mark.filterwarnings("ignore:input 4")
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_vectors_of_a_masked_language_model(family, tmp_path):
    compared(bare(tmp_path / "m", family), "sparse-embedding")


def compared(folder, task):
    """Vectors agree to 1e-9 in float64. In float32, both libraries have errors of a few 1e-6, and npformer's error may
    be up to three times sentence-transformers' error."""
    model = SparseEncoder(str(folder), device="cpu")
    theirs = model.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    truth = model.double().encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    double = vectors(pipeline(task, folder, dtype=np.float64)(TEXTS), truth)
    single = vectors(pipeline(task, folder)(TEXTS), theirs)
    np.testing.assert_allclose(double, truth, rtol=0, atol=1e-9)
    assert np.abs(single - truth).max() <= 3 * np.abs(theirs - truth).max()


def vectors(answers, like):
    found = np.zeros_like(like)
    for row, answer in zip(found, answers, strict=True):
        row[answer["indices"]] = answer["values"]
    assert np.array_equal(found > 0, like > 0)
    return found
