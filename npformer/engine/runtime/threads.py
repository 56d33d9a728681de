"""Worker threads for shards of a batch or parts of a product, with BLAS limited to one thread.

Threads suffice, because NumPy releases the GIL inside its loops. While the threads work, BLAS uses one thread in each
of them. Afterwards, the original setting of BLAS is restored. `runner.py` distributes shards, and `weight_products.py`
and `tiles.py` distribute parts of products and of activations.
"""

from __future__ import annotations

import functools
import math
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError, warn
from npformer.engine.runtime.recording import recorder
from npformer.engine.runtime.trials import Trial

HAND_OVER = 100_000  # ns, about twice the time to wake a worker and wait for it, for first guesses
FORK_PATIENCE = 1.0  # maximum seconds that a fork waits for other threads to leave BLAS


class _Local(threading.local):
    num_threads = 1  # threads that a parallel_for on this thread may use
    plain = False  # products skip the steps for reproducible bits; a task has the setting of the submitting thread
    member: _Member | None = None  # set while threads share the rows of a long text


_local = _Local()


def available_cores() -> int:
    """The number of cores that the affinity mask and the control group's quota of this process allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group of this kind, or no quota ("max")
        return cores


def thread_count(threads: int | None = None) -> int:
    """Returns `threads` if given, else the environment variable NPFORMER_THREADS, else the available cores."""
    wanted = threads if threads is not None else os.environ.get("NPFORMER_THREADS") or available_cores()
    count = (
        int(wanted) if isinstance(wanted, np.integer) or (isinstance(wanted, str) and wanted.isdecimal()) else wanted
    )
    if type(count) is not int or count < 1:
        name = "NPFORMER_THREADS" if threads is None else "threads"
        raise NpformerError(f"{name}: expected a whole number of at least 1, got {wanted!r}")
    return count


def wants_same_bits(same_bits: bool | None = None) -> bool:
    """Returns `same_bits` if given, else the environment variable NPFORMER_SAME_BITS (0 or 1), else True."""
    if isinstance(same_bits, bool):
        return same_bits
    if same_bits is not None:
        raise NpformerError(f"same_bits: expected True or False, got {same_bits!r:.80}")
    choice = os.environ.get("NPFORMER_SAME_BITS") or "1"
    if choice not in ("0", "1"):
        raise NpformerError(f"NPFORMER_SAME_BITS: expected 0 or 1, got {choice!r:.80}")
    return choice == "1"


# --- workers: threads that wait for jobs, started when first needed, shared by all callers ---------------------------
#
# An executor of concurrent.futures does not report how many threads it could start, which `run_row_parallel` must know.
# It is also not faster: submitting a task takes 24 us with an executor, and 21 us here.


class _Job:
    """Tasks for any free thread, including the caller. The thread that finishes the last task wakes the caller."""

    def __init__(self, tasks: Sequence[Callable[[], Any]]) -> None:
        self.tasks = deque(enumerate(tasks))
        self.results: list[Any] = [None] * len(tasks)
        self.error: BaseException | None = None
        self.plain = plain_products()
        self.open = len(tasks)
        self.counting = threading.Lock()
        self.done = threading.Lock()
        self.done.acquire()

    def work(self) -> None:
        _local.plain = self.plain
        while True:
            try:
                index, task = self.tasks.popleft()
            except IndexError:
                return
            try:
                if self.error is None:
                    self.results[index] = task()
            except BaseException as error:  # re-raised in the caller's thread
                self.error = self.error or error
            with self.counting:
                self.open -= 1
                if self.open == 0:
                    self.done.release()


_jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_workers: list[threading.Thread] = []
_starting = threading.Lock()


def _work(libraries: list[Any]) -> None:
    for library in libraries:  # in OpenMP builds of BLAS, the setting is per thread, else per process
        if getattr(library, "threading_layer", None) == "openmp":
            library.set_num_threads(1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # as on the submitting thread
        while True:
            _jobs.get().work()


def start_workers(count: int) -> int:
    """Starts workers until there are `count`. Returns `count`, or a lower number if no more threads can be started.

    The caller searches for the BLAS libraries, because the search could deadlock in a worker. The search calls back
    into Python while it holds the dynamic linker's lock. Another thread that is importing an extension module may hold
    the GIL while it waits for that lock.
    """
    libraries = _blas.libraries
    with _starting:
        while len(_workers) < count:
            worker = threading.Thread(target=_work, args=(libraries,), name="npformer-worker", daemon=True)
            try:
                worker.start()
            except RuntimeError:
                break
            _workers.append(worker)
        return min(count, len(_workers))


def _forget_workers() -> None:
    """Resets this module and the number of BLAS threads in a forked child, which has only the calling thread."""
    global _jobs, _starting, _one_text
    _jobs, _starting, _one_text = queue.SimpleQueue(), threading.Lock(), threading.Lock()
    _workers.clear()
    _blas.put_back()
    _blas.__init__()  # type: ignore[misc]


def run_tasks(tasks: Sequence[Callable[[], Any]], threads: int) -> list[Any]:
    """Returns the results of tasks, in order. Up to `threads` threads, including the caller's, compute the tasks."""
    if (hears := recorder()) is not None:
        return hears.in_parts(tasks)
    workers = min(threads, len(tasks)) - 1
    if workers < 1 or (workers := start_workers(workers)) < 1:
        return [task() for task in tasks]
    job = _Job(tasks)
    for _ in range(workers):
        _jobs.put(job)
    job.work()
    job.done.acquire()
    if job.error is not None:
        raise job.error
    return job.results


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Inside the block, `parallel_for` on this thread may use `count` threads."""
    before = _local.num_threads
    _local.num_threads = count
    try:
        yield
    finally:
        _local.num_threads = before


@contextmanager
def products(plain: bool) -> Iterator[None]:
    """Inside the block, products have reproducible bits. With `plain`, they skip the steps that ensure these bits."""
    before = plain_products()
    _local.plain = plain
    try:
        yield
    finally:
        _local.plain = before


def plain_products() -> bool:
    return _local.plain


def threads_for_parts() -> int:
    """The number of threads that may share the work of this thread."""
    return _local.num_threads


def part_counts(nanoseconds: float, most: int | None = None) -> tuple[tuple[int, ...], int]:
    """The numbers of parts to try for some work (1, 2, 4, ..., threads), and the number to try first.

    nanoseconds: about the time that the work takes on one core. most: maximum number of parts. Work that is too short
    to hand over to another thread is not split.
    """
    threads = _local.num_threads if most is None else min(_local.num_threads, most)
    if threads <= 1 or nanoseconds < HAND_OVER / 2:
        return (1,), 1
    counts = (*(1 << i for i in range((threads - 1).bit_length())), threads)
    return counts, threads if nanoseconds > 2 * HAND_OVER else 1


def parallel_for(work: Callable[[slice], None], count: int, nanoseconds: float) -> None:
    """Calls work(slice) for slices that cover range(count), one per thread. A trial chooses the number of slices."""
    counts, first = part_counts(nanoseconds, count)
    if len(counts) == 1:
        work(slice(0, count))
        return

    def in_parts(n: int) -> None:
        run_tasks([functools.partial(work, slice(count * i // n, count * (i + 1) // n)) for i in range(n)], n)

    _trial(work.__qualname__, int(nanoseconds).bit_length(), counts, first).run(in_parts, nanoseconds)


@functools.lru_cache(maxsize=1000)
def _trial(work: str, size: int, counts: tuple[int, ...], first: int) -> Trial[int]:
    return Trial(counts, first)


# --- one long text: rows on several threads, which exchange keys and values ------------------------------------------


class _Member:
    """One of several threads that compute the same layers for different rows, and exchange them in `all_gather`."""

    def __init__(self, index: int, barrier: threading.Barrier, slots: Sequence[list[Any]]) -> None:
        self.index = index
        self.barrier = barrier
        self.slots = slots  # two slots, used in turn, so that no thread overwrites a slot that another may still read
        self.turn = 0

    def run(self, task: Callable[[], Any]) -> Any:
        _local.member = self
        try:
            return task()
        except BaseException:
            self.barrier.abort()
            raise
        finally:
            _local.member = None

    def all_gather(self, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        slots = self.slots[self.turn % 2]
        self.turn += 1
        slots[self.index] = arrays
        self.barrier.wait()
        return [np.concatenate(parts) for parts in zip(*slots, strict=True)]


_one_text = threading.Lock()  # two texts at the same time could each wait for a worker that the other text occupies


def run_row_parallel(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of tasks that must run at the same time, each on its own thread. Enough workers must be running."""
    barrier, slots = threading.Barrier(len(tasks)), [[None] * len(tasks), [None] * len(tasks)]
    members = [_Member(index, barrier, slots) for index in range(len(tasks))]
    with _one_text:
        try:
            runs = [functools.partial(member.run, task) for member, task in zip(members, tasks, strict=True)]
            return run_tasks(runs, len(tasks))
        except BaseException:  # after Ctrl-C, workers would wait forever for a caller that never joins them
            barrier.abort()
            raise


