"""Dynamic batching: an answer has the same bits as if its request had come alone, whenever requests arrive. Also tests
the rules of the queue."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.common.errors import NpformerError
from npformer.engine.runtime.steps import Steps
from npformer.serve import batching
from npformer.serve.batching import Batcher, QueueFull
from npformer.serve.models import TaskWork, prepare
from npformer.serve.request_limits import ServiceLimits
from npformer.tasks.sentence_embedding import SentenceEmbedding
from npformer.tasks.text_classification import TextClassification
from tests.support import tiny

HANG = 120.0  # seconds after which a waiting test fails


def run(test: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), HANG))


@dataclass(eq=False)
class Recorded:
    """Work that records its batches, and waits while it is paused."""

    together: bool = True
    stepwise: bool = False
    model: object = None
    batches: list[list[Any]] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.free.set()

    def in_steps(self, requests: list[Any]) -> Steps[list[Any]]:
        yield
        return self.run(requests)

    def run(self, requests: list[Any]) -> list[Any]:
        self.batches.append(list(requests))
        self.started.set()
        assert self.free.wait(HANG)
        if "bad" in requests:
            raise RuntimeError("a secret text")
        return [("answer", each) for each in requests]


class Running:
    """A batcher that runs inside `async with`."""

    def __init__(self, max_tokens: int = 100, max_wait: float = 0.0, max_queue: int = 100, **more: Any) -> None:
        self.batcher = Batcher(max_tokens, max_wait, max_queue, **more)

    async def __aenter__(self) -> Batcher:
        self.batcher.start()
        return self.batcher

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.batcher.close)


async def held(batcher: Batcher, work: Recorded) -> asyncio.Task[Any]:
    """Keeps the batching thread busy, so new requests wait in the queue."""
    work.free.clear()
    busy = asyncio.create_task(batcher.answers(work, ["first"], [1]))
    assert await asyncio.to_thread(work.started.wait, HANG)
    return busy


# --- the same bits ---------------------------------------------------------------------------------------------------

WORDS = ("the", "movie", "was", "great", "and", "ice", "cream", "for", "people", "in", "paris", "my", "music")


@cache
def encoder_tasks() -> tuple[Any, ...]:
    model = tiny.model(threads=2)
    return TextClassification(model, top_k=None), SentenceEmbedding(model)


@dataclass(frozen=True)
class Arrival:
    """A request: the index of its task, the lengths of its texts in words, and its delay."""

    task: int
    lengths: tuple[int, ...]
    delay: float

    def texts(self, number: int) -> list[str]:
        random = np.random.default_rng([number, *self.lengths])
        return [" ".join(random.choice(WORDS, length)) for length in self.lengths]


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 1),
        st.lists(st.integers(1, 50), min_size=1, max_size=6).map(tuple),
        st.sampled_from([0.0, 0.0, 0.001, 0.005]),
    ),
    min_size=1,
    max_size=12,
)


def bits(answer: Any) -> Any:
    return answer.tobytes() if isinstance(answer, np.ndarray) else list(answer)


@pytest.mark.numbers
@settings(max_examples=12)
@given(ARRIVALS, st.sampled_from([8, 64, 4096]), st.sampled_from([0.0, 0.01]))
def test_strangers_share_batches_and_each_gets_the_bits_it_gets_alone(arrivals, max_tokens, max_wait):
    async def request(batcher: Batcher, arrival: Arrival, number: int) -> None:
        task, texts = encoder_tasks()[arrival.task], arrival.texts(number)
        await asyncio.sleep(arrival.delay)
        prepared = prepare(task, texts, task.options, True, "inputs", True, ServiceLimits())
        found = await batcher.answers(TaskWork(task, task.options), prepared.requests, prepared.sizes)
        assert [bits(each) for each in found] == [bits(task(text)) for text in texts]

    async def test() -> None:
        async with Running(max_tokens, max_wait, 1000) as batcher:
            await asyncio.gather(*(request(batcher, each, i) for i, each in enumerate(arrivals)))

    run(test)


@pytest.mark.numbers
def test_requests_of_different_clients_share_batches():
    """If no batch were shared, the test above would compare only lone requests. The last text fills the batch."""
    seen = []

    async def test() -> None:
        task = encoder_tasks()[0]
        work = TaskWork(task, task.options)
        prepared = [prepare(task, [text], task.options, False, "inputs", True, ServiceLimits()) for text in WORDS]
        tokens = sum(sum(each.sizes) for each in prepared)
        async with Running(tokens, HANG * 2, observe=lambda batch, seconds: seen.append(len(batch))) as batcher:
            equal = [TaskWork(task, replace(task.options)) for _ in prepared]  # each request creates its own TaskWork
            assert all(each == work for each in equal)
            await asyncio.gather(
                *(batcher.answers(w, p.requests, p.sizes) for w, p in zip(equal, prepared, strict=True))
            )

    run(test)
    assert seen == [len(WORDS)]


def test_options_that_change_the_answer_are_not_mixed():
    task = encoder_tasks()[0]
    assert TaskWork(task, task.options) != TaskWork(task, replace(task.options, function_to_apply="none"))
    assert TaskWork(task, task.options) != TaskWork(encoder_tasks()[1], task.options)


# --- texts that share a batch ----------------------------------------------------------------------------------------


def test_a_batch_has_the_oldest_texts_of_one_work_up_to_its_tokens():
    work, other = Recorded(), Recorded()

    async def test() -> None:
        async with Running(max_tokens=10) as batcher:
            busy = await held(batcher, work)
            waiting = [
                asyncio.create_task(batcher.answers(work, ["a", "b"], [4, 4])),
                asyncio.create_task(batcher.answers(other, ["x"], [4])),
                asyncio.create_task(batcher.answers(work, ["c", "d"], [2, 4])),
                asyncio.create_task(batcher.answers(work, ["long"], [50])),
            ]
            await asyncio.sleep(0.05)
            work.free.set()
            await busy
            assert await asyncio.gather(*waiting) == [
                [("answer", "a"), ("answer", "b")],
                [("answer", "x")],
                [("answer", "c"), ("answer", "d")],
                [("answer", "long")],
            ]

    run(test)
    assert work.batches == [["first"], ["a", "b", "c"], ["d"], ["long"]]
    assert other.batches == [["x"]]


def test_private_work_shares_a_batch_only_within_its_request():
    """A sample depends on the text's index in its list, so such a list is not divided into batches."""
    work, alone = Recorded(), Recorded(together=False)

    async def test() -> None:
        async with Running(max_tokens=2) as batcher:
            busy = await held(batcher, work)
            waiting = [asyncio.create_task(batcher.answers(alone, [i, i + 1], [2, 2])) for i in (10, 20)]
            await asyncio.sleep(0.05)
            work.free.set()
            await asyncio.gather(busy, *waiting)

    run(test)
    assert alone.batches == [[10, 11], [20, 21]]


