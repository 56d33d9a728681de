"""Products: right, with the same bits for any number of rows, threads and panels, and with no stale copies kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import golden
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer import blas
from npformer.workers import crew, single_blas_thread

DTYPES = ("float32", "float64")
INNER = st.sampled_from([1, 2, 7, 16, 64, 96, 300, 384, 449, 768, 1000, 1536, 3072])
OUTER = st.sampled_from([1, 2, 3, 15, 16, 17, 64, 100, 128, 384, 700])


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """As a model's run has it. Several cut the inner axis elsewhere, if it is no multiple of some power of two."""
    with single_blas_thread():
        yield


@pytest.fixture(params=[False, True], ids=["plain", "panels"])
def panels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether few rows go to panels: which of the two is decided by a trial elsewhere."""
    monkeypatch.setattr(blas, "panels_pay", lambda: request.param)
    return request.param


# --- the inner axis --------------------------------------------------------------------------------------------------


@given(inner=st.integers(0, 5000), dtype=st.sampled_from(DTYPES))
def test_cuts_cover_the_inner_axis_once(inner: int, dtype: str) -> None:
    places = blas.cuts(inner, np.dtype(dtype))
    assert [place.start for place in places[1:]] == [place.stop for place in places[:-1]]
    assert (places[0].start, places[-1].stop) == (0, inner)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_depth_that_was_found_is_one(dtype: str) -> None:
    """Rows taken alone and cut there have the bits of the whole product, at widths that were not tried for it."""
    if blas.depth(np.dtype(dtype).char) is not None:
        for inner in (896, 1152, 2048):
            a, b = normal(80, inner, dtype=dtype), normal(inner, 256, dtype=dtype)
            parts = [a[:, place] @ b[place] for place in blas.cuts(inner, a.dtype)]
            assert np.array_equal(sum(part[:2] for part in parts), (a @ b)[:2])


# --- products --------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(rows=st.integers(1, 130), inner=INNER, outer=OUTER, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_rows_have_the_same_bits_in_any_number(rows: int, inner: int, outer: int, dtype: str, seed: int) -> None:
    a, b = normal(rows, inner, dtype=dtype, seed=seed), normal(inner, outer, dtype=dtype, seed=seed)
    whole = blas.matmul(a, b)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(whole - wide).max() <= np.finfo(dtype).eps * inner * 8
    for first in {0, rows // 2, rows - 1}:
        for count in (1, 2, 5, 31, 64):
            part = slice(first, first + count)
            assert golden.alike(blas.matmul(a[part], b), whole[part])


@settings(max_examples=150)
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
    whole = blas.matmul(a, b)
    for place in np.ndindex(*lead):
        assert golden.alike(blas.matmul(a[place], b[place]), whole[place])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("inner", "outer"),
    [(768, 768), (768, 3072), (3072, 768), (384, 1536), (1536, 384), (384, 1000), (768, 2)],
)
def test_real_widths_have_the_same_bits(inner: int, outer: int, dtype: str, panels: bool) -> None:
    """A loaded model's weight, which cannot be written to, used again and again with all numbers of rows."""
    x, weight = normal(140, inner, dtype=dtype), normal(inner, outer, dtype=dtype)
    weight.flags.writeable = False
    (whole,) = blas.weight_products(x, weight)
    for rows in (1, 2, 3, 6, 6, 6, 13, 34, 35, 64, 65, 127, 6, 1):
        assert golden.alike(blas.weight_products(x[:rows], weight)[0], whole[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 6, 40, 200])
def test_parts_for_threads_have_the_same_bits(rows: int, threads: int, dtype: str, panels: bool) -> None:
    x = normal(rows, 384, dtype=dtype)
    weights = [normal(384, outer, dtype=dtype, seed=outer) for outer in (384, 1536, 700, 37, 1)]
    for weight in weights:
        weight.flags.writeable = False
    expected = [blas.matmul(x, weight) for weight in weights]
    for _ in range(4):
        with crew(threads):
            products = blas.weight_products(x, *weights)
        assert all(golden.alike(*pair) for pair in zip(products, expected, strict=True))


def test_inputs_are_never_written_to() -> None:
    for shape in ((1, 768), (5, 768), (100, 768)):
        x, weight = normal(*shape), normal(768, 100)
        before = x.copy(), weight.copy()
        x.flags.writeable = weight.flags.writeable = False
        (product,) = blas.weight_products(x, weight)
        assert not np.shares_memory(product, x)
        assert product.flags.writeable
        assert np.array_equal(x, before[0])
        assert np.array_equal(weight, before[1])


# --- panels ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def always_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "panels_pay", lambda: True)


@pytest.mark.usefixtures("always_panels")
def test_a_weight_that_can_change_has_no_panels() -> None:
    """A copy would not follow: the answer is always that of the weight as it is."""
    x, weight = normal(3, 512), normal(512, 128)
    for _ in range(5):
        weight += 1
        assert golden.alike(blas.weight_products(x, weight)[0], blas.matmul(x, weight))
    assert blas._panels(weight) is None


@pytest.mark.usefixtures("always_panels")
def test_a_view_of_what_can_change_has_no_panels() -> None:
    base = np.random.default_rng(0).standard_normal((256, 512), np.float32)
    view = base.view()
    view.flags.writeable = False
    x = np.ones((4, 256), np.float32)
    for _ in range(5):
        blas.weight_products(x, view)
    base[:] = 0
    assert not blas.weight_products(x, view)[0].any()


def test_panels_go_with_their_weight() -> None:
    weight = normal(512, 128)
    weight.flags.writeable = False
    for _ in range(3):
        blas.weight_products(normal(3, 512), weight)
    key = id(weight)
    assert blas._kept[key][2] is not None
    del weight
    gc.collect()
    assert key not in blas._kept


@pytest.mark.usefixtures("always_panels")
def test_a_new_weight_in_an_old_ones_place_is_not_taken_for_it() -> None:
    x = normal(3, 512)
    for seed in range(30):
        weight = normal(512, 128, seed=seed)
        weight.flags.writeable = False
        for _ in range(4):
            assert golden.alike(blas.weight_products(x, weight)[0], blas.matmul(x, weight))
        del weight


def test_the_environment_decides_about_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("0", False), ("1", True)):
        monkeypatch.setenv("NPFORMER_PANELS", value)
        blas.panels_pay.cache_clear()
        assert blas.panels_pay() is expected
    blas.panels_pay.cache_clear()
