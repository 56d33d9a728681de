"""Dynamic batching: texts of independent requests are computed together.

One thread takes the oldest text from a bounded queue, and later texts that need the same computation. A text's answer
has the same bits in any batch, so batching affects only the time that it takes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from npformer.common.errors import NpformerError
from npformer.serve.fields import Refusal

log = logging.getLogger("npformer.serve")


class Work(Protocol):
    """A computation on requests. Requests with equal work share a batch if `together` is True."""

    @property
    def together(self) -> bool: ...  # False: a batch has the requests of one ticket only

    def run(self, requests: list[Any]) -> list[Any]: ...


class QueueFull(Refusal):
    """Raised when the queue has no room for a request's texts. A client may retry after `seconds`."""

    def __init__(self, seconds: int) -> None:
        message = f"the queue is full; retry in {seconds} s"
        super().__init__(HTTPStatus.TOO_MANY_REQUESTS, message, "Overloaded", seconds)


@dataclass(eq=False)
class Ticket:
    """A caller's pending answers to its texts, in order."""

    done: asyncio.Future[list[Any]]
    answers: list[Any]
    open: int

    def deliver(self, index: int, answer: Any) -> None:
        """Stores an answer. The last answer wakes the caller. Runs in the caller's event loop."""
        self.answers[index] = answer
        self.open -= 1
        if self.open == 0 and not self.done.done():
            self.done.set_result(self.answers)


@dataclass(eq=False)
class Entry:
    """A text in the queue."""

    work: Work
    request: Any
    size: int  # number of tokens
    ticket: Ticket
    index: int  # index in the ticket's texts
    arrived: float = field(default_factory=time.monotonic)


class Call:
    """Work that calls a single function alone in its batch, for example to compute the next piece of a stream."""

    together = False

    def run(self, requests: list[Any]) -> list[Any]:
        return [function() for function in requests]


class Batcher:
    """A queue of texts and the thread that computes them in batches.

    Parameters
    ----------
    max_tokens : int, tokens of a batch; a longer text is a batch of its own
    max_wait : float, seconds that a text waits for others to share its batch while the batcher is idle
    max_queue : int, maximum number of waiting texts
    observe : function of a batch and its duration in seconds, called in the batching thread
    """

    def __init__(
        self,
        max_tokens: int,
        max_wait: float,
        max_queue: int,
        observe: Callable[[Sequence[Entry], float], None] = lambda batch, seconds: None,
    ) -> None:
        self.max_tokens = max_tokens
        self.max_wait = max_wait
        self.max_queue = max_queue
        self.observe = observe
        self.queue: deque[Entry] = deque()
        self.rate = 5000.0  # tokens per second, a moving average over batches
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="npformer-batches", daemon=True)

    def start(self) -> None:
        """Starts the batching thread."""
        self._thread.start()

    def close(self, seconds: float | None = None) -> None:
        """Computes the queued texts, then ends the thread. Waits at most this many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    async def answers(
        self, work: Work, requests: Sequence[Any], sizes: Sequence[int], admitted: bool = False
    ) -> list[Any]:
        """Waits for the answers to requests, in order: a value or an error for each.

        If the waiting task is cancelled, its queued requests are dropped. Raises QueueFull, and queues no request, if
        there is no room for all of them. With `admitted`, the requests are queued even if the queue is full.
        """
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        ticket = Ticket(loop.create_future(), [None] * len(requests), len(requests))
        with self._changed:
            if not admitted and len(self.queue) + len(requests) > self.max_queue:
                raise QueueFull(self._seconds_to_wait())
            self.queue.extend(
                Entry(work, request, size, ticket, index)
                for index, (request, size) in enumerate(zip(requests, sizes, strict=True))
            )
            self._changed.notify()
        try:
            return await ticket.done
        finally:
            if ticket.open:
                with self._changed:
                    self.queue = deque(entry for entry in self.queue if entry.ticket is not ticket)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Runs function() alone on the batching thread, in its turn, and returns its result or raises its error.

        A full queue does not refuse the call, because its request has already been admitted.
        """
        (answer,) = await self.answers(Call(), [function], [1], admitted=True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # --- the batching thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._next():
            start = time.monotonic()
            answers = computed(batch)
            seconds = time.monotonic() - start
            rate = sum(entry.size for entry in batch) / max(seconds, 1e-6)
            self.rate += 0.1 * (rate - self.rate)
            self.observe(batch, seconds)
            loop = batch[0].ticket.done.get_loop()
            with suppress(RuntimeError):  # the loop is closed: no caller is waiting
                loop.call_soon_threadsafe(_deliver, batch, answers)

    def _next(self) -> list[Entry]:
        """Waits for texts, and takes a batch of them. The batch is empty once the batcher is closed and done."""
        with self._changed:
            while True:
                if self.queue:
                    batch, more_may_come = self._batch()
                    wait = batch[0].arrived + self.max_wait - time.monotonic()
                    if not more_may_come or wait <= 0 or self._closing:
                        taken = set(map(id, batch))
                        self.queue = deque(entry for entry in self.queue if id(entry) not in taken)
                        return batch
                    self._changed.wait(wait)
                elif self._closing:
                    return []
                else:
                    self._changed.wait()

    def _batch(self) -> tuple[list[Entry], bool]:
        """Returns the oldest text with later texts that may share its batch, and whether to wait for more."""
        first = self.queue[0]
        if not first.work.together:
            return [entry for entry in self.queue if entry.ticket is first.ticket], False
        batch, size = [first], first.size
        for entry in list(self.queue)[1:]:
            if entry.work == first.work:
                if size + entry.size > self.max_tokens:
                    return batch, False
                batch.append(entry)
                size += entry.size
        return batch, size < self.max_tokens and len(batch) == len(self.queue)

    def _seconds_to_wait(self) -> int:
        """Estimates the seconds needed to compute the queued texts, from 1 to 60."""
        return min(60, max(1, math.ceil(sum(entry.size for entry in self.queue) / self.rate)))


def computed(batch: list[Entry]) -> list[Any]:
    """Returns the answers to a batch. If it fails, each text is computed alone, so that only the faulty one fails."""
    try:
        return batch[0].work.run([entry.request for entry in batch])
    except Exception as error:
        if len(batch) > 1 and batch[0].work.together:
            return [answer for entry in batch for answer in computed([entry])]
        if not isinstance(error, NpformerError):
            log.error("internal error: %s", place_of(error))
        return [error] * len(batch)


def place_of(error: BaseException) -> str:
    """Returns an error's type and line, without its message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def _deliver(batch: list[Entry], answers: list[Any]) -> None:
    for entry, answer in zip(batch, answers, strict=True):
        entry.ticket.deliver(entry.index, answer)
