"""The answers stay the same if workers die, fail, or load the model from the hub. Differences in bits are reported."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster, Status

import npformer
from npformer import NpformerError
from npformer.dataset import cluster, map, work
from tests.dataset.conftest import files_in
from tests.dataset.in_a_worker import Deadly, Meeting, Slow, fail_once, note_loads, noted
from tests.support import hub_server, kernels, tiny
from tests.support.cli_runner import ENVIRONMENT, ROOT
from tests.support.service import alive

# When a worker dies or a cluster closes, Dask leaves some resources to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PARTS = 50
KILLS = 5


@contextmanager
def local(workers: int) -> Iterator[LocalCluster]:
    """Returns a cluster that replaces dead workers, however slowly. By default, Dask gives up after 15 seconds."""
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "600s"})
    with patient, LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as made:
        yield made


@pytest.fixture
def whole(classify, source_of_500, tmp_path) -> dict[str, bytes]:
    """Returns the output files of a run without workers."""
    map(classify, source_of_500, tmp_path / "whole", column="text", part_rows=10)
    return files_in(tmp_path / "whole")


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_killed_workers_cost_only_time(classify, source_of_500, whole, tmp_path, monkeypatch):
    """Random workers are killed after random parts. Their parts go to other or new workers, and each part is written once.

    If all workers are still starting at that moment, the kill happens at the next part. The first two kills may end
    both workers, so new workers must compute the remaining parts.
    """
    written, killed, chosen = [], [], random.Random(0)
    moments = sorted(chosen.sample(range(1, PARTS - 15), KILLS))
    real = npformer.dataset.mapping._Run._write
    with local(2) as made, Client(made) as client:
        client.register_plugin(Slow(0.02))

        def write(self, place, *others):
            real(self, place, *others)
            written.append(place)
            if moments and len(written) >= moments[0]:
                # Dask does not replace a worker that dies before it has started, so such workers are spared.
                known, nannies = made.scheduler.workers, made.workers.values()
                ready = [each for each in nannies if each.process and each.process.status == Status.running]
                running = [each.pid for each in ready if each.worker_address in known]
                if alive := [pid for pid in running if pid not in killed]:
                    del moments[0]
                    killed.append(chosen.choice(alive))
                    os.kill(killed[-1], signal.SIGKILL)

        monkeypatch.setattr(npformer.dataset.mapping._Run, "_write", write)
        made.scheduler.allowed_failures = KILLS  # by default, Dask blames a part if several of its workers were killed
        map(classify, source_of_500, tmp_path / "there", column="text", part_rows=10, client=client)
    assert len(killed) > 2
    assert len(written) == len(set(written)) == PARTS
    assert files_in(tmp_path / "there") == whole


BROKEN = """
import sys, npformer, npformer.dataset
from pathlib import Path
from npformer.dataset.cluster import connected
from tests.dataset.in_a_worker import Held
with connected("local:2") as client:
    client.register_plugin(Held(Path(sys.argv[4]), Path(sys.argv[3]), int(sys.argv[5])))
    task = npformer.pipeline("text-classification", sys.argv[1])
    npformer.dataset.map(task, sys.argv[2], sys.argv[3], column="text", part_rows=10, client=client)
