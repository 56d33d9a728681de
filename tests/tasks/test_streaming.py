"""A generator goes through a pipeline one window at a time: how far it is read ahead, memory, and answers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from itertools import islice

import pytest

from npformer import pipeline
from npformer.tasks.task import Task
from tests.support import tiny

pytestmark = pytest.mark.numbers

WINDOW = 50


@pytest.fixture
def task() -> Task:
    made = pipeline("text-classification", tiny.model())
    made.window = WINDOW
    return made


class Item(dict):
    """A pair of texts that supports weak references."""

    __hash__ = object.__hash__


class Source:
    """Yields pairs; counts the pairs that were requested and the pairs that are still referenced."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pulled = 0
        self.alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Item]:
        while self.pulled < self.count:
            self.pulled += 1
            pair = Item(text=f"ice cream {self.pulled}", text_pair="I love it " * (self.pulled % 7))
            self.alive.add(pair)
            yield pair
            del pair


def test_nothing_is_pulled_before_an_answer_is_asked_for(task: Task) -> None:
    source = Source(3 * WINDOW)
    answers = task(iter(source))
    assert source.pulled == 0
    next(answers)
    assert source.pulled == WINDOW


def test_a_window_is_answered_whole_before_the_next_is_pulled(task: Task) -> None:
    source = Source(4 * WINDOW)
    for answered, _ in enumerate(task(iter(source)), 1):
        windows = -(-answered // WINDOW)
        assert source.pulled == windows * WINDOW


def test_a_generator_that_ends_inside_a_window_is_answered_to_its_end(task: Task) -> None:
    source = Source(2 * WINDOW + 7)
    assert len(list(task(iter(source)))) == source.pulled == 2 * WINDOW + 7


@pytest.mark.slow
def test_inputs_are_freed_with_their_window(task: Task) -> None:
    """At most two windows are in memory: the old one stays while the new one is filled."""
    source = Source(10 * WINDOW)
    for _ in islice(task(iter(source)), 0, None, WINDOW):
        gc.collect()
        assert len(source.alive) <= 2 * WINDOW


def test_streamed_answers_have_the_bits_of_a_list(task: Task) -> None:
    assert list(task(iter(Source(3 * WINDOW + 1)))) == task(list(Source(3 * WINDOW + 1)))


def test_inputs_read_before_the_source_failed_are_answered(task: Task) -> None:
    def source() -> Iterator[Item]:
        yield from Source(WINDOW + 7)
        raise OSError("the disk is gone")

    answers = task(source())
    assert list(islice(answers, WINDOW + 7)) == task(list(Source(WINDOW + 7)))
    with pytest.raises(OSError, match="the disk is gone"):
        next(answers)
