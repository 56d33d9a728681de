"""The app in other programs: called without a server, mounted, and without its packages."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import npformer
from npformer.serve import ServiceLimits, asgi, supervisor
from npformer.serve.asgi import make
from npformer.serve.batching import log
from npformer.serve.bodies import Bodies
from npformer.serve.declared import ALL_ROUTES
from npformer.serve.fields import Refusal
from npformer.serve.models import TaskWork, serve_all
from npformer.serve.replies import in_parts
from npformer.tasks.catalogue import TASKS
from tests.support import reranker, seq2seq_models, tiny
from tests.support.sentence_folders import write_modules

ROOT = Path(__file__).parents[2]


def ask(app, *requests, started=None):
    """Returns an app's answers to requests (method, path, body), sent during the lifespan of the app `started`."""

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
    """A classifier with one label is a ranker, as in text-embeddings-inference."""
    app = npformer.serve.app({"mine": tiny.model(labels=("SCORE",))})
    body = {"query": "a", "texts": ["b", "c"]}
    root, ranked, info = ask(app, ("POST", "/", body), ("POST", "/rerank", body), ("GET", "/info", None), started=app)
    assert root.json() == ranked.json()
    assert {each["index"] for each in root.json()} == {0, 1}
    assert info.json()["tasks"][:2] == ["text-ranking", "text-classification"]


def test_rerank_gives_sigmoids_of_a_saved_cross_encoder_and_its_logits_as_raw_scores(tmp_path):
    """Like text-embeddings-inference, /rerank ignores the stored activation. The default prompt precedes the query."""
    made = tiny.folder(tmp_path / "m", "bert", labels=("SCORE",), seed=3)
    described = {"activation_fn": "torch.nn.Identity", "prompts": {"ask": "ice "}, "default_prompt_name": "ask"}
    write_modules(made, [], model_type="CrossEncoder", **described)
    rank = npformer.pipeline("text-ranking", made)
    logit = rank(npformer.Pair("what is good", "ice cream"))["score"]
    plain = npformer.pipeline("text-ranking", rank.model, function_to_apply="sigmoid")
    app = npformer.serve.app({"mine": rank.model})
    body = {"query": "what is good", "texts": ["ice cream"]}
    ranked, raw = ask(app, ("POST", "/rerank", body), ("POST", "/rerank", {**body, "raw_scores": True}), started=app)
    assert raw.json() == [{"index": 0, "score": logit}]
    assert ranked.json() == [{"index": 0, "score": plain(npformer.Pair("what is good", "ice cream"))["score"]}]


def test_a_mounted_app_needs_its_lifespan():
    app = npformer.serve.app({"mine": tiny.model()})
    parent = Starlette(routes=[Mount("/ai", app)])
    request = ("POST", "/ai/embed", {"inputs": "a"})
    (answer,) = ask(parent, request)
    assert answer.status_code == 503
    assert "run the app's lifespan" in answer.json()["error"]
    (answer,) = ask(parent, request, started=app)
    assert answer.status_code == 200


def test_an_app_can_start_again():
    app = npformer.serve.app({"mine": tiny.model()})
    for _ in range(2):
        (answer,) = ask(app, ("POST", "/embed", {"inputs": "a"}), started=app)
        assert answer.status_code == 200


def test_an_internal_error_reveals_and_logs_no_text(monkeypatch, caplog):
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


def test_a_server_of_one_model_takes_any_name():
    """OpenAI's clients must send a model's name, which is often the name of another model."""
    one = npformer.serve.app({"mine": tiny.model()})
    two = npformer.serve.app({"mine": tiny.model(), "other": tiny.model()})
    for path, body in (
        ("/v1/embeddings", {"input": "a"}), ("/predict", {"inputs": "a"}), ("/tokenize", {"inputs": "a"}),
    ):  # fmt: skip
        request = ("POST", path, {**body, "model": "text-embedding-3-small"})
        (answer,) = ask(one, request, started=one)
        assert answer.status_code == 200
        (refused,) = ask(two, request, started=two)
        assert refused.status_code == 404
    (answer,) = ask(one, ("POST", "/v1/embeddings", {"input": "a", "model": "gpt"}), started=one)
    assert answer.json()["model"] == "mine"


def test_errors_for_clients_do_not_mention_loading_the_model(tmp_path):
    translator = seq2seq_models.folder_of_letters(tmp_path / "letters")
    word = 1_000_001 * "a"
    for model, paths in ((tiny.model(), ("/embed", "/tokenize")), (translator, ("/translate", "/tokenize"))):
        app = npformer.serve.app(model)
        for path in paths:
            (answer,) = ask(app, ("POST", path, {"inputs": word}), started=app)
            said = "inputs: characters of a text: 1000001 is more than the limit `characters` of 1000000"
            assert (answer.status_code, answer.json()["error"]) == (413, said)


def test_json_is_read_and_made_outside_of_the_event_loop(monkeypatch):
    """In the event loop, reading and writing JSON would delay all other requests. Large lists are written element by
    element, so other threads get their turn.
    """
    threads = []
    for name in ("read_json", "in_parts"):
        function = getattr(asgi, name)
        monkeypatch.setattr(
            asgi, name, lambda value, each=function: threads.append(threading.current_thread().name) or each(value)
        )
    app = npformer.serve.app({"mine": tiny.model()})
    (answer,) = ask(app, ("POST", "/embed", {"inputs": ["a", "b"]}), started=app)
    assert answer.status_code == 200
    assert len(threads) == 2
    assert all(each.startswith("npformer-tokens") for each in threads)
    value = {"data": ({"at": i, "of": iter([i])} for i in range(3)), "none": iter(())}
    parts = list(in_parts(value))
    assert json.loads(b"".join(parts)) == {"data": [{"at": i, "of": [i]} for i in range(3)], "none": []}
    assert max(map(len, parts)) < 10


