"""A server in a thread of the test's process, with small system buffers, and connections that a test controls."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from npformer.serve import ServiceLimits, supervisor
from tests.support.service import START, Service

LONG = 600.0  # longer than any test, in seconds


class Hasty(Service):
    """A server in a thread of this process, with small system buffers.

    Each test sets only the deadline for which it waits, so pauses of the client or the server do not matter.
    """

    def __init__(self, folder: Path, listening: socket.socket, limits: ServiceLimits) -> None:
        settings = supervisor.ServerSettings([str(folder)], limits=limits)
        ready = threading.Event()
        self.server = supervisor.Server(settings, settings.loaded(), ready.set)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        assert ready.wait(START)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def connections(self) -> int:
        return len(self.server.server_state.connections)


@contextmanager
def hasty_server(folder: Path, limits: ServiceLimits) -> Iterator[Hasty]:
    with supervisor.bound("127.0.0.1", 0) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        with closing(Hasty(folder, listening, limits)) as made:
            yield made


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + START
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def connect(server: Service, receive_buffer: int = 0) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.socket()
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(START)
    made.connect((host, int(port)))
    return made


def rest(connection: socket.socket) -> bytes:
    """Returns the remaining bytes, until the server closes the connection."""
    found = b""
    while some := connection.recv(65536):
        found += some
    return found


def is_whole(connection: socket.socket) -> bool:
    """Returns whether a chunked answer is complete."""
    try:
        return rest(connection).endswith(b"\r\n0\r\n\r\n")
    except ConnectionError:
        return False
