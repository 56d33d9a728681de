"""Sums in a fixed order: zeros between or after the terms do not change a bit.

NumPy and BLAS add a long sum in an order that depends on its length, so sums are added in groups of TERMS terms here.
Where the terms of several sums lie side by side, after the first `front` terms, each sum has zeros for the others' and
groups that are so many times as long.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npformer.runtime.products import matmul

TERMS = 16  # terms in a group: few, because a group has so many keys of each beam


def groups(count: int, terms: int = TERMS, front: int = 0) -> Iterator[slice]:
    """The groups of a sum: of TERMS up to the place `front`, a multiple of TERMS, and of `terms` from there."""
    front = min(front, count)
    for start in range(0, front, TERMS):
        yield slice(start, start + TERMS)
    for start in range(front, count, terms):
        yield slice(start, start + terms)


def sum_in_order(
    y: np.ndarray, axis: int = -1, keepdims: bool = True, terms: int = TERMS, front: int = 0
) -> np.ndarray:
    """Sums over the last axis, (..., N) -> (..., 1): term after term within each of `groups`, then group after group.

    NumPy's sum has that order only where it adds whole rows of memory; `accumulate` always has it.
    """
    assert axis == -1
    assert keepdims
    over_rows = y.ndim > 1 and y.shape[-2] > 1 and y.strides[-2] < y.strides[-1]
    total: np.ndarray | None = None
    for group in groups(y.shape[-1], terms, front):
        part = y[..., group]
        sums = part.sum(axis=-1, keepdims=True) if over_rows else np.add.accumulate(part, axis=-1)[..., -1:]
        total = sums if total is None else total + sums
    return y.sum(axis=-1, keepdims=True) if total is None else total


def matmul_in_order(a: np.ndarray, b: np.ndarray, terms: int = TERMS, front: int = 0) -> np.ndarray:
    """a @ b, (..., M, N) and (..., N, K) -> (..., M, K), each sum added in `groups`."""
    total: np.ndarray | None = None
    for group in groups(b.shape[-2], terms, front):
        product = matmul(a[..., group], b[..., group, :])
        total = product if total is None else np.add(total, product, out=total)
    return matmul(a, b) if total is None else total
