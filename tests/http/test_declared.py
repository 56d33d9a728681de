"""A declared task has a route without further code, and the options of its command are the route's parameters."""

from __future__ import annotations

import httpx
import pytest

import npformer
from npformer.serve import asgi
from npformer.serve.declared import ALL_ROUTES, declared
from npformer.serve.fields import Refusal, read_fields
from npformer.tasks.catalogue import TASKS
from tests.http.test_asgi import ask
from tests.support import label_entropy, tiny


@pytest.fixture
def answers(monkeypatch):
    """Returns a function that sends bodies to /entropy in a service of one model, and then requests /openapi.json."""
    label_entropy.declare(monkeypatch)
    route = declared("label-entropy", "/entropy", label_entropy.DECLARATION.command)
    monkeypatch.setattr(asgi, "ALL_ROUTES", (*ALL_ROUTES, route))

    def asked(model, *bodies) -> list[httpx.Response]:
        app = npformer.serve.app(model)
        return ask(app, *(("POST", "/entropy", body) for body in bodies), ("GET", "/openapi.json", None), started=app)

    return asked


def test_texts_are_answered_with_the_command_s_parameters(answers):
    model = tiny.model()
    task = npformer.pipeline("label-entropy", model)
    bits = {"parameters": {"unit": "bits"}}
    one, several, pair, described = answers(
        model, {"inputs": "ice"}, {"inputs": [["ice"], ["cream"]], **bits}, {"inputs": ["ice", "cream"]}
    )
    assert one.json() == dict(task("ice"))
    assert several.json() == [dict(each) for each in task(["ice", "cream"], unit="bits")]
    assert pair.json() == dict(task(npformer.Pair("ice", "cream")))
    schema = described.json()["paths"]["/entropy"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    unit = schema["properties"]["parameters"]["anyOf"][0]["properties"]["unit"]
    assert unit["anyOf"][0] == {"type": "string", "enum": ["nats", "bits"]}
    assert unit["description"] == "the unit of entropies (nats)"


def test_wrong_requests_are_refused(answers):
    wrong, unknown, absent, _ = answers(
        tiny.model(),
        {"inputs": "ice", "parameters": {"unit": "pounds"}},
        {"inputs": "ice", "parameters": {"units": "bits"}},
        {},
    )
    assert [each.status_code for each in (wrong, unknown, absent)] == [422] * 3
    assert wrong.json()["error"].startswith("parameters.unit: expected one of nats, bits")
    (other, _) = answers(tiny.model("bert", "base"), {"inputs": "ice"})
    assert other.status_code == 424
    assert other.json()["error"].startswith("this route needs a classifier; ")


TAGGER = ("bert", "token-classification")
ANSWERER = ("bert", "question-answering")
FILLER = ("bert", "masked-lm")
JUDGE = ("bert", "sequence-classification")
ENTAILMENT = {"labels": ("contradiction", "entailment")}
QUESTION = {"question": "what is good", "context": "ice cream is good " * 30}  # longer than one window


@pytest.mark.parametrize(
    ("path", "name", "kind", "item", "parameters"),
    [
        ("/tag", "token-classification", TAGGER, "I love ice", {"aggregation_strategy": "simple"}),
        ("/tag", "token-classification", TAGGER, "I love ice", {"aggregation_strategy": "none", "ignore_labels": ["O"]}),
        ("/tag", "token-classification", TAGGER, "I love ice", {"aggregation_strategy": "none", "ignore_labels": []}),
        ("/tag", "token-classification", TAGGER, "ice cream " * 60, {"aggregation_strategy": "simple", "stride": 8}),
        ("/answer", "question-answering", ANSWERER, QUESTION, {}),
        ("/answer", "question-answering", ANSWERER, QUESTION, {"doc_stride": 8, "align_to_words": False, "top_k": 2}),
        ("/answer", "question-answering", ANSWERER, QUESTION, {"top_k": 3, "max_answer_len": 2}),
        ("/fill", "fill-mask", FILLER, "I love [MASK] cream", {}),
        ("/fill", "fill-mask", FILLER, "[MASK] love [MASK]", {"top_k": 2, "targets": ["ice", "love", "cream"]}),
    ],
)  # fmt: skip
def test_routes_give_the_answers_of_the_pipelines(path, name, kind, item, parameters):
    model = tiny.model(*kind)
    given = npformer.pipeline(name, model, **parameters)
    asked = [{"inputs": each, "parameters": parameters} for each in (item, [item, item])]
    one, several = ask_one(model, path, *asked)
    assert one.json() == given(item)
    assert several.json() == [given(item)] * 2


def test_zero_shot_gives_each_label_with_its_score():
    """Hugging Face's clients expect this list, not the dict that transformers.pipeline returns."""
    model = tiny.model(*JUDGE, **ENTAILMENT)
    parameters = {"candidate_labels": ["ice", "music", "news"], "multi_label": True, "hypothesis_template": "it is {}"}
    expected = npformer.pipeline("zero-shot-classification", model)("I love ice", **parameters)
    pairs = [
        {"label": label, "score": score} for label, score in zip(*map(expected.get, ("labels", "scores")), strict=True)
    ]
    asked = [{"inputs": each, "parameters": parameters} for each in ("I love ice", ["I love ice"])]
    one, several = ask_one(model, "/zero_shot", *asked)
    assert (one.json(), several.json()) == (pairs, [pairs])


def ask_one(model, path, *bodies):
    app = npformer.serve.app(model)
    return ask(app, *(("POST", path, body) for body in bodies), started=app)


LABELS = {"candidate_labels": ["a", "b"]}


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "message"),
    [
        ("/tag", TAGGER, {"inputs": "ice " * 99}, 413, "inputs: expected at most 64 tokens, got 101"),
        ("/tag", TAGGER, {"inputs": "ice", "parameters": {"top_k": 1}}, 422, "parameters.top_k: unknown field"),
        ("/answer", ANSWERER, {"inputs": "ice"}, 422, "inputs: expected an object, got a text"),
        ("/answer", ANSWERER, {"inputs": []}, 422, "inputs: expected a question and its context, got an empty list"),
        ("/answer", ANSWERER, {"inputs": [QUESTION, {"question": "who"}]}, 422, "inputs[1].context: missing"),
        ("/answer", ANSWERER, {"inputs": {"question": "ice " * 54, "context": "ice " * 65_000}}, 413,
         "inputs: tokens in the windows of a text: 4159616 is more than the limit `windows` of 4000000"),
        ("/answer", ANSWERER, {"inputs": [{"question": "ice " * 54, "context": "ice " * 700}] * 256}, 413,
         "inputs: expected at most 65536 tokens in a request, got 88832"),
        ("/fill", FILLER, {"inputs": ["[MASK]", "ice"]}, 422, "inputs[1]: no [MASK]"),
        ("/fill", FILLER, {"inputs": "[MASK]", "parameters": {"targets": [" "]}}, 422, "parameters: targets: ' ' has"),
        ("/fill", FILLER, {"inputs": "[MASK]", "parameters": {"top_k": 257}}, 422, "parameters.top_k: expected a whole"),
        ("/fill", FILLER, {"inputs": ["[MASK] " * 60] * 99, "parameters": {"top_k": 256}}, 413,
         "inputs: expected at most 4194304 tokens in the filled texts, got 94279680; lower top_k"),
        ("/zero_shot", JUDGE, {"inputs": "ice"}, 422, "parameters: missing"),
        ("/zero_shot", JUDGE, {"inputs": "ice", "parameters": {"candidate_labels": []}}, 422,
         "parameters.candidate_labels: expected a list of texts, got an empty list"),
        ("/zero_shot", JUDGE, {"inputs": "ice " * 99, "parameters": LABELS}, 413, "inputs: expected at most 64 tokens"),
        ("/zero_shot", JUDGE, {"inputs": ["ice"] * 129, "parameters": LABELS}, 413,
         "inputs, each read 2 times: expected at most 256 texts in a request, got 258"),
        ("/zero_shot", JUDGE, {"inputs": "ice " * 600_000, "truncate": True, "parameters": LABELS}, 413,
         "inputs: expected at most 4000000 characters"),
        ("/zero_shot", JUDGE, {"inputs": "ice", "parameters": {"candidate_labels": ["a" * 1001]}}, 422,
         "parameters.candidate_labels[0]: expected at most 1000 characters, got 1001"),
        ("/zero_shot", JUDGE, {"inputs": "ice", "parameters": {"candidate_labels": ["a"] * 1001}}, 422,
         "parameters.candidate_labels: expected at most 1000 texts, got 1001"),
    ],
)  # fmt: skip
def test_refusals_of_the_routes(path, kind, body, status, message):
    [found] = ask_one(tiny.model(*kind, **(ENTAILMENT if kind == JUDGE else {})), path, body)
    assert (found.status_code, found.json()["error"][: len(message)]) == (status, message)


