"""Models that generate text: /generate and its stream, and /v1/completions, by plain requests and by clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient

from npformer import pipeline
from npformer.serve.batching import Batcher
from npformer.serve.declared import ALL_ROUTES
from npformer.serve.fields import Refusal, read_fields
from npformer.serve.models import TaskWork, serve_all
from npformer.serve.request_limits import ServiceLimits
from npformer.serve.routes import Reply, Service
from npformer.serve.text_generation import until, withheld
from npformer.tasks import text_generation
from npformer.tasks.text_generation import TextGeneration
from npformer.text.encoding import Encoder
from tests.support import tiny, writers
from tests.support.service import Server

GREEDY = {"do_sample": False, "max_new_tokens": 12, "return_full_text": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writers.folder(tmp_path_factory.mktemp("m") / "writer", seed=4)


@pytest.fixture(scope="module")
def task(folder: Path) -> TextGeneration:
    made = pipeline("text-generation", folder)
    assert isinstance(made, TextGeneration)
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(folder, tiny.folder(tmp_path_factory.mktemp("m") / "encoder", "bert", "base")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def written(task: TextGeneration, prompt: str, **settings: Any) -> str:
    text: str = task(prompt, **{**GREEDY, **settings})[0]["generated_text"]
    return text


def events(content: str) -> list[Any]:
    lines = [line.removeprefix("data:").strip() for line in content.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_model_that_writes_is_described_by_its_task(server: Server) -> None:
    _, info, _ = server.get("/info")
    assert [each["model_type"] for each in info["models"]] == [
        {"text-generation": {}},
        {"embedding": {"pooling": "mean"}},
    ]


# --- text-generation-inference ---------------------------------------------------------------------------------------


def test_generate(server: Server, task: TextGeneration) -> None:
    """Generation is greedy unless the request has a sampling parameter."""
    body: dict[str, Any] = {"inputs": "The other", "parameters": {"max_new_tokens": 12}}
    expected = written(task, "The other")
    assert server.post("/generate", body)[:2] == (200, {"generated_text": expected})
    assert server.post("/", body)[1] == {"generated_text": expected}
    body["parameters"] |= {"temperature": 0.9, "seed": 3, "return_full_text": True, "details": True}
    status, answer, _ = server.post("/generate", body)
    drawn = written(task, "The other", do_sample=True, temperature=0.9, seed=3, top_k=0)
    assert (status, answer["generated_text"]) == (200, "The other" + drawn)
    assert answer["details"]["seed"] == 3
    for limit in ({"min_p": 0.3}, {"typical_p": 0.4}):
        parameters = {"max_new_tokens": 12, "seed": 3, **limit}
        _, answer, _ = server.post("/generate", {"inputs": "The other", "parameters": parameters})
        drawn = written(task, "The other", do_sample=True, temperature=1.0, seed=3, top_k=0, **limit)
        assert answer["generated_text"] == drawn


def test_a_text_ends_for_a_reason(server: Server, task: TextGeneration) -> None:
    whole = written(task, "The", max_new_tokens=20)
    for parameters, reason in (({}, "length"), ({"stop": [whole[3:5]]}, "stop_sequence")):
        body = {"inputs": "The", "parameters": {"max_new_tokens": 20, "details": True, **parameters}}
        _, answer, _ = server.post("/generate", body)
        assert answer["details"]["finish_reason"] == reason
        assert answer["details"]["generated_tokens"] <= 20
        _, content, _ = server.post("/generate_stream", body)
        *_, last = events(content)
        assert last["details"] == answer["details"]
        assert last["generated_text"] == answer["generated_text"]
    ends = task.model.generate(task.model.tokenizer.encode("The").ids, do_sample=False, max_new_tokens=20)[0][0].ids
    answer = task("The", max_new_tokens=20, do_sample=False, eos_token_id=int(ends[4]))[0]
    assert (answer.ended, answer.n_tokens) == ("end", 5)


def test_a_stream_joins_to_the_text(server: Server, task: TextGeneration) -> None:
    body = {"inputs": "é", "parameters": {"max_new_tokens": 12}, "stream": True}
    status, content, headers = server.post("/generate", body)
    found = events(content)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert headers["x-accel-buffering"] == "no"  # with this header, nginx passes on each event at once
    assert "".join(each["token"]["text"] for each in found) == found[-1]["generated_text"] == written(task, "é")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": "a" * 60, "parameters": {"max_new_tokens": 9}}, 413, "expected at most 56 tokens, got 60"),
        ({"inputs": "a", "parameters": {"max_new_tokens": 65}}, 422, "max_new_tokens: expected a whole number"),
        ({"inputs": "a", "parameters": {"best_of": 2}}, 422, "parameters.best_of: unsupported"),
        (
            {"inputs": "a", "parameters": {"stop": [""]}},
            422,
            "parameters.stop[0]: expected 1 to 1000 characters, got 0",
        ),
        ({"inputs": "a", "parameters": {"stop": ["a" * 1001]}}, 422, "parameters.stop[0]: expected 1 to 1000"),
        ({"inputs": "a", "parameters": {"stop": ["a"] * 5}}, 422, "parameters.stop: expected at most 4 texts, got 5"),
        ({"inputs": "a", "parameters": {"tgt_lang": "fra"}}, 422, "parameters.tgt_lang: unsupported"),
        ({"inputs": "aa", "parameters": {"max_new_tokens": 64}}, 422, "lower max_new_tokens"),
        ({"inputs": "aa", "parameters": {"max_new_tokens": 64}, "truncate": True}, 422, "lower max_new_tokens"),
        ({"inputs": "a", "model": "encoder"}, 424, "this route needs a causal language model"),
    ],
)
def test_invalid_requests_are_refused(body: dict[str, Any], status: int, message: str, server: Server) -> None:
    for stream in (False, True):
        code, answer, _ = server.post("/generate", {**body, "stream": stream})
        assert (code, message in answer["error"]) == (status, True), answer


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize(("count", "new"), [(1, 64), (2, 63), (56, 9), (64, 1)])
def test_a_prompt_can_fill_the_model_s_length(
    count: int, new: int, truncate: bool, server: Server, task: TextGeneration
) -> None:
    """The last generated token needs no further step."""
    body = {"inputs": "a" * count, "parameters": {"max_new_tokens": new}, "truncate": truncate}
    status, answer, headers = server.post("/generate", body)
    assert (status, "x-truncated-inputs" in headers) == (200, False)
    assert answer == {"generated_text": written(task, "a" * count, max_new_tokens=new)}


def test_parameters_that_change_nothing(server: Server, task: TextGeneration) -> None:
    given = {"stop": [], "details": False, "watermark": False, "best_of": 1, "return_full_text": False}
    body: dict[str, Any] = {"inputs": "The", "parameters": {"max_new_tokens": 12, **given}}
    assert server.post("/generate", body)[:2] == (200, {"generated_text": written(task, "The")})
    status, answer, _ = server.post("/v1/completions", {"prompt": "The", "stop": [], "temperature": 0})
    assert (status, answer["choices"][0]["text"]) == (200, written(task, "The", max_new_tokens=16))


def test_a_prompt_is_cut_if_that_is_asked_for(server: Server) -> None:
    body = {"inputs": "a" * 60, "parameters": {"max_new_tokens": 9}, "truncate": True}
    status, _, headers = server.post("/generate", body)
    assert (status, headers["x-truncated-inputs"]) == (200, "0")


def test_inference_client(server: Server, task: TextGeneration) -> None:
    client = InferenceClient(model=f"{server.url}/generate")
    assert client.text_generation("The", max_new_tokens=12) == written(task, "The")
    assert "".join(client.text_generation("The", max_new_tokens=12, stream=True)) == written(task, "The")


# --- OpenAI ----------------------------------------------------------------------------------------------------------


def test_completions(client: openai.OpenAI, task: TextGeneration) -> None:
    answer = client.completions.create(model="writer", prompt=["The other", "in"], max_tokens=12, temperature=0)
    assert [each.text for each in answer.choices] == [written(task, "The other"), written(task, "in")]
    assert [each.finish_reason for each in answer.choices] == ["length"] * 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == sum(len(task.model.tokenizer.encode(each)) for each in ("The other", "in"))
    for limit in ({"min_p": 0.3}, {"typical_p": 0.4}):
        answer = client.completions.create(model="writer", prompt="The", seed=1, max_tokens=12, extra_body=limit)
        drawn = written(task, "The", do_sample=True, temperature=1.0, seed=1, top_k=0, **limit)
        assert answer.choices[0].text == drawn
    answer = client.completions.create(model="writer", prompt="The", n=2, seed=1, echo=True, max_tokens=5)
    drawn = task("The", num_return_sequences=2, seed=1, temperature=1.0, top_k=0, max_new_tokens=5)
    assert [each.text for each in answer.choices] == [each["generated_text"] for each in drawn]


def test_a_completion_ends_before_its_stop_string(client: openai.OpenAI, task: TextGeneration) -> None:
    whole = written(task, "The", max_new_tokens=20)
    stop = whole[3:5]
    settings: dict[str, Any] = {"model": "writer", "prompt": "The", "temperature": 0, "max_tokens": 20, "stop": stop}
    [choice] = client.completions.create(**settings).choices
    assert (choice.text, choice.finish_reason) == (whole[: whole.index(stop)], "stop")
    *parts, last, usage = client.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    assert "".join(each.choices[0].text for each in parts) == choice.text
    assert last.choices[0].finish_reason == "stop"
    assert usage.usage.total_tokens > 1


def test_completions_with_log_probabilities(client: openai.OpenAI, task: TextGeneration) -> None:
    [expected] = task("The", **{**GREEDY, "logprobs": 2})
    settings: dict[str, Any] = {"model": "writer", "prompt": "The", "temperature": 0, "max_tokens": 12, "logprobs": 2}
    found = client.completions.create(**settings).choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == expected.likely.scores[:, 0].tolist()
    assert [list(each.values()) for each in found.top_logprobs or []] == expected.likely.scores[:, 1:].tolist()
    lengths = [len(each) for each in found.tokens or []]
    assert found.text_offset == [sum(lengths[:i]) for i in range(len(lengths))]
    parts = [each.choices[0].logprobs for each in client.completions.create(**settings, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for each in parts for value in getattr(each, name)] == getattr(found, name)


def test_completions_that_are_refused(client: openai.OpenAI) -> None:
    for more, message in (
        ({"n": 2, "temperature": 0}, "n: expected 1 with a temperature below 1e-06"),
        ({"n": 2, "stream": True}, "stream: expected one prompt"),
        ({"logprobs": 6}, "logprobs: expected a whole number from 0 to 5"),
        ({"logprobs": 1, "echo": True}, "echo: expected false with logprobs"),
        ({"prompt": [1, 2]}, "prompt: expected texts, got token ids$"),
        ({"stop": ["a"] * 5}, "stop: expected at most 4 texts, got 5"),
        ({"max_tokens": 65}, "body: max_tokens: expected a whole number"),
    ):
        given: dict[str, Any] = {"model": "writer", "prompt": "The", **more}
        with pytest.raises(openai.UnprocessableEntityError, match=message):
            client.completions.create(**given)
    with pytest.raises(openai.NotFoundError, match="unknown name"):
        client.completions.create(model="gpt-3.5-turbo-instruct", prompt="The")


def test_curl(server: Server) -> None:
    body = '{"prompt": "The", "max_tokens": 3, "stream": true}'
    done = subprocess.run(["curl", "-sN", f"{server.url}/v1/completions", "-d", body], capture_output=True, text=True)
    assert done.stdout.endswith("data: [DONE]\n\n")


# --- stop strings, streams and batches -------------------------------------------------------------------------------


def test_pieces_that_may_begin_a_stop_string_wait() -> None:
    assert until("abcabd", ("bd", "ca")) == "ab"
    for pieces in (["a", "b", "x", "ab", "c"], ["abxabc"], list("abxabc"), ["abxa", "bcd"]):
        found = list(withheld(iter(pieces), ("abc", "zz")))
        assert "".join(found) == "abx"
    assert list(withheld(iter(["a", "b"]), ())) == ["a", "b"]
    assert "".join(withheld(iter(["a", "b"]), ("bc",))) == "ab"


def test_clients_share_a_batch_and_get_the_answers_they_get_alone(task: TextGeneration) -> None:
    """Three requests with the same settings share one batch."""
    batches = []
    batcher = Batcher(10_000, 0.2, 100, lambda batch, seconds: batches.append(len(batch)))
    options = task.settle(task.options, GREEDY)
    prompts = ["The other", "in", "é é"]

    async def ask() -> list[Any]:
        asked = [
            batcher.answers(TaskWork(task, task.settle(task.options, GREEDY)), task.prepare([each], 0, options), [9])
            for each in prompts
        ]
        return [answer for [answer] in await asyncio.gather(*asked)]

    batcher.start()
    try:
        answers = asyncio.run(ask())
    finally:
        batcher.close()
    assert answers == [task(each, **GREEDY) for each in prompts]
    assert batches == [3]


async def asked(folder: Path, path: str, body: dict[str, Any], batches: list[Any], **limits: int) -> Reply:
    """Returns a route's answer after reading its stream; appends the sizes of each batch to `batches`."""
    [route] = [each for each in ALL_ROUTES if each.path == path]
    batcher = Batcher(10_000, 0.0, 100, lambda batch, seconds: batches.append([each.size for each in batch]))
    service = Service(serve_all(folder), batcher, ServiceLimits(**limits), asyncio.to_thread, asyncio.to_thread)
    batcher.start()
    try:
        reply = await route.answer(service, read_fields(route.fields, body))
        if reply.pieces is not None:
            async for _ in reply.pieces:
                pass
        return reply
    finally:
        batcher.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate_stream", {"inputs": "The", "parameters": {"max_new_tokens": 3}}),
        ("/v1/completions", {"prompt": "The", "max_tokens": 3, "stream": True}),
    ],
)
def test_a_stream_s_prompt_is_read_in_the_batching_thread(
    path: str, body: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is computed in the batching thread. Its text is tokenized once, outside the event loop's thread."""
    stream, ids, seen = text_generation.Stream, Encoder.ids, []

    def streaming(*args: Any, **settings: Any) -> Any:
        seen.append(("read", threading.current_thread().name))
        return stream(*args, **settings)

    def encoding(*args: Any) -> Any:
        seen.append(("tokens", threading.current_thread() is threading.main_thread()))
        return ids(*args)

    monkeypatch.setattr(text_generation, "Stream", streaming)
    monkeypatch.setattr(Encoder, "ids", encoding)
    asyncio.run(asked(folder, path, body, []))
    assert seen == [("tokens", False), ("read", "npformer-batches")]


@pytest.mark.parametrize(
    ("path", "body", "sizes"),
    [
        ("/generate", {"inputs": "aaa", "parameters": {"max_new_tokens": 5}}, [3 + 4 * 5]),
        ("/generate", {"inputs": "aaa"}, [3 + 4 * 62]),
        ("/generate", {"inputs": "", "parameters": {"max_new_tokens": 5}}, [4 * 5]),
        ("/v1/completions", {"prompt": ["a", "aa"], "n": 3, "max_tokens": 2}, [3 * (1 + 4 * 2), 3 * (2 + 4 * 2)]),
    ],
)
def test_a_text_s_cost_counts_the_tokens_it_may_generate(
    path: str, body: dict[str, Any], sizes: list[int], folder: Path
) -> None:
    batches: list[Any] = []
    asyncio.run(asked(folder, path, body, batches))
    assert batches == [sizes]


def test_the_number_of_generated_tokens_is_limited(folder: Path) -> None:
    body = {"prompt": ["a"] * 5, "n": 4}
    for limits, message in (
        ({"texts": 19}, "at most 19 texts in a request, got 20"),
        ({"tokens": 20 * 17 - 1}, "at most 339 tokens in a request, got 340"),
    ):
        with pytest.raises(Refusal, match=message) as refused:
            asyncio.run(asked(folder, "/v1/completions", body, [], **limits))
        assert refused.value.status == 413
