"""Finds by trial how the bits of each row of a product become independent of the other rows, for the BLAS in use.

A BLAS chooses a kernel by the sizes of a product, and kernels add terms in different orders. OpenBLAS works like this:

* it computes one row with a matrix-vector routine, and certain numbers of rows with special kernels (`Kernel.usable`);
* it computes columns that do not fill a vector with kernels that depend on the number of rows (so products are padded
  to a multiple of `VECTOR` columns);
* it adds the first and last columns of each block of a wide product in a different order (`Kernel.edges`);
* it sums the inner axis of a large product block by block (`Kernel.k_blocks`), and the inner axis of a small product in
  one pass (`Kernel.small`).

The trial takes a few milliseconds per dtype, once per process. `products.py` uses the results.
"""

from __future__ import annotations

import copy
import functools
from itertools import pairwise

import numpy as np

from npformer.engine.runtime.threads import single_blas_thread

VECTOR = 16  # columns that fill the widest vector register; products are padded to a multiple of this number
GROUP = 8  # number of columns at an edge
ROWS = 48  # period of usable row counts: a multiple of every known tile height
FAR = 16  # distance along the inner axis between terms that a kernel adds to the same accumulator
INNER = 40  # enough terms to distinguish two orders of addition
WIDE = 120 * VECTOR  # number of columns that spans several blocks
LARGE = 2**23  # number of multiply-adds of a product that is large for every BLAS
LONG = 2048  # length of an inner axis of more than two blocks
GOLDEN = (1 + 5**0.5) / 2
PERIOD = 8191  # a prime, so that all rows differ


