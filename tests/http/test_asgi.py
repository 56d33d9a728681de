"""The app in other hands: called without a server, mounted, and without what it needs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import npformer
from npformer.serve import ServiceLimits, process
from npformer.serve.models import NEEDS, TaskWork
from tests.support import tiny

ROOT = Path(__file__).parents[2]


def ask(app, *requests, started=None):
    """The answers to (method, path, body), by an app whose lifespan `started` runs, or none."""

    async def run():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return [await client.request(method, path, json=body) for method, path, body in requests]

    async def within():
        if started is None:
            return await run()
        async with started.router.lifespan_context(started):
            return await run()

    return asyncio.run(within())


def test_an_app_of_a_loaded_model_and_of_a_task():
    model = tiny.model("bert", "base")
    app = npformer.serve.app({"mine": model, "labels": npformer.pipeline("text-classification", tiny.model())})
    embedded, labelled, info = ask(
        app,
        ("POST", "/embed", {"inputs": "a"}),
        ("POST", "/predict", {"inputs": "a"}),
        ("GET", "/info", None),
        started=app,
    )
    assert len(embedded.json()[0]) == 32
    assert {each["label"] for each in labelled.json()} == {"NEGATIVE", "POSITIVE"}
    assert [each["model_id"] for each in info.json()["models"]] == ["mine", "labels"]


def test_the_root_of_a_ranker_is_rerank():
    """As in text-embeddings-inference, for which a classifier with one label is a ranker."""
    app = npformer.serve.app({"mine": tiny.model(labels=("SCORE",))})
    body = {"query": "a", "texts": ["b", "c"]}
    root, ranked, info = ask(app, ("POST", "/", body), ("POST", "/rerank", body), ("GET", "/info", None), started=app)
    assert root.json() == ranked.json()
    assert {each["index"] for each in root.json()} == {0, 1}
    assert info.json()["tasks"][:2] == ["text-ranking", "text-classification"]


def test_a_mounted_app_needs_its_lifespan():
    app = npformer.serve.app({"mine": tiny.model()})
    parent = Starlette(routes=[Mount("/ai", app)])
    request = ("POST", "/ai/embed", {"inputs": "a"})
    (answer,) = ask(parent, request)
    assert answer.status_code == 503
    assert "the lifespan of its app has to run" in answer.json()["error"]
    (answer,) = ask(parent, request, started=app)
    assert answer.status_code == 200


def test_an_app_can_start_again():
    app = npformer.serve.app({"mine": tiny.model()})
    for _ in range(2):
        (answer,) = ask(app, ("POST", "/embed", {"inputs": "a"}), started=app)
        assert answer.status_code == 200


def test_an_internal_error_tells_and_logs_no_text(monkeypatch, caplog):
    def fail(self, requests):
        raise RuntimeError("a secret text")

    monkeypatch.setattr(TaskWork, "run", fail)
    app = npformer.serve.app({"mine": tiny.model()})
    (answer,) = ask(app, ("POST", "/embed", {"inputs": "a secret text"}), started=app)
    assert answer.status_code == 500
    assert answer.json() == {"error": "inputs: could not be computed", "error_type": "Backend"}
    assert "RuntimeError at " in caplog.text
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


def test_an_error_of_a_route_is_answered_and_logged_without_text(monkeypatch, caplog):
    monkeypatch.setattr("npformer.serve.routes.normalize", lambda vectors: {}["a secret text"])
    app = npformer.serve.app({"mine": tiny.model()})
    (answer,) = ask(app, ("POST", "/embed", {"inputs": "a"}), started=app)
    assert (answer.status_code, answer.json()["error"]) == (500, "an internal error")
    assert "KeyError at " in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("models", "message"),
    [([], "expected at least one model"), ([tiny.model(), tiny.model()], "two models are called distilbert")],
)
def test_models_that_cannot_be_served(models, message):
    with pytest.raises(npformer.NpformerError, match=message):
        npformer.serve.app(models)


def test_a_worker_that_cannot_start_ends_the_service(monkeypatch, capfd):
    """Here because the parent finds nearly all such causes before it starts a worker."""
    settings = process.Settings(["distilbert-sst2"], port=0, workers=2)
    monkeypatch.setattr(process, "shared", lambda settings, home: replace(settings, models=["./no-such-model"]))
    with pytest.raises(npformer.NpformerError, match="a worker ended with exit code 1 before it could serve"):
        process.run(settings)
    said = capfd.readouterr().err
    assert "npformer: ./no-such-model: there is no folder" in said
    assert "Traceback" not in said


def test_limits_are_checked():
    with pytest.raises(npformer.NpformerError, match="batch_tokens: expected a whole number of at least 1, got 0"):
        ServiceLimits(batch_tokens=0)


def test_what_routes_need_is_named():
    assert set(NEEDS) >= {
        "sentence-embedding",
        "feature-extraction",
        "text-classification",
        "text-ranking",
        "translation",
    }


def test_npformer_itself_does_not_import_the_extra():
    code = "import npformer.serve.routes, npformer.serve.batching, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"starlette", "uvicorn", "prometheus_client"} & set(json.loads(done.stdout))
