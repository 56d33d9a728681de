"""Answers are sent as clients read them: unread bytes are limited, and worker threads compute large answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

import npformer
from npformer.serve import ServiceLimits, answers, connections
from npformer.serve.answers import PIECE, Answer, Answers
from npformer.serve.prometheus import Metrics
from npformer.tasks.text_generation import TextGeneration
from npformer.tasks.text_to_text import TextToText
from tests.support import chatters, seq2seq_models, writers
from tests.support.hasty import LONG, Hasty, connect, hasty_server, is_whole, until

SCOPE: dict[str, Any] = {"type": "http", "path": "/embed", "asgi": {"spec_version": "2.3"}}


class Client:
    """An ASGI client that reads pieces of an answer when a test allows it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.allowed = asyncio.Semaphore(1)  # the client reads the head of an answer at once

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        await self.allowed.acquire()
        self.messages.append(message)

    def reads(self, answer: Answer) -> asyncio.Task[None]:
        return asyncio.ensure_future(answer(SCOPE, self.receive, self.send))

    def read(self, pieces: int) -> None:
        for _ in range(pieces):
            self.allowed.release()

    @property
    def status(self) -> int:
        found: int = self.messages[0]["status"]
        return found

    @property
    def content(self) -> bytes:
        return b"".join(each["body"] for each in self.messages[1:])


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def test_an_answer_counts_until_it_is_read() -> None:
    async def test() -> None:
        held, client, content = Answers(10 * PIECE), Client(), bytes(range(256)) * (PIECE // 64)
        sending = client.reads(Answer(held, content, media_type="application/json"))
        await settle()
        assert held.held == 4 * PIECE
        client.read(1)
        await settle()
        assert held.held == 3 * PIECE
        client.read(10)
        await sending
        assert (held.held, held.unread) == (0, set())
        assert client.content == content
        assert (b"content-length", b"%d" % len(content)) in client.messages[0]["headers"]

    asyncio.run(test())


def test_above_the_limit_the_slowest_reader_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest reader has the largest product of unread bytes and waiting time.

    Readers that are nearly done stay connected.
    """
    monkeypatch.setattr(answers, "FRESH", 0.0)

    async def test() -> None:
        held, (slow, quick, last) = Answers(6 * PIECE), (Client() for _ in range(3))
        first = slow.reads(Answer(held, bytes(3 * PIECE)))
        second = quick.reads(Answer(held, bytes(3 * PIECE)))
        await settle()
        quick.read(3)
        await settle()
        third = last.reads(Answer(held, bytes(5 * PIECE)))
        with pytest.raises(ClientDisconnect):
            await first
        assert held.held <= 6 * PIECE
        for client in (quick, last):
            client.read(10)
        await asyncio.gather(second, third)
        assert (len(quick.content), len(last.content)) == (3 * PIECE, 5 * PIECE)
        assert (held.held, held.unread) == (0, set())

    asyncio.run(test())


def test_without_a_slow_reader_an_answer_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that exceeds the limit by itself is sent if it is the only one."""
    monkeypatch.setattr(answers, "FRESH", 1e9)

    async def test() -> None:
        held, (client, other) = Answers(6 * PIECE), (Client() for _ in range(2))
        first = client.reads(Answer(held, bytes(9 * PIECE)))
        await settle()
        other.read(10)
        await other.reads(Answer(held, b"small"))
        assert other.status == 503
        assert json.loads(other.content)["error"].startswith("answers that clients have not read take too much memory")
        client.read(20)
        await first
        assert (client.status, held.held) == (200, 0)

    asyncio.run(test())


def test_pieces_that_are_made_from_arrays_count_until_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        held, client = Answers(100), Client()
        sending = client.reads(Answer(held, pieces(), size=80))
        client.read(1)
        await settle()
        assert held.held == 80
        client.read(5)
        await sending
        assert (client.content, held.held) == (b"ab", 0)

    asyncio.run(test())


@pytest.fixture(scope="module")
def small(folders: dict[str, Path]) -> Iterator[Hasty]:
    """Yields a server that stores at most 200 kB of unread answers."""
    with hasty_server(folders["encoder"], ServiceLimits(answers=200_000)) as made:
        yield made


@pytest.mark.parametrize(("path", "texts"), [("/embed_all", 16), ("/tokenize", 48)])
def test_slow_readers_hold_bounded_memory_and_others_are_answered(
    path: str, texts: int, small: Hasty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer needs more than half of the limit, so a reader is disconnected to make room for the next one."""
    monkeypatch.setattr(connections, "STALLED", LONG)
    monkeypatch.setattr(answers, "FRESH", 0.0)
    held = small.server.service.answers
    body = json.dumps({"inputs": ["music " * 60] * texts}).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body))
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(connect(small, receive_buffer=4096))) for _ in range(4)]
        for each in slow:
            each.sendall(head + body)
            assert each.recv(15) == b"HTTP/1.1 200 OK"
            assert 0 < held.held <= held.most
        assert len(held.unread) == 1
        status, answer, _ = small.post(path, json.loads(body))
        assert (status, len(answer)) == (200, texts)
        assert not any(map(is_whole, slow))
    until(lambda: held.held == 0)


# --- the event loop --------------------------------------------------------------------------------------------------


def off_the_loop(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, seen: list[str]) -> None:
    function: Callable[..., Any] = getattr(of, name)

    def noting(*given: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            seen.append(name)
        return function(*given, **options)

    monkeypatch.setattr(of, name, noting)


@pytest.mark.parametrize("stream", [False, True])
def test_the_event_loop_computes_no_log_probabilities_settings_or_metrics(
    stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the event loop, many answers with log probabilities would delay all other requests by seconds."""
    pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
    chatter = chatters.folder(tmp_path / "chatter")
    app = npformer.serve.app(
        {"w": writers.model(seed=4), "c": chatter, "t": seq2seq_models.bart_folder(tmp_path / "t")}
    )
    one = {"stream": True} if stream else {"n": 3}
    sampled = {"temperature": 1.0, "seed": 1, "max_tokens": 4, **one}
    talk = [{"role": "user", "content": "the"}]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"model": "w", "prompt": "the", "logprobs": 3, **sampled}),
        ("/v1/chat/completions", {"model": "c", "messages": talk, "logprobs": True, "top_logprobs": 3, **sampled}),
        ("/generate", {"model": "w", "inputs": "the", "parameters": {"max_new_tokens": 3}, "stream": stream}),
        ("/generate", {"model": "t", "inputs": "a", "stream": stream}),
        ("/summarize", {"model": "t", "inputs": "a"}),
    ]

    async def run() -> None:
        seen: list[str] = []
        off_the_loop(monkeypatch, TextGeneration, "settle", seen)
        off_the_loop(monkeypatch, TextToText, "settle", seen)
        off_the_loop(monkeypatch, Metrics, "shown", seen)
        for module in ("text_generation", "logprobs"):
            off_the_loop(monkeypatch, getattr(npformer.serve, module), "scored", seen)
        for module, name in (("text_generation", "of_completion"), ("chat", "of_chat")):
            off_the_loop(monkeypatch, getattr(npformer.serve, module), name, seen)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", timeout=300) as client,
        ):
            for path, body in requests:
                answer = await client.post(path, json=body)
                assert answer.status_code in (200, 424), answer.text
            assert (await client.get("/metrics")).status_code == 200
        assert seen == []

    asyncio.run(run())
