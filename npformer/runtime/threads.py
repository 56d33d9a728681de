"""Worker threads that take shards of a batch or parts of one product, and BLAS held to one thread.

NumPy releases the interpreter's lock inside its loops, so threads suffice. While they work BLAS has one thread each;
its setting is restored afterwards. `runner.py` distributes shards, `products.py` and `tiles.py` parts of them.
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
from npformer.runtime.trials import Trial

HAND_OVER = 100_000  # ns: about twice the cost of waking a worker and waiting for it, for the first guess


class _Local(threading.local):
    num_threads = 1  # how many threads a parallel_for on this thread may use
    plain = False  # whether products may skip what gives the same bits; a task has the setting of its creator's thread
    member: _Member | None = None  # of a group that shares a long text's rows


_local = _Local()


def available_cores() -> int:
    """The cores this process may use, by its affinity mask and its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group of this kind, or "max": no quota
        return cores


def thread_count(threads: int | None = None) -> int:
    """Returns `threads`, else the environment's NPFORMER_THREADS, else the cores this process may use."""
    wanted = threads if threads is not None else os.environ.get("NPFORMER_THREADS") or available_cores()
    count = (
        int(wanted) if isinstance(wanted, np.integer) or (isinstance(wanted, str) and wanted.isdecimal()) else wanted
    )
    if type(count) is not int or count < 1:
        name = "NPFORMER_THREADS" if threads is None else "threads"
        raise NpformerError(f"{name}: expected a whole number of at least 1, got {wanted!r}")
    return count


def wants_same_bits(same_bits: bool | None = None) -> bool:
    """Returns `same_bits`, else the environment's NPFORMER_SAME_BITS, 0 or 1, else True."""
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
# Not concurrent.futures: its executor does not tell how many threads it could start, which `run_row_parallel` must
# know, and with it this file would be as long. Handing over a task takes 21 us here and 24 us there (the minimum of
# 300 runs in one process on two cores), which makes no difference for a whole short text.


class _Job:
    """Tasks that any free thread takes, the caller included; the thread that finishes the last one wakes the caller."""

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
            except BaseException as error:  # raised again in the caller's thread
                self.error = self.error or error
            with self.counting:
                self.open -= 1
                if self.open == 0:
                    self.done.release()


_jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_workers: list[threading.Thread] = []
_starting = threading.Lock()


