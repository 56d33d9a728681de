"""Processes: a fork, also in the middle of a call, has threads and BLAS settings of its own; a process ends in peace.

NPFORMER_TEST_FORKS=320 forks more often, which takes minutes; the suite forks less.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.numbers


def run_python(code: str) -> tuple[int, str]:
    """A process of its own with a model in it: its exit code, and what it printed."""
    root = Path(__file__).parents[2]
    path = f"import sys; sys.path[:0] = [{str(root)!r}]\n"
    command = [sys.executable, "-c", path + PRELUDE + code]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False
    )
    return done.returncode, done.stdout


PRELUDE = """
import faulthandler, os, threading, warnings
import numpy as np
from tests.support.bits import alike
from tests.support import tiny
from npformer.runtime import threads
from npformer.runtime.packing import Text
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
    """Its parent's helpers do not live on in it, and it hires its own."""
    code = "for _ in range(3): run_in_a_child()\nprint(alike(model.run(texts)[0]['logits'], expected))"
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


def test_a_process_ends_while_helpers_wait() -> None:
    assert run_python("print(len(threading.enumerate()))") == (0, "2\n")