"""


def test_a_run_killed_with_its_workers_resumes(model, source_of_500, whole, tmp_path):
    """The workers of a killed run also end, because they do not continue without a client. The run can be resumed.

    The first run is paused when it has a third of the parts.
    """
    (tmp_path / "hold").touch()
    command = [sys.executable, "-c", BROKEN, model, source_of_500, tmp_path / "out", tmp_path / "hold", PARTS // 3]
    run = subprocess.Popen([str(each) for each in command], cwd=ROOT, env=ENVIRONMENT)
    while len(list(tmp_path.glob("out/part-*"))) < PARTS // 3:
        assert run.poll() is None
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGSTOP)  # so that no thread ends while the threads are listed
    children = Path(f"/proc/{run.pid}/task").glob("*/children")
    workers = [int(pid) for each in children for pid in each.read_text().split()]
    run.kill()
    run.wait()
    end = time.monotonic() + 300
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < end, workers
        time.sleep(0.1)
    assert len(workers) >= 2
    assert len(list(tmp_path.glob("out/part-*"))) < PARTS
    (tmp_path / "hold").unlink()
    subprocess.run([str(each) for each in command], cwd=ROOT, env=ENVIRONMENT, check=True, timeout=300)
    assert files_in(tmp_path / "out") == whole


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[LocalCluster, Client]]:
    with local(2) as made, Client(made) as client:
        yield made, client


def test_a_worker_loads_a_model_once_mapped_and_on_one_thread(two, source_of_500, tmp_path):
    task = npformer.pipeline("text-classification", tiny.folder(tmp_path / "model", own=True))
    _, client = two
    client.run(note_loads)
    for name in ("one", "two"):
        map(task, source_of_500, tmp_path / name, column="text", part_rows=10, client=client)
    assert list(client.run(noted).values()) == [[(1, True)]] * 2


def test_a_part_that_fails_is_tried_again_and_one_that_kills_is_named(two, classify, source_of_500, whole, tmp_path):
    """A part that kills workers is named; the next call keeps the other parts. No later test uses these two workers."""
    made, client = two
    client.run(fail_once)
    map(classify, source_of_500, tmp_path / "out", column="text", part_rows=10, client=client)
    assert files_in(tmp_path / "out") == whole
    made.scheduler.allowed_failures = 0
    client.register_plugin(Deadly("not my music"))
    with pytest.raises(
        NpformerError, match=r"part \d+ of file 0 of the input: 1 workers died on it, possibly out of memory"
    ):
        map(classify, source_of_500, tmp_path / "dead", column="text", part_rows=10, client=client)
    map(classify, source_of_500, tmp_path / "dead", column="text", part_rows=10)
    assert files_in(tmp_path / "dead") == whole


# --- workers that were started elsewhere -----------------------------------------------------------------------------


@contextmanager
def started(*environments: dict[str, str]) -> Iterator[Client]:
    """Yields a client of `dask worker` processes named "0", "1", ..., each with a separate environment."""
    with ExitStack() as stack:
        address = stack.enter_context(local(0)).scheduler_address
        for name, environment in enumerate(environments):
            command = [sys.executable, "-m", "dask", "worker", address, "--name", name, "--nthreads", 1]
            given = [*command, "--no-nanny", "--no-dashboard"]
            worker = subprocess.Popen(
                [str(each) for each in given],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.callback(worker.communicate)
            stack.callback(worker.kill)
        client = stack.enter_context(cluster.connected(address))
        client.wait_for_workers(len(environments), timeout=300)
        yield client


def addresses(client: Client) -> dict[str, str]:
    return {str(worker["name"]): address for address, worker in client.scheduler_info()["workers"].items()}


def test_a_worker_with_other_bits_is_reported(classify, source_of_500, whole, tmp_path):
    """If old kernels on one worker give different bits, the run warns, and the manifest marks that worker's parts."""
    kernel = kernels.working()[-1]
    environment = {**ENVIRONMENT, "OPENBLAS_CORETYPE": kernel}
    trial = [sys.executable, "-c", "from npformer.dataset.work import probe; print(probe())"]
    bits = subprocess.run(trial, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    with started(ENVIRONMENT, environment) as client:
        (tmp_path / "meeting").mkdir()
        client.register_plugin(Meeting(tmp_path / "meeting", 2))  # so that both workers get parts
        if bits == work.probe():
            map(classify, source_of_500, tmp_path / "out", column="text", part_rows=10, client=client)
            assert files_in(tmp_path / "out") == whole
            return
        with pytest.warns(match=rf"the BLAS of {addresses(client)['1']} adds in a different order"):
            map(classify, source_of_500, tmp_path / "out", column="text", part_rows=10, client=client)
    made = files_in(tmp_path / "out")
    named = {line for line in made.pop("_manifest.jsonl").decode().splitlines()[1:] if f'"bits": "{bits}"' in line}
    assert 0 < len(named) < PARTS
    for name, data in made.items():
        assert data == whole[name] or any(name.removesuffix(".parquet") in line for line in named), name


def test_workers_get_a_model_of_the_hub_by_its_commit(source_of_500, tmp_path):
    """A worker with an empty cache downloads the commit of the run's model, not the branch's newest commit."""
    folder = tiny.folder(tmp_path / "model")
    with hub_server.Hub() as hub:
        commit = hub.add("owner/model", folder)
        hub.add("owner/model", tiny.folder(tmp_path / "newer", seed=1))
        cached = tmp_path / "models--owner--model" / "snapshots" / commit
        cached.parent.mkdir(parents=True)
        folder.rename(cached)
        task = npformer.pipeline("text-classification", cached)
        map(task, source_of_500, tmp_path / "here", column="text", part_rows=100)
        with started(hub_server.environment(hub, tmp_path / "home")) as client:
            map(task, source_of_500, tmp_path / "there", column="text", part_rows=100, client=client)
        assert hub.asked("GET")
    assert files_in(tmp_path / "there") == files_in(tmp_path / "here")
    assert (tmp_path / "home" / "hub" / "models--owner--model" / "snapshots" / commit / "config.json").exists()
