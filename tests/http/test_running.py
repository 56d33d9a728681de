"""A service in use: concurrent clients, a full queue, disconnecting clients, keys, signals, and workers that die."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from npformer import pipeline
from tests.support.cli_runner import ENVIRONMENT, ROOT, run_apart
from tests.support.gated import Gated
from tests.support.service import Server, alive

SENTENCE = "what i love most about this film is how it never takes itself too seriously and yet breaks your heart"
WORDS = SENTENCE.split()
SIXTEEN = {"inputs": [SENTENCE] * 16}


def metric(server: Server, name: str) -> float:
    """Returns the sum of a counter over its labels."""
    _, text, _ = server.get("/metrics")
    return sum(float(each) for each in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def until(condition, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def accepted(server: Gated) -> float:
    """Returns the number of texts that have been accepted since the server started."""
    return sum(server.batches()) + metric(server, "npformer_queue_texts")


def is_stopping(server: Server) -> bool:
    """Returns whether the server refuses requests. An idle worker may have exited, which breaks its connections."""
    try:
        return server.get("/health")[0] == 503
    except (ConnectionError, urllib.error.URLError):
        return False


def raw(server: Server, path: str, body: dict) -> socket.socket:
    """Opens a connection and sends a complete request."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=300)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.fixture(scope="module")
def busy():
    """Yields a server of the bundled model with small limits, in which queues form while its gate is closed."""
    with Gated("distilbert-sst2", "--max-queue", 48, "--max-texts", 48, "--max-tokens", 3000) as running:
        yield running


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Yields a server with two workers, which share files in their own temporary folder."""
    home = tmp_path_factory.mktemp("shared")
    with Server("distilbert-sst2", "--workers", 2, TMPDIR=str(home)) as running:
        yield running


# --- memory ----------------------------------------------------------------------------------------------------------


def shared_memory(pid: int) -> tuple[int, int]:
    """Returns the memory of mapped weights in bytes: resident, and proportional (shared pages divided by users)."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    part = re.findall(r"npformer\.safetensors\n.*?^Rss:\s+(\d+) kB.*?^Pss:\s+(\d+) kB", text, re.M | re.S)
    return sum(int(rss) for rss, _ in part) * 1024, sum(int(pss) for _, pss in part) * 1024


def test_workers_share_mapped_weights(two):
    """The bundled model is stored in float16, so the server has converted it for the workers.

    This must be the first test of the server, because a worker copies weights into panels at their third use and then
    releases the mapped weights.
    """
    pids = two.workers()
    assert len(pids) == 2
    for stopped in pids:  # the other worker answers, and so reads its weights
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert two.post("/embed", {"inputs": "a text"})[0] == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
    for pid in pids:
        rss, pss = shared_memory(pid)
        assert rss > 20e6
        assert pss < 0.6 * rss


# --- the same bits whatever other clients send -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone_answered():
    """Returns texts, each with its vector and labels, computed in this process."""
    draw = random.Random(16)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(32)]
    embed = pipeline("sentence-embedding", "distilbert-sst2")
    classify = pipeline("text-classification", "distilbert-sst2", top_k=None)
    return [(text, np.asarray(embed(text)).astype(float), list(classify(text))) for text in texts]


@pytest.mark.parametrize("which", ["busy", "two"])
def test_concurrent_clients_get_the_bits_of_lone_requests(which, request, alone_answered):
    """The first texts of all clients are in the queue of `busy` before its second batch begins."""
    server = request.getfixturevalue(which)

    def ask(text: str) -> tuple[object, object]:
        vector = server.post("/embed", {"inputs": text, "normalize": False})[1]
        return vector, server.post("/predict", {"inputs": text})[1]

    with ThreadPoolExecutor(16) as pool, ExitStack() as stack:
        if which == "busy":
            before = accepted(server)
            stack.enter_context(server.closed())
        answers = pool.map(ask, [text for text, _, _ in alone_answered])
        if which == "busy":
            until(lambda: accepted(server) == before + 16)
        stack.close()
        found = list(answers)
    for (_, expected, expected_labels), (vector, labels) in zip(alone_answered, found, strict=True):
        np.testing.assert_array_equal(np.array(vector[0]), expected)
        assert labels == expected_labels
    if which == "busy":
        assert metric(server, "npformer_batch_texts_sum") > metric(server, "npformer_batch_texts_count")


