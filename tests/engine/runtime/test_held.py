"""A service's use of a model: many threads, pipelines and processes at once, with cancelled and interrupted tasks. Each
caller gets the correct answers, bit for bit, and nothing is left behind.

By default the suite makes few interrupts and calls. It was also run once with NPFORMER_TEST_INTERRUPTS=1000 and
NPFORMER_TEST_CALLS=20000.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.tasks.task import Task
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

TEXTS = ["ice cream", "i love it", "paris is good " * 9, "no", "hot music movie", "she was not right there"]
MANY = 24
PATIENCE = 300  # seconds: work that takes one or two may take longer on a busy machine


def made(head: str = "sequence-classification", threads: int = 2) -> Task:
    model = tiny.model("bert", head, threads=threads)
    model.tokenizer = tiny.tokenizer()
    return npformer.pipeline(None if head != "base" else "sentence-embedding", model)


@pytest.fixture(scope="module")
def classify() -> Task:
    return made()


@pytest.fixture(scope="module")
def expected(classify: Task) -> list[Any]:
    return [classify(text) for text in TEXTS]


def in_threads(work: Any) -> list[Any]:
    """Runs work(0), ... work(MANY - 1) at the same time; returns their results, or the errors that they raise."""
    barrier, results = threading.Barrier(MANY), [None] * MANY

    def run(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(MANY)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    return results


# --- threads ---------------------------------------------------------------------------------------------------------


def test_many_threads_on_one_pipeline(classify: Task, expected: list[Any]) -> None:
    """Single texts, lists and streams run at the same time."""

    def work(number: int) -> list[Any]:
        if number % 3 == 0:
            return [classify(text) for text in TEXTS]
        return classify(TEXTS) if number % 3 == 1 else list(classify(iter(TEXTS)))

    assert in_threads(work) == [expected] * MANY


def test_many_pipelines_at_once(expected: list[Any]) -> None:
    heads = ("sequence-classification", "token-classification", "base")
    alone = {head: made(head)(TEXTS) for head in heads}

    def work(number: int) -> bool:
        head = heads[number % 3]
        found = made(head, threads=1 + number % 4)(TEXTS)
        return bool(np.array_equal(found, alone[head])) if head == "base" else found == alone[head]

    assert in_threads(work) == [True] * MANY
    assert made()(TEXTS) == expected


def test_traces_run_while_other_threads_call(classify: Task, expected: list[Any]) -> None:
    """A trace records only its own thread's calls."""

    def work(number: int) -> Any:
        if number % 2:
            return classify(TEXTS)
        with npformer.trace() as recorded:
            classify(TEXTS[number % len(TEXTS)])
        return recorded["logits"].shape, len(recorded.ids)

    found = in_threads(work)
    alone = []
    for text in TEXTS:
        with npformer.trace() as recorded:
            classify(text)
        alone.append((recorded["logits"].shape, len(recorded.ids)))
    assert found == [expected if number % 2 else alone[number % len(TEXTS)] for number in range(MANY)]


def test_cancelled_futures(classify: Task, expected: list[Any]) -> None:
    """Half of the later futures are cancelled before they begin, most of them while the earlier ones run."""
    go = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        earlier = [pool.submit(classify, TEXTS) for _ in range(50)]
        held = [pool.submit(go.wait, PATIENCE) for _ in range(4)]
        later = [pool.submit(classify, TEXTS) for _ in range(50)]
        cancelled = [future.cancel() for future in later[1::2]]
        go.set()
    assert all(cancelled)
    assert all(future.result() for future in held)
    assert all(future.result() == expected for future in (*earlier, *later[::2]))
    assert classify(TEXTS) == expected


