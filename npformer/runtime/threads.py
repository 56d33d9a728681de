"""The cores a call may use: helper threads that take shards of a batch, or parts of one product.

NumPy releases the interpreter's lock inside its loops, so threads are enough. While they work, BLAS is held to one
thread each and put back afterwards. `runner.py` shares out shards; products, attention and activations `fork`.
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

from npformer.errors import NpformerError

HAND_OVER = 100_000  # ns: waking a helper and waiting for it costs about half of this; less work is done in place

#: .crew: how many threads a fork on this thread may use; unset means one. .plain: whether products are taken as they
#: come, without the care for the same bits; tasks have it as whoever shared them out.
_local = threading.local()


def available_cores() -> int:
    """The cores this process may use: its affinity mask, and its control group's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group of this kind, or "max": no quota
        return cores


def thread_count(threads: int | None = None) -> int:
    """`threads`, else the environment's NPFORMER_THREADS, else the cores this process may use."""
    wanted = threads if threads is not None else os.environ.get("NPFORMER_THREADS") or available_cores()
    count = (
        int(wanted) if isinstance(wanted, np.integer) or (isinstance(wanted, str) and wanted.isdecimal()) else wanted
    )
    if type(count) is not int or count < 1:
        name = "NPFORMER_THREADS" if threads is None else "threads"
        raise NpformerError(f"{name}: expected a whole number of at least 1, got {wanted!r}")
    return count


def wants_same_bits(same_bits: bool | None = None) -> bool:
    """`same_bits`, else what the environment's NPFORMER_SAME_BITS says, 0 or 1, else True."""
    if isinstance(same_bits, bool):
        return same_bits
    if same_bits is not None:
        raise NpformerError(f"same_bits: expected True or False, got {same_bits!r:.80}")
    choice = os.environ.get("NPFORMER_SAME_BITS") or "1"
    if choice not in ("0", "1"):
        raise NpformerError(f"NPFORMER_SAME_BITS: expected 0 or 1, got {choice!r:.80}")
    return choice == "1"


# --- helpers: threads that wait for jobs, made when first needed, shared by all callers ------------------------------


class _Job:
    """Tasks that whoever is free takes, the caller among them; the last one done wakes the caller."""

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
            except BaseException as error:  # handed to the caller, whichever thread it came up in
                self.error = self.error or error
            with self.counting:
                self.open -= 1
                if self.open == 0:
                    self.done.release()


_jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_helpers: list[threading.Thread] = []
_hiring = threading.Lock()


def _help() -> None:
    for library in _blas.libraries:  # one built on OpenMP has a setting a thread, the others one a process
        if getattr(library, "threading_layer", None) == "openmp":
            library.set_num_threads(1)
    while True:
        _jobs.get().work()


def hire(count: int) -> int:
    """Have `count` helpers, or as many as there are threads to be had: at a process's end, none."""
    with _hiring:
        while len(_helpers) < count:
            helper = threading.Thread(target=_help, name="npformer-helper", daemon=True)
            try:
                helper.start()
            except RuntimeError:
                break
            _helpers.append(helper)
        return min(count, len(_helpers))


def _forget_helpers() -> None:
    """In a forked child no thread but the caller's lives on, and no call of another that would put BLAS back."""
    global _jobs, _hiring, _one_text
    _jobs, _hiring, _one_text = queue.SimpleQueue(), threading.Lock(), threading.Lock()
    _helpers.clear()
    _blas.put_back()
    _blas.__init__()  # type: ignore[misc]


def share(tasks: Sequence[Callable[[], Any]], threads: int) -> list[Any]:
    """The tasks' results, in their order, worked on by up to `threads` threads with the caller as one of them."""
    helpers = hire(min(threads, len(tasks)) - 1)
    if helpers < 1:
        return [task() for task in tasks]
    job = _Job(tasks)
    for _ in range(helpers):
        _jobs.put(job)
    job.work()
    job.done.acquire()
    if job.error is not None:
        raise job.error
    return job.results


@contextmanager
def crew(threads: int) -> Iterator[None]:
    """Let `fork` on this thread use `threads` threads."""
    before = getattr(_local, "crew", 1)
    _local.crew = threads
    try:
        yield
    finally:
        _local.crew = before


