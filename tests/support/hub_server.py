"""A small Hugging Face hub on loopback, for tests: the part of its protocol that downloads use, over real HTTP.

    with Hub() as hub:
        commit = hub.add("owner/model", folder)              # one commit on the branch main
        loads(environment(hub, home), {"name": "owner/model"})
        hub.requests                                         # its requests so far: ("GET", "/owner/model/...", headers)

As on the real hub, large files (`large`) are redirected to another server, a "CDN" with a different host name, and
the header X-Error-Code distinguishes the causes of a 401, 403 or 404. Faults are attributes of `hub`; a repository's
settings are arguments of `add`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support import forks

TOKEN = "hf_" + "x" * 34  # the only valid token


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    large: int = 100_000  # files of at least this size are redirected to the CDN
    gated: bool = False  # files require a login that has access
    granted: bool = False  # TOKEN has access


class Hub:
    """The hub and the CDN, which run in threads inside a `with` block."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.cdn_requests: list[tuple[str, str, dict[str, str]]] = []
        self.break_after: list[int] = []  # numbers of bytes after which the next CDN downloads break off
        self.stall_after = -1  # number of bytes after which every CDN download stalls; -1: downloads are complete
        self.silent = False  # the hub accepts requests without answering
        self.over = threading.Event()
        self.status = 0  # if set, the hub answers every request with this status
        self.answer = b""  # if set, the hub answers every request with these bytes
        self.page = b""  # if set, the hub answers every request with this web page, like the login page of a network
        self.commit_header = ""  # if set, sent instead of the commit's hash
        self.hub_server = _Server(_HubHandler, self)
        self.cdn_server = _Server(_CdnHandler, self)
        self.url = f"http://127.0.0.1:{self.hub_server.server_port}"
        # a different host, to which clients send no login
        self.cdn_url = f"http://localhost:{self.cdn_server.server_port}"

    def __enter__(self) -> Hub:
        for server in (self.hub_server, self.cdn_server):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for server in (self.hub_server, self.cdn_server):
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: Path | dict[str, bytes], branch: str = "main", **settings: Any) -> str:
        """Commits files (a folder's, or a dict of them) at the tip of a branch, and returns the commit's hash."""
        if isinstance(files, Path):
            paths = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        repository = self.repositories.setdefault(name, Repository(**settings))
        commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        repository.commits[commit] = files
        repository.refs[branch] = commit
        return commit

    def asked(self, method: str) -> list[str]:
        """Returns the files requested from the hub or the CDN with this method."""
        asked = self.requests + self.cdn_requests
        return [path.split("/", 5)[5] for each, path, _ in asked if each == method and "/resolve/" in path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    @property
    def hub(self) -> Hub:
        return self.server.hub

    @property
    def sent_headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Sends an answer, or the requested range of it. For HEAD, sends only its headers."""
        headers = headers or {}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if status == 200 and asked:
            first, last = int(asked[1]), min(int(asked[2] or len(body) - 1), len(body) - 1)
            headers |= {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
            status, body = 206, body[first : last + 1]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.send(body)

    def send(self, body: bytes) -> None:
        self.wfile.write(body)

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


class _HubHandler(_Handler):
    """Serves model info at /api/models/<id>[/revision/<rev>], and files at /<id>/resolve/<rev>/<file>."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.sent_headers))
        if self.hub.silent:
            self.hub.over.wait()
            return self.hang_up()
        if self.hub.answer:
            self.wfile.write(self.hub.answer)
            return self.hang_up()
        if self.hub.page:
            return self.reply(200, self.hub.page, {"Content-Type": "text/html"})
        if self.hub.status:
            return self.reply(self.hub.status)
        if api := re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)(?:/revision/(.+))?", path):
            return self.info(api[1], api[2] or "main")
        if file := re.fullmatch(r"/(.+?)/resolve/(refs/pr/\d+|[^/]+)/(.+)", path):
            return self.resolve(*file.groups())
        return self.reply(404)

    def refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"error": message}).encode()
        self.reply(status, body, {"X-Error-Code": code, "X-Error-Message": message} | (headers or {}))

    def found(self, name: str, revision: str) -> tuple[Repository, str] | None:
        """Returns the repository and the commit. If either does not exist, sends the error and returns None."""
        login = self.headers.get("Authorization", "")
        if login not in ("", f"Bearer {TOKEN}"):
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        repository = self.hub.repositories.get(name)
        if repository is None:  # without a login, private and missing repositories get the same answer
            self.refuse(404 if login else 401, "RepoNotFound", "Repository not found")
            return None
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def info(self, name: str, revision: str) -> None:
        if found := self.found(name, revision):
            repository, commit = found
            siblings = [{"rfilename": file} for file in repository.commits[commit]]
            about = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": []}
            self.reply(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def resolve(self, name: str, revision: str, file: str) -> None:
        found = self.found(name, revision)
        if not found:
            return None
        repository, commit = found
        headers = {"X-Repo-Commit": self.hub.commit_header or commit}
        if repository.gated and not self.headers.get("Authorization"):
            return self.refuse(401, "GatedRepo", f"Access to model {name} is restricted. Please log in.", headers)
        if repository.gated and not repository.granted:
            return self.refuse(403, "GatedRepo", f"Access to model {name} is restricted. Ask for access.", headers)
        body = repository.commits[commit].get(file)
        if body is None:
            return self.refuse(404, "EntryNotFound", "Entry not found", headers)
        if len(body) < repository.large:
            etag = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            return self.reply(200, body, headers | {"ETag": f'"{etag}"', "Accept-Ranges": "bytes"})
        etag = hashlib.sha256(body).hexdigest()
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(body))}
        return self.reply(302, b"", headers | {"Location": f"{self.hub.cdn_url}/{name}/resolve/{commit}/{file}"})


