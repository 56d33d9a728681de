"""Trials: the fastest way is found during use, under any load, and the bits do not depend on the choice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from npformer import model as model_module
from npformer.engine.runtime import products, threads, trials, weight_products
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.threads import num_threads, parallel_for, part_counts
from npformer.engine.runtime.trials import Trial
from tests.support import tiny
from tests.support.bits import alike
from tests.support.draw import normal

BYTES = 4 * 768 * 768


class Clock:
    """A clock that advances only during simulated work."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ways: list[int] = []

    def work(self, seconds: Callable[[int], float]) -> Callable[[int], int]:
        """Returns work that takes seconds(way) on this clock."""

        def done(way: int) -> int:
            self.now += seconds(way)
            self.ways.append(way)
            return way

        return done


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trials, "perf_counter", lambda: clock.now)
    return clock


def test_the_first_guess_holds_for_as_long_as_a_process_with_one_sentence_runs(clock: Clock) -> None:
    trial, work = Trial((1, 2), first=1), clock.work(lambda way: 0.001 / way)
    while clock.now < trials.PATIENCE - 0.001:
        assert trial.run(work) == 1


@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("quickest", [1, 2, 4])
def test_the_quickest_way_is_found(clock: Clock, quickest: int, first: int) -> None:
    trial, work = Trial((1, 2, 4), first), clock.work(lambda way: 0.001 if way == quickest else 0.0015)
    for _ in range(100):
        trial.run(work)
    assert clock.ways[-10:] == [quickest] * 10


@pytest.mark.parametrize("interrupted", [1, 2])
def test_interruptions_of_a_trial_change_nothing(clock: Clock, interrupted: int) -> None:
    """Two of the five runs of one option take a hundred times as long."""
    trial, runs = Trial((1, 2), first=1), {1: 0, 2: 0}
    while trial._times is None:
        trial.run(clock.work(lambda way: 0.001))

    def seconds(way: int) -> float:
        runs[way] += 1
        return (0.001 if way == 1 else 0.0008) * (100 if way == interrupted and runs[way] in (2, 4) else 1)

    while trial._times is not None:
        trial.run(clock.work(seconds))
    assert trial.run(clock.work(lambda way: 0.001)) == 2


def test_a_small_gain_does_not_change_the_way(clock: Clock) -> None:
    trial, work = Trial((1, 2), first=1), clock.work(lambda way: 0.001 if way == 1 else 0.00097)
    for _ in range(1000):
        trial.run(work)
    assert trial.run(work) == 1


def test_a_core_that_was_busy_in_one_trial_may_be_free_in_the_next(clock: Clock) -> None:
    """While the second core is busy, two threads take 5 ms. Later, they take half of one thread's millisecond."""
    trial = Trial((1, 2), first=2)
    for _ in range(1000):
        trial.run(clock.work(lambda way: 0.001 if way == 1 else 0.005))
    assert clock.ways[-1] == 1
    for _ in range(5000):
        trial.run(clock.work(lambda way: 0.001 / way))
    assert clock.ways[-1] == 2


@pytest.mark.parametrize("slower", [1.2, 2, 10, 100])
def test_trials_lose_a_hundredth_of_the_time(clock: Clock, slower: float) -> None:
    """The first trial is not counted; after it, a way that is a hundred times slower is tried rarely."""
    trial, work = Trial((1, 2), first=1), clock.work(lambda way: 0.0001 if way == 1 else 0.0001 * slower)
    for _ in range(200_000):
        trial.run(work)
    first_trial = trials.TURNS * 0.0001 * slower
    assert clock.now - first_trial < 200_000 * 0.0001 * (1 + 1.5 * trials.SHARE)
    assert 2 in clock.ways[1000:] or slower > 10


@pytest.mark.parametrize(
    ("alone", "together", "small", "large"),
    [(10e9, 20e9, 2, 2), (30e9, 36e9, 1, 1), (25e9, 50e9, 1, 2), (10e9, 10e9, 1, 1)],
)
def test_the_memory_decides_how_many_threads_read_a_weight(
    clock: Clock, alone: float, together: float, small: int, large: int
) -> None:
    """The clock simulates bytes per second for one core and for two, a hand-over of 80 us, and weights of two sizes."""
    for size, expected in ((BYTES, small), (4 * BYTES, large)):
        trial = Trial((1, 2), first=1)
        work = clock.work(lambda way, size=size: size / alone if way == 1 else size / together + 80e-6)
        for _ in range(2000):
            trial.run(work)
        assert trial.run(work) == expected


def test_runs_of_different_sizes_are_compared_by_their_amount(clock: Clock) -> None:
    """Texts have 60 or 40 tokens in turn. In a trial, the faster way runs long texts and the slower way short ones."""
    trial = Trial((1, 2), first=1)
    for i in range(200):
        amount = 60 if len(clock.ways) % 2 else 40
        trial.run(clock.work(lambda way, amount=amount: amount * (3e-5 if way == 1 else 2.5e-5)), amount)
        if trial._times is None and i > 100:
            break
    assert trial.run(clock.work(lambda way: 0.001)) == 2


