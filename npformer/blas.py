"""Matrix products with the same bits for any number of rows, and fast for few.

A BLAS chooses among kernels by the sizes it is given, and kernels add in different orders, so a row of `x @ w` need
not have the same bits alone and in a batch. Four things differ in OpenBLAS, and each has its answer here:

* one row goes to a matrix-vector routine: we never ask for one (`matmul` doubles it);
* columns that do not fill a vector go to kernels that depend on the number of rows: we fill them up with zeros;
* a large product adds up the inner axis block by block, a small one in one sweep: we cut the small one at the same
  places (`cuts`; the block's length is found by trial, in `depth`);
* few rows times a large weight is slow, as the kernel first copies the weight into its own layout: a weight used so
  is kept in panels 64 columns wide, which the small kernel reads as they lie.

`functions.linear` and `attention` are the users; `workers.py` shares the work between cores.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from npformer.errors import NpformerError
from npformer.workers import fork, parts, single_blas_thread

SMALL = 10**6  # multiply-adds up to which OpenBLAS has a kernel that copies nothing
VECTOR = 16  # columns of the narrowest kernel all of whose rows are alike
PANEL = 64  # columns of a panel: four vectors of sixteen floats
FEW = 34  # rows up to which a panel's product is small: 34 * 64 * 448 < SMALL
_DEPTHS = (448, 384, 320, 256, 512, 640, 352, 288, 240, 192, 128)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, (..., M, K) and (..., K, N) -> (..., M, N): each row with the same bits for every M."""
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if rows == 1:
        return matmul(np.repeat(a, 2, axis=-2), b)[..., :1, :]
    if columns % VECTOR:
        padded = np.zeros((*b.shape[:-1], columns + -columns % VECTOR), b.dtype)
        padded[..., :columns] = b
        return matmul(a, padded)[..., :columns]
    if rows * columns * inner > SMALL or len(places := cuts(inner, a.dtype)) == 1:
        return a @ b
    product = a[..., places[0]] @ b[..., places[0], :]
    for place in places[1:]:
        product += a[..., place] @ b[..., place, :]
    return product


