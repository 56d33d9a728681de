"""Threads: dividing and joining work, errors in any thread, restoring BLAS's own threads, forks, and many callers."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from npformer.common.errors import NpformerError
from npformer.engine.runtime import threads as threads_module
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.threads import (
    all_gather,
    available_cores,
    blas_libraries,
    num_threads,
    parallel_for,
    part_counts,
    run_row_parallel,
    run_tasks,
    single_blas_thread,
    start_workers,
    thread_count,
)
from npformer.model import Model
from tests.support import tiny
from tests.support.bits import alike

pytestmark = pytest.mark.numbers

LONG = 10**9  # nanoseconds: an amount of work that is worth sharing
PATIENCE = 300  # seconds: work of milliseconds may take longer on a busy machine


def blas_threads() -> set[int]:
    """Returns the numbers of threads of NumPy's BLAS, ignoring libraries that another test may have loaded."""
    return {each["num_threads"] for each in blas_libraries()}


@pytest.fixture
def two_blas_threads(settable_blas: None) -> Iterator[None]:
    """Sets BLAS to two threads, as a host program might; npformer must restore this setting."""
    with threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        yield
        assert blas_threads() == {2}


# --- how many --------------------------------------------------------------------------------------------------------


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPFORMER_THREADS", raising=False)
    assert thread_count() == available_cores() >= 1
    assert thread_count(3) == 3
    monkeypatch.setenv("NPFORMER_THREADS", "5")
    assert thread_count() == 5
    assert thread_count(2) == 2
    assert tiny.model().threads == 5
    monkeypatch.setenv("NPFORMER_THREADS", "")
    assert thread_count() == available_cores()


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "1e3", " ", "٣x"])
def test_the_environments_number_is_whole_and_at_least_one(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPFORMER_THREADS", value)
    with pytest.raises(NpformerError) as caught:
        thread_count()
    assert str(caught.value).startswith("NPFORMER_THREADS: expected a whole number of at least 1")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "two", [1]])
def test_the_arguments_number_is_whole_and_at_least_one(value: object) -> None:
    with pytest.raises(NpformerError, match=r"^threads: expected a whole number of at least 1"):
        tiny.model(threads=value)


def parts(nanoseconds: int) -> int:
    """Returns the number of parts into which work is divided before a trial."""
    return part_counts(nanoseconds)[1]


def test_work_is_cut_only_where_that_pays() -> None:
    assert parts(LONG) == 1
    with num_threads(3):
        assert parts(LONG) == 3
        assert parts(1000) == 1
        with num_threads(2):
            assert parts(LONG) == 2
        assert parts(LONG) == 3
    assert parts(LONG) == 1


def test_a_number_of_threads_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), num_threads(3):
        raise ZeroDivisionError
    assert parts(LONG) == 1


# --- sharing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 20])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_results_come_in_the_tasks_order(count: int, threads: int) -> None:
    assert run_tasks([lambda i=i: i * i for i in range(count)], threads) == [i * i for i in range(count)]


def test_tasks_run_side_by_side() -> None:
    """Each of three tasks waits for the other two."""
    barrier = threading.Barrier(3)
    assert sorted(run_tasks([lambda: barrier.wait(PATIENCE)] * 3, 3)) == [0, 1, 2]


@pytest.mark.parametrize(("count", "parts"), [(0, 1), (1, 1), (3, 3), (10, 4)])
def test_a_parallel_for_visits_the_range_once(count: int, parts: int) -> None:
    called: list[tuple[int, int]] = []
    with num_threads(4):
        parallel_for(lambda part: called.append((part.start, part.stop)), count, LONG)
    edges = [*(start for start, _ in sorted(called)), count]
    assert sorted(called) == list(pairwise(edges))
    assert (edges[0], len(called)) == (0, parts)
    with num_threads(4):
        parallel_for(lambda part: called.append((part.start, part.stop)), count, nanoseconds=1000)
    assert called[parts:] == [(0, count)]


def test_tasks_may_share_in_turn() -> None:
    def task(i: int) -> int:
        return sum(run_tasks([lambda j=j: i * j for j in range(5)], 2))

    assert run_tasks([lambda i=i: task(i) for i in range(20)], 3) == [10 * i for i in range(20)]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, NpformerError])
