"""Sums in a fixed order. Groups of zeros between or after the terms do not change the bits of a sum.

The order in which NumPy and BLAS add the terms of a long sum depends on its length. This module therefore adds terms in
groups of TERMS. The terms of n sums may be interleaved after the first `front` terms. Each sum then has zeros instead
of the terms of the other sums, so its groups are n times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from npformer.engine.runtime.products import Scratch, in_columns, matmul

TERMS = 16  # terms in a group: few, because each beam reads its keys in groups of this size
MANY = 1 << 12  # minimum number of terms at which a loop over the terms of a group is faster than a loop over groups
TOGETHER = 1 << 14  # maximum size of the products of groups that are computed together, so that they fit in the cache
IN_SCRATCH = 1 << 17  # the same limit for products in reused memory, where the number of calls matters more


def groups(count: int, terms: int = TERMS, front: int = 0) -> Iterator[tuple[slice, tuple[int, int]]]:
    """Splits a sum of `count` terms into groups, in runs of equal group size.

    Yields the slice of a run, and (number of groups, terms per group). Groups have TERMS terms before index `front`,
    which is a multiple of TERMS, and `terms` terms from `front` on. The last group may be shorter.
    """
    front = 0 if terms == TERMS else min(front, count)  # groups of equal size form one run
    for first, end, size in ((0, front, TERMS), (front, count, terms)):
        last = end - (end - first) % size
        if first < last:
            yield slice(first, last), ((last - first) // size, size)
        if last < end:
            yield slice(last, end), (1, end - last)


def sum_in_order(
    y: np.ndarray, axis: int = -1, keepdims: bool = True, terms: int = TERMS, front: int = 0
) -> np.ndarray:
    """Sums over the last axis, (..., N) -> (..., 1): term by term within each of `groups`, then group by group.

    np.sum uses this order only for sums of whole rows of memory, but np.add.accumulate always uses it.
    """
    assert axis == -1
    assert keepdims
    over_rows = y.ndim > 1 and y.shape[-2] > 1 and y.strides[-2] < y.strides[-1]
    total: np.ndarray | None = None
    for run, sizes in groups(y.shape[-1], terms, front):
        each = y[..., run].reshape(*y.shape[:-1], *sizes)
        if over_rows:
            sums = each.sum(axis=-1)
        elif each.size < MANY:
            sums = np.add.accumulate(each, axis=-1)[..., -1]
        else:  # the same order of addition, faster for many sums
            sums = each[..., 0] + each[..., 1] if sizes[1] > 1 else each[..., 0].copy()
            for i in range(2, sizes[1]):
                sums += each[..., i]
        if total is not None:
            sums[..., :1] += total
        total = np.add.accumulate(sums, axis=-1)[..., -1:]
    return y.sum(axis=-1, keepdims=True) if total is None else total


def matmul_in_order(
    a: np.ndarray, b: np.ndarray, terms: int = TERMS, front: int = 0, scratch: Scratch | None = None
) -> np.ndarray:
    """a @ b, (..., M, N) and (..., N, K) -> (..., M, K), with each sum added in `groups`.

    scratch: memory for products.
    """
    together = TOGETHER if scratch is None else IN_SCRATCH
    some = max(1, together // max(1, math.prod(a.shape[:-1]) * b.shape[-1]))
    total: np.ndarray | None = None
    for run, sizes in groups(b.shape[-2], terms, front):
        left = a[..., run].reshape(*a.shape[:-1], *sizes).swapaxes(-2, -3)  # (..., groups, M, size)
        right = in_columns(b[..., run, :].reshape(*b.shape[:-2], *sizes, b.shape[-1]), a.shape[-2])
        for i in range(0, sizes[0], some):
            part = ..., slice(i, i + some), slice(None), slice(None)
            products = right.part(*part).times(left[part], scratch=scratch)
            if total is None:
                total = products[..., 0, :, :].copy()
            else:
                total += products[..., 0, :, :]
            for j in range(1, products.shape[-3]):
                total += products[..., j, :, :]
    return matmul(a, b) if total is None else total
