"""/v1/chat/completions with the openai package and curl. Limits and disconnections are tested in this process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from npformer import pipeline, serve
from npformer.serve.batching import Batcher
from npformer.serve.chat import ROUTES
from npformer.serve.fields import Refusal, read_fields
from npformer.serve.models import serve_all
from npformer.serve.request_limits import ServiceLimits
from npformer.serve.routes import Reply, Service
from npformer.tasks.task import Task
from npformer.tasks.text_generation import TextGeneration
from npformer.text import chat, chat_template
from tests.support import chatters, tiny, writers
from tests.support.service import Server

pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
ASKED: list[Any] = [{"role": "user", "content": "Hi"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module", autouse=True)
def rendering_once() -> Iterator[None]:
    with chatters.rendering_once():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatters.folder(tmp_path_factory.mktemp("m") / "chatter", generation={"temperature": 0.6, "top_k": 20})


@pytest.fixture(scope="module")
def task(folder: Path) -> TextGeneration:
    made = pipeline("text-generation", folder)
    assert isinstance(made, TextGeneration)
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(folder, writers.folder(tmp_path_factory.mktemp("m") / "plain")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def answered(task: TextGeneration, messages: Any = ASKED, **settings: Any) -> Any:
    given = {"max_new_tokens": 12, "return_full_text": False, **settings}
    return task(messages, **given)[0]


# --- clients ----------------------------------------------------------------------------------------------------------


def test_openai_chat(client: openai.OpenAI, task: TextGeneration) -> None:
    """Settings that a request leaves out come from the folder; an answer's message can be sent back unchanged."""
    answer = client.chat.completions.create(model="chatter", messages=ASKED, **GREEDY)
    expected = answered(task, do_sample=False)
    [choice] = answer.choices
    assert choice.message.content == expected["generated_text"]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    usage = answer.usage
    assert usage is not None
    [ids] = task.chat.encoded([ASKED])
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(ids), 12, len(ids) + 12)
    again: list[Any] = [
        *ASKED,
        choice.message.model_dump(),
        {"role": "user", "content": [{"type": "text", "text": "So?"}]},
    ]
    second = client.chat.completions.create(model="chatter", messages=again, **GREEDY)
    said = {"role": "assistant", "content": expected["generated_text"]}
    expected = answered(task, [*ASKED, said, {"role": "user", "content": "So?"}], do_sample=False)
    assert second.choices[0].message.content == expected["generated_text"]
    drawn = client.chat.completions.create(model="chatter", messages=ASKED, seed=3, max_completion_tokens=12, n=2)
    texts = [answered(task, seed=3 + i, do_sample=True)["generated_text"] for i in range(2)]
    assert [each.message.content for each in drawn.choices] == texts
    assert drawn.usage is not None
    assert drawn.usage.completion_tokens == 24
    largest = client.chat.completions.create(model="chatter", messages=ASKED, seed=2**63 - 1, max_tokens=1, n=3)
    assert len(largest.choices) == 3


def test_a_request_sets_variables_of_the_template(client: openai.OpenAI) -> None:
    plain, told = (
        client.chat.completions.create(model="chatter", messages=ASKED, max_tokens=1, extra_body=each).usage
        for each in ({}, {"chat_template_kwargs": {"enable_thinking": False}})
    )
    assert plain is not None
    assert told is not None
    assert told.prompt_tokens == plain.prompt_tokens + 10  # "no" is one token


@pytest.mark.parametrize(
    ("value", "said"),
    [("[" * 986 + "]" * 986, "expected at most 100 levels"), ('"\\ud800"', "character 0 is a lone surrogate")],
    ids=["deep", "surrogate"],
)
def test_variables_that_no_template_can_read(value: str, said: str, server: Server, folder: Path) -> None:
    request = {"model": "chatter", "messages": ASKED, "max_tokens": 1, "chat_template_kwargs": {"a": "VALUE"}}
    body = json.dumps(request).replace('"VALUE"', value)
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422  # the status for any invalid field
    assert f"chat_template_kwargs: {said}" in answer.text
    assert str(folder) not in answer.text


