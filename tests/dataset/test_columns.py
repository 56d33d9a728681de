"""Each task's answers become columns of the same values, with no loss of precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import npformer
from npformer import NpformerError, Pair
from npformer.dataset import map
from npformer.dataset.work import identity
from npformer.tasks.declaration import Form
from tests.support import label_entropy, seq2seq_models, tiny, writers

SCORED = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())]))
NLI = ("contradiction", "neutral", "entailment")
TEXTS = ["I love ice cream", "not my [MASK] music in Paris", "ice [MASK] and hot [MASK]", "she was in Paris"]


def answered(task: Any, folder: Path, column: Any = "text", **columns: list[Any]) -> pa.Table:
    """Returns the columns of the answers, without the columns `truncated` and `error`."""
    pa.parquet.write_table(pa.table(columns or {"text": TEXTS}), folder / "in.parquet")
    map(task, folder / "in.parquet", folder / "out.parquet", column=column, part_rows=3)
    table = pa.parquet.read_table(folder / "out.parquet")
    return table.drop_columns([*(columns or ["text"]), "truncated", "error"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_classification(dtype, tmp_path):
    folder = tiny.folder(tmp_path / "model")
    best = npformer.pipeline("text-classification", folder, dtype=dtype)
    found = answered(best, tmp_path)
    assert found.schema.types == [pa.string(), pa.type_for_alias(dtype)]
    assert found.to_pylist() == [dict(each) for each in best(TEXTS)]


def test_classification_of_pairs_into_several_labels(tmp_path):
    folder = tiny.folder(tmp_path / "model", "bert", labels=NLI)
    task = npformer.pipeline("text-classification", folder, top_k=2)
    found = answered(task, tmp_path, ("one", "two"), one=["I", "you", "she"], two=["love", "", None])
    assert found.schema.types == [SCORED]
    assert found["labels"].to_pylist() == [*task([Pair("I", "love"), Pair("you", "")]), None]


def test_zero_shot(tmp_path):
    folder = tiny.folder(tmp_path / "model", "bert", labels=NLI)
    task = npformer.pipeline("zero-shot-classification", folder, candidate_labels=["politics", "sport", "ice"])
    found = answered(task, tmp_path)
    assert found.schema.types == [SCORED]
    for row, answer in zip(found["labels"].to_pylist(), task(TEXTS), strict=True):
        assert [each["label"] for each in row] == answer["labels"]
        assert [each["score"] for each in row] == answer["scores"]


def test_sparse_vectors(tmp_path):
    task = npformer.pipeline("sparse-embedding", tiny.folder(tmp_path / "model", "bert", "masked-lm"))
    found = answered(task, tmp_path)
    assert found.schema.types == [pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.string())]
    for row, answer in zip(found.to_pylist(), task(TEXTS), strict=True):
        assert row == {**answer, "indices": answer["indices"].tolist(), "values": answer["values"].tolist()}


@pytest.mark.parametrize("strategy", ["none", "simple"])
def test_entities(strategy, tmp_path):
    folder = tiny.folder(tmp_path / "model", "bert", "token-classification", seed=4)
    task = npformer.pipeline("token-classification", folder, aggregation_strategy=strategy)
    found = answered(task, tmp_path)["entities"].to_pylist()
    assert found == [list(map_of) for map_of in task(TEXTS)]
    assert any(found)


@pytest.mark.parametrize("top_k", [1, 3])
def test_answers_to_questions(top_k, tmp_path):
    task = npformer.pipeline(
        "question-answering", tiny.folder(tmp_path / "model", "bert", "question-answering"), top_k=top_k
    )
    contexts = ["I live in Paris", "she was in the music", "ice"]
    questions = ["where do I live", "who was she", "what"]
    found = answered(task, tmp_path, ("question", "context"), question=questions, context=contexts)
    answers = task(question=questions, context=contexts)
    if top_k == 1:
        assert found.to_pylist() == [
            {name: each[name] for name in ("answer", "score", "start", "end")} for each in answers
        ]
    else:
        assert found["answers"].to_pylist() == [list(each) for each in answers]


def test_masks(tmp_path):
    """Each mask gets a list of words, even if it is the only one. A text without a mask is an error."""
    task = npformer.pipeline("fill-mask", tiny.folder(tmp_path / "model", "bert", "masked-lm"), top_k=2)
    found = answered(task, tmp_path)["masks"].to_pylist()
    assert found == [None, [list(task(TEXTS[1]))], list(task(TEXTS[2])), None]
    errors = pa.parquet.read_table(tmp_path / "out.parquet")["error"].to_pylist()
    assert errors == [
        "no [MASK] in the part of the text that the model read",
        None,
        None,
        "no [MASK] in the part of the text that the model read",
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_have_the_bits_of_the_model(dtype, tmp_path):
    task = npformer.pipeline("sentence-embedding", tiny.folder(tmp_path / "model", "bert", "base"), dtype=dtype)
    found = answered(task, tmp_path, text=[*TEXTS, None])
    assert found.schema.types == [pa.list_(pa.type_for_alias(dtype), 32)]
    vectors = found["embedding"].to_pylist()
    assert np.isnan(vectors.pop()).tolist() == [True] * 32
    np.testing.assert_array_equal(np.array(vectors, dtype), task(TEXTS))


def test_translations(tmp_path):
    """A row gets one translation, or a list of several. Empty and overlong texts fail. Samples can be reproduced."""
    folder = seq2seq_models.folder_of_letters(tmp_path / "model")
    one = npformer.pipeline("translation", folder, max_new_tokens=6)
    texts = ["a dog", "", "x " * 500, "news"]
    found = answered(one, tmp_path, text=texts)["translation"].to_pylist()
    assert found == [one("a dog")["translation_text"], None, None, one("news")["translation_text"]]
    errors = pa.parquet.read_table(tmp_path / "out.parquet")["error"].to_pylist()
    assert "the text is empty" in errors[1]
    assert "expected at most" in errors[2]

    (tmp_path / "two").mkdir()
    two = npformer.pipeline("translation", folder, max_new_tokens=6, num_beams=3, num_return_sequences=2)
    found = answered(two, tmp_path / "two", text=["a dog"])["translations"].to_pylist()
    assert found == [[each["translation_text"] for each in two("a dog")]]

    with pytest.raises(NpformerError, match="seed: missing"):
        answered(npformer.pipeline("translation", folder, do_sample=True, num_beams=1), tmp_path)
    drawn = []
    for name in ("three", "four"):
        (tmp_path / name).mkdir()
        task = npformer.pipeline("translation", folder, do_sample=True, num_beams=1, seed=5, max_new_tokens=6)
        drawn.append(answered(task, tmp_path / name, text=["a dog"] * 6)["translation"].to_pylist())
    assert drawn[0] == drawn[1]
    assert drawn[0][:3] != drawn[0][3:]  # each part has its own seed


def test_continuations_of_prompts_are_columns(tmp_path):
    """A row gets one generated text, or a list of several. Sampling needs a seed."""
    folder = writers.folder(tmp_path / "model")
    task = npformer.pipeline("text-generation", folder, max_new_tokens=6)
    with pytest.raises(NpformerError, match="seed: missing"):
        answered(task, tmp_path)
    task = npformer.pipeline("text-generation", folder, max_new_tokens=6, do_sample=False)
    found = answered(task, tmp_path, text=["a dog", "x " * 500])["generated_text"].to_pylist()
    assert found == [task("a dog")[0]["generated_text"], None]
    (tmp_path / "two").mkdir()
    task = npformer.pipeline("text-generation", folder, max_new_tokens=6, num_beams=3, num_return_sequences=2)
    found = answered(task, tmp_path / "two", text=["a dog"])["generated_texts"].to_pylist()
    assert found == [[each["generated_text"] for each in task("a dog")]]


def test_a_run_depends_on_the_settings_in_the_models_folder(tmp_path):
    """For both kinds of generating models, changing repetition_penalty in the folder changes the run's identity."""
    for folder in (writers.folder(tmp_path / "prompts"), seq2seq_models.folder_of_letters(tmp_path / "sources")):
        before = identity(npformer.pipeline(model=folder))["options"]["settings"]
        path = folder / "generation_config.json"
        stored = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**stored, "repetition_penalty": 1.5}))
        after = identity(npformer.pipeline(model=folder))["options"]["settings"]
        assert {name for name in after if after[name] != before.get(name)} == {"repetition_penalty"}


