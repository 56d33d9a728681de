"""Connections for uvicorn that are closed if the client is too slow to send a request or read an answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 10.0  # seconds for a request's head, from the start of the connection or the first byte of a later request
STALLED = 30.0  # seconds within which a client must read LEAST bytes of a pending answer
LEAST = 30 * 1000
AT_ONCE = 4 * 1024  # maximum bytes to read before other tasks run; as one-byte chunks, they take 20 ms to process
KEEP_ALIVE = 75  # maximum seconds that a connection may be idle; most load balancers close it earlier, after 60 s


class Connection(H11Protocol):  # type: ignore[misc, unused-ignore]
    """A connection with deadlines for receiving a request's head and for sending an answer (bodies: `bodies.py`)."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        with suppress(AttributeError):  # raised by uvloop's transports, which lack this setting
            transport.max_size = AT_ONCE
        transport.set_write_buffer_limits(high=0)  # no buffer: deadlines would ignore up to 64 KB of an answer
        self.reading: asyncio.TimerHandle | None = self.loop.call_later(HEAD, self._close_unless_answering)
        self.writing: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel("reading")
        self._cancel("writing")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._cancel("reading")
        elif self.reading is None and not self.transport.is_closing():
            self.reading = self.loop.call_later(HEAD, self._close_unless_answering)

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing, because Java's HTTP client requests an upgrade on every connection."""

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close_unless_answering(self) -> None:
        self.reading = None
        if not self._is_answering():
            self.transport.close()

    def pause_writing(self) -> None:
        """Called when part of an answer is waiting for the client."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel("writing")

    def _look_again(self) -> None:
        self._cancel("writing")
        waiting = self.transport.get_write_buffer_size()
        self.writing = self.loop.call_later(STALLED, self._abort_if_stalled, waiting)

    def _abort_if_stalled(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > before - LEAST:
            self.transport.abort()
        else:
            self._look_again()

    def _cancel(self, name: str) -> None:
        timer = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