def test_openai_chat_as_a_stream(client: openai.OpenAI, task: TextGeneration) -> None:
    settings: dict[str, Any] = {"model": "chatter", "messages": ASKED, "seed": 3, "max_tokens": 12, "n": 2}
    whole = client.chat.completions.create(**settings, logprobs=True, top_logprobs=2)
    options: Any = {"include_usage": True, "include_obfuscation": False}
    ignored: Any = {
        "metadata": {"for": "me"},
        "service_tier": "auto",
        "safety_identifier": "a",
        "prompt_cache_key": "b",
    }
    asked = {**settings, **ignored, "logprobs": True, "stream_options": options, "parallel_tool_calls": True}
    chunks = list(client.chat.completions.create(**asked, stream=True))
    *parts, last = chunks
    assert (last.choices, last.usage) == ([], whole.usage)
    for i, choice in enumerate(whole.choices):
        own = [each.choices[0] for each in parts if each.choices[0].index == i]
        assert own[0].delta.role == "assistant"
        assert "".join(each.delta.content or "" for each in own) == choice.message.content
        assert [each.finish_reason for each in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        streamed = [token.logprob for each in own if each.logprobs for token in each.logprobs.content or []]
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert streamed == [each.logprob for each in choice.logprobs.content]
        assert [len(each.top_logprobs) for each in choice.logprobs.content] == [2] * 12
        likely = answered(task, seed=3 + i, do_sample=True, logprobs=2).likely
        assert streamed == likely.scores[:, 0].tolist()
    body = json.dumps({"messages": ASKED, "model": "chatter", "max_tokens": 3, "stream": True})
    url = f"{client.base_url}chat/completions"
    done = subprocess.run(["curl", "-sN", url, "-d", body], capture_output=True, text=True)
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_an_answer_ends_before_a_stop_string_or_with_an_end_token(client: openai.OpenAI, task: TextGeneration) -> None:
    whole = answered(task, do_sample=False)["generated_text"]
    stop = whole[3:5]
    settings: dict[str, Any] = {"model": "chatter", "messages": ASKED, **GREEDY, "stop": [stop]}
    [choice] = client.chat.completions.create(**settings).choices
    assert (choice.message.content, choice.finish_reason) == (whole[: whole.index(stop)], "stop")
    parts = [each.choices[0] for each in client.chat.completions.create(**settings, stream=True)]
    assert "".join(each.delta.content or "" for each in parts) == choice.message.content
    assert parts[-1].finish_reason == "stop"


def test_openai_errors(client: openai.OpenAI) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"messages": []}, "messages: expected a list of messages, got an empty list"),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            r"messages\[0\].role: expected one of system, developer, user",
        ),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content: missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"content\[0\]: expected .* other types of parts are not supported",
        ),
        ({"messages": [{**ASKED[0], "tool_calls": [{}]}]}, "tool_calls: unsupported: there are no tools"),
        ({"top_logprobs": 2}, "top_logprobs: expected logprobs=true with this field"),
        ({"n": 2}, "n: expected 1 with greedy decoding"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: unsupported: there are no tools"),
        ({"response_format": {"type": "json_object"}}, "response_format.type: unsupported: answers are texts"),
        ({"max_tokens": 600}, "body: max_tokens: expected a whole number from 1 to 512, got 600"),
        ({"max_completion_tokens": 600}, "body: max_completion_tokens: expected a whole number from 1 to 512, got 600"),
        (
            {"messages": [{"role": "user", "content": "a" * 500}]},
            "messages: the conversation has 5.* start a new conversation",
        ),
        ({"model": "plain"}, "model: it has no chat template; use /v1/completions"),
    ]
    for more, message in refused:
        given: dict[str, Any] = {"model": "chatter", "messages": ASKED, **GREEDY, **more}
        with pytest.raises(openai.UnprocessableEntityError, match=message) as error:
            client.chat.completions.create(**given)
        assert (error.value.type, "/" in str(error.value.message)) == ("invalid_request_error", "/v1" in message)
    with pytest.raises(openai.NotFoundError, match="unknown name; served models: chatter, plain"):
        client.chat.completions.create(model="gpt-5", messages=ASKED)
    assert client.models.retrieve("chatter").id == "chatter"