def _work() -> None:
    for library in _blas.libraries:  # built on OpenMP it has a setting for each thread, otherwise for the process
        if getattr(library, "threading_layer", None) == "openmp":
            library.set_num_threads(1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # as on the thread that hands work over
        while True:
            _jobs.get().work()


def start_workers(count: int) -> int:
    """Starts workers until there are `count`; returns how many there are, which may be fewer when a process ends."""
    with _starting:
        while len(_workers) < count:
            worker = threading.Thread(target=_work, name="npformer-worker", daemon=True)
            try:
                worker.start()
            except RuntimeError:
                break
            _workers.append(worker)
        return min(count, len(_workers))


def _forget_workers() -> None:
    """Resets this module in a forked child, where only the calling thread exists, and restores BLAS's threads."""
    global _jobs, _starting, _one_text
    _jobs, _starting, _one_text = queue.SimpleQueue(), threading.Lock(), threading.Lock()
    _workers.clear()
    _blas.put_back()
    _blas.__init__()  # type: ignore[misc]


def run_tasks(tasks: Sequence[Callable[[], Any]], threads: int) -> list[Any]:
    """The tasks' results, in order, computed by up to `threads` threads including the caller's."""
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
    """Lets `parallel_for` on this thread use `count` threads inside."""
    before = _local.num_threads
    _local.num_threads = count
    try:
        yield
    finally:
        _local.num_threads = before


@contextmanager
def products(plain: bool) -> Iterator[None]:
    """Sets products inside to plain, or to those with the same bits for any batch."""
    before = plain_products()
    _local.plain = plain
    try:
        yield
    finally:
        _local.plain = before


def plain_products() -> bool:
    return _local.plain


def threads_for_parts() -> int:
    """How many threads may share the parts of work on this thread."""
    return _local.num_threads


def part_counts(nanoseconds: float, most: int | None = None) -> tuple[tuple[int, ...], int]:
    """The numbers of parts to try for work that takes one core about `nanoseconds`: 1, 2, 4 ... up to all threads.

    most: parts that the work can be cut into. Returns the first guess too. Work too small to repay a hand-over stays
    whole.
    """
    threads = _local.num_threads if most is None else min(_local.num_threads, most)
    if threads <= 1 or nanoseconds < HAND_OVER / 2:
        return (1,), 1
    counts = (*(1 << i for i in range((threads - 1).bit_length())), threads)
    return counts, threads if nanoseconds > 2 * HAND_OVER else 1


def parallel_for(work: Callable[[slice], None], count: int, nanoseconds: float) -> None:
    """Calls work(slice) for slices that cover range(count), each on its own thread; a trial finds how many pay."""
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


# --- one long text: its rows on several threads, which exchange keys and values --------------------------------------


class _Member:
    """One of several threads that compute the same layers, each with its own rows, and meet in `all_gather`."""

    def __init__(self, index: int, barrier: threading.Barrier, slots: Sequence[list[Any]]) -> None:
        self.index = index
        self.barrier = barrier
        self.slots = slots  # two, used in turn, so that no thread overwrites what another may still read
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
        return [np.concatenate(rows) for rows in zip(*slots, strict=True)]


_one_text = threading.Lock()  # two texts at once could each wait for a worker that the other one holds


def run_row_parallel(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The tasks' results, all run at the same time, a thread each. `start_workers` must have found enough threads."""
    barrier, slots = threading.Barrier(len(tasks)), [[None] * len(tasks), [None] * len(tasks)]
    members = [_Member(index, barrier, slots) for index in range(len(tasks))]
    with _one_text:
        try:
            runs = [functools.partial(member.run, task) for member, task in zip(members, tasks, strict=True)]
            return run_tasks(runs, len(tasks))
        except BaseException:  # after a Ctrl-C before the caller is a member, workers would wait for it for ever
            barrier.abort()
            raise


def all_gather(*arrays: np.ndarray) -> Sequence[np.ndarray]:
    """Joins each array's rows from all threads that share a text's rows; without such threads returns the arrays."""
    member = _local.member
    return arrays if member is None else member.all_gather(arrays)


# --- BLAS threads ----------------------------------------------------------------------------------------------------


class _Blas:
    """The BLAS libraries of this process, held to one thread while any caller asks for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users: set[object] = set()
        self.before: list[tuple[Any, int]] = []  # the program's own setting, until it is restored

    @functools.cached_property
    def libraries(self) -> list[Any]:
        """Controllers of the BLAS libraries; without threadpoolctl none, and one warning in a process."""
        try:
            from threadpoolctl import ThreadpoolController
        except ImportError:
            warn(
                "threadpoolctl is not installed, so BLAS keeps its own threads beside npformer's: runs are slower, and "
                "a text's result may differ in its last bits from batch to batch; pip install threadpoolctl"
            )
            return []
        return list(ThreadpoolController().select(user_api="blas").lib_controllers)

    @contextmanager
    def single(self) -> Iterator[None]:
        user = object()
        try:  # Ctrl-C may come anywhere
            with self.lock:
                if not self.users:
                    self.before = self.before or [(library, library.num_threads) for library in self.libraries]
                    for library, _ in self.before:
                        _set_blas_threads(library, 1)
                self.users.add(user)
            yield
        finally:
            with self.lock:
                self.users.discard(user)
                if not self.users:
                    self.put_back()

    def put_back(self) -> None:
        for library, count in self.before:
            _set_blas_threads(library, count)
        self.before = []


def _set_blas_threads(library: Any, count: int) -> None:
    """Sets the threads of a library for the process, whichever thread set them before.

    From version 3.8 on threadpoolctl accepts the setting only from the thread that set it first, until that is cleared.
    """
    clear = getattr(library, "clear_controlling_thread", lambda force: None)
    clear(force=True)
    library.set_num_threads(count)
    clear(force=True)


_blas = _Blas()


def single_blas_thread() -> Any:
    """Holds BLAS to one thread inside; when the last caller leaves, the setting before the first one is restored."""
    return _blas.single()


def blas_libraries() -> list[dict[str, Any]]:
    """What `npformer info` shows of each BLAS: its name, version, kernels and threads."""
    return [library.info() for library in _blas.libraries]


if hasattr(os, "register_at_fork"):
    # No fork while a thread is inside threadpoolctl: in the child nobody would release that library's lock.
    os.register_at_fork(
        before=lambda: _blas.lock.acquire(),
        after_in_parent=lambda: _blas.lock.release(),
        after_in_child=_forget_workers,
    )
