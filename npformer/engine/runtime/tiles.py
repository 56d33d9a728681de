"""Splits work into cache-sized parts for threads: activations into blocks of elements, and attention into tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from npformer.engine.runtime.products import with_margins
from npformer.engine.runtime.threads import parallel_for, part_counts
from npformer.engine.taps import listening, spare

# Elements in a block: few enough to fit in the cache of a core, and enough that threads rarely wait for the GIL
# between the steps of a formula.
BLOCK = 1 << 16
SCORES = 1 << 16  # scores in a tile: few enough to stay in the cache of a core for all steps of softmax

Elementwise = Callable[[np.ndarray, np.ndarray], None]
Tile = tuple[slice, slice]  # some texts of equal lengths, and some of their heads


def in_blocks(formula: Elementwise, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Computes y block by block with formula(x, y), which writes to y. y is a new array or `out`, which may be x."""
    x = x if x.flags.c_contiguous else x.copy()
    y = out if out is not None and out.flags.c_contiguous else np.empty_like(x)
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)

    def work(part: slice) -> None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(part.start, part.stop, BLOCK):
                block = slice(start, min(start + BLOCK, part.stop))
                formula(flat_x[block], flat_y[block])

    parallel_for(work, x.size, nanoseconds=2.0 * x.size)
    if out is None or out is y:
        return y
    out[...] = y
    return out


def in_place(function: Callable[..., np.ndarray], array: np.ndarray) -> np.ndarray:
    """Returns function(array), computed in place unless a listener may have kept the array.

    If array is a product with margins (`with_margins`), the function is also applied to the margins, because contiguous
    memory is faster.
    """
    if spare(array) is None:
        return function(array)
    whole = with_margins(array.mT).mT
    function(whole, out=whole)
    return array


def over_heads(work: Callable[[Tile], None], n_texts: int, n_heads: int, scores: int, width: int) -> None:
    """Calls work(tile) for tiles that cover all heads of all texts.

    scores: number of scores of one head of one text; width: width of a head.
    """
    total = n_texts * n_heads * scores
    nanoseconds = total * (2 + 0.02 * width)
    if listening() or (total <= SCORES and part_counts(nanoseconds)[1] == 1):
        work((slice(None), slice(None)))
        return

    def some_heads(heads: slice) -> None:
        for tile in _tiles(n_texts, heads, scores):
            work(tile)

    parallel_for(some_heads, n_heads, nanoseconds)


def _tiles(n_texts: int, heads: slice, scores: int) -> Iterator[Tile]:
    """Tiles of at most SCORES scores. A head of one text with more scores is a tile by itself."""
    most = max(1, SCORES // max(1, scores))
    n_heads = heads.stop - heads.start
    heads_of_tile, texts_of_tile = min(n_heads, most), max(1, most // n_heads)
    for text in range(0, n_texts, texts_of_tile):
        for head in range(heads.start, heads.stop, heads_of_tile):
            yield slice(text, text + texts_of_tile), slice(head, min(head + heads_of_tile, heads.stop))