def test_an_error_in_the_work_is_raised_and_not_timed(clock: Clock) -> None:
    trial = Trial((1, 2), first=1)
    with pytest.raises(ZeroDivisionError):
        trial.run(lambda way: way // 0)
    assert trial.run(clock.work(lambda way: 0.001)) == 1


def test_threads_share_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "PATIENCE", 0.0)
    trial, wrong = Trial((1, 2, 3), first=3), []

    def call() -> None:
        wrong.extend(i for i in range(2000) if trial.run(lambda way, i=i: i) != i)

    workers = [threading.Thread(target=call) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert trial.ways[trial.way] in (1, 2, 3)


# --- in use ----------------------------------------------------------------------------------------------------------


def test_the_numbers_of_parts_to_try() -> None:
    assert part_counts(10**9) == ((1,), 1)
    with num_threads(6):
        assert part_counts(10**9) == ((1, 2, 4, 6), 6)
        assert part_counts(100_000) == ((1, 2, 4, 6), 1)
        assert part_counts(1000) == ((1,), 1)
        assert part_counts(10**9, most=3) == ((1, 2, 3), 3)
        assert part_counts(10**9, most=1) == ((1,), 1)
    with num_threads(2):
        assert part_counts(10**9) == ((1, 2), 2)


@pytest.mark.numbers
@pytest.mark.usefixtures("one_blas_thread")
@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 40, 100])
def test_every_way_of_a_product_has_the_same_bits(rows: int, panels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a new trial begins as soon as one ends, so that the product runs in every way."""
    monkeypatch.setattr(trials, "PATIENCE", 0.0)
    monkeypatch.setattr(trials, "SHARE", float("inf"))
    monkeypatch.setattr(weight_products, "panels_pay", lambda rows: panels and weight_products.few_rows() > 0)
    weight_products._trial.cache_clear()
    weight_products._way.cache_clear()
    x, weights = normal(rows, 768), [normal(768, outer, seed=outer) for outer in (768, 640)]
    expected, ways, run_tasks = [products.matmul(x, weight) for weight in weights], set(), weight_products.run_tasks

    def watched(tasks: list[partial[None]], n: int) -> None:
        ways.add((n, tasks[0].args[2]))
        run_tasks(tasks, n)

    monkeypatch.setattr(weight_products, "run_tasks", watched)
    with num_threads(3):
        for _ in range(12 * trials.TURNS):
            found = weight_products.weight_products(x, *weights)
            assert all(alike(*pair) for pair in zip(found, expected, strict=True))
    weight_products._trial.cache_clear()
    weight_products._way.cache_clear()
    assert ways == {
        (n, with_panels) for n in (1, 2, 3) for with_panels in {False, panels and weight_products.few_rows() > 0}
    }


def test_work_returns_to_one_thread_where_the_other_core_is_busy(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hand-over waits two milliseconds for a core. On one thread, the work takes a twentieth of this time."""
    run_tasks = threads.run_tasks

    def busy(tasks: list[Callable[[], None]], n: int) -> None:
        clock.now += 0.0001 + 0.002 * (n > 1)
        run_tasks(tasks, n)

    monkeypatch.setattr(threads, "run_tasks", busy)
    y, parts = np.zeros(64), []

    def work(part: slice) -> None:
        parts.append(part)
        y[part] += 1

    with num_threads(2):
        for _ in range(200):
            parallel_for(work, len(y), nanoseconds=10**6)
    assert parts[0] != slice(0, 64)  # the first guess divides the work
    assert parts[-1] == slice(0, 64)
    assert (y == 200).all()


@pytest.mark.numbers
@pytest.mark.parametrize("family", ["distilbert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("length", [48, 60])
def test_one_text_has_the_same_bits_by_its_rows_and_by_its_products(
    length: int, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "PATIENCE", 0.0)
    monkeypatch.setattr(trials, "SHARE", float("inf"))
    text, by_rows, run = Text(np.arange(length) + 5), [], model_module.run_row_parallel
    [alone] = tiny.model(family, threads=1).run([text])

    def watched(tasks: list[Callable[[], object]]) -> list[object]:
        by_rows.append(len(tasks))
        return run(tasks)

    monkeypatch.setattr(model_module, "run_row_parallel", watched)
    model = tiny.model(family, threads=3)
    for _ in range(20):
        [answers] = model.run([text])
        assert all(alike(answers[name], alone[name]) for name in alone)
    assert 0 < len(by_rows) < 20
    assert set(by_rows) == {3}


def test_a_text_with_few_tokens_for_each_core_is_not_cut_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "PATIENCE", 0.0)
    monkeypatch.delattr(model_module, "run_row_parallel")
    model = tiny.model(threads=3)
    for _ in range(30):
        model.run([Text(np.arange(47) + 5)])