def test_truncated_texts_are_reported(tmp_path):
    task = npformer.pipeline("text-classification", tiny.folder(tmp_path / "model"))
    pa.parquet.write_table(pa.table({"text": ["ice " * 99, "ice", None]}), tmp_path / "in.parquet")
    report = map(task, tmp_path / "in.parquet", tmp_path / "out.parquet", column="text")
    assert (report.truncated, report.errors) == (1, 1)
    assert pa.parquet.read_table(tmp_path / "out.parquet")["truncated"].to_pylist() == [True, False, None]


def test_a_task_without_columns_is_refused(tmp_path):
    task = npformer.pipeline("feature-extraction", tiny.folder(tmp_path / "model", "bert", "base"))
    with pytest.raises(NpformerError, match="feature-extraction: its answers do not fit into the columns"):
        answered(task, tmp_path)


def test_a_type_that_no_column_has_is_refused(monkeypatch, tmp_path):
    label_entropy.declare(monkeypatch)
    monkeypatch.setattr(label_entropy.LabelEntropy, "form", Form({"labels": [{"label": bytes}]}))
    task = npformer.pipeline("label-entropy", tiny.folder(tmp_path / "model"))
    with pytest.raises(NpformerError, match="label-entropy: column 'labels', field 'label': expected one of the types"):
        answered(task, tmp_path)


def test_a_new_task_has_the_columns_of_its_form(monkeypatch, tmp_path):
    label_entropy.declare(monkeypatch)
    task = npformer.pipeline("label-entropy", tiny.folder(tmp_path / "model"))
    found = answered(task, tmp_path)
    assert found.schema.types == [pa.string(), pa.float32()]
    assert found.to_pylist() == [dict(each) for each in task(TEXTS)]
