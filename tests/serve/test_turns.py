"""The order of work in the service: large requests are computed in pieces, with other requests in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from npformer import Pair, pipeline
from npformer.engine.runtime.steps import Steps
from npformer.serve import turns
from npformer.serve.batching import Batcher, computed
from npformer.serve.models import TaskWork, prepare
from npformer.serve.request_limits import ServiceLimits
from npformer.serve.turns import JOBS, Entry, Ticket, Turns
from tests.support import seq2seq_models, tiny, writers

LARGEST = 1000  # maximum tokens of a batch


@dataclass(eq=False)
class Noted:
    """Work that records its texts, and takes `steps` steps for each batch if it is given."""

    model: object
    steps: int = 0
    together: bool = True
    done: list[Any] = field(default_factory=list)

    @property
    def stepwise(self) -> bool:
        return self.steps > 0

    def run(self, requests: list[Any]) -> Steps[list[Any]]:
        for i in range(self.steps):
            self.done.append((tuple(requests), i))
            yield
        return requests

    in_steps = run


class Desk:
    """Turns without a thread: a test runs one turn at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.turns = Turns(LARGEST, cores=1)

    def ask(self, work: Noted, name: str, *sizes: int, reads: int | None = None) -> Ticket:
        """Adds a request with texts of these sizes. Each text is named after the request, with an index."""
        ticket = Ticket(self.loop.create_future(), [None] * len(sizes), len(sizes))
        entries = [Entry(work, f"{name}{i}", size, ticket, i, reads or size) for i, size in enumerate(sizes)]
        self.turns.add(ticket, entries)
        return ticket

    def begin(self) -> Any:
        """Begins or continues the job that is next."""
        ticket = self.turns.next()
        assert ticket is not None
        return ticket.job or self.turns.begin(ticket, self.turns.batch(ticket)[0])

    def end(self, job: Any) -> list[str]:
        """Ends a turn; returns the texts of the batch."""
        job.steps = job.steps or computed(job.batch)
        try:
            next(job.steps)
        except StopIteration:
            self.turns.ended(job, done=True)
        else:
            self.turns.ended(job, done=False)
        return [entry.request for entry in job.batch]

    def turn(self) -> list[str]:
        return self.end(self.begin())

    def rest(self) -> Iterator[list[str]]:
        while self.turns.tickets:
            yield self.turn()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.loop.close()


def names(name: str, first: int, last: int) -> list[str]:
    return [f"{name}{i}" for i in range(first, last + 1)]


def test_a_small_request_is_computed_between_two_pieces_of_a_large_one(desk):
    work = Noted("model")
    desk.ask(work, "large", *[32] * 40)
    running = desk.begin()
    desk.ask(work, "small", 10)
    first = desk.end(running)
    assert first == names("large", 0, 15)  # the request is alone, so a piece has 512 tokens
    assert desk.turn() == ["small0"]
    running = desk.begin()
    desk.ask(work, "again", 10)
    assert desk.end(running) == names("large", 16, 17)  # other requests have arrived, so the pieces are smaller
    assert desk.turn() == ["again0"]
    assert desk.turn() == names("large", 18, 19)