def weight_products(x: np.ndarray, *weights: np.ndarray) -> list[np.ndarray]:
    """[x @ weight for weight in weights], (M, K) and (K, N) -> (M, N) each, shared out between the crew's threads."""
    rows = len(x)
    if rows == 1:
        return [product[:1] for product in weight_products(np.repeat(x, 2, axis=0), *weights)]
    paneled = [_panels(weight) if 0 < rows <= FEW else None for weight in weights]
    count = parts(nanoseconds=sum(weight.size for weight in weights) * (0.2 + 0.01 * rows))
    if count == 1:
        return [_columns(x, *each, slice(0, each[0].shape[1])) for each in zip(weights, paneled, strict=True)]
    products = [np.empty((rows, weight.shape[1]), x.dtype) for weight in weights]

    def part(index: int, of: int) -> None:
        for weight, panels, product in zip(weights, paneled, products, strict=True):
            edges = [weight.shape[1] * i // of // PANEL * PANEL for i in range(of)] + [weight.shape[1]]
            share = slice(edges[index], edges[index + 1])
            product[:, share] = _columns(x, weight, panels, share)

    fork(part, count)
    return products


def _columns(x: np.ndarray, weight: np.ndarray, panels: Panels | None, columns: slice) -> np.ndarray:
    """x @ weight[:, columns]; the last ones, where they do not fill a panel or a vector, apart from the rest."""
    loose = (columns.stop - columns.start) % (VECTOR if panels is None else PANEL)
    last = columns.stop - loose
    if panels is not None:
        main = panels.times(x, slice(columns.start, last))
    elif not loose or weight.size < SMALL:
        return matmul(x, weight[:, columns])
    else:
        main = matmul(x, weight[:, columns.start : last])
    return np.concatenate([main, matmul(x, weight[:, last : columns.stop])], axis=1) if loose else main


# --- where the inner axis is cut -------------------------------------------------------------------------------------


def cuts(inner: int, dtype: np.dtype) -> list[slice]:
    """Where OpenBLAS cuts the inner axis of a large product: blocks of `depth`, the last two of equal length."""
    return _cuts(inner, depth(dtype.char)) if inner > _DEPTHS[-1] else [slice(0, inner)]


@functools.cache
def _cuts(inner: int, block: int | None) -> list[slice]:
    edges = [0]
    while block and inner - edges[-1] > block:
        rest = inner - edges[-1]
        edges.append(edges[-1] + (block if rest >= 2 * block else -(-(rest // 2) // 16) * 16))
    return [slice(*edge) for edge in pairwise([*edges, inner])]


@functools.cache
def depth(dtype: str) -> int | None:
    """The block in which this BLAS adds up the inner axis, found by trial; None where no cut gives the same bits.

    A large product is compared with small ones cut at each candidate, on inner axes that tell the candidates apart.
    It takes hundredths of a second, once in a process.
    """
    random = np.random.default_rng(0)
    trials = []
    with single_blas_thread():
        for inner in (768, 1008, 1024, 3072):  # half of what is left of 1008 tells how halves are rounded up
            a, b = (random.random(shape, np.float32).astype(dtype) for shape in ((96, inner), (inner, 64)))
            trials.append((a, b, a @ b))
        for block in _DEPTHS:
            if all(_same_bits(a, b, whole, block) for a, b, whole in trials):
                return block
    return None


def _same_bits(a: np.ndarray, b: np.ndarray, whole: np.ndarray, block: int) -> bool:
    """Whether rows taken two and seven at a time, cut at `block`, have the bits they have in the whole product."""
    for rows in (slice(0, 2), slice(40, 47), slice(94, 96)):
        product = np.zeros_like(whole[rows])
        for place in _cuts(len(b), block):
            product += a[rows, place] @ b[place]
        if not np.array_equal(product, whole[rows]):
            return False
    return True


# --- panels: a weight laid out for few rows --------------------------------------------------------------------------


class Panels:
    """A weight (K, N) as (N / 64, cuts, K / cuts, 64) for each run of cuts of equal length: a copy, read in order.

    The last columns, where they do not fill a panel, are left out.
    """

    def __init__(self, weight: np.ndarray) -> None:
        inner, columns = weight.shape[0], weight.shape[1] // PANEL * PANEL
        runs: list[list[slice]] = []
        for place in cuts(inner, weight.dtype):
            if runs and place.stop - place.start == runs[-1][0].stop - runs[-1][0].start:
                runs[-1].append(place)
            else:
                runs.append([place])
        self.runs = []
        for run in runs:
            rows = weight[run[0].start : run[-1].stop, :columns]
            panels = rows.reshape(len(run), -1, columns // PANEL, PANEL).transpose(2, 0, 1, 3)
            self.runs.append((run[0].start, run[-1].stop, np.ascontiguousarray(panels)))

    def times(self, x: np.ndarray, columns: slice) -> np.ndarray:
        """x @ weight[:, columns], whole panels, the cuts' products added in the order of the large product."""
        product: np.ndarray | None = None
        for start, stop, panels in self.runs:
            panels = panels[columns.start // PANEL : columns.stop // PANEL]
            pieces = x[:, start:stop].reshape(len(x), panels.shape[1], -1).swapaxes(0, 1) @ panels
            for piece in pieces.swapaxes(0, 1):
                product = piece if product is None else np.add(product, piece, out=product)
        assert product is not None
        return product.swapaxes(0, 1).reshape(len(x), -1)


_kept: dict[int, tuple[weakref.ref[np.ndarray], int, Panels | None]] = {}


def _panels(weight: np.ndarray) -> Panels | None:
    """The panels of a weight that is used with few rows again and again, made at its third such use.

    Only of a weight nobody can write to (a loaded model's), as a copy would not follow; and only where a trial
    showed that this BLAS gains by them.
    """
    if weight.dtype != np.float32 or weight.shape[1] < PANEL or weight.size < 2**16 or not _is_fixed(weight):
        return None
    reference, uses, panels = _kept.get(id(weight), (None, 0, None))
    if reference is None or reference() is not weight:
        key = id(weight)
        reference, uses, panels = weakref.ref(weight, lambda _: _kept.pop(key, None)), 0, None
    if panels is None and uses >= 2 and panels_pay():
        panels = Panels(weight)
    _kept[id(weight)] = (reference, uses + 1, panels)
    return panels


def _is_fixed(array: np.ndarray) -> bool:
    """Whether no array can write to these numbers: not this one, nor any that it is a view of."""
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return True


@functools.cache
def panels_pay() -> bool:
    """Whether few rows are quicker with panels on this machine; NPFORMER_PANELS=0 or 1 decides without a trial."""
    choice = os.environ.get("NPFORMER_PANELS") or None
    if choice not in (None, "0", "1"):
        raise NpformerError(f"NPFORMER_PANELS: expected 0 or 1, got {choice!r:.80}")
    if choice == "0" or (block := depth("f")) is None or FEW * PANEL * block > SMALL:
        return False
    if choice == "1":
        return True
    weight = np.random.default_rng(0).random((768, 3072), np.float32)
    x, panels = weight[:8, :768].copy(), Panels(weight)
    with single_blas_thread():
        plain = min(_seconds(lambda: x @ weight) for _ in range(5))
        return min(_seconds(lambda: panels.times(x, slice(0, 3072))) for _ in range(5)) < 0.9 * plain


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
