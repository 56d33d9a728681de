"""Products of activations are correct, and have the same bits for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.engine.runtime import products
from tests.support.bits import alike
from tests.support.draw import normal

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

DTYPES = ("float32", "float64")
INNER = st.sampled_from([1, 2, 7, 16, 64, 96, 300, 384, 449, 768, 1000, 1536, 3072])
OUTER = st.sampled_from([1, 2, 3, 15, 16, 17, 64, 100, 128, 384, 700])


@settings(max_examples=150)
@given(rows=st.integers(1, 130), inner=INNER, outer=OUTER, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_rows_have_the_same_bits_in_any_number(rows: int, inner: int, outer: int, dtype: str, seed: int) -> None:
    a, b = normal(rows, inner, dtype=dtype, seed=seed), normal(inner, outer, dtype=dtype, seed=seed)
    whole = products.matmul(a, b)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(whole - wide).max() <= np.finfo(dtype).eps * inner * 8
    for first in {0, rows // 2, rows - 1}:
        for count in (1, 2, 5, 31, 64):
            part = slice(first, first + count)
            assert alike(products.matmul(a[part], b), whole[part])


@settings(max_examples=75)
@given(
    lead=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    rows=st.integers(1, 40),
    inner=st.sampled_from([1, 8, 32, 64, 96, 200, 512]),
    outer=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
)
def test_slices_have_the_same_bits_alone_and_in_a_batch(
    lead: list[int], rows: int, inner: int, outer: int, dtype: str
) -> None:
    a, b = normal(*lead, rows, inner, dtype=dtype), normal(*lead, inner, outer, dtype=dtype)
    whole = products.matmul(a, b)
    for place in np.ndindex(*lead):
        assert alike(products.matmul(a[place], b[place]), whole[place])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [5, 32, 64, 100])
def test_columns_have_the_same_bits_in_any_number(inner: int, dtype: str) -> None:
    """In attention, the columns of this product are queries, and its rows are keys, whose number is fixed."""
    for rows in (1, 2, 7, 12, 16, 29, 64, 131):
        a, b = normal(rows, inner, dtype=dtype), normal(inner, 700, dtype=dtype)
        whole = products.column_products(a, b, 0.125)
        assert np.abs(whole - a.astype("f8") @ (b.astype("f8") * 0.125)).max() <= np.finfo(dtype).eps * inner * 8
        for first, count in ((0, 1), (3, 2), (40, 12), (100, 130), (317, 310), (699, 1)):
            part = slice(first, first + count)
            assert alike(products.column_products(a, b[:, part], 0.125), whole[:, part])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [4, 16, 32, 64, 80])
def test_attended_rows_have_the_same_bits_in_any_number(width: int, dtype: str) -> None:
    for keys in (1, 6, 17, 64, 140):
        weights, v = normal(2, 340, keys, dtype=dtype), normal(2, keys, width, dtype=dtype)
        whole = products.row_products(weights, v)
        for first, count in ((0, 1), (1, 3), (30, 12), (50, 25), (7, 320)):
            rows = slice(first, first + count)
            assert alike(products.row_products(weights[:, rows], v), whole[:, rows])