@pytest.mark.parametrize("place", [0, 1, 9])
def test_an_error_comes_up_once(place: int, kind: type[BaseException]) -> None:
    def task(i: int) -> int:
        if i == place:
            raise kind(f"task {i}")
        return i

    for threads in (1, 2, 3):
        with pytest.raises(kind, match=f"task {place}"):
            run_tasks([lambda i=i: task(i) for i in range(10)], threads)
        assert run_tasks([lambda i=i: i for i in range(10)], threads) == list(range(10))


def test_an_error_in_a_worker_comes_up_in_the_caller() -> None:
    caller, barrier = threading.current_thread(), threading.Barrier(2)

    def task() -> None:
        barrier.wait(PATIENCE)  # each thread then takes one of the two tasks
        if threading.current_thread() is not caller:
            raise ValueError("in a worker")

    with pytest.raises(ValueError, match="in a worker"):
        run_tasks([task, task], 2)


def test_after_an_error_no_further_task_is_begun() -> None:
    begun = []

    def task(i: int) -> None:
        begun.append(i)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        run_tasks([lambda i=i: task(i) for i in range(1000)], 2)
    assert len(begun) <= 2


# --- BLAS's own threads ----------------------------------------------------------------------------------------------


class Interrupt(BaseException):
    """Ctrl-C's exception, raised at a chosen place."""