def test_translations_in_a_shared_batch_equal_single_requests(folders):
    """Requests with one, two and four beams arrive at the same time."""
    draw = random.Random(3)
    texts = ["".join(draw.choices("dogsnew", k=draw.randint(1, 12))) for _ in range(40)]
    settings = [{"num_beams": draw.choice([1, 2, 4])} for _ in texts]
    translate = pipeline("translation", folders["translator"])

    with Server(folders["translator"]) as server, ThreadPoolExecutor(10) as pool:

        def ask(text: str, given: dict) -> str:
            body = {"inputs": text, "parameters": given, "truncate": True}
            return server.post("/translate", body)[1][0]["translation_text"]

        assert list(pool.map(ask, texts, settings)) == [
            translate(text, long="truncate", **given)["translation_text"]
            for text, given in zip(texts, settings, strict=True)
        ]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_answers_429_and_when_to_retry(busy):
    """Of twelve requests of twelve texts, at most eight fit into the paused batch and the queue."""
    before = accepted(busy)
    with ThreadPoolExecutor(12) as pool, busy.closed():
        asked = [pool.submit(busy.post, "/predict", {"inputs": [[SENTENCE]] * 12}) for _ in range(12)]
        until(lambda: sum(each.done() for each in asked) + (accepted(busy) - before) / 12 == 12)
        busy.open()
        found = [each.result() for each in asked]
    statuses = [status for status, _, _ in found]
    assert set(statuses) == {200, 429}
    for status, answer, headers in found:
        if status == 429:
            assert 1 <= int(headers["retry-after"]) <= 60
            assert answer["error_type"] == "Overloaded"
    assert len({json.dumps(answer) for status, answer, _ in found if status == 200}) == 1


def test_requests_of_disconnected_clients_are_not_computed(busy):
    gone, tokens = (metric(busy, f"npformer_{each}_total") for each in ("requests_gone", "tokens"))
    begun = len(busy.batches())
    with busy.closed():
        first = raw(busy, "/embed", SIXTEEN)
        until(lambda: len(busy.batches()) == begun + 1)
        leaving = [raw(busy, "/embed", SIXTEEN) for _ in range(3)]
        until(lambda: metric(busy, "npformer_queue_texts") == 48)
        for each in leaving:
            each.close()
        until(lambda: metric(busy, "npformer_requests_gone_total") == gone + 3)
        until(lambda: metric(busy, "npformer_queue_texts") == 0)
    assert first.recv(15) == b"HTTP/1.1 200 OK"
    first.close()
    one = busy.post("/v1/embeddings", {"input": SENTENCE})[1]["usage"]["total_tokens"]
    assert busy.batches()[begun:] == [16, 1]
    assert metric(busy, "npformer_tokens_total") - tokens == 17 * one


def test_a_stream_ends_when_its_client_disconnects():
    body = {"inputs": "a man with a dog walks down the street and " * 6, "stream": True}
    with Gated("en-de-multi30k", "distilbert-sst2") as server:
        pieces = server.post("/generate", body)[1].count("data:")
        assert pieces > 20
        begun = len(server.batches())
        with server.closed():
            stream = raw(server, "/generate", body)
            server.allow(begun + 1)
            assert stream.recv(15) == b"HTTP/1.1 200 OK"
            until(lambda: len(server.batches()) == begun + 2)  # the second piece waits at the gate
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(10_000):  # reads until the server closes the connection, too
                pass
            stream.close()
        all_tokens = raw(server, "/embed_all", {"inputs": ["music " * 400] * 4})
        assert all_tokens.recv(15) == b"HTTP/1.1 200 OK"
        all_tokens.close()
        for _ in range(5):  # a stream that continued would compute a piece between any two requests
            assert server.post("/generate", {**body, "stream": False})[0] == 200
        # two pieces, perhaps one more while the stream is being cancelled, and the six answers
        assert len(server.batches()) - begun <= 3 + 6
        assert server.log.count("\n") == 1  # the log has only the line that the server prints at the start
        server.process.terminate()
        assert server.process.wait(120) == 0  # a clean exit, because no connection is open


