"""Reads request bodies within limits: bytes of a body, bytes of all open requests, and a minimum rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request

from npformer.serve.fields import Refusal
from npformer.serve.request_limits import ServiceLimits

PATIENCE = 10.0  # a body may take this many seconds, plus 1 s per RATE bytes received
RATE = 8000  # minimum bytes per second, which even a slow mobile connection reaches
HELD = 2**28  # maximum bytes of the bodies of all open requests


class Gone(Exception):
    """The client has disconnected."""


class Bodies:
    """Reads bodies. When the bodies of open requests take too much memory, the largest unfinished body is refused."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.limits = limits
        self.patience = min(PATIENCE, limits.seconds)
        self.most = max(HELD, limits.body)
        self.unfinished: dict[asyncio.Timeout, int] = {}  # timeout of an unfinished body -> bytes received so far
        self.held = 0  # bytes of unfinished bodies, and of requests without an answer yet

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Reads the body of a request. Its bytes count towards `held` until the request is answered.

        Raises Refusal for a body that is too large or too slow, and Gone if the client disconnects.
        """
        body = await self._whole(request)
        self.held += len(body)
        try:
            yield body
        finally:
            self.held -= len(body)

    async def _whole(self, request: Request) -> bytearray:
        if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
            message = "body: expected no Content-Encoding; compressed bodies are not supported"
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        length = request.headers.get("content-length", "")
        if length.isdecimal():
            self.limits.check_body(int(length[:20]))
        body = bytearray()
        start = asyncio.get_running_loop().time() + self.patience
        try:
            async with asyncio.timeout_at(start) as deadline:
                self.unfinished[deadline] = 0
                async for chunk in request.stream():
                    if deadline not in self.unfinished:
                        raise TimeoutError
                    self.limits.check_body(len(body) + len(chunk))
                    body += chunk
                    self.unfinished[deadline] = len(body)
                    self.held += len(chunk)
                    deadline.reschedule(start + len(body) / RATE)
                    if self.held > self.most:
                        self._refuse_largest()
        except TimeoutError:
            if deadline not in self.unfinished:
                raise Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "body: the bodies of open requests take too much memory",
                    "Overloaded",
                    1,
                ) from None
            time = f"{self.patience:g} s plus 1 s per {RATE} bytes"
            message = f"body: expected the whole body within {time}, got {len(body)} bytes"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, message) from None
        except ClientDisconnect:
            raise Gone from None
        finally:
            self.held -= self.unfinished.pop(deadline, 0)
        return body

    def _refuse_largest(self) -> None:
        """Refuses the largest unfinished body: an attacker's is large, but a slow client has sent little."""
        largest = max((each for each in self.unfinished if not each.expired()), key=self.unfinished.__getitem__)
        self.held -= self.unfinished.pop(largest)
        largest.reschedule(asyncio.get_running_loop().time())
