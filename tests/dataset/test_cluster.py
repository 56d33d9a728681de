"""Dask workers give the same bytes as this process. Missing workers, and workers with a different model or version,
raise errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from distributed import Client, LocalCluster

import npformer
from npformer import NpformerError
from npformer.dataset import cluster, map, work
from tests.dataset.conftest import files_in
from tests.dataset.in_a_worker import pretend, report_the_truth
from tests.support import tiny
from tests.support.cli_runner import run_apart

# When a worker dies or a cluster closes, Dask leaves some resources to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as made,
        Client(made) as client,
    ):
        yield client


@pytest.mark.parametrize("sink", ["out", "out.jsonl"])
def test_workers_make_the_bytes_of_one_machine(sink, client, classify, source_of_500, tmp_path):
    for name, given in (("here", None), ("there", client)):
        (tmp_path / name).mkdir()
        map(classify, source_of_500, tmp_path / name / sink, column="text", part_rows=30, client=given)
    assert files_in(tmp_path / "there") == files_in(tmp_path / "here")


def test_a_worker_with_another_model_is_named(client, source_of_500, tmp_path):
    """A worker refuses a folder that changed after the task was made."""
    folder = tiny.folder(tmp_path / "model")
    task = npformer.pipeline("text-classification", folder)
    (folder / "model.safetensors").rename(tmp_path / "kept")  # not removed, because the task has the file mapped
    tiny.folder(folder, seed=1)
    with pytest.raises(NpformerError, match=r"worker tcp://.*: the model differs from the run's model in its weights$"):
        map(task, source_of_500, tmp_path / "out", column="text", client=client)


def test_a_worker_without_the_model_is_named(client, source_of_500, tmp_path):
    task = npformer.pipeline("text-classification", tiny.folder(tmp_path / "model"))
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(NpformerError, match=r"worker tcp://.*: .*model: there is no folder of this name"):
        map(task, source_of_500, tmp_path / "out", column="text", client=client)


def test_a_model_in_memory_cannot_be_sent(client, source_of_500, tmp_path):
    with pytest.raises(NpformerError, match="this model was created in memory"):
        map(
            npformer.pipeline("text-classification", tiny.model()),
            source_of_500,
            tmp_path / "out",
            column="text",
            client=client,
        )


def test_workers_with_another_version_are_refused_and_with_another_blas_reported(
    client, classify, source_of_500, tmp_path
):
    first, _ = client.scheduler_info()["workers"]
    try:
        client.run(pretend, "bits", "0123", workers=[first])
        with pytest.warns(match=rf"the BLAS of {first} adds in a different order"):
            map(classify, source_of_500, tmp_path / "out", column="text", part_rows=10, client=client)
        lines = (tmp_path / "out" / "_manifest.jsonl").read_text().splitlines()[1:]
        # the first worker computes only some parts
        assert {'"bits": "0123"' in line for line in lines} == {True, False}
        client.run(pretend, "npformer", "0.0.1", workers=[first])
        with pytest.raises(
            NpformerError, match=rf"worker {first}: has npformer 0\.0\.1, but this process has {npformer.__version__}"
        ):
            map(classify, source_of_500, tmp_path / "other", column="text", client=client)
    finally:
        client.run(report_the_truth)


def test_the_command_prints_the_dashboard_and_answers(model, rows, tmp_path):
    pa.parquet.write_table(rows, tmp_path / "in.parquet")
    given = ("classify", "-m", model, "--input", "in.parquet", "--column", "text", "-o")
    assert run_apart(*given, "one", cwd=tmp_path)[0] == 1  # the exit code is 1 because some rows are null
    code, _, said = run_apart(*given, "two", "--scheduler", "local:2", cwd=tmp_path)
    assert code == 1
    assert said.startswith("npformer: dashboard: http://127.0.0.1:")
    assert files_in(tmp_path / "one") == files_in(tmp_path / "two")


def test_a_missing_scheduler_is_an_error(monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 1)
    for name, message in (
        ("tcp://127.0.0.1:9", "no Dask scheduler responded"),
        ("nonsense", "no Dask scheduler responded"),
        ("local:0", "expected local:N with N workers"),
        ("local:x", "expected local:N with N workers"),
    ):
        with pytest.raises(NpformerError, match=message), cluster.connected(name):
            raise AssertionError


def test_a_run_without_workers_ends_with_an_error(classify, source_of_500, tmp_path, monkeypatch):
    """In the first run, all workers leave after the first part. In the second, there are no workers from the start."""
    monkeypatch.setattr(cluster, "ABSENCE", 0)
    monkeypatch.setattr(cluster, "PATIENCE", 0.1)
    real = npformer.dataset.mapping._Run._write
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as made,
        Client(made) as client,
    ):

        def write(self, *part):
            real(self, *part)
            for worker in made.workers.values():
                made.sync(worker.close)

        monkeypatch.setattr(npformer.dataset.mapping._Run, "_write", write)
        given = {"column": "text", "part_rows": 50, "client": client}
        for seconds in ("0", "0.1"):
            with pytest.raises(NpformerError, match=f"expected workers, got none for {seconds} seconds; start workers"):
                map(classify, source_of_500, tmp_path / "out", **given)
    assert "part-00000-000000.parquet" in files_in(tmp_path / "out")


def test_a_probe_distinguishes_orders_of_addition(monkeypatch):
    """The probe's digest is stable, and differs if products add their terms in a different order."""
    first = work.probe()
    monkeypatch.setattr(work, "_probed", [])
    assert work.probe() == first
    monkeypatch.setattr(work, "_probed", [])
    real = work.gelu
    monkeypatch.setattr(work, "gelu", lambda *a, **k: np.nextafter(real(*a, **k), np.float32(9)))
    assert work.probe() != first