def test_a_text_waits_for_others_until_its_limit(monkeypatch):
    """The clock stands still until the second text has come, and is then set to the limit."""
    work, now = Recorded(), batching.time.monotonic()
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: now))

    async def test() -> None:
        nonlocal now
        async with Running(max_wait=0.1) as batcher:
            first = asyncio.create_task(batcher.answers(work, [1], [1]))
            await asyncio.sleep(0.3)  # meanwhile, the thread looks at the clock at least once
            second = asyncio.create_task(batcher.answers(work, [2], [1]))
            await asyncio.sleep(0.3)
            assert work.batches == []
            now += HANG
            await asyncio.gather(first, second)

    run(test)
    assert work.batches == [[1, 2]]


def test_a_full_batch_does_not_wait():
    async def test() -> None:
        async with Running(max_tokens=2, max_wait=HANG * 2) as batcher:
            assert await batcher.answers(Recorded(), [1, 2], [1, 1]) == [("answer", 1), ("answer", 2)]

    run(test)


# --- the queue -------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_a_whole_request_with_a_time_to_retry():
    work = Recorded()

    async def test() -> None:
        async with Running(max_queue=3) as batcher:
            busy = await held(batcher, work)
            waiting = asyncio.create_task(batcher.answers(work, ["a", "b"], [90, 90]))
            await asyncio.sleep(0)
            batcher.rate = 10.0
            with pytest.raises(QueueFull) as full:
                await batcher.answers(work, ["c", "d"], [1, 1])
            assert full.value.seconds == 18
            assert batcher.waiting == 2
            admitted = asyncio.create_task(batcher.call(lambda: "a piece of a stream"))
            await asyncio.sleep(0)
            work.free.set()
            await asyncio.gather(busy, waiting)
            assert await admitted == "a piece of a stream"

    run(test)
    assert work.batches == [["first"], ["a"], ["b"]]


