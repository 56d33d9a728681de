"""Measures how errors of float32 products depend on rows and lengths of sums: `python -m tests.benchmarks.rounding`.

OPENBLAS_CORETYPE chooses the kernel. If torch is installed, its linear layer gets the same operands. The program then
repeats the products as sums of shorter products, which have smaller errors but take longer. It measures the error for a
batch, and the processor time on one thread, which hardly depends on other load on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from npformer.engine.runtime.threads import blas_libraries, single_blas_thread
from npformer.engine.runtime.weight_products import weight_products
from tests.benchmarks.table import markdown

SIZES = ((64, 384), (384, 384), (768, 768), (1536, 384), (3072, 768))  # (K, N)
BATCHES = ((384, 1536), (768, 3072), (1536, 384))
ROWS = (1, 2, 4, 8, 12, 40, 512)
PARTS = (192, 128, 96, 64, 32)  # terms
SAMPLE = 64  # minimum number of rows behind each figure
SECONDS = 2.0
BATCH = 512  # rows


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def operands(rows: int, inner: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns x and a weight whose product has variance 1, and that product in float64."""
    random = np.random.default_rng((rows, inner, columns))
    x, weight = random.standard_normal((rows, inner)), random.standard_normal((inner, columns)) / np.sqrt(inner)
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    return x, weight, x.astype(np.float64) @ weight.astype(np.float64)


def torch_linear() -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)

    def linear(x: np.ndarray, weight: np.ndarray) -> Any:
        transposed = torch.from_numpy(np.ascontiguousarray(weight.T))
        return torch.nn.functional.linear(torch.from_numpy(x), transposed).numpy()

    return linear


def error(product: Callable[[np.ndarray, np.ndarray], np.ndarray], rows: int, inner: int, columns: int) -> float:
    """Returns the RMS error over several products of `rows` rows each."""
    x, weight, truth = operands(max(rows, SAMPLE), inner, columns)
    starts = range(0, len(x) - rows + 1, rows)
    return rms(np.array([product(x[i : i + rows], weight) - truth[i : i + rows] for i in starts]))


def in_parts(x: np.ndarray, weight: np.ndarray, terms: int, room: np.ndarray) -> np.ndarray:
    """Computes x @ weight as a sum of products, each over about `terms` terms. room: an array for one product."""
    count = -(-len(weight) // terms)
    edges = [len(weight) * i // count for i in range(count + 1)]
    total = x[:, : edges[1]] @ weight[: edges[1]]
    for first, last in pairwise(edges[1:]):
        total += np.matmul(x[:, first:last], weight[first:last], out=room)
    return total


def least(action: Callable[[], object]) -> float:
    """Returns the minimum processor time of a call."""
    best, end = np.inf, time.monotonic() + SECONDS
    while time.monotonic() < end:
        start = time.thread_time()
        action()
        best = min(best, time.thread_time() - start)
    return float(best)


def price(inner: int, columns: int) -> list[str]:
    """Returns cells with the error and the relative time of a batch: for whole sums, and for parts of each length."""
    x, weight, truth = operands(BATCH, inner, columns)
    room = np.empty(truth.shape, np.float32)
    whole = least(lambda: np.matmul(x, weight, out=room))
    cells = [f"{rms(x @ weight - truth) * 1e7:.1f}; 1"]
    for terms in PARTS:
        shorter = least(lambda terms=terms: in_parts(x, weight, terms, room))
        cells.append(f"{rms(in_parts(x, weight, terms, room) - truth) * 1e7:.1f}; {shorter / whole:.2f}")
    return cells


def main() -> None:
    linear = torch_linear()
    with single_blas_thread():
        print(f"NumPy {np.__version__}, kernels {', '.join(each['architecture'] for each in blas_libraries())}\n")
        engines = {"npformer": lambda x, weight: weight_products(x, weight)[0]} | ({"torch": linear} if linear else {})
        body = [
            [f"{name}, K = {size[0]}", *(f"{error(product, rows, *size) * 1e7:.1f}" for rows in ROWS)]
            for size in SIZES
            for name, product in engines.items()
        ]
        print(markdown(["RMS error / 1e-7", *(f"{rows} rows" for rows in ROWS)], body), flush=True)
        body = [[f"{BATCH} rows, K = {inner}, N = {columns}", *price(inner, columns)] for inner, columns in BATCHES]
        print(f"\n{markdown(['error; time', 'whole', *(f'{terms} terms' for terms in PARTS)], body)}")


if __name__ == "__main__":
    main()
