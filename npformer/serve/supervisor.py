"""Servers: a single process, or several workers that share a socket under a parent process.

SIGTERM or Ctrl-C stops a server: new requests get 503, accepted requests are answered, and the process exits with 0. A
second signal ends the server at once, but only if it arrives more than APART seconds later, because the command
`timeout` sends two signals in a row. A worker that dies is replaced. Workers share the weights, which are memory-mapped
from files. A model in a format that cannot be mapped is first converted to files in a temporary folder.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

try:
    import resource
except ImportError:  # Windows has no such limit on open files
    resource = None  # type: ignore[assignment]

from npformer.checkpoint.convert import convert
from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.common.locks import partial_folder
from npformer.engine.runtime.mapped import is_mapped
from npformer.engine.runtime.narrow import NARROW
from npformer.engine.runtime.threads import available_cores
from npformer.serve.asgi import App, check_key, make
from npformer.serve.connections import KEEP_ALIVE
from npformer.serve.connections import Connection as HttpConnection
from npformer.serve.models import Served, name_of_path, serve_all
from npformer.serve.quiet import spare
from npformer.serve.request_limits import ServiceLimits

POLL = 0.2  # seconds between checks of workers, and of whether a stopping server is idle
APART = 0.2  # a second signal within this many seconds of the first is ignored
SHORT_LIFE = 5.0  # a worker that dies within this many seconds is replaced only after a pause
PAUSE = 1.0
HANDLED = (signal.SIGTERM, signal.SIGINT)
CONNECTIONS = 16_384  # maximum number of open files; each connection takes a few kilobytes
BACKLOG = 2048  # maximum number of connections that wait to be accepted


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server, which are sent to its workers."""

    models: Sequence[str] | Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int | None = None
    revision: str | None = None
    offline: bool = False
    keep: str = "float32"
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    api_key: str | None = field(default=None, repr=False)
    access_log: bool = False

    def loaded(self) -> dict[str, Served]:
        loading = {"threads": self.threads, "revision": self.revision, "offline": self.offline, "keep": self.keep}
        return serve_all(self.models, **loading)


def run(settings: ServerSettings) -> None:
    """Serves until a signal stops it. Raises NpformerError if the address is taken or a model cannot be loaded."""
    _log_to_stderr()
    _allow_connections()
    check_key(settings.api_key)
    with bound(settings.host, settings.port) as listening:
        if settings.workers == 1:
            Server(settings, settings.loaded(), lambda: _announce(settings, listening)).run(sockets=[listening])
        else:
            Supervisor(settings, listening).run()


