"""Schedules the batching thread, by choosing the order in which the texts of several requests are computed.

Models take turns, and so do the requests to a model. A turn computes a piece of a request: some of its texts, or one
step of texts that are generated token by token. A small request thus waits only for a piece of a large request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from npformer.engine.runtime.steps import Steps

# Tokens per core in a piece of a large request. A piece takes about twice as long as a short text. Larger pieces would
# be slightly faster per token.
PIECE = 64
ALONE = 512  # maximum tokens per core in a batch that serves a single request; larger batches are no faster
LONG = 4  # a batch is computed in steps if it has more tokens of one request than LONG pieces
PATIENCE = 16  # after this many batches without other requests, the pieces of a large request double
JOBS = 8  # maximum number of batches generated token by token at a time, each with cached keys and values in memory


class Work(Protocol):
    """A computation on requests. Requests with equal work share a batch if `together` is True."""

    @property
    def together(self) -> bool: ...  # if False, a batch consists of all texts of a single ticket

    @property
    def model(self) -> Any: ...  # the model, because models take turns

    @property
    def stepwise(self) -> bool: ...  # whether `run` returns steps, which hold memory until the last step

    def run(self, requests: list[Any]) -> list[Any] | Steps[list[Any]]: ...

    def in_steps(self, requests: list[Any]) -> Steps[list[Any]]: ...


@dataclass(eq=False)
class Entry:
    """A text in the queue."""

    work: Work
    request: Any
    size: int  # cost in tokens
    ticket: Ticket
    index: int  # position among the texts of the ticket
    reads: int  # number of tokens that the model reads in the first step
    pauses: bool = False  # whether other texts may be computed between the steps of this text's batch
    arrived: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Ticket:
    """A caller's request: the pending answers to its texts, in order, and the texts still in the queue."""

    done: asyncio.Future[list[Any]]
    answers: list[Any]
    open: int
    last: int = 0  # time at which the ticket's last turn ended
    total: int = 0  # number of tokens in all texts of the ticket
    waiting: deque[Entry] = field(default_factory=deque)
    job: Job | None = None  # the ticket's unfinished batch

    @property
    def reads(self) -> int:
        """The number of tokens in the queued texts."""
        return sum(entry.reads for entry in self.waiting)

    def deliver(self, index: int, answer: Any) -> None:
        """Stores an answer, and wakes the caller after the last answer. Runs in the caller's event loop."""
        self.answers[index] = answer
        self.open -= 1
        if self.open == 0 and not self.done.done():
            self.done.set_result(self.answers)


@dataclass(eq=False)
class Job:
    """A batch that is being computed step by step."""

    ticket: Ticket  # the ticket whose turns compute the batch
    batch: list[Entry]
    steps: Steps[list[Any]] | None = None  # None until the job begins
    seconds: float = 0.0

    @property
    def is_wanted(self) -> bool:
        """Returns whether a caller still waits for an answer."""
        return any(not entry.ticket.done.done() for entry in self.batch)


