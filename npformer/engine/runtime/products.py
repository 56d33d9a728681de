"""Matrix products of activations for `attention.py`, with the same bits for any number of rows.

`same_bits.py` finds the adjustments that the BLAS needs: added rows, recomputed edge columns, and sums in blocks.
Products with weights are in `weight_products.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from npformer.engine.runtime.same_bits import GROUP, VECTOR, Kernel
from npformer.engine.runtime.threads import plain_products, single_blas_thread

PANEL = 64  # columns of a panel of a weight: four vectors of sixteen floats


def kernel(dtype: np.dtype) -> Kernel:
    """The `Kernel` for products of this dtype, float32 or float64. The first product creates it."""
    return _kernels(dtype)[plain_products()]


@functools.cache
def _kernels(dtype: np.dtype) -> tuple[Kernel, Kernel]:
    """The kernels with and without reproducible bits, in this order."""
    found = Kernel(dtype)
    return found, found.plain()


@functools.cache
def same_bits(dtype: np.dtype) -> bool:
    """Tests for several sizes whether this BLAS gives a row the same bits alone and among other rows.

    One size has 600 rows, because BLIS uses different kernels from 512 rows on.
    """
    random = np.random.default_rng(0)
    with single_blas_thread():
        for count, inner, columns in ((61, 70, 10), (600, 384, 384), (61, 1100, 768)):
            x, weight = (random.standard_normal(shape).astype(dtype) for shape in ((count, inner), (inner, columns)))
            whole = matmul(x, weight)
            for part in (slice(0, 1), slice(1, 6), slice(3, 17), slice(20, 45)):
                if not np.array_equal(matmul(x[part], weight), whole[part]):
                    return False
    return True


# --- products of activations -----------------------------------------------------------------------------------------


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, (..., M, K) and (..., K, N) -> (..., M, N): the bits of an element do not depend on M or N."""
    if not has_kernel(a, b):
        return a @ b
    n_rows = a.shape[-2]
    return column_products(with_rows(a, kernel(a.dtype).usable(n_rows)), b)[..., :n_rows, :]


def row_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, (..., M, K) and (..., K, N) -> (..., M, N): the bits of a row do not depend on M.

    If the columns of b need margins, the transposed product is computed, with margins around the rows of a. In
    attention, these margins cost less, because a has more rows than b has columns.
    """
    if has_kernel(a, b) and kernel(a.dtype).has_edges(b.shape[-1]):
        return column_products(b.mT, a.mT).mT
    return matmul(a, b)


def column_products(a: np.ndarray, b: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """a @ (b * scale), (..., M, K) and (..., K, N) -> (..., M, N): the bits of a column do not depend on N."""
    if not has_kernel(a, b):
        return a @ (b if scale == 1 else b * scale)
    k, n_rows, columns = kernel(a.dtype), a.shape[-2], b.shape[-1]
    if n_rows == 1 and not plain_products():
        return column_products(with_rows(a, 2), b, scale)[..., :1, :]
    margin = GROUP if k.has_edges(n_rows) else 0
    room = k.span - 2 * margin if margin else columns
    products = []
    for start in range(0, columns, room):
        block = b[..., start : start + room]
        width = block.shape[-1]
        if scale == 1 and _lies_in_margins(block, margin):
            block = with_margins(block)
        elif margin or width % VECTOR or scale != 1:
            block = in_margins(block, margin, scale)
        products.append(k.product(a, block)[..., margin : margin + width])
    return products[0] if len(products) == 1 else np.concatenate(products, axis=-1)


def inner_products(a: np.ndarray, b: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """a @ b.mT * scale, (..., M, K) and (..., N, K) -> (..., M, N): the bits of a row do not depend on M.

    The last axis of the result is strided in memory, so that sums over this axis add whole vectors. This is faster than
    many short sums, and the order of addition does not depend on the number of rows.
    """
    return column_products(b, a.mT, scale).mT


def inner_products_in_room(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b.mT, (..., M, K) and (..., N, K) -> (..., M, N): the bits of an element do not depend on M or N.

    b.mT is made contiguous, because BLAS may add the columns of a transposed array in a different order.
    """
    return matmul(a, b.mT if b.mT.strides[-1] == b.itemsize else b.mT.copy())


class Scratch:
    """Memory that is reused for successive products. The first write to new memory can take longer than a product.

    Part 0 is for products, part 1 for results that combine several products.
    """

    def __init__(self, like: np.ndarray) -> None:
        self._parts = [np.empty_like(like, order="C", shape=0)] * 2

    def array(self, *shape: int, part: int = 0) -> np.ndarray:
        """Returns an array of this shape, in the same memory as earlier arrays of this part."""
        size = math.prod(shape)
        if size > self._parts[part].size:
            self._parts[part] = np.empty_like(self._parts[part], shape=size)
        return self._parts[part][:size].reshape(shape)


