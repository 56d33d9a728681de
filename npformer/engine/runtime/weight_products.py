"""Products with weights, shared between threads, with the same bits for any number of rows.

`functions.linear` uses these products. The products are fast even for few rows, because a weight that is used
repeatedly is also stored in a second layout: as panels, which kernels for small products read in order, or as its edge
columns.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.mapped import release
from npformer.engine.runtime.narrow import NarrowWeight
from npformer.engine.runtime.narrow_products import narrow_products
from npformer.engine.runtime.products import (
    PANEL,
    column_products,
    column_shares,
    has_kernel,
    in_margins,
    kernel,
    power,
    with_rows,
)
from npformer.engine.runtime.recording import recorder
from npformer.engine.runtime.same_bits import GROUP, VECTOR, Kernel
from npformer.engine.runtime.threads import (
    part_counts,
    plain_products,
    run_tasks,
    single_blas_thread,
    threads_for_parts,
)
from npformer.engine.runtime.trials import Trial

TILE = 7 << 18  # bytes of panels that a large product reads at a time
MANY = 128  # with more rows, the time to copy the weight hardly matters in a large product
FEW = 256  # with more rows, gathering edge columns takes only a small part of the product's time


def weight_products(x: np.ndarray, *weights: np.ndarray, out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
    """[x @ weight for weight in weights], (M, K) and (K, N) -> (M, N) each, shared between threads.

    out: arrays (kernel(x.dtype).usable(M), N) for the results, which are views of these arrays.
    """
    if not all(has_kernel(x, weight) for weight in weights):
        return [x @ weight for weight in weights]
    if NarrowWeight in map(type, weights):
        return narrow_products(x, weights, out)
    n_rows = len(x)
    way = _way(x.dtype, n_rows, tuple([weight.shape for weight in weights]), plain_products(), threads_for_parts())
    if way.n_rows != n_rows:
        x = with_rows(x, way.n_rows)
    products = (
        list(out) if out else [np.empty_like(x, order="C", shape=(way.n_rows, weight.shape[1])) for weight in weights]
    )
    panels = way.no_panels
    if way.paneled:
        few = way.n_rows if n_rows <= MANY else 0
        panels = [_panels(weight, few) if can else None for weight, can in zip(weights, way.paneled, strict=True)]

    def part(index: int, of: int, small: bool) -> None:
        shares = column_shares(way.widths, index, of)
        for weight, panel, share, product in zip(weights, panels, shares, products, strict=True):
            _columns(way.kernel, x, weight, panel, small, share, product)
        if way.edges:
            _columns_at_edges(x, weights, shares, products)

    def in_parts(each: tuple[int, bool]) -> None:
        of, small = each
        run_tasks([functools.partial(part, index, of, small) for index in range(of)], of)

    trial = way.trial_of_panels if n_rows <= MANY and any(panels) else way.trial
    if trial is None:
        part(0, 1, False)
    else:
        trial.run(in_parts, way.nanoseconds)
    return products if way.n_rows == n_rows else [product[:n_rows] for product in products]


class _Way:
    """The settings for products of n_rows rows with weights of these shapes."""

    def __init__(self, dtype: np.dtype, n_rows: int, shapes: tuple[tuple[int, int], ...]) -> None:
        self.kernel = k = kernel(dtype)
        self.n_rows = k.usable(n_rows)
        self.edges = k.has_edges(self.n_rows)
        self.no_panels: list[Panels | None] = [None] * len(shapes)
        paneled = [_may_have_panels(dtype, *shape) for shape in shapes]
        self.paneled = paneled if any(paneled) else []
        # A first guess, in which reading the weights counts little, because more cores do not read them faster.
        self.nanoseconds = sum([inner * columns for inner, columns in shapes]) * (0.05 + 0.02 * n_rows)
        self._trial = functools.partial(_trial, shapes, power(self.n_rows), dtype.char, *part_counts(self.nanoseconds))
        self.widths = tuple([columns for _, columns in shapes])

    @functools.cached_property
    def trial(self) -> Trial[tuple[int, bool]] | None:
        return self._trial(paneled=False)

    @functools.cached_property
    def trial_of_panels(self) -> Trial[tuple[int, bool]] | None:
        return self._trial(paneled=True)


@functools.lru_cache(maxsize=1000)
def _way(dtype: np.dtype, n_rows: int, shapes: tuple[tuple[int, int], ...], plain: bool, threads: int) -> _Way:
    """Returns the cached settings. plain, threads: the settings of the calling thread, on which a `_Way` depends."""
    return _Way(dtype, n_rows, shapes)


@functools.lru_cache(maxsize=1000)
def _trial(
    shapes: tuple[tuple[int, ...], ...], n_rows: int, dtype: str, counts: tuple[int, ...], first: int, paneled: bool
) -> Trial[tuple[int, bool]] | None:
    """The trial that chooses the number of parts and whether to use panels; None if there is only one choice."""
    if len(counts) == 1 and not paneled:
        return None
    guess = paneled and panels_pay(n_rows)
    layouts = (guess,) if not paneled or _choice() else (False, True)
    return Trial([(n, panels) for panels in layouts for n in counts], (first, guess))


def _columns(
    k: Kernel,
    x: np.ndarray,
    weight: np.ndarray,
    panels: Panels | None,
    small: bool,
    columns: slice,
    product: np.ndarray,
) -> None:
    """product[:, columns] = x @ weight[:, columns]. Columns that do not fill a panel or vector are computed separately.

    small: use small products if the weight has panels.
    """
    if panels is not None and not small and not panels.alone:
        panels = None
    rest = (columns.stop - columns.start) % (VECTOR if panels is None else PANEL)
    if rest:
        last = slice(columns.stop - rest, columns.stop)
        product[:, last] = column_products(x, weight[:, last])
        columns = slice(columns.start, columns.stop - rest)
    if columns.start == columns.stop:
        return
    if panels is not None:
        (panels.times if small else panels.times_large)(x, columns, out=product[:, columns])
    else:
        k.product(x, weight[:, columns], out=product[:, columns])


def _columns_at_edges(
    x: np.ndarray, weights: Sequence[np.ndarray], shares: Sequence[slice], products: Sequence[np.ndarray]
) -> None:
    """Recomputes the columns at the edges of BLAS blocks.

    The columns of all weights are multiplied together, between margins of zeros that keep them away from edges.
    """
    k = kernel(x.dtype)
    ends = tuple((share.start, share.stop) for share in shares)
    places = _edges(k, ends)
    if not places:
        return
    room = k.span - 2 * GROUP

    def gather() -> list[np.ndarray]:
        columns = np.concatenate([weights[i][:, place] for i, place, _ in places], axis=1)
        return [in_margins(columns[:, i : i + room], GROUP) for i in range(0, columns.shape[1], room)]

    blocks = (_laid_out(weights, ends, gather) if len(x) <= FEW else None) or gather()
    pieces = [k.product(x, block)[:, GROUP : GROUP + room] for block in blocks]
    again = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
    for i, place, gathered in places:
        products[i][:, place] = again[:, gathered]


@functools.lru_cache(maxsize=1000)
def _edges(k: Kernel, shares: tuple[tuple[int, int], ...]) -> list[tuple[int, slice, slice]]:
    """For each edge, the index of its weight, the columns to recompute, and their slice in the gathered columns."""
    places, end = [], 0
    for i, (start, stop) in enumerate(shares):
        for edge in k.edges((stop - start) // VECTOR * VECTOR):
            width = edge.stop - edge.start
            places.append((i, slice(start + edge.start, start + edge.stop), slice(end, end + width)))
            end += width
    return places


def in_order(weight: np.ndarray) -> np.ndarray:
    """Makes a weight contiguous if a small product may use it, because the order of its sums depends on the layout."""
    return np.ascontiguousarray(weight) if weight.size <= kernel(weight.dtype).small else weight


# --- weights in other layouts ----------------------------------------------------------------------------------------

_kept: dict[tuple, tuple[list[weakref.ref[np.ndarray]], int, Any]] = {}


def _laid_out(weights: Sequence[np.ndarray], what: Any, make: Callable[[], Any]) -> Any:
    """Returns make(), a copy of the weights in another layout, which is cached as long as the weights exist.

    Returns None before the third use. Also returns None for writable weights, because a cached copy would not follow
    their changes.
    """
    if (hears := recorder()) is not None:
        weights = [hears.original(weight) for weight in weights]
    if not all(map(_is_fixed, weights)):
        return None
    if hears is not None:
        hears.fixed += weights
    name = (what, *map(id, weights))
    references, uses, layout = _kept.get(name, ([], 0, None))
    if not references or any(each() is not weight for each, weight in zip(references, weights, strict=True)):
        references = [weakref.ref(weight, lambda _: _kept.pop(name, None)) for weight in weights]
        uses, layout = 0, None
    if layout is None:
        layout = make() if uses >= 2 and hears is None else None  # a recorded array must not outlive its pass
        _kept[name] = (references, uses + 1, layout)
    return layout


def _is_fixed(array: np.ndarray) -> bool:
    """Whether an array and all its base arrays are read-only."""
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return True


class Panels:
    """A copy of a weight (K, N) in contiguous panels, (N / 64, block, 64) for each block of the inner axis.

    A large product sums the inner axis in the same blocks. Columns that do not fill a panel are omitted.
    A product of a few rows with one panel is small, and its kernel reads the panel directly. In every call, the kernel
    of a large product first copies the weight.

    alone: the weight is mapped from a file and its memory was released, so large products also read the panels.
    """

    def __init__(self, weight: np.ndarray) -> None:
        columns = weight.shape[1] // PANEL * PANEL
        self.blocks = [
            (block, np.ascontiguousarray(weight[block, :columns].reshape(-1, columns // PANEL, PANEL).swapaxes(0, 1)))
            for block in kernel(weight.dtype).k_blocks(len(weight))
        ]
        self.alone = release(weight)

    def times(self, x: np.ndarray, columns: slice, out: np.ndarray) -> None:
        """out = x @ weight[:, columns] for whole panels, summed over blocks in the same order as a large product."""
        some = slice(columns.start // PANEL, columns.stop // PANEL)
        for part, count in _few_at_a_time(len(x), few_rows()):
            y = out[part].reshape(-1, count, some.stop - some.start, PANEL).transpose(2, 0, 1, 3)
            for block, panels in self.blocks:
                terms = x[part, block].reshape(y.shape[1], count, -1)
                if block.start == 0:
                    np.matmul(terms, panels[some, None], out=y)
                else:
                    y += terms @ panels[some, None]

    def times_large(self, x: np.ndarray, columns: slice, out: np.ndarray) -> None:
        """Computes the same as `times`, but with large products that each read several panels as one matrix."""
        count = max(1, TILE // (PANEL * 4 * self.blocks[0][0].stop))
        for first in range(columns.start // PANEL, columns.stop // PANEL, count):
            some = slice(first, min(first + count, columns.stop // PANEL))
            y = out[:, some.start * PANEL - columns.start : some.stop * PANEL - columns.start]
            for block, panels in self.blocks:
                matrix = panels[some].swapaxes(0, 1).reshape(panels.shape[1], -1)
                if block.start == 0:
                    np.matmul(x[:, block], matrix, out=y)
                else:
                    y += x[:, block] @ matrix


@functools.lru_cache(maxsize=1000)
def _few_at_a_time(n_rows: int, few: int) -> list[tuple[slice, int]]:
    """Splits n_rows rows into slices, and returns each slice with the number of rows in each of its products.

    This number is at most `few`, and it is 1 only if n_rows is 1.
    """
    if n_rows <= few:
        return [(slice(0, n_rows), n_rows)]
    count = (few - 1) // 4 * 4  # kernels process rows in groups of four
    last = n_rows % count + (count if n_rows % count == 1 else 0)
    return [(slice(0, n_rows - last), count), (slice(n_rows - last, n_rows), last)][: 2 if last else 1]


def _may_have_panels(dtype: np.dtype, inner: int, columns: int) -> bool:
    return dtype.char == "f" and columns >= PANEL and inner * columns >= 2**16


def _panels(weight: np.ndarray, n_rows: int) -> Panels | None:
    """The panels of a weight that is used repeatedly, if `panels_pay(n_rows)`. n_rows: 0 means many rows."""
    return _laid_out([weight], "panels", lambda: Panels(weight) if n_rows and panels_pay(power(n_rows)) else None)


@functools.lru_cache(maxsize=1)
def few_rows() -> int:
    """The maximum number of rows for which a product with a panel is small: 34 for blocks of 448 terms, 30 for 512."""
    k = kernel(np.dtype(np.float32))
    return k.small // (PANEL * k.k_block_size)


def _choice() -> str | None:
    """The environment variable NPFORMER_PANELS: "0", "1", or None, which leaves the decision to trials."""
    choice = os.environ.get("NPFORMER_PANELS") or None
    if choice not in (None, "0", "1"):
        raise NpformerError(f"NPFORMER_PANELS: expected 0 or 1, got {choice!r:.80}")
    return choice


@functools.lru_cache(maxsize=10)
def panels_pay(n_rows: int) -> bool:
    """Tests whether panels are worth their memory for 2, 4, 8 ... or MANY rows.

    The test uses a weight that stays in the cache. Once panels exist, the trial of each product decides whether to use
    them.
    """
    if _choice() == "0" or few_rows() < 5:
        return False
    if _choice() == "1":
        return True
    x, weight, product = (np.ones(shape, np.float32) for shape in ((n_rows, 384), (384, 1536), (n_rows, 1536)))
    panels = Panels(weight)
    with single_blas_thread():
        plain = min(_seconds(lambda: np.matmul(x, weight, out=product)) for _ in range(5))
        return min(_seconds(lambda: panels.times(x, slice(0, 1536), product)) for _ in range(5)) < 0.9 * plain


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