def all_gather(*arrays: np.ndarray) -> Sequence[np.ndarray]:
    """Concatenates each array's rows from all threads that share a text. Returns the arrays if no text is shared."""
    member = _local.member
    return arrays if member is None else member.all_gather(arrays)


# --- BLAS threads ----------------------------------------------------------------------------------------------------


class _Blas:
    """The BLAS libraries of this process, limited to one thread while any caller requests it.

    A fork waits for at most FORK_PATIENCE until no other thread is computing. Otherwise, a lock that another thread
    holds inside BLAS or threadpoolctl during the fork would stay locked in the child forever.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # entered directly: Ctrl-C in Condition.__enter__ would leave the lock locked
        self.condition = threading.Condition(self.lock)
        self.users: dict[object, threading.Thread] = {}
        self.forking: set[threading.Thread] = set()  # threads that wait in `before_fork`
        self.before: list[tuple[Any, int]] = []  # the original settings, for `put_back`

    @functools.cached_property
    def libraries(self) -> list[Any]:
        """Controllers of the BLAS libraries. Without threadpoolctl the list is empty, and one warning is issued."""
        try:
            from threadpoolctl import ThreadpoolController
        except ImportError:
            warn(
                "threadpoolctl is not installed, so BLAS uses threads in addition to those of npformer: runs are "
                "slower, and the last bits of results may differ between batches; pip install threadpoolctl"
            )
            return []
        return list(ThreadpoolController().select(user_api="blas").lib_controllers)

    @contextmanager
    def single(self) -> Iterator[None]:
        user = object()
        try:  # Ctrl-C can occur anywhere
            with self.lock:
                if self.forking:
                    self.condition.wait_for(self._may_enter, FORK_PATIENCE)
                if not self.users:
                    self.before = self.before or [(library, library.num_threads) for library in self.libraries]
                    for library, _ in self.before:
                        _set_blas_threads(library, 1)
                self.users[user] = threading.current_thread()
            yield
        finally:
            with self.lock:
                self.users.pop(user, None)
                if not self.users:
                    self.put_back()
                self.condition.notify_all()

    def _may_enter(self) -> bool:
        """Whether this thread may use BLAS: no fork is waiting, or the fork is waiting for this thread to finish."""
        thread = threading.current_thread()
        return not self.forking or thread in self.users.values() or thread in _workers

    def before_fork(self) -> None:
        """Waits up to FORK_PATIENCE until no other thread is computing. Keeps the lock, so that no thread can begin."""
        self.lock.acquire()
        self.forking.add(threading.current_thread())
        try:
            self.condition.wait_for(self._at_rest, FORK_PATIENCE)
        finally:
            self.forking.discard(threading.current_thread())
            self.condition.notify_all()

    def _at_rest(self) -> bool:
        """Whether every thread in `users` has ended or waits for a fork. The current thread waits for a fork, too."""
        return not any(thread.is_alive() for thread in self.users.values() if thread not in self.forking)

    def put_back(self) -> None:
        for library, count in self.before:
            _set_blas_threads(library, count)
        self.before = []


def _set_blas_threads(library: Any, count: int) -> None:
    """Sets the number of threads of a library, even if another thread has set it before.

    Since version 3.8, threadpoolctl accepts the setting only from the thread that set it first, until it is cleared.
    """
    clear = getattr(library, "clear_controlling_thread", lambda force: None)
    clear(force=True)
    library.set_num_threads(count)
    clear(force=True)


_blas = _Blas()


def single_blas_thread() -> Any:
    """Limits BLAS to one thread inside the block. The last caller that leaves its block restores the old setting."""
    return _blas.single()


def blas_libraries() -> list[dict[str, Any]]:
    """The name, version, kernels and threads of each BLAS, for `npformer info`."""
    return [library.info() for library in _blas.libraries]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_blas.before_fork,
        after_in_parent=lambda: _blas.lock.release(),
        after_in_child=_forget_workers,
    )
