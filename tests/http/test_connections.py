"""Clients that occupy connections: unfinished requests, unread answers, heads sent byte by byte, and slow bodies."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette
from uvicorn import Config
from uvicorn.server import ServerState

from npformer.serve import ServiceLimits, bodies, connections
from tests.support.cli_runner import command
from tests.support.hasty import LONG, Hasty, connect, hasty_server, is_whole, rest, until
from tests.support.service import START, Server, Service

HEAD = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def running(folders: dict[str, Path]) -> Iterator[Hasty]:
    with hasty_server(folders["encoder"], ServiceLimits(queue=64, texts=16)) as made:
        yield made


@pytest.fixture
def hasty(running: Hasty, monkeypatch: pytest.MonkeyPatch) -> Hasty:
    monkeypatch.setattr(connections, "HEAD", LONG)
    monkeypatch.setattr(connections, "STALLED", LONG)
    monkeypatch.setattr(running.server.service.bodies, "patience", LONG)
    until(lambda: running.connections() == 0)
    return running


def asked(server: Service, content: bytes) -> socket.socket:
    connection = connect(server)
    connection.sendall(content)
    return connection


def answered(server: Service, path: str) -> int:
    """Returns the number of requests to a path that were answered with 200."""
    found = re.search(rf'requests_total{{route="{path}",status="200"}} (\d+)', server.get("/metrics")[1])
    return int(found[1]) if found else 0


def test_unfinished_bodies_do_not_block_other_clients(hasty, monkeypatch):
    """There are more open requests than the server allows. In the end, each is answered with 408."""
    monkeypatch.setattr(hasty.server.service.bodies, "patience", 0.6)
    whole = b'{"inputs": "a"}'
    with ExitStack() as stack:
        held = [stack.enter_context(closing(asked(hasty, HEAD % 100 + b'{"inputs": '))) for _ in range(80)]
        other = stack.enter_context(closing(asked(hasty, HEAD % len(whole) + whole)))
        assert other.recv(15) == b"HTTP/1.1 200 OK"
        for each in held:
            answer = rest(each)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body: expected the whole body within 0.6 s plus 1 s per 8000 bytes, got 11 bytes" in answer


def test_a_slow_body_is_waited_for(hasty, monkeypatch):
    """The body takes three times as long as the server would wait for a silent client."""
    monkeypatch.setattr(hasty.server.service.bodies, "patience", 0.6)
    monkeypatch.setattr(bodies, "RATE", 100)
    body = json.dumps({"inputs": "a", "prompt_name": None}).encode().ljust(9000)
    with closing(asked(hasty, HEAD % len(body) + body[:1000])) as slow:
        for at in range(1000, len(body), 1000):
            time.sleep(0.25)
            slow.sendall(body[at : at + 1000])
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_a_body_that_is_too_large_is_answered_while_it_is_sent(hasty):
    """The connection stays open for the next request. If it were closed, the client would not see the answer."""
    with closing(connect(hasty)) as large:
        large.sendall(HEAD % 20_000_000 + b"x" * 20_000_000)
        large.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        found = rest(large)
        assert found.startswith(b"HTTP/1.1 413 ")
        assert b"HTTP/1.1 200 OK" in found


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /he"])
def test_a_missing_head_ends_the_connection(hasty, begun, monkeypatch):
    """The head never begins, arrives byte by byte, or follows a complete request."""
    whole = begun.count(b"HTTP/1.1")
    monkeypatch.setattr(connections, "HEAD", LONG if whole else 0.5)
    with closing(connect(hasty)) as held:
        until(lambda: hasty.connections() or not whole)
        monkeypatch.setattr(connections, "HEAD", 0.5)
        held.sendall(begun)
        held.settimeout(0.1)
        start, found, some = time.monotonic(), b"", b" "
        while some and time.monotonic() < start + START:
            try:
                found += (some := held.recv(65536))
                if begun:
                    held.sendall(b"a")
            except TimeoutError:
                if begun:
                    held.sendall(b"a")
            except ConnectionError:
                break
        until(lambda: hasty.connections() == 0)
        assert found.count(b"HTTP/1.1 200 OK") == whole


@pytest.mark.parametrize("texts", [1, 16], ids=["less than asyncio buffers", "more"])
def test_an_answer_that_is_not_read_ends(hasty, texts, monkeypatch):
    """The server drops a stream, or an answer of any size, if the client does not read."""
    monkeypatch.setattr(connections, "STALLED", 0.6)
    body = json.dumps({"inputs": ["music " * 60] * texts}).encode()
    head = (HEAD % len(body)).replace(b"/embed", b"/embed_all").replace(b"host", b"connection: close\r\nhost")
    before = answered(hasty, "/embed_all")
    with ExitStack() as stack:
        held = [stack.enter_context(closing(connect(hasty, receive_buffer=4096))) for _ in range(4)]
        for each in held:
            each.sendall(head + body)
        until(lambda: answered(hasty, "/embed_all") == before + 4)
        until(lambda: hasty.connections() == 0)
        assert not any(map(is_whole, held))
        monkeypatch.setattr(connections, "STALLED", LONG)
        assert is_whole(stack.enter_context(closing(asked(hasty, head + body))))


def test_a_request_in_drops_and_one_behind_it_are_answered(hasty, monkeypatch):
    content = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with closing(connect(hasty)) as held:
        until(hasty.connections)
        # the new deadline does not apply to the first request, for which the server is already waiting
        monkeypatch.setattr(connections, "HEAD", 0.3)
        for at in range(0, len(content), 12):
            held.sendall(content[at : at + 12])
            time.sleep(0.02)
        assert held.recv(65536).startswith(b"HTTP/1.1 200 OK")
        time.sleep(1)  # longer than the deadline for a head, but no request has begun
        monkeypatch.setattr(connections, "HEAD", LONG)
        held.sendall(content + content.replace(b"x\r\n", b"x\r\nconnection: close\r\n"))
        assert rest(held).count(b"HTTP/1.1 200 OK") == 2


def test_a_client_that_offers_http_2_is_answered_without_a_warning(server):
    """Java's HTTP client offers an upgrade on each connection."""
    with closing(connect(server)) as offering:
        upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
        offering.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n")
        assert offering.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert "upgrade" not in server.log


