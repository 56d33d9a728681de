"""Timing for the benchmarks: engines take turns, and every time is compared with two lower bounds.

Engines are raced in one process, one turn each (A B C A B C ...), so that any other load on the machine affects all of
them. The result for an engine is its minimum time. The lower bounds are the time of the products `x @ W` alone, and the
time to read the weights once. With few rows, npformer may be faster than the first bound, because `x @ W` copies the
weight in every call, whereas npformer keeps a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from npformer.config import Config
from npformer.engine.runtime.packing import shards
from npformer.engine.runtime.threads import available_cores, blas_libraries
from npformer.model import Model

SPARED = 1.25  # setups slower than their engine's best by this factor get no further turns
TRIED = 1  # rounds in which every setup gets a turn


class Runner(Protocol):
    """A contender in the race, such as `models.Contender`."""

    engine: str
    setup: str
    run: Callable[[], Any]


def settle() -> None:
    """Waits until the process is idle, because threads of OpenMP and ONNX Runtime spin for a while after a call."""
    for _ in range(100):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.001:
            return


def turn(run: Callable[[], Any], seconds: float) -> tuple[Any, list[float]]:
    """Calls `run` for about this many seconds; returns its answer and the times of the calls.

    The time of a short first call is left out, because the call also warms up caches.
    """
    settle()
    start = time.perf_counter()
    answer = run()
    first = time.perf_counter() - start
    times = [first] if first > seconds / 2 else []
    while not times or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return answer, times


def race(
    runners: Sequence[Runner], rounds: int, seconds: float, check: Callable[[Runner, Any], None] | None = None
) -> dict[str, dict[str, Any]]:
    """Returns each engine's minimum time per call, its best setup, and the minimum time of every setup.

    In the first round, every setup takes a turn; in later rounds, only setups that are nearly as fast as their engine's
    best. check: called with each runner's answer in its first turn; raises an error if the answer is wrong.
    """
    least: dict[tuple[str, str], float] = {}
    for number in range(rounds):
        best = _best(least)
        for runner in runners:
            key = (runner.engine, runner.setup)
            if number >= TRIED and least[key] > SPARED * best[runner.engine][1]:
                continue
            answer, times = turn(runner.run, seconds)
            if check and key not in least:
                check(runner, answer)
            least[key] = min([least.get(key, np.inf), *times])
    return {
        engine: {
            "seconds": time_,
            "setup": setup,
            "setups": {setup: each for (name, setup), each in least.items() if name == engine},
        }
        for engine, (setup, time_) in _best(least).items()
    }


def _best(least: dict[tuple[str, str], float]) -> dict[str, tuple[str, float]]:
    """Returns each engine's fastest setup and that setup's time."""
    best: dict[str, tuple[str, float]] = {}
    for (engine, setup), seconds in least.items():
        if engine not in best or seconds < best[engine][1]:
            best[engine] = (setup, seconds)
    return best


# --- counts of the work ----------------------------------------------------------------------------------------------


def work(config: Config, lengths: Sequence[int]) -> dict[str, float]:
    """Returns the numbers of floating-point operations; a multiplication and an addition are two operations.

    products: all x @ W that npformer computes. In the last layer, npformer computes only the row of each text's first
    token, and the keys and values that this row reads. attention: the scores and weighted sums of values for the same
    rows. whole: products and attention for every row of every layer.
    """
    layers, width, hidden = config.n_layers, config.d_model, config.d_ffn
    tokens, texts, squares = sum(lengths), len(lengths), sum(each * each for each in lengths)
    row = 4 * width * width + 2 * width * hidden
    last = 2 * width * width * (tokens + texts) + 2 * width * hidden * texts
    products = 2 * ((layers - 1) * row * tokens + last)
    attention = 4 * width * ((layers - 1) * squares + tokens)
    return {
        "products": products,
        "attention": attention,
        "whole": 2 * layers * row * tokens + 4 * width * layers * squares,
    }


def weight_arrays(model: Model) -> list[np.ndarray]:
    """Returns the weights of all products. Even a short text needs all of them, but few rows of the embeddings."""
    layers = [
        group["weight"]
        for layer in model.weights["layers"]
        for group in (*layer["attention"].values(), *layer["ffn"].values())
    ]
    return [*layers, model.weights["pooler"]["weight"]]


# --- lower bounds ----------------------------------------------------------------------------------------------------


class BareProducts:
    """Computes only the products x @ W of the model, into existing arrays, on all threads.

    Either of two ways may be faster: BLAS's own threads on all rows, or one shard of rows per thread, as in npformer.
    """

    engine = "x @ W alone"

    def __init__(self, model: Model, lengths: Sequence[int], own_threads: bool, pool: ThreadPoolExecutor) -> None:
        self.threads = model.threads
        self.pool = pool
        self.setup = "BLAS's threads" if own_threads else "a shard a thread"
        groups = [list(range(len(lengths)))] if own_threads else shards(lengths, model.threads)
        self.blas = ThreadpoolController().select(user_api="blas") if own_threads else None
        self.work = [_bare_work(model, [lengths[i] for i in group]) for group in groups]

    def run(self) -> None:
        if self.blas is not None:
            with self.blas.limit(limits=self.threads):
                _multiply(self.work[0])
        else:
            list(self.pool.map(_multiply, self.work))


Product = tuple[np.ndarray, np.ndarray, np.ndarray]


def _bare_work(model: Model, lengths: Sequence[int]) -> list[Product]:
    """Returns, for each product in order, x, W and an array for the result, with the sizes for these texts."""
    config = model.config
    random, room = np.random.default_rng(0), np.empty(sum(lengths) * config.d_ffn, np.float32)
    inputs = {
        width: random.standard_normal((sum(lengths), width), dtype=np.float32)
        for width in (config.d_model, config.d_ffn)
    }

    def product(weight: np.ndarray, rows: int) -> Product:
        x = inputs[len(weight)][:rows]
        return x, weight, room[: rows * weight.shape[1]].reshape(rows, -1)

    found = []
    for i, layer in enumerate(model.weights["layers"]):
        rows = sum(lengths) if i + 1 < config.n_layers else len(lengths)  # the last layer computes one row per text
        attention, ffn = layer["attention"], layer["ffn"]
        found += [product(attention[name]["weight"], sum(lengths)) for name in ("key", "value")]
        found += [product(attention[name]["weight"], rows) for name in ("query", "output")]
        found += [product(ffn[name]["weight"], rows) for name in ("hidden", "output")]
    return found


def _multiply(products: list[Product]) -> None:
    for x, weight, room in products:
        np.matmul(x, weight, out=room)


class Reading:
    """Reads the weights once, on all threads. Each thread computes the dot product of its share with itself."""

    engine = "reading the weights"

    def __init__(self, model: Model, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.setup = f"{model.threads} threads"
        flat = [weight.reshape(-1) for weight in weight_arrays(model)]
        self.bytes = sum(each.nbytes for each in flat)
        self.shares = [[np.array_split(each, model.threads)[i] for each in flat] for i in range(model.threads)]

    def run(self) -> None:
        list(self.pool.map(_read, self.shares))


def _read(arrays: list[np.ndarray]) -> None:
    for array in arrays:
        np.dot(array, array)


# --- a benchmark's options and figures -------------------------------------------------------------------------------


def parser(name: str, description: str | None, quick: str) -> argparse.ArgumentParser:
    """Makes a parser with --json and --quick. quick: the help text of --quick."""
    made = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{name}", description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    made.add_argument("--quick", action="store_true", help=quick)
    return made


def save(result: dict[str, Any], path: Path | None) -> None:
    """Writes the figures to the file that --json names, if any."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


# --- the machine -----------------------------------------------------------------------------------------------------

PACKAGES = ("npformer", "numpy", "tokenizers", "torch", "transformers", "onnxruntime", "onnx", "ctranslate2")


def machine() -> dict[str, Any]:
    """Describes the machine and software of a measurement."""
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "blas": [
            {key: each.get(key) for key in ("internal_api", "version", "architecture")} for each in blas_libraries()
        ],
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def described(machine: dict[str, Any]) -> str:
    """Describes the machine in two lines, for the head of a table."""
    blas = ", ".join(f"{each['internal_api']} {each['version']} ({each['architecture']})" for each in machine["blas"])
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    cores = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    return f"{cores}; {blas}\nPython {machine['python']}, {versions}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
