"""A client of the explorer's server that acts as its page, or as another site."""

from __future__ import annotations

import http.client
import json
from typing import Any

from npformer.view.explorer.session import Explorer


class Client:
    """Sends requests to an explorer. Each request has a new number, as if a page had a new state."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        _, _, place, self.token, _ = explorer.url.split("/")
        self.host, port = place.split(":")
        self.port, self.number = int(port), 0

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Returns the status, body and headers of the reply to any request."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read(), dict(reply.getheaders())
        finally:
            connection.close()

    def post(self, body: Any, route: str = "parts", **headers: str) -> tuple[int, Any]:
        """Returns the status and the value of the reply to a request of the page. body: bytes, or a value for JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", "Origin": f"http://{self.host}:{self.port}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        status, reply, _ = self.send("POST", f"/{self.token}/{route}", data, given)
        return status, reply.decode() if route == "save" and status == 200 else json.loads(reply)

    def request(self, state: dict[str, Any], *parts: str) -> dict[str, Any]:
        """Returns the body of a request for parts of a state."""
        self.number += 1
        return {"page": "test", "number": self.number, "state": state, "parts": list(parts)}

    def parts(self, state: dict[str, Any], *parts: str) -> dict[str, Any]:
        """Returns the parts of a state."""
        status, found = self.post(self.request(state, *parts))
        assert status == 200, found
        return found


def state(*texts: str | list[str], edits: list[dict[str, Any]] | None = None, **options: Any) -> dict[str, Any]:
    """Returns a state of one or two texts, each a string or a list of two strings."""
    listed = [[text] if isinstance(text, str) else text for text in texts]
    return {"texts": listed, "edits": edits or [], "options": options}
