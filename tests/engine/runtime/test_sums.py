"""Sums in a fixed order: terms are added in the documented order, and added zeros do not change a bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.engine.runtime import sums
from npformer.engine.runtime.products import Scratch, matmul
from npformer.engine.runtime.sums import TERMS, matmul_in_order, sum_in_order
from tests.support.bits import alike

pytestmark = pytest.mark.numbers

DTYPES = st.sampled_from(["float32", "float64"])


def normal(*shape: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def edges(count: int, terms: int, front: int) -> list[int]:
    """Returns the boundaries of groups by definition: TERMS terms per group up to `front`, then `terms` terms."""
    front = min(front, count)
    return [*range(0, front, TERMS), *range(front, count, terms), count]


@given(DTYPES, st.integers(1, 90), st.sampled_from([16, 32, 48]), st.sampled_from([0, 16, 32]), st.booleans())
def test_a_sum_adds_its_terms_and_then_its_groups_in_order(
    dtype: str, count: int, terms: int, front: int, is_strided: bool
) -> None:
    y = normal(2, 3, count, dtype=dtype)
    y = np.asarray(y.mT, order="C").mT if is_strided else y
    expected = np.zeros((2, 3), dtype)
    places = edges(count, terms, front)
    for start, stop in pairwise(places):
        of_group = y[..., start]
        for i in range(start + 1, stop):
            of_group = of_group + y[..., i]
        expected = of_group if start == 0 else expected + of_group
    assert np.array_equal(sum_in_order(y, terms=terms, front=front)[..., 0], expected)


@given(
    DTYPES,
    st.sampled_from([1, 2, 7]),
    st.integers(1, 90),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([16, 48]),
    st.sampled_from([0, 32]),
)
def test_a_product_adds_its_groups_in_order(
    dtype: str, rows: int, count: int, columns: int, terms: int, front: int
) -> None:
    """The order does not depend on the number of groups that are computed together."""
    a, b = normal(2, rows, count, dtype=dtype), normal(2, count, columns, dtype=dtype)
    places = edges(count, terms, front)
    expected = None
    for start, stop in pairwise(places):
        product = matmul(a[..., start:stop], b[..., start:stop, :])
        expected = product if expected is None else expected + product
    before = sums.TOGETHER
    try:
        for sums.TOGETHER in (before, 2 * rows * columns * 2, 1):
            assert alike(matmul_in_order(a, b, terms, front), expected)
    finally:
        sums.TOGETHER = before
    scratch = Scratch(a)
    for x in (-a, a):  # the second result must not contain values left in `scratch`
        result = matmul_in_order(x, b, terms, front, scratch)
    assert alike(result, expected)


@given(DTYPES, st.integers(1, 40), st.integers(0, 60))
def test_zeros_after_the_terms_change_no_bit(dtype: str, count: int, more: int) -> None:
    y, b = normal(2, 1, count, dtype=dtype), normal(2, count, 8, dtype=dtype)
    longer = np.concatenate([y, np.zeros((2, 1, more), dtype)], axis=-1)
    below = np.concatenate([b, normal(2, more, 8, dtype=dtype)], axis=-2)
    assert np.array_equal(sum_in_order(longer), sum_in_order(y))
    assert alike(matmul_in_order(longer, below), matmul_in_order(y, b))


def test_nothing_to_add() -> None:
    assert np.array_equal(sum_in_order(np.ones((3, 0))), np.zeros((3, 1)))
    assert np.array_equal(matmul_in_order(np.ones((3, 0)), np.ones((0, 2))), np.zeros((3, 2)))
    assert matmul_in_order(np.ones((2, 0, 20)), np.ones((2, 20, 4))).shape == (2, 0, 4)
    assert sum_in_order(np.ones((0, 20))).shape == (0, 1)
