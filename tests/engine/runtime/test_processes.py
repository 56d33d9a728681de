"""Processes: a forked child has separate threads and BLAS settings, even after a fork in the middle of a call.

Processes end cleanly. By default, the suite makes few forks; NPFORMER_TEST_FORKS=320 makes more, and takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.numbers


def run_python(code: str) -> tuple[int, str]:
    """Runs a program with a model in a separate process; returns its exit code and output."""
    root = Path(__file__).parents[3]
    path = f"import sys; sys.path[:0] = [{str(root)!r}]\n"
    command = [sys.executable, "-c", path + PRELUDE + code]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False
    )
    return done.returncode, done.stdout


PRELUDE = """
import faulthandler, os, threading, time, warnings
import numpy as np
from tests.support.bits import alike
from tests.support import tiny
from npformer.engine.runtime import threads
from npformer.engine.runtime.packing import Text
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of any fork with threads: that it works is the test
model, texts = tiny.model(threads=2), [Text(np.arange(60))] * 40
expected = model.run(texts)[0]["logits"]

def run_in_a_child():
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(300, exit=True)  # should it hang; emulated CPUs take long
        same = all(alike(each["logits"], expected) for each in model.run(texts))
        print("" if same else "other numbers in the child", end="", flush=True)
        os._exit(0)
    if code := os.waitpid(child, 0)[1]:
        print("exit code", code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_can_run_a_model() -> None:
    """The parent's threads do not exist in the child, so the child starts its own."""
    code = "for _ in range(3): run_in_a_child()\nprint(alike(model.run(texts)[0]['logits'], expected))"
    assert run_python(code) == (0, "True\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_others_work_can_run_a_model() -> None:
    code = """
threads.FORK_PATIENCE = 600  # seconds; on a busy machine, the work of a thread may take longer than the usual second
stop = threading.Event()
def work():
    while not stop.is_set():
        model.run(texts)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(FORKS):
    run_in_a_child()
stop.set()
"""
    forks = int(os.environ.get("NPFORMER_TEST_FORKS", "10"))
    assert run_python(code.replace("FORKS", str(forks))) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.usefixtures("settable_blas")
def test_a_child_forked_in_a_call_has_the_hosts_blas_threads() -> None:
    code = """
from threadpoolctl import threadpool_limits
threadpool_limits(2, user_api="blas")
with threads.single_blas_thread():
    child = os.fork()
    if child == 0:
        print({each["num_threads"] for each in threads.blas_libraries()}, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert run_python(code) == (0, "{2}\n")


SHARED_WORK = """
threads.FORK_PATIENCE = SECONDS
log, entered = [], threading.Event()

def until_a_fork_waits():
    while not threads._blas.forking:
        time.sleep(0.001)

def fork():
    child = os.fork()
    if child == 0:
        print(*log, flush=True)
        os._exit(0)
    os.waitpid(child, 0)

def compute(work):
    def body():
        with threads.single_blas_thread():
            entered.set()
            work()
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    assert entered.wait(300)
    return thread
"""


def run_beside_a_fork(code: str, patience: float = 600) -> tuple[int, str]:
    """Runs the code in a process whose forks wait for `patience` seconds, by default longer than the suite runs."""
    return run_python(SHARED_WORK.replace("SECONDS", str(patience)) + code)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_waits_until_other_threads_have_left_blas() -> None:
    code = """
def work():
    until_a_fork_waits()
    with threads.single_blas_thread():  # entered already, so it is not kept out
        log.append("left")
compute(work)
fork()
"""
    assert run_beside_a_fork(code) == (0, "left\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_keeps_new_threads_out_of_blas() -> None:
    code = """
def work():
    until_a_fork_waits()
    entered.clear()
    late.start()
    log.append("too early" if entered.wait(0.2) else "kept out")
def enter_late():
    with threads.single_blas_thread():
        log.append("late")
        entered.set()
late = threading.Thread(target=enter_late)
compute(work)
fork()
late.join(300)
print(*log)
"""
    assert run_beside_a_fork(code) == (0, "kept out\nkept out late\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_waits_for_a_thread_in_blas_and_its_workers() -> None:
    """The thread's call to BLAS waits for BLAS's workers, and the fork waits for the thread."""
    code = """
def work():
    until_a_fork_waits()
    threads.run_tasks([begin, begin], 2)
def begin():
    with threads.single_blas_thread():
        together.wait()
together = threading.Barrier(2, timeout=300)
compute(work)
fork()
"""
    assert run_beside_a_fork(code) == (0, "\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_does_not_wait_for_its_own_thread_or_for_a_finished_one() -> None:
    code = """
def end_inside():
    kept.append(threads.single_blas_thread())
    kept[0].__enter__()
kept = []
ended = threading.Thread(target=end_inside)
ended.start()
ended.join()
with threads.single_blas_thread():
    fork()
"""
    assert run_beside_a_fork(code) == (0, "\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_two_threads_in_blas_that_fork_do_not_wait_for_each_other() -> None:
    code = """
def work():
    until_a_fork_waits()
    fork()
thread = compute(work)
with threads.single_blas_thread():
    fork()
thread.join()
"""
    assert run_beside_a_fork(code) == (0, "\n\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_waits_for_a_limited_time() -> None:
    code = "compute(threading.Event().wait)\nfork()\nprint('went on')"
    assert run_beside_a_fork(code, patience=0.1) == (0, "\nwent on\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_by_a_worker_can_run_a_model_and_fork_again() -> None:
    code = """
def run_in_a_grandchild():
    child = os.fork()
    if child == 0:
        run_in_a_child()
        os._exit(0)
    os.waitpid(child, 0)
both = threading.Barrier(2, timeout=300)
def work():
    both.wait()  # so the worker has one of the tasks
    run_in_a_grandchild()
with threads.single_blas_thread():
    threads.run_tasks([work, work], 2)
"""
    assert run_beside_a_fork(code, patience=0.1) == (0, "")


@pytest.mark.slow
def test_a_process_ends_while_helpers_wait() -> None:
    assert run_python("print(len(threading.enumerate()))") == (0, "2\n")
