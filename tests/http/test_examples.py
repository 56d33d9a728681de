"""The examples in the reference: each request is accepted, and its answer has the form shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

import npformer
from npformer.serve.declared import ALL_ROUTES
from npformer.serve.examples import EXAMPLES
from tests.http.test_asgi import ask
from tests.support import chatters, seq2seq_models, tiny, writers

pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")


def form(value: Any) -> Any:
    """Returns a value's type; of a dict, the forms of its fields; of a list, the distinct forms of its elements."""
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted({str(form(each)) for each in value})
    return type(value)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    asked = {"task_specific_params": {"summarization": {"max_length": 8}}}
    app = npformer.serve.app(
        {
            "labels": tiny.folder(home / "labels", labels=("bad", "good")),
            "vectors": tiny.folder(home / "vectors", "bert", "base"),
            "words": tiny.folder(home / "words", "bert", "masked-lm"),
            "tagger": tiny.folder(home / "tagger", "bert", "token-classification"),
            "answerer": tiny.folder(home / "answerer", "bert", "question-answering"),
            "judge": tiny.folder(home / "judge", labels=("contradiction", "entailment")),
            "ranker": tiny.folder(home / "ranker", "bert", labels=("relevance",)),
            "translator": seq2seq_models.folder_of_letters(home / "translator"),
            "summarizer": seq2seq_models.bart_folder(home / "summarizer", **asked),
            "rewriter": seq2seq_models.bart_folder(home / "rewriter"),
            "gpt2": writers.folder(home / "writer"),
            "chatter": chatters.folder(home / "chatter"),
        }
    )
    writing = dict.fromkeys(("/generate", "/generate_stream", "/v1/completions"), "gpt2")
    models = {"/embed_sparse": "words", "/v1/chat/completions": "chatter"} | writing
    given = [("POST", path, request | {"model": models.get(path)}) for path, (request, _) in EXAMPLES.items()]
    with chatters.rendering_once():
        return dict(zip(EXAMPLES, ask(app, *given, started=app), strict=True))


def test_every_route_has_an_example():
    assert EXAMPLES.keys() == {route.path for route in ALL_ROUTES}


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_answer_has_the_form_of_the_example(path, answers):
    found, (_, shown) = answers[path], EXAMPLES[path]
    assert found.status_code == 200, found.text
    if isinstance(shown, str):
        shown, answer = (
            [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line]
            for text in (shown, found.text)
        )
        assert form(shown) == form(answer)
    else:
        assert form(shown) == form(found.json())
