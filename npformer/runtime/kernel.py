"""What the products of this BLAS need so that a row has the same bits in any company: found by trial, not by name.

A BLAS chooses among kernels by the sizes it is given, and kernels add in different orders. What was seen in OpenBLAS:

* one row goes to a matrix-vector routine, and some numbers of rows to a kernel of their own (`Kernel.rows`);
* columns that do not fill a vector go to kernels that depend on the number of rows (`VECTOR`: they are filled up);
* the first and last columns of the blocks a wide product is worked in have sums of their own (`Kernel.edges`);
* a large product adds up the inner axis block by block, a small one in one sweep (`Kernel.k_blocks`, `Kernel.small`).

The trial takes some milliseconds for each type, once in a process. `products.py` makes its products by what it finds.
"""

from __future__ import annotations

import copy
import functools
from itertools import pairwise

import numpy as np

from npformer.runtime.threads import single_blas_thread

VECTOR = 16  # columns of the widest vectors: a product's columns are filled up to whole ones
GROUP = 8  # columns that are at an edge together
ROWS = 48  # rows after which the table of good numbers repeats: a multiple of every tile that was seen
FAR = 16  # places of the inner axis between terms that a kernel adds to the same accumulator
INNER = 40  # terms that are enough to tell one order of adding from another
WIDE = 120 * VECTOR  # columns of several blocks
LARGE = 2**23  # multiply-adds of a product that no BLAS takes for a small one
LONG = 2048  # an inner axis longer than two blocks


class Kernel:
    """What products of one type need on this BLAS.

    k_block_size: terms of the inner axis that are added up in one sweep, and in order.
    small: multiply-adds up to which a product is added up in one sweep however long its inner axis; 0: none is.
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
        """A kernel that takes any number of rows as it comes, whatever bits that gives."""
        other = copy.copy(self)
        other._good, other._edges_from = np.ones_like(self._good), 0
        return other

    def means(self) -> str:
        """What is done for the same bits, in words."""
        filled = "rows filled up" if any(self.rows(count) != count for count in range(2, ROWS)) else ""
        again = "columns at edges computed again" if self._edges_from else ""
        cut = f"small sums cut at {self.k_block_size} terms" if self.small else ""
        return ", ".join(filter(None, [filled, again, cut])) or "products as they come"

    # --- rows and columns --------------------------------------------------------------------------------------------

    def rows(self, count: int) -> int:
        """The next number of rows that gives a row the bits it has in any other such number."""
        count = max(count, 2)
        while not self._good[count if count <= ROWS else ROWS + 1 + (count - ROWS - 1) % ROWS]:
            count += 1
        return count

    def has_edges(self, rows: int) -> bool:
        """Whether a product of so many rows has columns with sums of their own."""
        return 0 < self._edges_from <= rows

    @functools.cache  # noqa: B019 - there is one kernel a type, kept as long as the process
    def edges(self, columns: int) -> list[slice]:
        """The columns of a product, whole vectors wide, that have other bits than in the reference's rows."""
        x, w = self._random(ROWS, INNER), self._random(INNER, columns)
        with single_blas_thread():
            differs = (self.product(x, w) != self._truth(x, w)).any(axis=0)
        groups = differs.reshape(columns // GROUP, GROUP).any(axis=1)
        places = np.flatnonzero(np.diff(groups, prepend=False, append=False)) * GROUP
        return [slice(*edge) for edge in places.reshape(-1, 2).tolist()]

    def _good_rows(self) -> tuple[np.ndarray, int]:
        """Which numbers of rows give most columns the bits of a pair of rows, or else those of a tall product."""
        x, w = self._random(2 * ROWS, INNER), self._random(INNER, 10 * VECTOR)
        whole = [self.product(x[:m], w) for m in range(2, 2 * ROWS + 1)]
        for reference in (2, ROWS):
            truth = self._truth(x, w, reference)
            good = [bool(np.mean((y != truth[: len(y)]).any(axis=0)) < 0.5) for y in whole]
            if good[ROWS - 2] and good[-1]:
                return np.array([False, False, *good]), reference
        return np.ones(2 * ROWS + 1, bool), 2  # no way is known: products are right, and taken as they come

    def _rows_with_edges(self) -> int:
        x, w = self._random(ROWS, INNER), self._random(INNER, 10 * VECTOR)
        truth = self._truth(x, w)
        with_edges = (m for m in range(2, ROWS) if self._good[m] and (self.product(x[:m], w) != truth[:m]).any())
        return next(with_edges, ROWS)

    def _truth(self, x: np.ndarray, w: np.ndarray, reference: int | None = None) -> np.ndarray:
        step = reference or self._reference
        return np.concatenate([self.product(x[i : i + step], w) for i in range(0, len(x), step)])

    # --- the inner axis ----------------------------------------------------------------------------------------------

    @functools.cache  # noqa: B019
    def k_blocks(self, inner: int) -> tuple[slice, ...]:
        """Where a large product cuts its inner axis: it adds up each part alone, and then part after part.

        A sum of b, 1 and -b, b so large that b + 1 is b, is 0 where the first two are added first, and 1 where a cut
        lies between them. A column of the product tries one place. A last part of less than FAR terms goes unseen: BLIS
        has such, but needs no cuts, as none of its products is small.
        """
        coarse = self._cut_before(inner, np.arange(FAR, inner - FAR, GROUP))
        first = [place for place in coarse if place - GROUP not in coarse]
        fine = [self._cut_before(inner, np.arange(place - GROUP + 1, place + 1))[0] for place in first]
        return tuple(slice(*edge) for edge in pairwise([0, *fine, inner]))

    def _cut_before(self, inner: int, places: np.ndarray) -> list[int]:
        """Those of the places that have a cut at most FAR before them."""
        if not len(places):
            return []
        column, large = np.arange(len(places)), 2.0 ** (np.finfo(self.dtype).nmant + 1)
        b = np.zeros((inner, len(places) + -len(places) % VECTOR), self.dtype)
        b[places - FAR, column], b[places, column], b[places + FAR, column] = large, 1, -large
        rows = -(-LARGE // (b.size * ROWS)) * ROWS
        with single_blas_thread():
            sums = (np.ones((rows, inner), self.dtype) @ b)[0, : len(places)]
        return places[sums == 1].tolist()

    def _small(self) -> int:
        """The most multiply-adds, of sixteen columns and two blocks, that are added up in one sweep."""
        b = self._random(2 * self.k_block_size, VECTOR)
        parts = self.k_blocks(len(b))
        low, high = 1, LARGE // b.size
        a = self._random(high, len(b))
        while high - low > 1:  # `low` rows are added up in one sweep, `high` rows in parts
            rows = (low + high) // 2
            in_parts = sum(a[:rows, part] @ b[part] for part in parts)
            low, high = (low, rows) if np.array_equal(a[:rows] @ b, in_parts) else (rows, high)
        return low * b.size if low > 1 else 0

    def product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """a @ b, two or more rows and columns of whole vectors: a small product cut where a large one is."""
        size = a.shape[-2] * a.shape[-1] * b.shape[-1]
        # Twice the limit: to cut a large product costs time, but changes nothing.
        if size > 2 * self.small or len(parts := self.k_blocks(a.shape[-1])) == 1:
            return np.matmul(a, b, out=out)
        total = np.matmul(a[..., parts[0]], b[..., parts[0], :], out=out)
        for part in parts[1:]:
            total += a[..., part] @ b[..., part, :]
        return total

    def _random(self, *shape: int) -> np.ndarray:
        """Numbers of one sign: their sums round, whatever they are."""
        return np.random.default_rng(shape).random(shape, self.dtype)
