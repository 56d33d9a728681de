"""Answers parts on Dask workers. Each worker loads the model once.

Workers only compute. The process that calls `map` reads the input, and writes the output and the manifest. A part is
therefore written once, even if it is computed twice because a worker died. Dask handles retries, and workers that die
or join.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import Any

from npformer.common.errors import NpformerError, warn
from npformer.common.extras import lacks
from npformer.dataset.work import Place, RemoteTask, answer_elsewhere, describe, machine
from npformer.tasks.task import Task
from npformer.version import __version__

AHEAD = 2  # number of parts to submit in advance for each worker thread, so that no thread waits
LOCAL = "local:"
PATIENCE = 15  # seconds for the scheduler to respond, and for the first worker to connect
ABSENCE = 120  # seconds without a worker after which a run gives up; Dask replaces a dead worker in a few seconds


@contextmanager
def connected(scheduler: str) -> Iterator[Any]:
    """Yields a client of the scheduler at "tcp://host:port" or, for "local:N", of N new workers on this machine."""
    if find_spec("distributed") is None:
        raise lacks("a scheduler", "Dask", "cluster")
    from distributed import Client, LocalCluster

    if scheduler.startswith(LOCAL):
        count = scheduler.removeprefix(LOCAL)
        if not count.isdecimal() or not int(count):
            raise NpformerError(f"scheduler: expected local:N with N workers, got {scheduler!r:.80}")
        own: Any = LocalCluster(n_workers=int(count), threads_per_worker=1, dashboard_address="127.0.0.1:0")
        with own, Client(own) as client:
            yield client
            client.run(_close_quietly, on_error="ignore")
        return
    try:
        client = Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError, TimeoutError) as error:
        raise NpformerError(
            f"scheduler: {scheduler!r:.80}: no Dask scheduler responded ({error!s:.200}); expected tcp://host:8786, "
            "where `dask scheduler` runs, or local:N"
        ) from None
    with client:
        yield client


def _close_quietly() -> None:
    """Runs on a worker before it closes, and hides the errors that its pending heartbeat would log."""
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def answers(
    client: Any, task: Task, wanted: Iterator[tuple[Place, Any]], columns: list[str]
) -> Iterator[tuple[Place, Any, Any, str]]:
    """Yields (place, input, results, the worker's probe) for each requested part, in the order in which parts finish.

    A failed part is retried twice. Raises NpformerError if a worker has a different model or version of npformer, if a
    part has killed several workers, or if the cluster has no workers for ABSENCE seconds.
    """
    from distributed.scheduler import KilledWorker

    work = RemoteTask.of(task)
    check_workers(client, work)
    run = uuid.uuid4().hex  # makes task names unique, because Dask identifies tasks by name
    places: dict[Any, tuple[Place, Any]] = {}
    finished: SimpleQueue[Any] = SimpleQueue()
    try:
        while True:
            while len(places) < AHEAD * max(1, sum(client.nthreads().values())):
                following = next(wanted, None)
                if following is None:
                    break
                place, inputs = following
                future = client.submit(
                    answer_elsewhere,
                    work,
                    inputs.select(columns),
                    place,
                    key=f"npformer-{run}-{place[0]}-{place[1]}",
                    pure=False,
                    retries=2,
                )
                places[future] = following
                future.add_done_callback(finished.put)
            if not places:
                return
            future = _next(finished, client)
            place, inputs = places[future]
            try:
                results, bits = _result(future, client)
            except KilledWorker as error:
                raise NpformerError(
                    f"part {place[1]} of file {place[0]} of the input: {error.allowed_failures + 1} workers died on "
                    "it, possibly out of memory; the same command resumes the run"
                ) from None
            del places[future]
            yield place, inputs, results, bits
    finally:
        client.cancel(list(places))


def _result(future: Any, client: Any) -> tuple[Any, str]:
    """Fetches the result of a part. Dask computes a result again if the worker that stored it died."""
    fetched: SimpleQueue[Any] = SimpleQueue()
    fetching = client.gather(future, asynchronous=True)
    asyncio.run_coroutine_threadsafe(fetching, client.loop.asyncio_loop).add_done_callback(fetched.put)
    return _next(fetched, client).result()


def _next(queue: SimpleQueue[Any], client: Any) -> Any:
    """Waits for the next item in the queue. Raises NpformerError if the cluster has no workers for ABSENCE seconds.

    Counts polls of a second instead of reading a clock, which would include time in which this process or the machine
    is suspended.
    """
    absent = 0
    while True:
        try:
            return queue.get(timeout=1)
        except Empty:
            absent = 0 if client.nthreads() else absent + 1
            if absent > ABSENCE:
                raise _no_workers(client, ABSENCE, "; the same command then resumes the run") from None


def _no_workers(client: Any, seconds: float, then: str = "") -> NpformerError:
    return NpformerError(
        f"scheduler {client.scheduler.address}: expected workers, got none for {seconds} seconds; start workers with "
        f"`dask worker {client.scheduler.address}`{then}"
    )


def check_workers(client: Any, work: RemoteTask) -> None:
    """Creates the task on every worker. Raises NpformerError for the first failure.

    Issues a warning if the last bits of a worker's answers may differ.
    """
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise _no_workers(client, PATIENCE) from None
    here = machine()
    other: dict[str, list[str]] = {}
    for worker, said in client.run(describe, work, on_error="return").items():
        if isinstance(said, BaseException):
            raise NpformerError(f"worker {worker}: {type(said).__name__}: {said!s:.300}")
        if said["npformer"] != __version__:
            raise NpformerError(
                f"worker {worker}: has npformer {said['npformer']}, but this process has {__version__}; use one version"
            )
        if "error" in said:
            raise NpformerError(f"worker {worker}: {said['error']}")
        if said["bits"] != here["bits"]:
            other.setdefault(said["kernels"], []).append(worker)
    for kernels, workers in other.items():
        warn(
            f"the BLAS of {', '.join(workers)} adds in a different order ({kernels}; here {here['kernels']}): the last "
            "bits of their answers may differ; the manifest lists their parts"
        )
