"""The explorer's server: HTTP on 127.0.0.1 for a single page, whose address contains a secret token.

Every request must name this server in `Host` (another site's domain name could resolve to 127.0.0.1) and, if it has an
`Origin`, come from this server's own page. Without the token, nothing runs and nothing is revealed.

    GET  /TOKEN/         the page
    POST /TOKEN/parts    {"page": text, "number": int, "state": {...}, "parts": [name, ...]} -> {name: part, ...}
    POST /TOKEN/save     the same request without "parts" -> the offline page
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.view.explorer.latest import Latest, Superseded
from npformer.view.explorer.parts import PARTS, Parts
from npformer.view.explorer.state import read_state

HOST = "127.0.0.1"
BODY = 200_000  # maximum bytes of a request
CONNECTIONS = 32  # maximum open connections; a browser opens at most 6
NUMBERED = r"value:\d{1,6}|was:\d{1,6}:\d{1,3}|layer:\d{1,4}:\d{1,4}"  # the names of parts that contain numbers
SECONDS = 30  # idle time after which a connection is closed
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Refused(Exception):
    """Raised to reject a request with a status and a reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class ExplorerServer(ThreadingHTTPServer):
    """Serves `page` and the parts of states. Its address is `url`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, parts: Parts, page: str, port: int = 0, token: str = "") -> None:
        super().__init__((HOST, port), Handler)
        self.parts, self.page, self.latest = parts, page, Latest()
        self.token = token or secrets.token_urlsafe(24)
        self.connections: set[Any] = set()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of this server's page."""
        return tuple(f"http://{name}:{self.server_port}" for name in (HOST, "localhost"))

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.connections) >= CONNECTIONS:
            self.shutdown_request(request)
            return
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Closes all connections, because browsers keep idle connections open."""
        super().server_close()
        for each in list(self.connections):
            with suppress(OSError):
                each.shutdown(SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing. The usual error is that the browser has closed the connection."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "npformer", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        self._answer({"": self._page})

    def do_POST(self) -> None:
        self._answer({"parts": self._parts, "save": self._save})

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because requests contain the user's texts."""

    def _answer(self, routes: Mapping[str, Any]) -> None:
        try:
            route = self._allowed()
            if route not in routes:
                raise Refused(HTTPStatus.NOT_FOUND, f"no {self.command} {route}")
            kind, body = routes[route]()
            self._send(HTTPStatus.OK, kind, body)
        except Refused as refused:
            self.close_connection = True  # part of the request's body may be unread
            self._send_error(refused.status, refused.reason)
        except Superseded:
            self._send_error(HTTPStatus.CONFLICT, "the page has sent a newer state")
        except NpformerError as error:
            self._send_error(HTTPStatus.BAD_REQUEST, str(error))
        except MemoryError:
            self._send_error(HTTPStatus.INSUFFICIENT_STORAGE, "out of memory")

    def _allowed(self) -> str:
        """Returns the route of a request.

        Raises Refused if the request does not come from this server's page, or does not have the token.
        """
        origins = self.server.origins
        host, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        if len(host) != 1 or f"http://{host[0]}" not in origins:
            raise Refused(HTTPStatus.FORBIDDEN, "wrong Host")
        if origin is not None and origin not in origins:
            raise Refused(HTTPStatus.FORBIDDEN, "wrong Origin")
        if self.command == "POST" and self.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise Refused(HTTPStatus.FORBIDDEN, "a request of another site")
        _, _, rest = self.path.partition("?")[0].partition("/")
        token, slash, route = rest.partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "open the address that npformer printed")
        return route

    # --- routes ------------------------------------------------------------------------------------------------------

    def _page(self) -> tuple[str, str]:
        return "text/html; charset=utf-8", self.server.page

    def _parts(self) -> tuple[str, str]:
        request = self._request()
        names = request.get("parts")
        if not isinstance(names, list) or not 1 <= len(names) <= len(PARTS) or not all(map(_is_part, names)):
            raise NpformerError(f"parts: expected names from {', '.join(PARTS)}, got {shown(names)}")
        parts, state = self.server.parts, read_state(request.get("state"), len(self.server.parts.models))

        def work(check: Any) -> dict[str, Any]:
            found = {}
            for name in names:
                check()
                found[name] = parts.part(state, name, check)
            return found

        return "application/json", json.dumps(self._run(request, work), separators=(",", ":"))

    def _save(self) -> tuple[str, str]:
        request = self._request()
        parts, state = self.server.parts, read_state(request.get("state"), len(self.server.parts.models))
        return "text/html; charset=utf-8", self._run(request, lambda check: parts.saved(state, check))

    def _run(self, request: dict[str, Any], work: Any) -> Any:
        page, number = request.get("page"), request.get("number")
        if not isinstance(page, str) or len(page) > 40 or type(number) is not int:
            raise NpformerError("page, number: expected the page's name and the number of its state")
        return self.server.latest.run(page, number, work)

    # --- reading and writing -----------------------------------------------------------------------------------------

    def _request(self) -> dict[str, Any]:
        """Returns the JSON object in the body."""
        if (
            self.headers.get("Content-Type", "").split(";")[0] != "application/json"
        ):  # a form on another site cannot send this type
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type: expected application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or self.headers.get("Transfer-Encoding"):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length: expected the number of bytes in the body")
        if len(length) > 9 or int(length) > BODY:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: expected at most {BODY:,} bytes, got {length[:20]}"
            )
        body = self.rfile.read(int(length))
        try:
            value = json.loads(body.decode("utf-8"), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise NpformerError(f"body: expected JSON: {error!s:.100}") from None
        if not isinstance(value, dict):
            raise NpformerError(f"body: expected a JSON object, got {shown(value)}")
        return value

    def _send_error(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, "application/json", json.dumps({"error": reason}))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _is_part(name: Any) -> bool:
    """Returns whether `name` names a part, such as `answer`, `value:12`, or `layer:3:5` for layer 3 at token 5."""
    return isinstance(name, str) and (name in PARTS or re.fullmatch(NUMBERED, name) is not None)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