def test_in_a_loop_of_events(classify: Task, expected: list[Any]) -> None:
    """Half of the asyncio tasks, which run in threads, are cancelled while they run."""

    async def all_of_them() -> list[Any]:
        running = [asyncio.create_task(asyncio.to_thread(classify, TEXTS)) for _ in range(MANY)]
        await asyncio.sleep(0.005)
        for each in running[1::2]:
            each.cancel()
        return await asyncio.gather(*running, return_exceptions=True)

    found = asyncio.run(all_of_them())
    assert found[::2] == [expected] * (MANY // 2)
    assert all(each == expected or isinstance(each, asyncio.CancelledError) for each in found[1::2])
    assert classify(TEXTS) == expected


@pytest.mark.slow
def test_abandoned_generators(classify: Task, expected: list[Any]) -> None:
    """Generators that are abandoned after one answer, closed, or never started keep nothing alive and do not affect
    other calls."""
    before = threading.active_count()
    for number in range(12):
        answers = classify(itertools.cycle(TEXTS))
        if number % 4:
            assert next(answers) == expected[0]
        if number % 4 == 2:
            answers.close()
        elif number % 4 == 3:
            with pytest.raises(ZeroDivisionError):
                answers.throw(ZeroDivisionError)
    del answers
    gc.collect()
    assert classify(TEXTS) == expected
    assert threading.active_count() <= before + 1


# --- interrupts ------------------------------------------------------------------------------------------------------


# An interrupt during a callback of the garbage collector, such as hypothesis's, is reported as a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_interrupts_at_any_moment(classify: Task, expected: list[Any]) -> None:
    """Ctrl-C arrives at a hundred different moments. A call is interrupted or answers; the next call always answers."""
    first = seconds = 0.0003
    caught = 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(int(os.environ.get("NPFORMER_TEST_INTERRUPTS", "100"))):
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                found = classify(TEXTS)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                caught += 1
                seconds *= 1.05  # the next interrupt comes later in the call
            else:
                assert found == expected
                first = first / 2 if seconds == first else first  # the call has ended before the interrupt
                seconds = first
            assert classify(TEXTS) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught > 10


# --- processes -------------------------------------------------------------------------------------------------------


def answers_of(folder: str, texts: list[str]) -> Any:
    return npformer.pipeline("text-classification", folder, threads=2)(texts)


def answers_with(task: Task, texts: list[str]) -> Any:
    return task(texts)


@pytest.mark.parametrize("method", slow_after(1, ["forkserver", "spawn"]))
def test_separate_processes(method: str, tmp_path: Path, classify: Task) -> None:
    """A new process loads a model, or receives a pickled pipeline with its tokenizer."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    folder = tiny.folder(tmp_path / "model", "bert")
    task = npformer.pipeline("text-classification", folder)
    expected = task(TEXTS)
    root = Path(__file__).parents[3]
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}]\n"
        "import multiprocessing\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "import npformer\n"
        "from tests.engine.runtime.test_held import TEXTS, answers_of, answers_with\n"
        "if __name__ == '__main__':\n"
        f"    task = npformer.pipeline('text-classification', {str(folder)!r})\n"
        "    expected = task(TEXTS)\n"
        f"    with ProcessPoolExecutor(2, multiprocessing.get_context({method!r})) as pool:\n"
        f"        found = [pool.submit(answers_of, {str(folder)!r}, TEXTS) for _ in range(4)]\n"
        "        found += [pool.submit(answers_with, task, TEXTS) for _ in range(4)]\n"
        "        assert all(each.result(250) == expected for each in found)\n"
        "    print('same')\n"
    )
    script = tmp_path / "main.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr[-2000:]
    assert expected


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_calls_in_constant_memory() -> None:
    """After some calls to warm up, the process grows by a few hundred kilobytes at most, however many calls follow."""
    calls = int(os.environ.get("NPFORMER_TEST_CALLS", "500"))
    root = Path(__file__).parents[3]
    code = (
        f"import sys; sys.path[:0] = [{str(root)!r}]\n"
        "from pathlib import Path\n"
        "from tests.engine.runtime.test_held import TEXTS, made\n"
        "pages = lambda: int(Path('/proc/self/statm').read_text().split()[1])\n"
        "task = made()\n"
        "for _ in range(300): task(TEXTS)\n"
        "before = pages()\n"
        f"for i in range({calls}):\n"
        "    task(TEXTS[i % len(TEXTS)] if i % 2 else TEXTS)\n"
        "    try: task([None])\n"
        "    except ValueError: pass\n"
        "print((pages() - before) * 4)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 3000, "kB more"