class Columns(NamedTuple):
    """b (..., K, N) in the layout of `in_columns`, for several products with the same bits as in `matmul`."""

    plain: np.ndarray
    whole: np.ndarray  # `plain` with margins on both sides
    margin: int  # number of columns of each margin

    def part(self, *index: Any) -> Columns:
        """The same layout for b[index], where index selects along leading axes."""
        return Columns(self.plain[index], self.whole[index], self.margin)

    def times(
        self, a: np.ndarray, first: int = 0, last: int | None = None, scratch: Scratch | None = None
    ) -> np.ndarray:
        """a @ b[..., first:last], (..., M, K) -> (..., M, N). first, last: multiples of VECTOR, or the end of b.

        scratch: memory for the result, which the next product with the same scratch overwrites.
        """
        last = self.plain.shape[-1] if last is None else min(last, self.plain.shape[-1])
        if last <= first or not has_kernel(a, self.plain):
            return a @ self.plain[..., first:last]
        k, n_rows = kernel(a.dtype), a.shape[-2]
        a = with_rows(a, k.usable(n_rows))
        lead = () if scratch is None else np.broadcast_shapes(a.shape[:-2], self.whole.shape[:-2])

        def product(start: int, width: int) -> np.ndarray:
            end = start + width + 2 * self.margin
            block = self.whole[..., start : end + -(end - start) % VECTOR]
            out = None if scratch is None else scratch.array(*lead, a.shape[-2], block.shape[-1])
            return k.product(a, block, out)[..., :n_rows, self.margin : self.margin + width]

        room = k.span - 2 * self.margin if self.margin else last - first
        if last - first <= room:
            return product(first, last - first)
        places = [(start, min(room, last - start)) for start in range(first, last, room)]
        if scratch is None:
            return np.concatenate([product(*place) for place in places], axis=-1)
        joined = scratch.array(*lead, n_rows, last - first, part=1)
        for start, width in places:
            joined[..., start - first : start - first + width] = product(start, width)
        return joined


def in_columns(b: np.ndarray, n_rows: int) -> Columns:
    """Lays out b for products with at most n_rows rows."""
    if b.dtype.char not in "fd" or not b.size:
        return Columns(b, b, 0)
    k = kernel(b.dtype)
    margin = GROUP if k.has_edges(k.usable(n_rows)) else 0
    contiguous = b.strides[-1] == b.itemsize and b.shape[-1] % VECTOR == 0
    return Columns(b, b if contiguous and not margin else in_margins(b, margin, spare=VECTOR), margin)


def has_kernel(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether BLAS computes this product. NumPy itself computes products of other dtypes and of empty arrays."""
    return a.dtype == b.dtype and a.dtype.char in "fd" and a.size > 0 and b.size > 0


def with_rows(a: np.ndarray, n_rows: int) -> np.ndarray:
    """Appends rows of zeros to a, (..., M, K) -> (..., n_rows, K)."""
    if n_rows == a.shape[-2]:
        return a
    filled = np.empty_like(a, order="C", shape=(*a.shape[:-2], n_rows, a.shape[-1]))
    filled[..., : a.shape[-2], :] = a
    filled[..., a.shape[-2] :, :] = 0
    return filled


def in_margins(b: np.ndarray, margin: int, scale: float = 1.0, spare: int = 0) -> np.ndarray:
    """b * scale, with `margin` columns of zeros on both sides, padded to a multiple of VECTOR columns plus `spare`."""
    width = b.shape[-1]
    block = np.empty_like(
        b, order="C", shape=(*b.shape[:-1], width + 2 * margin + -(width + 2 * margin) % VECTOR + spare)
    )
    block[..., :margin] = 0
    np.multiply(b, scale, out=block[..., margin : margin + width])
    block[..., margin + width :] = 0
    return block


def with_margins(b: np.ndarray) -> np.ndarray:
    """Returns the whole product with its margins if b is a slice that `column_products` returned, else b."""
    whole = b.base
    if isinstance(whole, np.ndarray) and whole.shape[:-1] == b.shape[:-1] and whole.strides == b.strides:
        return whole
    return b


def _lies_in_margins(b: np.ndarray, margin: int) -> bool:
    """Whether b is a slice that `column_products` returned, with margins of `margin` columns."""
    whole = with_margins(b)
    left = (address(b) - address(whole)) // b.itemsize
    width = b.shape[-1] + 2 * margin
    return whole is not b and left == margin and whole.shape[-1] == width + -width % VECTOR


def address(array: np.ndarray) -> int:
    """The address of the first byte of an array. array.ctypes takes ten times as long."""
    return int(array.__array_interface__["data"][0])


# --- parts of products -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1000)
def column_shares(widths: tuple[int, ...], index: int, of: int) -> list[slice]:
    """The columns of each weight that part `index` computes. Only the last part has columns outside panels."""
    return [
        slice(n * index // of // PANEL * PANEL, n if index + 1 == of else n * (index + 1) // of // PANEL * PANEL)
        for n in widths
    ]


def power(n_rows: int) -> int:
    """The smallest power of two that is at least n_rows."""
    return 1 << (n_rows - 1).bit_length()