def test_time_is_limited():
    with Gated("distilbert-sst2", "--timeout", 0.4) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=300) as slow:
            slow.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert b" 408 " in slow.recv(100)
        with server.closed():
            status, answer, _ = server.post("/embed", {"inputs": "a"})
            assert (status, answer["error"]) == (504, "not answered within 0.4 s")


def test_tokens_are_limited(busy):
    status, answer, _ = busy.post("/embed", {"inputs": ["a " * 500] * 7})
    assert (status, answer["error"]) == (413, "inputs: expected at most 3000 tokens in a request, got 3514")
    for inputs in ("a " * 3001, ["a " * 1600] * 2, "a " * 400_000):
        status, answer, _ = busy.post("/tokenize", {"inputs": inputs})
        assert status == 413
        assert "at most 3000 tokens" in answer["error"]


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_key(folders, tmp_path, source):
    (tmp_path / "key").write_text("s3cret-key\n")
    file = ["--api-key-file", tmp_path / "key"] if source == "file" else []
    environment = {} if file else {"NPFORMER_API_KEY": "s3cret-key"}
    with Server(folders["encoder"], *file, **environment) as server:
        body = {"inputs": "a"}
        assert server.post("/embed", body, authorization="Bearer s3cret-key")[0] == 200
        for wrong in ({}, {"authorization": "Bearer s3cret-ke"}, {"authorization": "Basic s3cret-key"}):
            status, _, headers = server.post("/embed", body, **wrong)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        for path in ("/", "/info", "/metrics", "/v1/models", "/docs", "/openapi.json"):
            assert server.get(path)[0] == 401
            assert server.get(path, authorization="Bearer s3cret-key")[0] == 200
        assert server.get("/health")[0] == 200
        assert "s3cret" not in server.log


def test_malformed_requests_do_not_fill_the_log(folders):
    """uvicorn would log a line for each malformed request. Valid requests must still be answered."""
    with Server(folders["encoder"]) as server:
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(40):
            with socket.create_connection((host, int(port)), timeout=300) as connection:
                connection.sendall(b"no request\r\n\r\n")
                assert connection.recv(12) == b"HTTP/1.1 400"
        assert server.post("/embed", {"inputs": "a"})[0] == 200
        assert server.log.count("Invalid HTTP request") == 5


# --- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "workers"), [("SIGTERM", 1), ("Ctrl-C", 2), ("SIGTERM to the process and to its group", 2)]
)
def test_a_stopped_server_answers_accepted_requests_and_exits_with_0(sent, workers):
    """A terminal sends Ctrl-C to the process group; `timeout` sends SIGTERM to the process and then to its group."""
    # `timeout` sends both signals at once. This test may be slow to send the second, so APART makes both one signal.
    with Gated(
        "distilbert-sst2", "--grace", 600, "--workers", workers, APART="600" if "group" in sent else "0.2"
    ) as server:
        server.allow(0)
        asked = [raw(server, "/embed", SIXTEEN) for _ in range(2)]
        until(lambda: accepted(server) == 32)
        if sent == "Ctrl-C":
            server.signal_all(signal.SIGINT)
        else:
            server.process.send_signal(signal.SIGTERM)
        until(lambda: is_stopping(server))
        if "group" in sent:
            server.signal_all(signal.SIGTERM)
        if workers == 1:
            status, answer, headers = server.post("/embed", {"inputs": "too late"})
            assert (status, answer["error"]) == (503, "the server is shutting down")
            assert headers["retry-after"] == "1"
            assert headers["connection"] == "close"
        server.open()
        for each in asked:
            assert each.recv(15) == b"HTTP/1.1 200 OK"
            while each.recv(100_000):
                pass
            each.close()
        assert server.process.wait(120) == 0
        assert "Traceback" not in server.log