def test_pieces_are_small_while_others_wait_and_grow_again(desk, monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE", 2)
    work, other = Noted("model"), Noted("other")
    desk.ask(work, "large", *[16] * 100)
    for i in range(3):
        desk.ask(other, f"small{i}-", 1, 1)
    sizes = [len(texts) for texts in desk.rest() if texts[0].startswith("large")]
    assert sizes == [4, 4, 4, 8, 8, 16, 16, 32, 8]


def test_a_request_of_usual_size_is_computed_at_once_when_it_is_alone(desk):
    """The pieces of large requests are still small, because other requests have just waited."""
    work, other = Noted("model"), Noted("other")
    desk.ask(work, "large", *[16] * 100)
    desk.ask(other, "small", 1)
    list(desk.rest())
    desk.turns.share = desk.turns.least
    desk.ask(work, "usual", *[32] * 16)
    assert desk.turn() == names("usual", 0, 15)


def test_a_large_request_of_one_model_does_not_delay_another_model(desk):
    work, other = Noted("model"), Noted("other")
    for name in "abc":
        desk.ask(work, name, *[60] * 4)
    running = desk.begin()
    desk.ask(other, "small", 5)
    desk.end(running)
    assert desk.turn() == ["small0"]


def test_models_take_turns_whatever_their_numbers_of_requests(desk):
    works = [Noted(name, together=False) for name in ("model", "other")]
    for i in range(4):
        desk.ask(works[0], f"a{i}-", 1)
    desk.ask(works[1], "b0-", 1)
    desk.ask(works[1], "b1-", 1)
    assert [texts[0][0] for texts in desk.rest()] == list("abab" + "aa")


def test_a_small_request_does_not_share_its_batch_with_a_large_one(desk):
    """Small requests share a batch. Large requests share other batches, to which each contributes a piece."""
    work = Noted("model")
    desk.ask(work, "a", 10)
    desk.ask(work, "large", *[40] * 3)
    desk.ask(work, "b", 20, 20)
    desk.ask(work, "wide", *[60] * 3)
    assert desk.turn() == ["a0", "b0", "b1"]
    assert desk.turn() == ["large0", "wide0"]
    assert desk.turn() == ["wide1", "large1"]
    assert list(desk.rest()) == [["large2", "wide2"]]


def test_texts_of_similar_sizes_share_a_batch(desk):
    work = Noted("model")
    for name in "abc":
        desk.ask(work, name, 200)
    assert list(desk.rest()) == [["a0", "b0", "c0"]]


def test_a_request_is_computed_between_two_steps_of_a_generation(desk):
    writing, work = Noted("model", steps=4), Noted("model")
    desk.ask(writing, "long", 300, 300, 300, 300, reads=5)
    running = desk.begin()
    desk.ask(work, "small", 1)
    desk.end(running)
    assert desk.turn() == ["small0"]
    assert writing.done == [(("long0", "long1", "long2"), 0)]
    running = desk.begin()
    desk.ask(work, "again", 1)
    desk.end(running)
    assert desk.turn() == ["again0"]
    assert [step for _, step in writing.done] == [0, 1]


def test_generations_take_turns_by_step_and_their_number_is_bounded(desk):
    """Each request has at most one unfinished batch. At the maximum number of unfinished batches, further generations
    wait, but other work does not."""
    writing = Noted("model", steps=3, together=False)
    for i in range(JOBS + 1):
        desk.ask(writing, f"r{i}-", 1)
    begun = [desk.turn()[0] for _ in range(JOBS + 2)]
    assert begun[:JOBS] == [f"r{i}-0" for i in range(JOBS)]
    assert begun[JOBS:] == ["r0-0", "r1-0"]
    desk.ask(Noted("model"), "small", 1)
    later = [texts[0] for texts in desk.rest()]
    assert "small0" in later[: JOBS + 1]
    assert later[-1] == f"r{JOBS}-0"
    assert desk.turns.jobs == 0


def test_a_generation_ends_early_when_all_of_its_callers_have_left():
    """A caller that stays gets its answer, even if another caller of the same batch has left."""
    stepped: list[int] = []

    class Long(Noted):
        def run(self, requests: list[Any]) -> Steps[list[Any]]:
            for i in range(10**9 if "endless" in requests else 3):
                stepped.append(i)
                yield
            return requests

    async def test() -> None:
        batcher = Batcher(100, 0.0, 100)
        leaving = asyncio.ensure_future(batcher.answers(Long("model", steps=1), ["endless"], [1]))
        shared = Long("other", steps=1)
        with_another = asyncio.ensure_future(batcher.answers(shared, ["a"], [1]))
        staying = asyncio.ensure_future(batcher.answers(shared, ["b"], [1]))
        await asyncio.sleep(0)
        with_another.cancel()
        batcher.start()
        assert await staying == ["b"]
        leaving.cancel()
        await asyncio.wait([leaving])
        await asyncio.to_thread(batcher.close)  # would hang if the endless generation continued

    asyncio.run(asyncio.wait_for(test(), 120))
    assert stepped


# --- steps of real tasks give the same bits --------------------------------------------------------------------------


def steps_of(steps: Steps[Any]) -> tuple[int, Any]:
    """Returns the number of steps and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def work_of(task: Any, items: Sequence[Any], **options: Any) -> tuple[TaskWork, list[Any]]:
    settled = task.settle(task.options, options)
    return TaskWork(task, settled), prepare(task, items, settled, False, "inputs", True, ServiceLimits()).requests


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "seed": 3}])
def test_each_token_of_texts_is_a_step(settings):
    task = pipeline("text-generation", writers.model(seed=4))
    fixed = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, **settings}
    prompts = ["the", "in a", "w"]
    work, requests = work_of(task, prompts, **fixed)
    count, found = steps_of(work.run(requests))
    assert count >= 6
    assert found == task(prompts, **fixed)


def test_prompts_are_read_in_several_steps(monkeypatch):
    task = pipeline("text-generation", writers.model(seed=4, threads=1))
    prompts = ["the w" * 9] * 12
    fixed = {"max_new_tokens": 1, "do_sample": False}
    expected = task(prompts, **fixed)
    monkeypatch.setattr("npformer.engine.runtime.steps.PIECE", 100)
    work, requests = work_of(task, prompts, **fixed)
    tokens = sum(len(each.encoded[0].texts[0]) for each in requests)
    count, found = steps_of(work.run(requests))
    assert count > tokens // 100
    assert found == expected


def test_sources_are_read_in_several_steps(tmp_path, monkeypatch):
    task = pipeline("translation", seq2seq_models.folder_of_letters(tmp_path / "letters"), threads=1)
    texts = ["dogs", "new", "go"] * 4
    expected = task(texts, max_new_tokens=1)
    monkeypatch.setattr("npformer.engine.runtime.steps.PIECE", 4)
    work, requests = work_of(task, texts, max_new_tokens=1)
    count, found = steps_of(work.run(requests))
    assert count > 6
    assert found == expected


@pytest.mark.numbers
def test_a_request_that_is_read_many_times_is_read_in_several_steps(monkeypatch):
    """Zero-shot classification reads its text once for each label, and windows are parts of one text."""
    zero = pipeline("zero-shot-classification", tiny.model(labels=("entailment", "contradiction"), threads=1))
    labels = [f"label {i}" for i in range(20)]
    expected = zero(["music " * 5, "ice"], candidate_labels=labels)
    tags = pipeline("token-classification", tiny.model(head="token-classification", threads=1), stride=2)
    long = "ice cream in paris " * 60
    tagged = tags(long)
    monkeypatch.setattr("npformer.engine.runtime.steps.PIECE", 50)
    work, requests = work_of(zero, ["music " * 5, "ice"], candidate_labels=labels)
    count, found = steps_of(work.in_steps(requests))
    assert count > 4
    assert found == expected
    work, requests = work_of(tags, [long], long="window")
    count, found = steps_of(work.in_steps(requests))
    assert count > 2
    assert found == [tagged]


@pytest.mark.numbers
@pytest.mark.parametrize("texts", [1, 9])
@pytest.mark.parametrize("family", ["distilbert", "deberta-v2", "bert", "modernbert"])
def test_each_layer_of_a_long_batch_is_a_step(family, texts):
    """The answers have the same bits as a whole run, for one text and for texts on several threads.

    A batch of up to 128 tokens is one step, because it is short and may be replayed.
    """
    model = tiny.model(family, threads=2, max_length=200)
    task = pipeline("text-classification", model, top_k=None)
    items: list[Any] = ["ice cream " * (2 * i + 9) for i in range(texts - 1)] + [Pair("music", "in paris " * 80)]
    work, requests = work_of(task, items)
    count, found = steps_of(work.in_steps(requests))
    assert count >= model.config.n_layers
    assert found == task(items)
    work, requests = work_of(task, ["ice cream"])
    assert steps_of(work.in_steps(requests))[0] < model.config.n_layers
    embed = pipeline("feature-extraction", tiny.model(family, "base", threads=2), return_tensors=True)
    singles = ["ice cream " * (2 * i + 9) for i in range(texts)]
    work, requests = work_of(embed, singles)
    for vectors, expected in zip(steps_of(work.in_steps(requests))[1], embed(singles), strict=True):
        assert vectors.tobytes() == expected.tobytes()


def test_a_long_text_and_pieces_are_computed_in_steps_and_short_texts_are_not(desk):
    pauses = []
    for sizes in ((300,), (20, 20), (200, 200, 200, 200)):
        desk.ask(Noted("model"), "text", *sizes)
        job = desk.begin()
        pauses.append(job.batch[0].pauses)
        desk.end(job)
    assert pauses == [True, False, True]
