"""Sends answers at the pace of the clients, within a limit on the total size of all unread answers.

An answer goes to the connection in small pieces, each after the client has read the previous piece. When unread answers
take too much memory, a client is disconnected: the one with the largest product of unread bytes and waiting time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from npformer.serve.fields import Refusal
from npformer.serve.replies import refused
from npformer.serve.watch import path_of

PIECE = 16 * 1024  # maximum bytes buffered in a connection
FRESH = 1.0  # seconds before a client may be disconnected to make room for another answer


@dataclass(eq=False)
class Unread:
    """An answer that is being sent."""

    size: int  # bytes that the client has not read
    since: float
    deadline: asyncio.Timeout


class Answers:
    """The answers that are being sent. A single answer is sent even if it exceeds the limit.

    Parameters
    ----------
    most : int, bytes of all unread answers
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.unread: set[Unread] = set()

    def add(self, size: int) -> Unread:
        """Adds an answer of this size. Raises Refusal if there is no room and no slow client to disconnect."""
        now = asyncio.get_running_loop().time()
        while self.unread and self.held + size > self.most:
            old = [each for each in self.unread if each.size and now - each.since >= FRESH]
            if not old:
                raise Refusal(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "answers that clients have not read take too much memory; retry in 1 s, or ask for fewer texts",
                    "Overloaded",
                    1,
                )
            slowest = max(old, key=lambda each: each.size * (now - each.since))
            self.remove(slowest)
            slowest.deadline.reschedule(now)
        made = Unread(size, now, asyncio.timeout(None))
        self.unread.add(made)
        self.held += size
        return made

    def sent(self, answer: Unread, size: int) -> None:
        """Subtracts bytes that the client has read."""
        if answer in self.unread:
            answer.size -= size
            self.held -= size

    def remove(self, answer: Unread) -> None:
        self.sent(answer, answer.size)
        self.unread.discard(answer)


class Answer(StreamingResponse):  # type: ignore[misc, unused-ignore]
    """A response whose bytes count as unread until the client has read them.

    content: bytes, or an iterator over pieces that keeps `size` bytes in memory until its end.
    """

    def __init__(self, answers: Answers, content: bytes | AsyncIterator[bytes], size: int = 0, **more: Any) -> None:
        self.answers = answers
        self.size = len(content) if isinstance(content, bytes) else size
        super().__init__(self._sliced(content) if isinstance(content, bytes) else content, **more)
        if isinstance(content, bytes):
            self.headers["content-length"] = str(len(content))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            self.unread = self.answers.add(self.size)
        except Refusal as refusal:
            await refused(refusal, path_of(scope))(scope, receive, send)
            return
        try:
            async with self.unread.deadline:
                await super().__call__(scope, receive, send)
        except TimeoutError:  # the server closes the connection, which shows the client that the answer is incomplete
            raise ClientDisconnect from None
        finally:
            self.answers.remove(self.unread)

    async def _sliced(self, content: bytes) -> AsyncIterator[memoryview]:
        for at in range(0, len(content), PIECE):
            piece = memoryview(content)[at : at + PIECE]
            yield piece  # the generator resumes when the connection accepts more
            self.answers.sent(self.unread, len(piece))