def test_an_interrupt_at_the_hand_over_leaves_no_worker_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits at the barrier for an interrupted caller is released, and the next call uses it."""
    waiting = threading.Event()

    def interrupted(job: threads_module._Job) -> None:
        if threading.current_thread() is threading.main_thread():
            assert waiting.wait(PATIENCE)
            raise Interrupt
        work(job)

    def task() -> list[np.ndarray]:
        waiting.set()
        return list(all_gather(np.ones((2, 3))))

    work = threads_module._Job.work
    monkeypatch.setattr(threads_module._Job, "work", interrupted)
    with pytest.raises(Interrupt):
        run_row_parallel([task, task])
    monkeypatch.undo()
    found = run_row_parallel([task, task])
    assert [each[0].shape for each in found] == [(4, 3), (4, 3)]


def test_a_system_without_free_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does all the work, even for one long text. Later, new threads may be available again."""

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    model, texts = tiny.model(threads=9), [Text(np.arange(5, 45)) for _ in range(30)]
    long = Text(np.full(900, 7))
    alone = tiny.model(threads=1, max_length=1000)
    many = tiny.model(threads=9, max_length=1000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert start_workers(50) < 50
        answers = model.run(texts)
        assert np.array_equal(many.run([long])[0]["logits"], alone.run([long])[0]["logits"])
    assert np.array_equal(answers[3]["logits"], tiny.model(threads=1).run(texts[3:4])[0]["logits"])
    assert start_workers(9) == 9
    assert np.array_equal(many.run([long])[0]["logits"], alone.run([long])[0]["logits"])


@pytest.mark.parametrize("place", range(4))
@pytest.mark.usefixtures("two_blas_threads")
def test_an_interrupt_while_blas_is_set(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the interrupt comes, the next successful call restores the host's settings."""
    calls = []

    def interrupted(library: Any, count: int) -> None:
        calls.append(count)
        if len(calls) == place // 2 + 1:
            if place % 2:
                setting(library, count)
            raise Interrupt
        setting(library, count)

    setting = threads_module._set_blas_threads
    monkeypatch.setattr(threads_module, "_set_blas_threads", interrupted)
    with pytest.raises(Interrupt), single_blas_thread():
        pass
    monkeypatch.undo()
    with single_blas_thread():
        assert blas_threads() == {1}


@pytest.mark.usefixtures("two_blas_threads")
def test_blas_is_held_to_one_thread_and_put_back() -> None:
    with single_blas_thread():
        assert blas_threads() == {1}
        with single_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}
    with pytest.raises(ZeroDivisionError), single_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_blas_threads")
def test_a_worker_does_not_search_for_blas() -> None:
    """The search could deadlock with an import in the calling thread, for example an import of tokenizers."""
    code = """
import threading
import threadpoolctl
class Recorded(threadpoolctl.ThreadpoolController):
    def __init__(self):
        print(threading.current_thread() is threading.main_thread())
        super().__init__()
threadpoolctl.ThreadpoolController = Recorded
from npformer.engine.runtime.threads import run_tasks
meet = threading.Barrier(3)
run_tasks([meet.wait] * 3, 3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "True\n"


def test_the_last_to_leave_puts_it_back() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with single_blas_thread():
            entered.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=other)
    with single_blas_thread():
        thread.start()
        assert entered.wait(PATIENCE)
    assert blas_threads() == {1}
    leave.set()
    thread.join()
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_blas_threads")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_models_run_puts_blas_back(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = tiny.model(threads=threads), [Text(np.arange(60))] * 60
    model.run(texts)
    assert blas_threads() == {2}
    with pytest.raises(NpformerError):
        model.run([Text(np.array([-1]))])
    assert blas_threads() == {2}

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("in a shard")

    monkeypatch.setattr("npformer.model.forward", fail)
    with pytest.raises(MemoryError, match="in a shard"):
        model.run(texts)
    assert blas_threads() == {2}
    monkeypatch.undo()
    model.run(texts)


@pytest.mark.usefixtures("settable_blas")
def test_the_blas_is_described() -> None:
    (library, *_) = blas_libraries()
    assert {"internal_api", "version", "num_threads"} <= library.keys()


# --- many callers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_threadpoolctl_a_model_runs_and_warns_once() -> None:
    """Answers of several threads, and of a later run, differ only by rounding, and the process warns only once."""
    root = Path(__file__).parents[3]
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}]\n"
        "sys.modules['threadpoolctl'] = None  # as if it were not installed\n"
        "import numpy as np, warnings\n"
        "from tests.support import tiny\n"
        "from npformer.engine.runtime.packing import Text\n"
        "from npformer.engine.runtime.threads import blas_libraries\n"
        "model, texts = tiny.model(threads=2), [Text(np.arange(60))] * 40\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    first, second = model.run(texts), model.run(texts[:1])\n"
        "    found = blas_libraries()\n"
        "print(found, *[each.category.__name__ + ': ' + str(each.message) for each in caught], sep='\\n')\n"
        "assert np.allclose(first[0]['logits'], second[0]['logits'], atol=1e-6)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    libraries, warning = done.stdout.splitlines()
    assert libraries == "[]"
    assert warning.startswith("NpformerWarning: threadpoolctl is not installed, so BLAS uses threads")
    assert warning.endswith("pip install threadpoolctl")


def test_many_threads_call_many_models() -> None:
    """Each thread gets its own answers, bit for bit, while other threads fail, and nothing is left behind."""
    kinds = [("distilbert", "sequence-classification"), ("bert", "base"), ("bert", "token-classification")]
    models = [tiny.model(*kind, threads=threads) for kind in kinds for threads in (1, 2, 3)]
    texts = [Text(np.arange(length)) for length in (1, 2, 9, 9, 30, 64) * 12]
    expected = [model.run(texts) for model in models]
    before = blas_threads()
    wrong: list[object] = []

    def caller(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(6):
                index = choose.randrange(len(models))
                chosen = choose.sample(range(len(texts)), choose.choice([1, 3, 72]))
                answers = models[index].run([texts[i] for i in chosen])
                for i, answer in zip(chosen, answers, strict=True):
                    if not all(alike(answer[name], expected[index][i][name]) for name in answer):
                        wrong.append((seed, index, i))
                try:
                    models[index].run([texts[0], Text(np.array([10**6]))])
                except NpformerError:
                    continue
                wrong.append("no error")
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert wrong == []
    assert blas_threads() == before


def test_a_model_made_in_a_thread_that_ended_still_runs() -> None:
    made: list[Model] = []
    thread = threading.Thread(target=lambda: made.append(tiny.model(threads=3)))
    thread.start()
    thread.join()
    assert len(made[0].run([Text(np.arange(60))] * 50)) == 50


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_an_interrupt_at_any_moment_leaves_blas_free_for_other_threads() -> None:
    """Ctrl-C arrives at 2,000 different moments when a thread enters or leaves BLAS. Other threads can then enter."""
    moments, free, came = random.Random(0), list[bool](), list[int]()

    def interrupt(number: int, _: object) -> None:
        came.append(number)  # Python drops an exception that is raised in a callback of its garbage collector
        raise KeyboardInterrupt

    def enter_and_leave() -> None:  # in the block below, Python 3.13 would not catch an interrupt at the end of a loop
        while not came:
            with single_blas_thread():
                pass

    def enter() -> None:
        free.append(threads_module._blas.lock.acquire(timeout=PATIENCE))
        if free[-1]:
            threads_module._blas.lock.release()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(2000):
            came.clear()
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 6e-5))
                enter_and_leave()
            other = threading.Thread(target=enter)
            other.start()
            other.join()
            assert free[-1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not threads_module._blas.users
