"""Threads: work shared out and put together, errors from any of them, BLAS's own threads put back, forks, callers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import golden
import numpy as np
import pytest
import tiny
from threadpoolctl import threadpool_info, threadpool_limits

from npformer.batch import Text
from npformer.errors import NpformerError
from npformer.model import Model
from npformer.workers import (
    available_cores,
    blas_libraries,
    crew,
    fork,
    parts,
    share,
    single_blas_thread,
    thread_count,
)

LONG = 10**9  # nanoseconds: work that is worth sharing
PATIENCE = 30  # seconds for what takes milliseconds, on a machine that is busy with something else


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    """What the host program has set, and expects to find again."""
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


def test_work_is_cut_only_where_that_pays() -> None:
    assert parts(LONG) == 1
    with crew(3):
        assert parts(LONG) == 3
        assert parts(1000) == 1
        with crew(2):
            assert parts(LONG) == 2
        assert parts(LONG) == 3
    assert parts(LONG) == 1


def test_a_crew_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), crew(3):
        raise ZeroDivisionError
    assert parts(LONG) == 1


# --- sharing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 20])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_results_come_in_the_tasks_order(count: int, threads: int) -> None:
    assert share([lambda i=i: i * i for i in range(count)], threads) == [i * i for i in range(count)]


def test_tasks_run_side_by_side() -> None:
    """Each of three waits for the other two."""
    barrier = threading.Barrier(3)
    assert sorted(share([lambda: barrier.wait(PATIENCE)] * 3, 3)) == [0, 1, 2]


def test_fork_calls_every_part_once() -> None:
    called = []
    fork(lambda index, of: called.append((index, of)), 4)
    assert sorted(called) == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_tasks_may_share_in_turn() -> None:
    def task(i: int) -> int:
        return sum(share([lambda j=j: i * j for j in range(5)], 2))

    assert share([lambda i=i: task(i) for i in range(20)], 3) == [10 * i for i in range(20)]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, NpformerError])
@pytest.mark.parametrize("place", [0, 1, 9])
def test_an_error_comes_up_once(place: int, kind: type[BaseException]) -> None:
    def task(i: int) -> int:
        if i == place:
            raise kind(f"task {i}")
        return i

    for threads in (1, 2, 3):
        with pytest.raises(kind, match=f"task {place}"):
            share([lambda i=i: task(i) for i in range(10)], threads)
        assert share([lambda i=i: i for i in range(10)], threads) == list(range(10))


def test_an_error_in_a_helper_comes_up_in_the_caller() -> None:
    caller, barrier = threading.current_thread(), threading.Barrier(2)

    def task() -> None:
        barrier.wait(PATIENCE)  # so that both threads have one of the two tasks
        if threading.current_thread() is not caller:
            raise ValueError("in a helper")

    with pytest.raises(ValueError, match="in a helper"):
        share([task, task], 2)


def test_after_an_error_no_further_task_is_begun() -> None:
    begun = []

    def task(i: int) -> None:
        begun.append(i)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        share([lambda i=i: task(i) for i in range(1000)], 2)
    assert len(begun) <= 2


# --- BLAS's own threads ----------------------------------------------------------------------------------------------


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


def test_what_is_shown_of_blas() -> None:
    (library, *_) = blas_libraries()
    assert {"internal_api", "version", "num_threads"} <= library.keys()


# --- many callers ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_blas_threads")
def test_many_threads_call_many_models() -> None:
    """Each gets its own answers, to the bit, while others fail; nothing is left behind."""
    kinds = [("distilbert", "sequence-classification"), ("bert", "base"), ("bert", "token-classification")]
    models = [tiny.model(*kind, threads=threads) for kind in kinds for threads in (1, 2, 3)]
    texts = [Text(np.arange(length)) for length in (1, 2, 9, 9, 30, 64) * 12]
    expected = [model.run(texts) for model in models]
    wrong: list[object] = []

    def caller(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(6):
                index = choose.randrange(len(models))
                chosen = choose.sample(range(len(texts)), choose.choice([1, 3, 72]))
                answers = models[index].run([texts[i] for i in chosen])
                for i, answer in zip(chosen, answers, strict=True):
                    if not all(golden.alike(answer[name], expected[index][i][name]) for name in answer):
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
    assert blas_threads() == {2}


def run_python(code: str) -> tuple[int, str]:
    """A process of its own with a model in it: its exit code, and what it printed."""
    root = Path(__file__).parent.parent
    path = f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'tests')!r}]\n"
    command = [sys.executable, "-c", path + PRELUDE + code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


PRELUDE = """
import faulthandler, os, threading, warnings
import golden, numpy as np, tiny
from npformer.batch import Text
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of any fork with threads: that it works is the test
model, texts = tiny.model(threads=2), [Text(np.arange(60))] * 40
expected = model.run(texts)[0]["logits"]

def run_in_a_child():
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)  # should it hang
        same = all(golden.alike(each["logits"], expected) for each in model.run(texts))
        print("" if same else "other numbers in the child", end="", flush=True)
        os._exit(0)
    if code := os.waitpid(child, 0)[1]:
        print("exit code", code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_can_run_a_model() -> None:
    """Its parent's helpers do not live on in it, and it hires its own."""
    code = "for _ in range(3): run_in_a_child()\nprint(golden.alike(model.run(texts)[0]['logits'], expected))"
    assert run_python(code) == (0, "True\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_others_work_can_run_a_model() -> None:
    code = """
stop = threading.Event()
def work():
    while not stop.is_set():
        model.run(texts)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(10):
    run_in_a_child()
stop.set()
"""
    assert run_python(code) == (0, "")


def test_a_process_ends_while_helpers_wait() -> None:
    assert run_python("print(len(threading.enumerate()))") == (0, "2\n")


def test_a_model_made_in_a_thread_that_ended_still_runs() -> None:
    made: list[Model] = []
    thread = threading.Thread(target=lambda: made.append(tiny.model(threads=3)))
    thread.start()
    thread.join()
    assert len(made[0].run([Text(np.arange(60))] * 50)) == 50