# --- in this process --------------------------------------------------------------------------------------------------


def serving(folder: Path, use: Callable[[Service], Coroutine[Any, Any, Any]], **limits: Any) -> Any:
    """Runs a coroutine that uses a service; returns its result."""
    batcher = Batcher(10_000, 0.0, 100)
    service = Service(serve_all(folder), batcher, ServiceLimits(**limits), asyncio.to_thread, asyncio.to_thread)
    batcher.start()
    try:
        return asyncio.run(use(service))
    finally:
        batcher.close()


async def ask(service: Service, **more: Any) -> Reply:
    [route] = ROUTES
    return await route.answer(service, read_fields(route.fields, {"messages": ASKED, **GREEDY, **more}))


def test_the_limits_count_the_new_tokens_of_all_answers(folder: Path) -> None:
    for more in ({}, {"n": 2, "temperature": 1, "max_tokens": 6}):
        with pytest.raises(Refusal, match="messages, with the new tokens: expected at most 52 tokens in a request"):
            serving(folder, lambda service, more=more: ask(service, **more), tokens=52)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_stops_its_answer(
    stream: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer stops after the token that is being computed."""
    made = 0
    piece = Service.piece

    async def leaving(service: Service) -> None:
        async def counted(self: Service, task: Task, pieces: Iterator[str]) -> str | None:
            nonlocal made
            made += 1
            if made == 3:
                asking.cancel()
            return await piece(self, task, pieces)

        async def whole() -> None:
            reply = await ask(service, max_tokens=400, stream=stream)
            async for _ in reply.pieces or ():  # type: ignore[union-attr]
                pass

        monkeypatch.setattr(Service, "piece", counted)
        asking = asyncio.ensure_future(whole())
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not service.batcher.waiting

    serving(folder, leaving)
    assert made == 3


def test_processes_for_templates_are_started_after_a_request_and_end_with_the_service(folder: Path) -> None:
    app = serve.app(folder)

    async def waiting() -> list[subprocess.Popen[str]]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://a") as client,
        ):
            assert not chat_template.WAITING
            answer = await client.post("/v1/chat/completions", json={"messages": ASKED, **GREEDY})
            assert answer.status_code == 200
            async with asyncio.timeout(60):
                while len(chat_template.WAITING) < 2:
                    await asyncio.sleep(0.01)
            return list(chat_template.WAITING)

    found = asyncio.run(waiting())
    assert not chat_template.WAITING
    assert None not in [each.returncode for each in found]


def test_texts_are_tokenized_while_chat_templates_are_rendered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rendering occupies a process. Other requests do not wait, even if many conversations are rendered."""
    free, render = threading.Event(), chat.render

    def held(*given: Any) -> list[str]:
        assert free.wait(300)
        return render(*given)

    async def run() -> None:
        app = serve.app({"chatter": folder, "encoder": tiny.model("bert", "base")})
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://here", timeout=300) as client,
        ):
            talk = {"messages": ASKED, **GREEDY}
            talks = [asyncio.ensure_future(client.post("/v1/chat/completions", json=talk)) for _ in range(8)]
            try:
                await asyncio.sleep(0.1)
                found = await asyncio.wait_for(client.post("/embed", json={"inputs": "a"}), 200)
            finally:
                free.set()
            assert {each.status_code for each in (found, *await asyncio.gather(*talks))} == {200}

    monkeypatch.setattr(chat, "render", held)
    asyncio.run(run())