def test_one_request_cannot_fill_the_queue_for_all():
    """A request for at most an equal share of the queue is accepted; a request for more is refused."""
    work = Recorded()

    async def test() -> None:
        async with Running(max_queue=12) as batcher:
            busy = await held(batcher, work)
            large = asyncio.create_task(batcher.answers(work, list(range(12)), [1] * 12))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await batcher.answers(work, [0] * 5, [1] * 5)
            small = asyncio.create_task(batcher.answers(work, ["a", "b", "c", "d"], [1] * 4))
            await asyncio.sleep(0)
            assert batcher.waiting == 16
            work.free.set()
            await asyncio.gather(busy, large, small)

    run(test)


def test_texts_of_a_caller_that_left_are_never_computed_and_make_room():
    work = Recorded()

    async def test() -> None:
        async with Running(max_queue=2) as batcher:
            busy = await held(batcher, work)
            leaving = asyncio.create_task(batcher.answers(work, ["gone", "too"], [1, 1]))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.sleep(0)
            staying = asyncio.create_task(batcher.answers(work, ["a", "b"], [1, 1]))
            await asyncio.sleep(0)
            work.free.set()
            await asyncio.gather(busy, staying)
            assert leaving.cancelled()

    run(test)
    assert work.batches == [["first"], ["a", "b"]]


def test_a_caller_may_leave_while_its_text_is_computed():
    work = Recorded()

    async def test() -> None:
        async with Running() as batcher:
            busy = await held(batcher, work)
            busy.cancel()
            await asyncio.sleep(0)
            work.free.set()
            assert await batcher.answers(work, ["next"], [1]) == [("answer", "next")]

    run(test)


def test_closing_computes_the_accepted_texts():
    work = Recorded()

    async def test() -> None:
        running = Running(max_wait=HANG * 2)
        async with running as batcher:
            waiting = asyncio.create_task(batcher.answers(work, [1, 2], [1, 1]))
            await asyncio.sleep(0)
        assert await waiting == [("answer", 1), ("answer", 2)]

    run(test)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_closing_waits_at_most_for_the_given_time():
    work = Recorded()

    async def test() -> None:
        work.free.clear()
        async with Running() as batcher:
            waiting = asyncio.ensure_future(batcher.answers(work, ["long"], [1]))
            assert await asyncio.to_thread(work.started.wait, HANG)
            await asyncio.to_thread(batcher.close, 0.01)
            assert not waiting.done()
            work.free.set()
            await waiting

    run(test)


def test_a_text_at_fault_fails_alone_and_the_log_has_no_text(caplog):
    work = Recorded()

    async def test() -> list[Any]:
        async with Running() as batcher:
            return await batcher.answers(work, ["a", "bad", "b"], [1, 1, 1])

    with caplog.at_level(logging.INFO):
        first, failed, last = run(test)
    assert (first, last) == (("answer", "a"), ("answer", "b"))
    assert isinstance(failed, RuntimeError)
    assert "RuntimeError at " in caplog.text
    assert "secret" not in caplog.text


def test_an_error_of_a_call_is_raised():
    def fail() -> None:
        raise NpformerError("no")

    async def test() -> None:
        async with Running() as batcher:
            with pytest.raises(NpformerError, match="no"):
                await batcher.call(fail)

    run(test)


def test_no_texts_need_no_answer():
    async def test() -> None:
        async with Running() as batcher:
            assert await batcher.answers(Recorded(), [], []) == []

    run(test)
