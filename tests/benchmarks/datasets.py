"""Measures the speed and memory of `npformer.dataset.map`: `python -m tests.benchmarks.datasets [ROWS ...]`.

Each run is a separate process with a tiny model, because a larger model would hide the overhead. CPU seconds are
counted for the process that reads and writes, not for its workers. Each row is short: a sentence and a number.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from tests.support import tiny

ROWS = (1_000, 10_000, 100_000)
RUNS = 3  # number of runs; the result is the fastest one
TEXTS = ("I love ice cream", "not my music", "she was in Paris", "who will be there this time", "no news is good")


def source(path: Path, rows: int) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, 10_000):
            count = range(first, min(rows, first + 10_000))
            writer.write_table(pa.table({"id": list(count), "text": [TEXTS[i % len(TEXTS)] for i in count]}, schema))
    return path


def run(model: str, source: str, sink: str, scheduler: str = "") -> None:
    """Prints a run's wall-clock seconds, its CPU seconds in this process, and its peak memory in MB."""
    import npformer.dataset
    from npformer.dataset.cluster import connected

    task = npformer.pipeline("text-classification", model)
    with connected(scheduler) if scheduler else nullcontext() as client:
        npformer.dataset.map(task, source, f"{sink}-first/", column="text", limit=1, client=client)  # imports, workers
        begun, cpu = time.perf_counter(), time.process_time()
        npformer.dataset.map(task, source, sink, column="text", client=client)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measured(model: Path, given: Path, suffix: str, scheduler: str, runs: int) -> tuple[float, float, float]:
    """Returns the minimum seconds and CPU seconds, and the maximum memory, of several runs."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", __spec__.name, "run", model, given, f"{place}/out{suffix}", scheduler]
            done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=True)
            found.append([float(each) for each in done.stdout.split()])
    seconds, cpu, memory = zip(*found, strict=True)
    return min(seconds), min(cpu), max(memory)


def main(rows: list[int]) -> None:
    with tempfile.TemporaryDirectory() as place:
        model = tiny.folder(Path(place) / "model")
        print(f"{'rows':>10} {'output':10} {'workers':8} {'seconds':>8} {'CPU s':>8} {'rows/s':>8} {'peak MB':>8}")
        for count in rows:
            given = source(Path(place) / f"{count}.parquet", count)
            for suffix, scheduler in (("", ""), (".parquet", ""), (".jsonl", ""), ("", "local:1"), ("", "local:2")):
                seconds, cpu, memory = measured(model, given, suffix, scheduler, RUNS if count <= 100_000 else 1)
                times = f"{seconds:8.2f} {cpu:8.2f} {count / seconds:8.0f}"
                print(f"{count:10} {suffix or 'folder':10} {scheduler or 'none':8} {times} {memory:8.0f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(*sys.argv[2:])
    else:
        main([int(each) for each in sys.argv[1:]] or list(ROWS))
