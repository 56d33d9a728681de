"""Dynamic batching, which computes texts of independent requests together.

A single thread takes texts from a bounded queue in the order that `turns.py` defines, and adds later texts that need
the same computation. An answer has the same bits in any batch, so batching affects only computing time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from npformer.common.errors import NpformerError
from npformer.engine.runtime.steps import Steps
from npformer.serve.fields import Refusal
from npformer.serve.turns import Entry, Job, Ticket, Turns, Work

log = logging.getLogger("npformer.serve")


class QueueFull(Refusal):
    """Raised when the queue has no room for a request's texts. A client may retry after `seconds`."""

    def __init__(self, seconds: int) -> None:
        message = f"the queue is full; retry in {seconds} s"
        super().__init__(HTTPStatus.TOO_MANY_REQUESTS, message, "Overloaded", seconds)


class Call:
    """A function call that gets a separate batch, for example to compute the next piece of a stream."""

    together = stepwise = False
    in_steps: Any = None  # None, because a call is short and needs no steps

    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, requests: list[Any]) -> list[Any]:
        return [function() for function in requests]


class Batcher:
    """A queue of texts and the thread that computes them in batches.

    Parameters
    ----------
    max_tokens : int, maximum tokens in a batch; a longer text gets a separate batch
    max_wait : float, seconds that a text waits for other texts for its batch while the batcher is idle
    max_queue : int, maximum number of waiting texts; above it, requests that need more than an equal share of the queue
        are refused
    observe : function of a batch and its duration in seconds, called in the batching thread
    cores : int, cores that compute a batch
    """

    def __init__(
        self,
        max_tokens: int,
        max_wait: float,
        max_queue: int,
        observe: Callable[[Sequence[Entry], float], None] = lambda batch, seconds: None,
        cores: int = 1,
    ) -> None:
        self.max_wait = max_wait
        self.max_queue = max_queue
        self.observe = observe
        self.turns = Turns(max_tokens, cores)
        self.rate = 5000.0  # moving average of the tokens computed per second
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="npformer-batches", daemon=True)

    @property
    def waiting(self) -> int:
        """The number of texts in the queue."""
        return self.turns.count

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
        self,
        work: Work,
        requests: Sequence[Any],
        sizes: Sequence[int],
        reads: Sequence[int] | None = None,
        admitted: bool = False,
    ) -> list[Any]:
        """Waits for the answers to requests, and returns them in order: a value or an error for each request.

        sizes: the cost of each request in tokens. reads: the tokens that the first step of each request reads, by
        default the size of the request. If the waiting task is cancelled, its queued requests are dropped. If there is
        no room for all requests, raises QueueFull and queues no request. With `admitted`, the requests are queued even
        if the queue is full.
        """
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        ticket = Ticket(loop.create_future(), [None] * len(requests), len(requests))
        listed = enumerate(zip(requests, sizes, reads or sizes, strict=True))
        entries = [Entry(work, request, size, ticket, index, first) for index, (request, size, first) in listed]
        with self._changed:
            if not admitted and self._is_full(len(requests)):
                raise QueueFull(self._seconds_to_wait())
            self.turns.add(ticket, entries)
            self._changed.notify()
        try:
            return await ticket.done
        finally:
            if ticket.open:
                with self._changed:
                    self.turns.drop(ticket)

    async def call(self, function: Callable[[], Any], model: Any = None) -> Any:
        """Runs function() alone on the batching thread, in a turn of the model, and returns the result.

        The call is accepted even if the queue is full, because its request has already been admitted. Raises any error
        of the function.
        """
        (answer,) = await self.answers(Call(model), [function], [1], admitted=True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # --- the batching thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while job := self._next():
            start = time.monotonic()
            answers = advanced(job)
            job.seconds += time.monotonic() - start
            with self._changed:
                self.turns.ended(job, done=answers is not None)
            if answers:
                self._deliver(job, answers)

    def _deliver(self, job: Job, answers: list[Any]) -> None:
        rate = sum(entry.size for entry in job.batch) / max(job.seconds, 1e-6)
        self.rate += 0.1 * (rate - self.rate)
        self.observe(job.batch, job.seconds)
        loop = job.ticket.done.get_loop()
        with suppress(RuntimeError):  # raised if the loop is closed, so no caller is waiting
            loop.call_soon_threadsafe(_deliver, job.batch, answers)

    def _next(self) -> Job | None:
        """Waits for texts, and returns the job for the next turn. Returns None when the batcher is closed and done."""
        with self._changed:
            while True:
                ticket = self.turns.next()
                if ticket is None and self._closing:
                    return None
                if ticket is None:
                    self._changed.wait()
                    continue
                if ticket.job is not None:
                    return ticket.job
                batch, more_may_come = self.turns.batch(ticket)
                wait = batch[0].arrived + self.max_wait - time.monotonic()
                if not more_may_come or wait <= 0 or self._closing:
                    return self.turns.begin(ticket, batch)
                self._changed.wait(wait)

    def _is_full(self, more: int) -> bool:
        """Returns whether the queue has no room for this many texts.

        If n requests are waiting, one more request with at most 1 / (n + 1) of the queue's texts always has room.
        """
        share = self.max_queue // (len(self.turns.tickets) + 1)
        return self.turns.count + more > self.max_queue and more > share

    def _seconds_to_wait(self) -> int:
        """Estimates the seconds needed to compute the queued texts, from 1 to 60."""
        return min(60, max(1, math.ceil(sum(entry.size for entry in self.turns.texts()) / self.rate)))


def advanced(job: Job) -> list[Any] | None:
    """Computes the next step of a job. Returns None if more steps follow, or [] if all of its callers have left."""
    if not job.is_wanted:
        return []
    if job.steps is None:
        job.steps = computed(job.batch)
    try:
        next(job.steps)
    except StopIteration as finished:
        answers: list[Any] = finished.value
        return answers
    return None


def computed(batch: Sequence[Entry]) -> Steps[list[Any]]:
    """Computes the answers to a batch. After an error, computes each text alone, so that only faulty texts fail."""
    work = batch[0].work
    try:
        requests = [entry.request for entry in batch]
        found = work.in_steps(requests) if batch[0].pauses else work.run(requests)
        return (yield from found) if isinstance(found, Generator) else found
    except Exception as error:
        if len(batch) == 1 or not work.together:
            if not isinstance(error, NpformerError):
                log.error("internal error: %s", place_of(error))
            return [error] * len(batch)
    answers = []
    for entry in batch:
        answers += yield from computed([entry])
    return answers


def place_of(error: BaseException) -> str:
    """Returns the type and line of an error without the message, which may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def _deliver(batch: Sequence[Entry], answers: list[Any]) -> None:
    for entry, answer in zip(batch, answers, strict=True):
        entry.ticket.deliver(entry.index, answer)
