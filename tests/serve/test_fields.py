"""Fields of requests: valid fields are read, and errors for invalid fields name their place, not their text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.serve import fields as f
from npformer.serve.declared import ALL_ROUTES
from npformer.serve.fields import Refusal, Texts, read_fields, read_json
from npformer.text.inputs import Pair

ROUTES = {route.path: route for route in ALL_ROUTES}


def read(path: str, **given: Any) -> dict[str, Any]:
    return read_fields(ROUTES[path].fields, given)


@pytest.mark.parametrize(
    ("value", "items", "several"),
    [
        ("a", ["a"], False),
        (["a", "b"], [Pair("a", "b")], False),
        (["a"], ["a"], False),
        ([["a"], ["b", "c"]], ["a", Pair("b", "c")], True),
        ([["a", ""]], ["a"], True),  # as in Transformers: an empty second text counts as missing
    ],
)
def test_predict_takes_texts_and_pairs_as_tei_does(value, items, several):
    assert read("/predict", inputs=value)["inputs"] == Texts(items, several)


def test_null_means_the_default():
    values = read("/embed", inputs="a", normalize=None, truncate=None, truncation_direction=None, prompt_name=None)
    assert (values["normalize"], values["truncate"], values["model"]) == (True, False, None)


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("/embed", {}, "inputs: missing"),
        ("/embed", {"inputs": None}, "inputs: expected a value, got null"),
        ("/embed", {"inputs": []}, "inputs: expected a text or a list of texts, got an empty list"),
        ("/embed", {"inputs": ["a", 3]}, "inputs[1]: expected a text, got a number"),
        ("/embed", {"inputs": ["a", ["b"]]}, "inputs[1]: expected a text, got a list"),
        ("/embed", {"inputs": "a\ud800"}, "inputs: character 1 is a lone surrogate, which is not valid text"),
        ("/embed", {"inputs": "a", "truncate": "yes"}, "truncate: expected true or false, got a text"),
        ("/embed", {"inputs": "a", "truncate": 1}, "truncate: expected true or false, got a number"),
        ("/embed", {"inputs": "a", "normalise": True}, "normalise: unknown field; known fields: inputs, normalize"),
        ("/embed", {"inputs": "a", "a secret text": 1}, "field: unknown field"),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}, "truncation_direction: unsupported: texts are truncated"),
        ("/embed_all", {"inputs": "a", "prompt_name": "query"}, "prompt_name: unsupported: prepend the prompt"),
        ("/embed", {"inputs": "a", "dimensions": 0}, "dimensions: expected a whole number from 1"),
        ("/embed", {"inputs": "a", "dimensions": True}, "dimensions: expected a whole number, got true or false"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs: expected [text] or [text, second text], got 3 elements"),
        ("/predict", {"inputs": [["a"], "b"]}, "inputs[1]: expected a list of one or two texts, got a text"),
        ("/predict", {"inputs": "a", "parameters": {"top_k": "x"}}, "parameters.top_k: expected a whole number"),
        ("/predict", {"inputs": "a", "parameters": {"function_to_apply": "secret"}}, "got another string"),
        ("/similarity", {"inputs": "a"}, "inputs: expected an object, got a text"),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences: missing"),
        ("/rerank", {"query": "a", "texts": "b"}, "texts: expected a list of texts, got a text"),
        ("/v1/embeddings", {"input": [1, 2]}, "input: expected texts, got token ids"),
        ("/v1/embeddings", {"input": [[1, 2]]}, "input: expected texts, got token ids"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format: expected one of float, base64"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]: expected a text, got an object"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": 3}]}, "documents[0].text: expected a text, got a number"),
        ("/translate", {"inputs": "a", "parameters": {"num_beams": 1000}}, "parameters.num_beams: expected a whole"),
        ("/generate", {"inputs": ["a"]}, "inputs: expected a text, got a list"),
        ("/generate", {"inputs": "a", "parameters": {"temperature": 1e999}}, "parameters.temperature: expected a num"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_with_its_place(path, given, message):
    with pytest.raises(Refusal) as refusal:
        read(path, **given)
    assert message in refusal.value.message
    assert refusal.value.status == 422
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body: not JSON: Expecting value at line 1, column 1"),
        (b'{"inputs": "a secret"', "body: not JSON: Expecting ',' delimiter at line 1, column 22"),
        (b"\xff\xfe\xfa", "body: not JSON"),
        (json.dumps("a secret").encode("utf-16"), "body: not JSON: byte 0 is not UTF-8"),
        (json.dumps("a secret").encode("utf-32-le"), "body: not JSON"),
        (b'{"inputs": NaN}', "body: not JSON: NaN is not allowed"),
        (b"[" * 90_000, "body: JSON nested too deeply"),
        (b"9" * 5000, "body: JSON with a number that is too long"),
        (b'{"a": 1, "inputs": {"secret": 1, "secret": 1}}', "body: duplicate name in an object"),
    ],
)
def test_a_body_that_is_not_json_is_refused_with_its_place(body, message):
    with pytest.raises(Refusal) as refusal:
        read_json(body)
    assert message in refusal.value.message
    assert "secret" not in refusal.value.message


def test_a_body_of_very_many_lists_is_refused():
    """Parsing these lists would take a second, during which no other request is answered.

    Brackets in texts do not count as lists.
    """
    for body in (b"[" + b"[]," * 100_000 + b"[]]", b'["' + b"\\" * 2 + b'",' + b"{}," * 100_000 + b"{}]"):
        with pytest.raises(Refusal) as refusal:
            read_json(body)
        assert (refusal.value.status, refusal.value.message) == (413, "body: more than 100000 lists and objects")
    for begun in (b'"', b""):  # unfinished texts: trying each of their quotes would take hours
        with pytest.raises(Refusal, match="more than 100000 lists"):
            read_json(b"[" * 100_001 + begun + b'\\"' * 1_900_000)
    text = '[{"\\' * 200_000
    assert read_json(json.dumps({"inputs": text}).encode()) == {"inputs": text}


SECRET = "XsecretX"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.just(SECRET) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=10)
@given(st.data())
def test_any_json_is_read_or_refused_and_no_text_is_repeated(path, data):
    fields = ROUTES[path].fields
    given = data.draw(VALUES | st.dictionaries(st.sampled_from(sorted(fields)), VALUES, max_size=4))
    refusal = None
    try:
        values = read_fields(fields, read_json(json.dumps(given).encode()))
    except Refusal as error:
        refusal = error
    assert refusal is not None or set(values) == set(fields)
    assert refusal is None or (refusal.status == 422 and SECRET not in refusal.message)


def test_every_field_has_a_schema():
    for route in ROUTES.values():
        schema = f.schema_of(route.fields)
        json.dumps(schema)
        assert set(schema["properties"]) == set(route.fields)