def _log_to_stderr() -> None:
    logging.basicConfig(format="npformer: %(message)s", level=logging.INFO, stream=sys.stderr)
    for noisy in ("httpx", "huggingface_hub", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    spare("uvicorn.error", "npformer.serve")


def _allow_connections() -> None:
    """Raises the limit on open files for this process and the workers.

    The limit is often 1024, and each connection is an open file, so idle clients could use all of them.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket bound to this address, which starts to listen when a server starts."""
    whole("port", port, 0, 65535)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        if os.name == "posix":  # not on Windows, where this option would let two servers share a port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise NpformerError(f"{host}:{port}: cannot listen: {error.strerror or error}") from None
    made.set_inheritable(True)
    return made


def _announce(settings: ServerSettings, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    names = ", ".join(settings.models if isinstance(settings.models, Mapping) else map(name_of_path, settings.models))
    logging.getLogger("npformer.serve").info("serving %s on http://%s:%d; press Ctrl-C to stop", names, host, port)


def cancellable(app: Any) -> Any:
    """Returns an app that ends quietly when uvicorn cancels it. Otherwise, uvicorn logs a traceback per request."""

    async def quiet(scope: Any, receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return quiet


class Server(uvicorn.Server):  # type: ignore[misc, unused-ignore]
    """A uvicorn server that answers 503 while it shuts down, and then exits normally."""

    def __init__(
        self, settings: ServerSettings, models: dict[str, Served], ready: Any, is_worker: bool = False
    ) -> None:
        made = make(models, settings.limits, settings.api_key, settings.access_log)
        self.service: App = made.state.npformer
        self.ready = ready
        self.is_worker = is_worker
        grace = settings.limits.grace
        super().__init__(
            uvicorn.Config(
                cancellable(made), log_level="warning", access_log=False, lifespan="on", backlog=BACKLOG, ws="none",
                http=HttpConnection, timeout_keep_alive=KEEP_ALIVE,
                server_header=False,
            )
        )  # fmt: skip
        self.grace = grace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the shutdown at the first signal.

        A worker may receive a signal twice: from the system or the terminal, and from the parent.
        """
        if self.service.stopping or (self.is_worker and sig == signal.SIGINT):
            return
        self.service.stopping, self.service.end = True, time.monotonic() + self.grace
        asyncio.get_running_loop().call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._finishing = asyncio.ensure_future(self._stop_when_idle())

    async def _stop_when_idle(self) -> None:
        """Waits for accepted requests, and for request bodies, until the end of the grace period."""
        end = self.service.end
        assert end is not None
        await asyncio.sleep(APART)  # new requests get 503 until the exit
        if not self.is_worker:  # a worker ignores a second signal, because its parent kills it
            for each in HANDLED:
                signal.signal(each, signal.SIG_DFL)
        while self.service.open and time.monotonic() < end:
            await asyncio.sleep(POLL / 4)
        self.config.timeout_graceful_shutdown = max(POLL / 4, end - time.monotonic())
        self.should_exit = True


# --- several processes -----------------------------------------------------------------------------------------------


class Worker:
    """A worker process, and the pipe on which it reports that it is ready."""

    def __init__(self, settings: ServerSettings, listening: socket.socket) -> None:
        processes = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
        self.ready, theirs = processes.Pipe(duplex=False)
        self.process = processes.Process(target=work, args=(settings, listening, theirs), name="npformer-worker")
        self.process.start()
        theirs.close()
        self.started = time.monotonic()
        self.is_ready = False

    def look(self) -> None:
        """Records whether the worker has reported that it is ready."""
        with suppress(OSError, EOFError):  # raised if the other end of the pipe is closed
            self.is_ready = self.is_ready or (self.ready.poll() and self.ready.recv())


def _leave(number: int, _: FrameType | None) -> None:
    """Ends a server that is still loading models, by an exception, so that its temporary folder is removed."""
    sys.exit(128 + number)


class Supervisor:
    """Starts workers, replaces dead workers, and forwards signals."""

    def __init__(self, settings: ServerSettings, listening: socket.socket) -> None:
        self.listening = listening
        self.settings = settings
        self.signals: list[float] = []
        self.log = logging.getLogger("npformer.serve")

    def run(self) -> None:
        with ExitStack() as stack:
            home = stack.enter_context(partial_folder(Path(tempfile.gettempdir(), "npformer-serve")))
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _leave))
            settings = shared(self.settings, home)
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(home)  # each worker then reports the sums over all workers
            for each in HANDLED:
                before = signal.signal(each, self._note)
                stack.callback(signal.signal, each, before)
            stack.callback(os.environ.pop, "PROMETHEUS_MULTIPROC_DIR", None)
            self.workers = [Worker(settings, self.listening) for _ in range(settings.workers)]
            try:
                self._watch(settings)
            finally:
                self._stop()

    def _note(self, *_: Any) -> None:
        self.signals.append(time.monotonic())

    def _watch(self, settings: ServerSettings) -> None:
        announced = False
        while not self.signals:
            wait([worker.process.sentinel for worker in self.workers], timeout=POLL)
            for place, worker in enumerate(self.workers):
                worker.look()
                if worker.process.is_alive() or self.signals:
                    continue
                if not announced:
                    raise NpformerError(f"a worker ended with exit code {worker.process.exitcode} before it was ready")
                self.log.warning("worker %s died, exit code %s", worker.process.pid, worker.process.exitcode)
                mark_process_dead(worker.process.pid)
                if time.monotonic() - worker.started < SHORT_LIFE:
                    time.sleep(PAUSE)
                self.workers[place] = Worker(settings, self.listening)
            if not announced and all(worker.is_ready for worker in self.workers):
                _announce(self.settings, self.listening)
                announced = True

    def _stop(self) -> None:
        """Forwards the signal, and waits. Kills workers after the grace period or at a second signal."""
        for worker in self.workers:
            worker.process.terminate()
        end = time.monotonic() + self.settings.limits.grace + 2
        while any(worker.process.is_alive() for worker in self.workers):
            wait([worker.process.sentinel for worker in self.workers if worker.process.is_alive()], timeout=POLL)
            if time.monotonic() > end or (self.signals and self.signals[-1] - self.signals[0] > APART):
                for worker in self.workers:
                    worker.process.kill()
        for worker in self.workers:
            worker.process.join()


def work(settings: ServerSettings, listening: socket.socket, ready: Connection) -> None:
    """Runs a worker process, which serves on the parent's socket and stops when the parent dies."""
    _log_to_stderr()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Server(settings, settings.loaded(), lambda: ready.send(True), is_worker=True).run(sockets=[listening])
    except NpformerError as error:
        sys.exit(f"npformer: {error}")


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


# --- weights that are mapped -----------------------------------------------------------------------------------------


def shared(settings: ServerSettings, home: Path) -> ServerSettings:
    """Returns the settings of a worker, which uses part of the cores.

    Models that cannot be mapped from files are replaced with converted copies in `home`.
    """
    threads = settings.threads or max(1, available_cores() // settings.workers)
    paths = []
    for name, served in settings.loaded().items():
        folder = served.model.folder
        assert folder is not None
        if not is_mapped(served.model.weights):
            dtype = "float32" if settings.keep == "float32" else None
            keep = settings.keep if settings.keep in NARROW else None
            folder = convert(folder, home / name.replace("/", "--"), dtype=dtype, keep=keep)
        paths.append((name, str(folder)))
    return replace(settings, models=dict(paths), threads=threads)