@contextmanager
def products(plain: bool) -> Iterator[None]:
    """Take products as they come inside, or with the care that gives a row the same bits in any company."""
    before = plain_products()
    _local.plain = plain
    try:
        yield
    finally:
        _local.plain = before


def plain_products() -> bool:
    return getattr(_local, "plain", False)


def parts(nanoseconds: float) -> int:
    """Into how many parts to cut work that takes one core about `nanoseconds`: one, or a part a thread of the crew.

    Work that would not repay the hand-over stays whole, and so does all work where no crew stands ready.
    """
    return getattr(_local, "crew", 1) if nanoseconds > 2 * HAND_OVER else 1


def fork(part: Callable[[int, int], None], count: int) -> None:
    """Call part(0, count), ..., part(count - 1, count), each on a thread of the crew."""
    if count == 1:
        part(0, 1)
    else:
        share([functools.partial(part, index, count) for index in range(count)], count)


# --- one long text: its rows on several cores, which need each other's keys and values -------------------------------


class _Member:
    """One of several threads that go through the same layers, each with rows of its own, and meet in `gather`."""

    def __init__(self, index: int, barrier: threading.Barrier, boards: Sequence[list[Any]]) -> None:
        self.index = index
        self.barrier = barrier
        self.boards = boards  # two, in turn: nobody writes on the one that another may still read
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

    def gather(self, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        board = self.boards[self.turn % 2]
        self.turn += 1
        board[self.index] = arrays
        self.barrier.wait()
        return [np.concatenate(rows) for rows in zip(*board, strict=True)]


_one_text = threading.Lock()  # two of them could each wait for a helper that the other holds


def side_by_side(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The tasks' results, every task on a thread of its own at the same time; `hire` has said that there are enough."""
    barrier, boards = threading.Barrier(len(tasks)), [[None] * len(tasks), [None] * len(tasks)]
    members = [_Member(index, barrier, boards) for index in range(len(tasks))]
    with _one_text:
        try:
            return share([functools.partial(m.run, task) for m, task in zip(members, tasks, strict=True)], len(tasks))
        except BaseException:  # Ctrl-C may come before the caller is a member: helpers would wait for it for ever
            barrier.abort()
            raise


def gather(*arrays: np.ndarray) -> Sequence[np.ndarray]:
    """Each array's rows from all the threads that work on this text side by side; without such, the arrays."""
    member = getattr(_local, "member", None)
    return arrays if member is None else member.gather(arrays)


# --- BLAS threads ----------------------------------------------------------------------------------------------------


class _Blas:
    """The BLAS libraries loaded in this process, held to one thread while any caller wants them so."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users: set[object] = set()
        self.before: list[tuple[Any, int]] = []  # what the host had set, until it is put back

    @functools.cached_property
    def libraries(self) -> list[Any]:
        """Controllers of the BLAS libraries; none, and a warning once a process, where threadpoolctl is missing."""
        try:
            from threadpoolctl import ThreadpoolController
        except ImportError:
            import warnings

            warnings.warn(
                "threadpoolctl is not installed, so BLAS keeps its own threads beside npformer's: runs are slower, and "
                "a text's result may differ in its last bits from batch to batch; pip install threadpoolctl",
                stacklevel=3,  # past functools
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
    """Set the threads of a library for the process, whichever thread set them before.

    threadpoolctl from 3.8 on takes the setting only from the thread that used it first, until that is cleared.
    """
    clear = getattr(library, "clear_controlling_thread", lambda force: None)
    clear(force=True)
    library.set_num_threads(count)
    clear(force=True)


_blas = _Blas()


def single_blas_thread() -> Any:
    """Hold BLAS to one thread inside; the last caller to leave puts back what the first one found."""
    return _blas.single()


def blas_libraries() -> list[dict[str, Any]]:
    """What `npformer info` shows of each BLAS: its name, version, kernels and threads."""
    return [library.info() for library in _blas.libraries]


if hasattr(os, "register_at_fork"):
    # No fork while a thread is inside threadpoolctl: the child would inherit that library's lock, held by nobody.
    os.register_at_fork(
        before=lambda: _blas.lock.acquire(),
        after_in_parent=lambda: _blas.lock.release(),
        after_in_child=_forget_helpers,
    )
