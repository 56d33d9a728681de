"""Sums in a fixed order: zeros between or after the terms do not change a bit.

NumPy and BLAS add a long sum in an order that depends on its length, so sums are added in groups of `terms` here.
"""

from __future__ import annotations

import numpy as np

from npformer.runtime.products import matmul

TERMS = 16  # terms in a group: few, because a group has so many keys of each beam


def sum_in_order(y: np.ndarray, axis: int = -1, keepdims: bool = True, terms: int = TERMS) -> np.ndarray:
    """Sums over the last axis, (..., N) -> (..., 1): term after term within groups of `terms`, then group after group.

    NumPy's sum has that order only where it adds whole rows of memory; `accumulate` always has it.
    """
    assert axis == -1
    assert keepdims
    over_rows = y.ndim > 1 and y.shape[-2] > 1 and y.strides[-2] < y.strides[-1]
    total: np.ndarray | None = None
    for start in range(0, y.shape[-1], terms):
        part = y[..., start : start + terms]
        sums = part.sum(axis=-1, keepdims=True) if over_rows else np.add.accumulate(part, axis=-1)[..., -1:]
        total = sums if total is None else total + sums
    return y.sum(axis=-1, keepdims=True) if total is None else total


def matmul_in_order(a: np.ndarray, b: np.ndarray, terms: int = TERMS) -> np.ndarray:
    """a @ b, (..., M, N) and (..., N, K) -> (..., M, K), each sum added in groups of `terms` terms."""
    total = matmul(a[..., :terms], b[..., :terms, :])
    for start in range(terms, b.shape[-2], terms):
        total += matmul(a[..., start : start + terms], b[..., start : start + terms, :])
    return total