def test_words_outside_the_vocabulary_give_no_warning_in_a_service(recwarn):
    """A warning would write a client's text to the log."""
    [found] = ask_one(tiny.model(*FILLER), "/fill", {"inputs": "[MASK]", "parameters": {"targets": ["Kyoto"]}})
    assert [each["token_str"] for each in found.json()] == ["k"]
    assert not recwarn.list


def test_a_task_keeps_its_own_options_in_a_service():
    task = npformer.pipeline("ner", tiny.model(*TAGGER), aggregation_strategy="first", ignore_labels=["PER"])
    [found] = ask_one(task, "/tag", {"inputs": "I love ice cream"})
    assert found.json() == task("I love ice cream") != npformer.pipeline("ner", task.model)("I love ice cream")
    assert task.options.aggregation_strategy == "first"


def test_the_log_says_which_route_a_model_lacks(caplog, tmp_path):
    folder = tiny.folder(tmp_path / "filler", *FILLER)
    (folder / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    npformer.serve.app(npformer.pipeline("sparse-embedding", folder))
    assert caplog.messages == ["no route /fill: fill-mask: the tokenizer has no mask token <mask>"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("token-classification", {"aggregation_strategy": "some"}),
        ("fill-mask", {"top_k": 0}),
        ("zero-shot-classification", {"multi_label": True}),  # lacks the labels, which are required
        ("sparse-embedding", {"prompt_name": 3}),
    ],
)
def test_every_kind_of_option_is_checked(name, wrong):
    route = declared(name, "/somewhere", TASKS[name].command)
    with pytest.raises(Refusal, match=r"parameters\."):
        read_fields(route.fields, {"inputs": "ice", "parameters": wrong})
