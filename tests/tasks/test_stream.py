"""`stream` of every task, as the reference describes it: the answers to a list of texts, and the pieces of one text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import Model, NpformerError, pipeline
from npformer.tasks.catalogue import TASKS
from npformer.tasks.writing import Writing
from tests.support import sentence_folders, seq2seq_models, tiny, writers

TEXTS = ["I love ice cream", "not my music", "the news"]
#: Task -> inputs that are not texts, and required options.
QUESTION = {"question": "where?", "context": "I live in Paris."}
INPUTS: dict[str, list[Any]] = {
    "question-answering": [QUESTION, QUESTION],
    "fill-mask": ["I love [MASK]", "[MASK] my music"],
    "text-ranking": [("what?", "ice"), ("what?", "music")],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "zero-shot-classification": {"candidate_labels": ["ice", "music"]},
    "text-generation": {"do_sample": False, "max_new_tokens": 4},
}


def folder(name: str, path: Path) -> Path:
    """Writes a tiny model's folder for a task."""
    if name == "text-generation":
        return writers.folder(path)
    if issubclass(kind := pipeline_class(name), Writing):
        return (
            seq2seq_models.bart_folder(path) if kind.name != "translation" else seq2seq_models.folder_of_letters(path)
        )
    head = TASKS[name].head
    labels = {
        "zero-shot-classification": ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
        "text-ranking": ("SCORE",),
        "token-classification": ("O", "B-PER", "I-PER"),
    }.get(name)
    made = tiny.folder(path, "bert", head, **({"labels": labels} if labels else {}))
    if name == "multi-vector-embedding":
        sentence_folders.write_token_heads(made, colbert=np.ones((6, 33), np.float32))
    return made


def pipeline_class(name: str) -> type[Any]:
    from npformer.tasks.pipelines import class_of

    return class_of(name)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b)


@pytest.mark.parametrize("name", TASKS)
def test_a_stream_gives_the_answers_to_a_list_in_order(name: str, tmp_path: Path) -> None:
    task = pipeline(name, folder(name, tmp_path / "model"))
    inputs, options = INPUTS.get(name, TEXTS), OPTIONS.get(name, {})
    expected = [task(each, **options) for each in inputs]
    for several in (inputs, iter(inputs)):
        found = task.stream(several, **options)
        assert isinstance(found, Iterator)
        assert all(map(same, list(found), expected))
    if not isinstance(task, Writing):
        [answer] = task.stream(inputs[0], **options)
        assert same(answer, expected[0])
    with pytest.raises(NpformerError, match="nonsense"):
        task.stream(inputs, nonsense=1)


@pytest.mark.parametrize("name", [name for name in TASKS if issubclass(pipeline_class(name), Writing)])
def test_a_task_that_writes_yields_the_pieces_of_one_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = pipeline(name, folder(name, tmp_path / "model"))
    text, options = "dog", {"do_sample": False, "num_beams": 1, "max_new_tokens": 6}
    answer = task(text, **options, **({"return_full_text": False} if name == "text-generation" else {}))
    written = (answer[0] if isinstance(answer, list) else answer)[task.key]
    for pieces in (task.stream(text, **options), task(text, stream=True, **options)):
        assert "".join(pieces) == written
    assert task(text, stream=False, **options) == task(text, **options)
    assert len(list(task(TEXTS[:2], stream=True, **options))) == 2
    with pytest.raises(NpformerError, match="stream: expected true or false, got 3"):
        task(text, stream=3)


def test_the_first_piece_comes_before_the_last_token_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npformer.generation.state import PromptState

    steps = []
    step = PromptState.step
    monkeypatch.setattr(PromptState, "step", lambda self, *given: (steps.append(1), step(self, *given))[1])
    task = pipeline("text-generation", writers.folder(tmp_path / "model"))
    stream = task.stream("I live in", do_sample=False, max_new_tokens=9)
    assert not steps
    next(stream)
    assert 0 < len(steps) < 9


@pytest.mark.parametrize("name", ["stream", "streamer"])
def test_other_places_name_the_method_that_streams(name: str, tmp_path: Path) -> None:
    path = writers.folder(tmp_path / "model")
    task = pipeline("text-generation", path)
    assert isinstance(task.model, Model)
    with pytest.raises(NpformerError, match="True is not supported: the method stream yields tokens as they are"):
        task.model.generate([3, 4], **{name: True})
    with pytest.raises(NpformerError, match="the method stream yields answers, or the pieces of a text, as they are"):
        pipeline("text-generation", path, **{name: True})
    classify = pipeline("text-classification")
    with pytest.raises(NpformerError, match="the method stream yields answers, or the pieces of a text, as they are"):
        classify(TEXTS, **{name: True})