def test_a_connection_takes_few_bytes_in_a_turn_of_the_event_loop():
    """Reading a megabyte in chunks of one byte takes seconds; other requests are answered in the meantime."""
    taken, made = [], []

    class Noting(connections.Connection):
        def connection_made(self, transport: asyncio.Transport) -> None:
            made.append(transport)
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            taken.append(len(data))
            super().data_received(data)

    async def run() -> None:
        config = Config(Starlette(), http=Noting, lifespan="off", log_level="critical")
        config.load()
        loop = asyncio.get_running_loop()
        serving = await loop.create_server(lambda: Noting(config, ServerState(), {}), "127.0.0.1", 0)
        with closing(socket.create_connection(serving.sockets[0].getsockname())) as client:
            client.setblocking(False)
            left = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 20_000
            while sum(taken) < 3 * connections.AT_ONCE:
                with suppress(BlockingIOError):  # raised when the system's buffers are full
                    left = left[client.send(left) :]
                await asyncio.sleep(0)
        made[0].abort()
        serving.close()
        await serving.wait_closed()

    asyncio.run(run())
    assert max(taken) <= connections.AT_ONCE


def test_more_connections_than_the_usual_limit_of_open_files(folders):
    program = ["bash", "-c", 'ulimit -Sn 64; exec "$@"', "-", *command("serve", folders["encoder"], "--port", 0)]
    with Server(program=program) as server, ExitStack() as stack:
        held = [stack.enter_context(closing(connect(server))) for _ in range(200)]
        assert server.post("/embed", {"inputs": "a"})[0] == 200
        assert len(held) == 200
        assert server.log.count("\n") == 1