def test_an_access_log_has_a_line_for_each_request_and_no_text(caplog):
    app = make(serve_all({"mine": tiny.model()}), ServiceLimits(texts=3), None, access_log=True)
    caplog.set_level("INFO", "npformer.serve")
    ask(
        app,
        ("POST", "/predict", {"inputs": [["secret"], ["b"]]}),
        ("POST", "/embed", {"inputs": ["secret"] * 4}),
        ("POST", "/secret?secret=1", {"inputs": "secret"}),
        ("SECRET", "/embed", None),
        ("GET", "/", None),
        started=app,
    )
    lines = [re.sub(r"[\d.]+ ms", "T ms", record.getMessage()) for record in caplog.records if record.name == log.name]
    assert lines == [
        "POST /predict 200 T ms 2 rows",
        "POST /embed 413 T ms 0 rows",
        "POST - 404 T ms 0 rows",
        "- /embed 405 T ms 0 rows",
        "GET / 200 T ms 0 rows",
    ]
    caplog.clear()
    quiet = npformer.serve.app({"mine": tiny.model()})
    ask(quiet, ("POST", "/predict", {"inputs": "a"}), started=quiet)
    assert not [record for record in caplog.records if record.name == log.name]


class Slow:
    """A request with a body that arrives when the test sends it."""

    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()

    async def stream(self):
        while chunk := await self.chunks.get():
            yield chunk


def test_bodies_hold_bounded_memory(monkeypatch):
    """Above the limit, the largest unfinished body is refused, so small bodies are accepted. Complete bodies count
    towards the limit until they are answered.
    """
    monkeypatch.setattr("npformer.serve.bodies.HELD", 200)

    async def run():
        bodies, answered = Bodies(ServiceLimits(body=100)), asyncio.Event()

        async def read(request):
            async with bodies.read(request) as body:
                await answered.wait()
                return len(body)

        def send(size):
            given.append(Slow())
            given[-1].chunks.put_nowait(b"x" * size)
            reading.append(asyncio.ensure_future(read(given[-1])))

        async def settle():
            for _ in range(9):
                await asyncio.sleep(0)

        given, reading = [], []
        for size in (80, 90, 20, 20):
            send(size)
            await settle()
        assert bodies.held == 120
        for each in given:
            each.chunks.put_nowait(b"")
        await settle()
        assert (bodies.held, bodies.unfinished) == (120, {})
        for size in (90, 60):
            send(size)
            await settle()
        assert bodies.held == 180
        given[-1].chunks.put_nowait(b"")
        await settle()
        answered.set()
        found = await asyncio.gather(*reading, return_exceptions=True)
        assert (bodies.held, bodies.unfinished) == (0, {})
        return [each.status if isinstance(each, Refusal) else each for each in found]

    assert asyncio.run(run()) == [80, 429, 20, 20, 429, 60]


@pytest.mark.parametrize(
    ("models", "message"),
    [([], "expected at least one model"), ([tiny.model(), tiny.model()], "two models are named distilbert")],
)
def test_models_that_cannot_be_served(models, message):
    with pytest.raises(npformer.NpformerError, match=message):
        npformer.serve.app(models)


def test_a_worker_that_cannot_start_ends_the_service(monkeypatch, capfd):
    """Only the worker gets a missing model, because the parent would report the error before it starts a worker."""
    settings = supervisor.ServerSettings(["distilbert-sst2"], port=0, workers=2)
    monkeypatch.setattr(supervisor, "shared", lambda settings, home: replace(settings, models=["./no-such-model"]))
    with pytest.raises(npformer.NpformerError, match="a worker ended with exit code 1 before it was ready"):
        supervisor.run(settings)
    said = capfd.readouterr().err
    assert "npformer: ./no-such-model: there is no folder" in said
    assert "Traceback" not in said


def test_limits_are_checked():
    with pytest.raises(npformer.NpformerError, match="batch_tokens: expected a whole number of at least 1, got 0"):
        ServiceLimits(batch_tokens=0)


def test_every_task_has_a_route():
    """A service's root answers like the route of its first model's task, so each task needs a route."""
    paths = {each.path for each in ALL_ROUTES}
    assert {each.route for each in TASKS.values() if each.route} <= paths


def test_npformer_itself_does_not_import_the_extra():
    code = "import npformer.serve.routes, npformer.serve.batching, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"starlette", "uvicorn", "prometheus_client"} & set(json.loads(done.stdout))


def test_rerank_reads_the_chat_template_of_a_causal_language_model(tmp_path):
    """A reranker with a template has no other route, because it reads texts only in the template."""
    pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
    folder, texts = reranker.write(tmp_path / "model"), ["ice cream", "not my music"]
    rank = npformer.pipeline(None, folder)
    expected = rank([npformer.Pair("what is good", each) for each in texts])
    app, body = npformer.serve.app(folder), {"query": "what is good", "texts": texts}
    ranked, info = ask(app, ("POST", "/rerank", body), ("GET", "/info", None), started=app)
    found = {each["index"]: each["score"] for each in ranked.json()}
    assert [found[0], found[1]] == [each["score"] for each in expected]
    assert info.json()["tasks"] == ["text-ranking"]
    assert info.json()["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}}}