class Turns:
    """The tickets that are queued or being computed. All methods must be called with the lock held.

    Parameters
    ----------
    max_tokens : int, maximum tokens in a batch; a longer text gets a separate batch
    cores : int, cores that compute
    """

    def __init__(self, max_tokens: int, cores: int) -> None:
        self.max_tokens = max_tokens
        self.least, self.most = (min(max_tokens, each * cores) for each in (PIECE, ALONE))
        self.share = self.most  # maximum tokens of a large request in a batch
        self.lone = 0  # number of batches without other requests since the share changed
        self.tickets: list[Ticket] = []
        self.jobs = 0
        self.count = 0  # number of waiting texts
        self._models: dict[int, int] = {}  # model -> time at which its last turn ended
        self._clock = count(1)

    def add(self, ticket: Ticket, entries: Sequence[Entry]) -> None:
        ticket.waiting.extend(entries)
        ticket.last, ticket.total = next(self._clock), ticket.reads
        self.tickets.append(ticket)
        self.count += len(entries)

    def drop(self, ticket: Ticket) -> None:
        """Removes the queued texts of a ticket. A batch without remaining callers ends at its next turn."""
        self.count -= len(ticket.waiting)
        ticket.waiting.clear()
        self._forget_if_done(ticket)

    def texts(self) -> Iterator[Entry]:
        """Yields all queued texts."""
        for ticket in self.tickets:
            yield from ticket.waiting

    def next(self) -> Ticket | None:
        """Returns the next ticket: the longest waiting ticket of the longest waiting model."""
        full = self.jobs >= JOBS
        able = [each for each in self.tickets if each.job or not (full and each.waiting[0].work.stepwise)]
        return min(able, key=lambda each: (self._models.get(_model(each), 0), each.last), default=None)

    def ended(self, job: Job, done: bool) -> None:
        """Records the end of a job's turn. done: whether this was the last turn."""
        if done:
            job.ticket.job = None
            self.jobs -= job.batch[0].work.stepwise
        job.ticket.last = self._models[id(job.batch[0].work.model)] = next(self._clock)
        self._forget_if_done(job.ticket)
        if not self.tickets:
            self._models.clear()

    def _forget_if_done(self, ticket: Ticket) -> None:
        if not ticket.waiting and ticket.job is None and ticket in self.tickets:
            self.tickets.remove(ticket)

    # --- the texts of a turn -------------------------------------------------------------------------------------

    def batch(self, ticket: Ticket) -> tuple[list[Entry], bool]:
        """Returns the texts for a turn of a ticket, and whether later texts may still join them.

        The batch contains a piece of this ticket's texts, and texts of other tickets with equal work. Texts of a large
        request do not join the batch of a small request, because the rest of the large request has to wait anyway.
        """
        work = ticket.waiting[0].work
        if not work.together:
            return list(ticket.waiting), False
        share = self.most if ticket.total <= self.most else self.share  # one batch for a request that is not large
        share = share if len(self.tickets) == 1 else self.least
        batch = _some(ticket, share, self.max_tokens, at_least=1)
        is_whole, left = len(batch) == len(ticket.waiting), self.max_tokens - _cost(batch)
        largest = max(share, ticket.reads) if is_whole else math.inf
        for other in sorted(self.tickets, key=lambda each: each.last):
            if left <= 0:
                break
            if other is not ticket and other.waiting and other.waiting[0].work == work and other.reads <= largest:
                joining = _some(other, share, left)
                batch += joining
                left -= _cost(joining)
        return batch, left > 0 and len(batch) == self.count

    def _set_share(self) -> None:
        """Sets a large request's share to the minimum if others wait, else doubles it after PATIENCE batches."""
        self.lone += 1
        if len(self.tickets) > 1:
            self.share, self.lone = self.least, 0
        elif self.lone >= PATIENCE:
            self.share, self.lone = min(2 * self.share, self.most), 0

    def begin(self, ticket: Ticket, batch: list[Entry]) -> Job:
        """Removes the texts of a batch from the queue, and returns the job that computes them in the ticket's turns."""
        self._set_share()
        self.count -= len(batch)
        self.jobs += batch[0].work.stepwise
        ticket.job = Job(ticket, batch)
        for entry in batch:
            entry.ticket.waiting.popleft()
            self._forget_if_done(entry.ticket)
        is_long = sum(entry.reads for entry in batch if entry.ticket is ticket) > LONG * self.least
        batch[0].pauses = batch[0].work.together and (bool(ticket.waiting) or is_long)
        return ticket.job


def _model(ticket: Ticket) -> int:
    entry = ticket.waiting[0] if ticket.job is None else ticket.job.batch[0]
    return id(entry.work.model)


def _cost(entries: Sequence[Entry]) -> int:
    return sum(entry.size for entry in entries)


def _some(ticket: Ticket, share: int, room: int, at_least: int = 0) -> list[Entry]:
    """Returns the first queued texts of a ticket that fit in `room`, up to `share` tokens, or one longer text."""
    taken: list[Entry] = []
    cost = reads = 0
    for entry in ticket.waiting:
        cost, reads = cost + entry.size, reads + entry.reads
        if len(taken) >= at_least and (cost > room or (taken and reads > share)):
            break
        taken.append(entry)
    return taken
