"""A declared task has a route without further code: the route's parameters are the options of the task's command."""

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
