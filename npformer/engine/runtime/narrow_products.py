"""Products with `NarrowWeight`s: a core widens a tile into its cache and multiplies it there.

A tile consists of some columns of one block of the inner axis. The products have the same bits as with float32 weights,
for two reasons: a large product sums the inner axis in the same blocks, and margins of zeros keep columns away from the
edges of the blocks of BLAS.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

import numpy as np

from npformer.engine.runtime.narrow import NarrowWeight, widen
from npformer.engine.runtime.products import column_shares, kernel, power, with_rows
from npformer.engine.runtime.same_bits import GROUP, VECTOR, Kernel
from npformer.engine.runtime.threads import part_counts, run_tasks
from npformer.engine.runtime.trials import Trial

#: Candidate sizes of a tile, in bytes of float32, from which a trial chooses. A small tile stays in the core's own
#: cache. A tile with all columns of a weight is read and written in long runs, which is faster if cores share a large
#: cache.
TILES = (7 << 16, 7 << 18, 7 << 20)
LEAST = 64  # minimum columns of a tile, if the BLAS never splits the inner axis

Weight = np.ndarray | NarrowWeight


def narrow_products(x: np.ndarray, weights: Sequence[Weight], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
    """`weight_products` of float32 rows x and weights, if at least one weight is a `NarrowWeight`."""
    n_rows, k = len(x), kernel(x.dtype)
    x = with_rows(x, k.usable(n_rows))
    products = list(out) if out else [np.empty((len(x), weight.shape[1]), x.dtype) for weight in weights]
    widths = tuple([weight.shape[1] for weight in weights])
    nanoseconds = sum([weight.size for weight in weights]) * (0.35 + 0.02 * n_rows)
    kinds = tuple([(each.shape, each.values.dtype.char if isinstance(each, NarrowWeight) else "f") for each in weights])

    def part(index: int, of: int, size: int) -> None:
        for weight, share, product in zip(weights, column_shares(widths, index, of), products, strict=True):
            _times(k, x, weight, share, size, product)

    def in_parts(way: tuple[int, int]) -> None:
        of, size = way
        run_tasks([functools.partial(part, index, of, size) for index in range(of)], of)

    _trial(kinds, power(len(x)), *part_counts(nanoseconds)).run(in_parts, nanoseconds)
    return products if len(x) == n_rows else [product[:n_rows] for product in products]


@functools.lru_cache(maxsize=1000)
def _trial(kinds: tuple, n_rows: int, counts: tuple[int, ...], first: int) -> Trial[tuple[int, int]]:
    """The trial that chooses (number of parts, bytes of a tile) for about n_rows rows and weights of these kinds."""
    return Trial([(n, size) for size in TILES for n in counts], (first, TILES[1]))


def _times(k: Kernel, x: np.ndarray, weight: Weight, columns: slice, size: int, product: np.ndarray) -> None:
    """product[:, columns] = x @ weight[:, columns], computed tile by tile."""
    values, scale = (weight.values, weight.scale) if isinstance(weight, NarrowWeight) else (weight, None)
    blocks = k.k_blocks(len(values))
    margin = GROUP if k.has_edges(len(x)) else 0
    width = max(size // (4 * blocks[0].stop), LEAST) // VECTOR * VECTOR
    width = min(width, k.span - 2 * margin) if margin else width
    total, more = np.empty((2, len(x), width + 2 * margin), np.float32)
    for start in range(columns.start, columns.stop, width):
        some = slice(start, min(start + width, columns.stop))
        count = some.stop - some.start
        whole = count + 2 * margin + -(count + 2 * margin) % VECTOR
        for block in blocks:
            tile = _tile(values[block, some], margin, whole, ordered=k.small > 0)
            np.matmul(x[:, block], tile, out=(more if block.start else total)[:, :whole])
            if block.start:
                total[:, :whole] += more[:, :whole]
        found = total[:, margin : margin + count]
        if scale is None:
            product[:, some] = found
        else:
            np.multiply(found, scale[:, some], out=product[:, some])


_memory = threading.local()


def _tile(values: np.ndarray, margin: int, whole: int, ordered: bool) -> np.ndarray:
    """Widens the values, (height, count) -> (height, whole), with at least `margin` columns of zeros on both sides.

    The next call on the same thread overwrites the result. ordered: the result is contiguous even if the values are
    transposed, because small kernels add the columns of a transposed array in a different order.
    """
    height, count = values.shape
    memory = getattr(_memory, "floats", None)
    if memory is None or memory.size < height * whole:
        memory = _memory.floats = np.empty(height * whole, np.float32)
    around = memory[: height * whole]
    in_order = ordered or values.strides[1] <= values.strides[0]
    tile = around.reshape(height, whole) if in_order else around.reshape(whole, height).T
    tile[:, :margin] = 0
    tile[:, margin + count :] = 0
    widen(values, tile[:, margin : margin + count], around)
    return tile