class _CdnHandler(_Handler):
    """Serves large files at /<id>/resolve/<commit>/<file>."""

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.hub.cdn_requests.append((self.command, path, self.sent_headers))
        name, _, rest = path[1:].partition("/resolve/")
        commit, _, file = rest.partition("/")
        body = self.hub.repositories[name].commits[commit][file]
        etag = hashlib.sha256(body).hexdigest()
        self.reply(200, body, {"ETag": f'"{etag}"', "Accept-Ranges": "bytes"})

    def send(self, body: bytes) -> None:
        """Sends the whole body, or only the first bytes if the connection is set to break or stall."""
        if self.hub.stall_after >= 0:
            self.wfile.write(body[: self.hub.stall_after])
            self.wfile.flush()
            self.hub.over.wait()
            return self.hang_up()
        count = self.hub.break_after.pop(0) if self.hub.break_after else len(body)
        self.wfile.write(body[:count])
        if count < len(body):
            self.hang_up()
        return None


# --- processes that load models from it ------------------------------------------------------------------------------

PROGRAM = """
import json, os, socket, sys
from npformer.common.errors import NpformerError
from npformer.loading import load
if sys.argv[1:] == ["no network"]:
    def refuse(*_):
        raise AssertionError("a socket was connected")
    socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
for call in json.load(sys.stdin):
    try:
        model = load(**call)
        files = [os.path.join(at, name) for at, _, names in os.walk(model.folder) for name in names]
        answer = {
            "logits": model([2, 9, 8, 3]).logits.tolist(),
            "folder": str(model.folder),
            "files": sorted(os.path.relpath(file, model.folder) for file in files),
            "client": "huggingface_hub.file_download" in sys.modules,
        }
    except NpformerError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
"""

CLIENT = "from huggingface_hub import hf_hub_download as get\n"


def environment(hub: Hub, home: Path) -> dict[str, str]:
    """Returns an environment with this hub, the cache in `home`, and no other Hugging Face settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost"}
    return inherited | settings | {"PYTHONPATH": str(Path(__file__).parents[2])}


def python(env: dict[str, str], program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return forks.run(program, arguments, env, text)


def loads(env: dict[str, str], *calls: dict[str, Any], network: bool = True) -> list[dict[str, Any]]:
    """Calls npformer.load several times in one process; returns facts about each model, or the error."""
    done = python(env, PROGRAM, *([] if network else ["no network"]), text=json.dumps(calls))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def cache(env: dict[str, str]) -> Path:
    return Path(env["HF_HOME"], "hub")


@contextmanager
def closed_port() -> Iterator[str]:
    """Yields a URL at which no server listens. The port is reserved, so no other process can listen there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