class Kernel:
    """The adjustments that give products of one dtype reproducible bits on this BLAS.

    k_block_size: number of terms of the inner axis that are added in one pass. small: maximum number of multiply-adds
    of a product that sums the whole inner axis in one pass; 0 if no product does so.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        with single_blas_thread():
            self.k_block_size = self.k_blocks(LONG)[0].stop
            self.small = self._small()
            self._good, self._reference = self._good_rows()
            wide = self.edges(WIDE)
            self.span = wide[1].start + GROUP if len(wide) > 2 else WIDE  # columns of one block
            self._edges_from = self._rows_with_edges() if wide else 0

    def plain(self) -> Kernel:
        """A kernel without adjustments, which does not give reproducible bits."""
        other = copy.copy(self)
        other._good, other._edges_from = np.ones_like(self._good), 0
        return other

    def means(self) -> str:
        """A description of the adjustments for reproducible bits."""
        filled = "rows padded" if any(self.usable(count) != count for count in range(2, ROWS)) else ""
        again = "edge columns recomputed" if self._edges_from else ""
        cut = f"small sums split at {self.k_block_size} terms" if self.small else ""
        return ", ".join(filter(None, [filled, again, cut])) or "no adjustments"

    # --- rows and columns --------------------------------------------------------------------------------------------

    def usable(self, n_rows: int) -> int:
        """The smallest usable row count that is at least n_rows. A row has the same bits for every usable count."""
        while not self._good[n_rows if n_rows <= ROWS else ROWS + 1 + (n_rows - ROWS - 1) % ROWS]:
            n_rows += 1
        return n_rows

    def has_edges(self, n_rows: int) -> bool:
        """Whether a product with n_rows rows has edge columns."""
        return 0 < self._edges_from <= n_rows

    @functools.lru_cache(maxsize=1000)  # noqa: B019 - one kernel per dtype lives as long as the process
    def edges(self, columns: int) -> list[slice]:
        """The edge columns, where the bits of a row differ from the bits in a product of `_reference` rows.

        columns: width of the product, a multiple of VECTOR.
        """
        x, w = self._irregular(ROWS, INNER), self._irregular(INNER, columns)
        with single_blas_thread():
            differs = (self.product(x, w) != self._truth(x, w)).any(axis=0)
        groups = differs.reshape(columns // GROUP, GROUP).any(axis=1)
        places = np.flatnonzero(np.diff(groups, prepend=False, append=False)) * GROUP
        return [slice(*edge) for edge in places.reshape(-1, 2).tolist()]

    def _good_rows(self) -> tuple[np.ndarray, int]:
        """Finds the usable row counts, and the number of rows of a reference product, 2 or ROWS.

        With a usable count, most columns have the same bits as in the reference product.
        """
        x, w = self._irregular(2 * ROWS, INNER), self._irregular(INNER, 10 * VECTOR)
        whole = [self.product(x[:m], w) for m in range(2, 2 * ROWS + 1)]
        for reference in (2, ROWS):
            truth = self._truth(x, w, reference)
            good = [bool(np.mean((y != truth[: len(y)]).any(axis=0)) < 0.5) for y in whole]
            if good[ROWS - 2] and good[-1]:
                return np.array([False, False, *good]), reference
        return np.arange(2 * ROWS + 1) > 1, 2  # no adjustment is known for this BLAS, so bits may vary

    def _rows_with_edges(self) -> int:
        x, w = self._irregular(ROWS, INNER), self._irregular(INNER, 10 * VECTOR)
        truth = self._truth(x, w)
        with_edges = (m for m in range(2, ROWS) if self._good[m] and (self.product(x[:m], w) != truth[:m]).any())
        return next(with_edges, ROWS)

    def _truth(self, x: np.ndarray, w: np.ndarray, reference: int | None = None) -> np.ndarray:
        step = reference or self._reference
        return np.concatenate([self.product(x[i : i + step], w) for i in range(0, len(x), step)])

    # --- the inner axis ----------------------------------------------------------------------------------------------

    @functools.lru_cache(maxsize=1000)  # noqa: B019
    def k_blocks(self, inner: int) -> tuple[slice, ...]:
        """The blocks in which a large product sums its inner axis: first within each block, then across blocks.

        Let b be so large that b + 1 rounds to b. Then the sum b + 1 - b is 0 if b and 1 are in the same block, and 1 if
        a block boundary is between b and 1. Each column of a product tests one index.
        """
        coarse = self._cut_before(inner, np.arange(FAR, inner - FAR, GROUP))
        first = [place for place in coarse if place - GROUP not in coarse]
        steps = [range(place - GROUP + 1, place + 1) for place in first]
        cuts = self._cut_before(inner, np.array([place for each in steps for place in each]))
        fine = [next(place for place in each if place in cuts) for each in steps]
        return tuple(slice(*edge) for edge in pairwise([0, *fine, inner]))

    def _cut_before(self, inner: int, places: np.ndarray) -> list[int]:
        """The indices that have a block boundary at most FAR terms before them."""
        if not len(places):
            return []
        column, large = np.arange(len(places)), 2.0 ** (np.finfo(self.dtype).nmant + 1)
        b = np.zeros((inner, len(places) + -len(places) % VECTOR), self.dtype)
        b[places - FAR, column], b[places, column], b[places + FAR, column] = large, 1, -large
        n_rows = -(-LARGE // (b.size * ROWS)) * ROWS
        with single_blas_thread():
            sums = (np.ones((n_rows, inner), self.dtype) @ b)[0, : len(places)]
        return places[sums == 1].tolist()

    def _small(self) -> int:
        """The most multiply-adds at which BLAS sums a product of two blocks and VECTOR columns in one pass."""
        b = self._irregular(2 * self.k_block_size, VECTOR)
        parts = self.k_blocks(len(b))
        low, high = 1, LARGE // b.size
        a = self._irregular(high, len(b))
        while high - low > 1:  # `low` rows give a product that is summed in one pass, `high` rows do not
            n_rows = (low + high) // 2
            in_parts = sum(a[:n_rows, part] @ b[part] for part in parts)
            low, high = (low, n_rows) if np.array_equal(a[:n_rows] @ b, in_parts) else (n_rows, high)
        return low * b.size if low > 1 else 0

    def product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """a @ b for several rows and a multiple of VECTOR columns.

        Small products are summed in the same blocks as large products.
        """
        size = a.shape[-2] * a.shape[-1] * b.shape[-1]
        # Twice the limit, to be safe. Products up to this size are summed in blocks below, which gives the same bits.
        if size > 2 * self.small:
            return np.matmul(a, b, out=out)
        if b.strides[-1] != b.itemsize:  # small kernels add the columns of a transposed array in a different order
            b = b.copy()
        if len(parts := self.k_blocks(a.shape[-1])) == 1:
            return np.matmul(a, b, out=out)
        total = np.matmul(a[..., parts[0]], b[..., parts[0], :], out=out)
        for part in parts[1:]:
            total += a[..., part] @ b[..., part, :]
        return total

    def _irregular(self, *shape: int) -> np.ndarray:
        """Irregular positive numbers, so that sums are rounded: the fractional parts of multiples of GOLDEN, repeated.

        numpy.random would also work, but its import takes longer than the whole trial.
        """
        multiples = np.arange(PERIOD) * GOLDEN
        return np.resize((multiples - np.floor(multiples)).astype(self.dtype), shape)
