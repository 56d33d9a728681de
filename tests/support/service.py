"""Starts `npformer serve` as users do, in a separate process on a free local port, for tests and benchmarks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.support.cli_runner import ENVIRONMENT, command, heed_ctrl_c

STARTED = r"serving .* on (http://\S+:\d+)"
START = 300.0  # seconds for a server to start on a busy machine


class Service:
    """A client of a service at `url`."""

    url: str

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Returns the status, value and headers of the answer. body: bytes, or a value for JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.get(path, data, **headers)

    def get(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **named})
        try:
            with urllib.request.urlopen(request, timeout=START) as answer:
                return answer.status, _read(answer), _headers(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error), _headers(error)


class Server(Service):
    """A running server. `log` is the server's output so far."""

    def __init__(
        self, *arguments: object, program: list[str] | None = None, started: str = STARTED, **environment: str
    ) -> None:
        self.file = tempfile.NamedTemporaryFile("w+", prefix="npformer-test-", suffix=".log")  # noqa: SIM115
        given = program or command("serve", *arguments, "--port", 0)
        env = {**ENVIRONMENT, **environment}
        self.process = subprocess.Popen(
            given, stdout=self.file, stderr=subprocess.STDOUT, env=env, start_new_session=True, preexec_fn=heed_ctrl_c
        )
        self.url = self._wait(started)

    def _wait(self, started: str) -> str:
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(started, self.log):
                return found[1]
            time.sleep(0.05)
        self.kill()
        log = self.log
        self.file.close()
        raise AssertionError(f"the server has not started: {log}")

    @property
    def log(self) -> str:
        return Path(self.file.name).read_text(encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.file.close()

    def signal_all(self, number: int) -> None:
        """Signals the server and its workers, as a terminal does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kills the server; its workers exit when they notice that their parent has ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(START)

    def workers(self) -> list[int]:
        """Returns the process ids of the workers."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in listed if "spawn_main" in _command_line(pid)]


def _read(answer: Any) -> Any:
    content = answer.read()
    return json.loads(content) if answer.headers.get("content-type") == "application/json" else content.decode()


def _headers(answer: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
