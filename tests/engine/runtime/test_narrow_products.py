"""Products of narrow weights have the same bits as products of float32 weights, for any rows, threads and tiles."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from npformer.engine.runtime import narrow_products
from npformer.engine.runtime.narrow import NARROW, NarrowWeight, narrowed
from npformer.engine.runtime.products import kernel
from npformer.engine.runtime.threads import num_threads
from npformer.engine.runtime.weight_products import weight_products
from tests.support.bits import alike
from tests.support.draw import normal

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

SHAPES = ((384, 384), (100, 70), (1100, 912), (64, 2), (321, 700))


def transposed(weight: NarrowWeight) -> NarrowWeight:
    """Returns the same numbers stored as a transposed view, like a projection tied to a table."""
    return NarrowWeight(np.ascontiguousarray(weight.values.T).T, weight.scale)


@pytest.mark.parametrize("stored", NARROW)
@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_products_have_the_bits_of_float32_weights(inner: int, outer: int, stored: str) -> None:
    x, weight = normal(140, inner), narrowed(normal(inner, outer), stored)
    plain = np.asarray(weight)
    (whole,) = weight_products(x, plain)
    if stored == "int8":  # the scale is applied to the product
        (exact,) = weight_products(x, weight)
        # Rounding errors of `inner` terms add up to about sqrt(inner) ulps of the sum of the terms' magnitudes.
        assert (np.abs(exact - whole) <= 2**-22 * inner**0.5 * (np.abs(x) @ np.abs(plain))).all()
        whole = exact
    for each, threads in product((weight, transposed(weight)), (1, 3)):
        for rows in (1, 2, 3, 6, 12, 13, 40, 140):
            with num_threads(threads):
                assert alike(weight_products(x[:rows], each)[0], whole[:rows]), (rows, threads)


@pytest.mark.parametrize("size", narrow_products.TILES)
@pytest.mark.parametrize("rows", [2, 40])
def test_tiles_of_every_size_have_the_same_bits(size: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(rows, 700), narrowed(normal(700, 3000), "bfloat16")
    (expected,) = weight_products(x, np.asarray(weight))
    monkeypatch.setattr(narrow_products, "TILES", (size, size))
    narrow_products._trial.cache_clear()
    assert alike(weight_products(x, weight)[0], expected)
    narrow_products._trial.cache_clear()


def test_narrow_and_float32_weights_in_one_product() -> None:
    x, weights = normal(9, 96), [normal(96, 40), narrowed(normal(96, 200), "float16"), normal(96, 5)]
    rows = kernel(x.dtype).usable(len(x))
    out = [np.empty((rows, weight.shape[1]), np.float32) for weight in weights]
    for given in (None, out):
        for found, weight in zip(weight_products(x, *weights, out=given), weights, strict=True):
            assert alike(found, weight_products(x, np.asarray(weight))[0])
            assert given is None or any(np.shares_memory(found, each) for each in given)


def test_rows_in_float64_are_multiplied_by_the_widened_weight() -> None:
    x, weight = normal(3, 40, dtype="float64"), narrowed(normal(40, 30), "int8")
    (found,) = weight_products(x, weight)
    assert found.dtype == np.float64
    assert np.array_equal(found, x @ np.asarray(weight))


@pytest.mark.parametrize("ordered", [True, False])
def test_columns_around_a_tile_are_zeros(ordered: bool) -> None:
    """In these columns, an earlier tile may have left NaN in memory, which would cause a warning from matmul."""
    narrow_products._memory.floats = np.full(300, np.nan, np.float32)
    tile = narrow_products._tile(np.ones((4, 5), np.int8).T, 3, 16, ordered)
    np.testing.assert_array_equal(tile, np.tile(np.repeat([0, 1, 0], [3, 4, 9]), (5, 1)))