def test_requests_that_outlast_the_grace_period_are_refused():
    """A request without an answer gets 503. An answer that has begun is cut off. No traceback is logged."""
    with Gated("distilbert-sst2", "--grace", 1) as server:
        unread = raw(server, "/embed_all", {"inputs": ["music " * 500] * 2})  # more than the system buffers
        assert unread.recv(15) == b"HTTP/1.1 200 OK"
        server.allow(0)
        waiting = raw(server, "/embed", SIXTEEN)
        host, port = server.url.removeprefix("http://").split(":")
        unfinished = socket.create_connection((host, int(port)), timeout=300)
        unfinished.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        until(lambda: accepted(server) == 18)
        server.process.send_signal(signal.SIGTERM)
        for each in (waiting, unfinished):
            assert b"".join(iter(lambda each=each: each.recv(1000), b"")).startswith(b"HTTP/1.1 503 ")
            each.close()
        assert server.process.wait(120) == 0
        unread.close()
        assert "Traceback" not in server.log


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_it_at_once(workers):
    """The second signal must come a moment after the first. A parent then kills its workers, and ends as it does after
    one signal, unless a later signal ends it.
    """
    with Gated("distilbert-sst2", "--grace", 600, "--workers", workers) as server:
        server.allow(0)
        connection = raw(server, "/embed", SIXTEEN)
        until(lambda: accepted(server) == 16)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: is_stopping(server))
        until(lambda: server.process.send_signal(signal.SIGTERM) or server.process.poll() is not None)
        assert server.process.poll() in ((-signal.SIGTERM,) if workers == 1 else (-signal.SIGTERM, 0))
        connection.close()


STOPPED = """
import os, signal
from npformer.serve import supervisor
supervisor.shared = lambda settings, home: os.kill(os.getpid(), signal.SIGTERM)
supervisor.run(supervisor.ServerSettings(["distilbert-sst2"], port=0, workers=2))
"""


def test_a_server_stopped_while_it_loads_models_leaves_no_converted_copies(tmp_path):
    command = [sys.executable, "-c", STOPPED]
    done = subprocess.run(command, env={**ENVIRONMENT, "TMPDIR": str(tmp_path)}, cwd=ROOT, timeout=300)
    assert done.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


# --- workers ---------------------------------------------------------------------------------------------------------


def test_a_killed_worker_comes_back_and_the_others_serve_meanwhile(two):
    before = two.workers()
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len(two.workers()) == 2 and before[0] not in two.workers())
    assert before[1] in two.workers()
    until(lambda: f"worker {before[0]} died" in two.log)  # the message arrives through a pipe, a little later
    for _ in range(20):
        assert two.post("/embed", {"inputs": "a text"})[0] == 200
    assert metric(two, "npformer_requests_total") >= 20  # the sum over all workers, including the dead one


def test_workers_end_when_their_parent_is_killed_and_the_next_server_removes_its_folder(folders, tmp_path):
    arguments = (folders["encoder"], "--workers", 2)
    with Server(*arguments, TMPDIR=str(tmp_path)) as server:
        pids = server.workers()
        server.process.kill()
        until(lambda: not any(alive(pid) for pid in pids))
    [left] = tmp_path.glob("*npformer-serve*.partial")
    with Server(*arguments, TMPDIR=str(tmp_path)) as server:
        [own] = tmp_path.glob("*npformer-serve*.partial")
        server.process.terminate()
        server.process.wait()
    assert own != left
    assert not list(tmp_path.iterdir())


# --- refused starts -------------------------------------------------------------------------------------------


def test_a_port_that_is_taken(folders):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, said = run_apart("serve", folders["encoder"], "--port", port)
    assert code == 1
    assert said == f"npformer: 127.0.0.1:{port}: cannot listen: Address already in use\n"


def test_an_app_in_a_server_of_ones_own(folders, tmp_path):
    """The app runs in the user's server: `uvicorn service:app`."""
    (tmp_path / "service.py").write_text(
        f"import npformer\napp = npformer.serve.app({{'mine': {str(folders['encoder'])!r}}}, api_key='k')\n"
    )
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", "0", "--app-dir", str(tmp_path)]
    with Server(program=command, started=r"running on (\S+)") as server:
        _, models, _ = server.get("/v1/models", authorization="Bearer k")
        assert [each["id"] for each in models["data"]] == ["mine"]
        assert server.get("/v1/models")[0] == 401
