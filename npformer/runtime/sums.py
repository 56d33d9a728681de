"""Sums in a fixed order: the same bits whatever zeros stand between or behind the terms.

NumPy and a BLAS add long sums up in an order that depends on their length, so they are cut here, every so many terms.
"""

from __future__ import annotations

import numpy as np

from npformer.runtime.products import matmul

TERMS = 16  # terms that are added up before a sum is cut: few, as they may be the keys of many beams


def sum_in_order(y: np.ndarray, axis: int = -1, keepdims: bool = True, terms: int = TERMS) -> np.ndarray:
    """Sums of the last axis, (..., N) -> (..., 1): term after term within runs of `terms`, and then run after run.

    NumPy's sum keeps that order where it runs over rows of memory, and only there; `accumulate` keeps it always.
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
    """a @ b, (..., M, N) and (..., N, K) -> (..., M, K), each sum cut every `terms` terms."""
    total = matmul(a[..., :terms], b[..., :terms, :])
    for start in range(terms, b.shape[-2], terms):
        total += matmul(a[..., start : start + terms], b[..., start : start + terms, :])
    return total
