"""Products of weights are correct, have the same bits for any rows, threads and panels, and use no stale copies."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from npformer.engine.runtime import products, weight_products
from npformer.engine.runtime.threads import num_threads
from npformer.engine.runtime.threads import products as plain_or_not
from tests.support.bits import alike
from tests.support.draw import normal
from tests.support.slow import slow_after

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

DTYPES = ("float32", "float64")


@pytest.fixture(params=["plain", "panels"] if weight_products.few_rows() else ["plain"])
def panels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chooses plain products or, if this BLAS has kernels for small products, panels. In use, trials choose."""
    monkeypatch.setattr(weight_products, "panels_pay", lambda rows: request.param == "panels")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("inner", "outer"), slow_after(3, [(384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768)])
)
def test_every_number_of_rows_to_300(inner: int, outer: int, dtype: str) -> None:
    """A row has the same bits alone and with up to 299 others, at the widths of all-MiniLM, DistilBERT and BERT."""
    x, weight = normal(300, inner, dtype=dtype), normal(inner, outer, dtype=dtype)
    weight.flags.writeable = False
    (whole,) = weight_products.weight_products(x, weight)
    for rows in range(1, 300, 1 if inner * outer < 2**18 and dtype == "float32" else 13):
        first = rows * 7 % (301 - rows)
        part = slice(first, first + rows)
        assert alike(weight_products.weight_products(x[part], weight)[0], whole[part]), rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 20])
@pytest.mark.parametrize(("inner", "outer"), [(32, 262), (64, 64), (384, 1000), (256, 6000), (1100, 912)])
def test_a_table_transposed_has_the_same_bits_too(inner: int, outer: int, threads: int, dtype: str) -> None:
    """A projection tied to its token table is a transposed view of the table.

    Kernels for small products would add the terms in a different order. Some parts of a large product may be small: the
    columns that do not fill a panel, and the shares of many threads.
    """
    x, weight = normal(140, inner, dtype=dtype), normal(outer, inner, dtype=dtype).T
    weight.base.flags.writeable = weight.flags.writeable = False
    whole = products.matmul(x, np.ascontiguousarray(weight))
    for rows in (1, 2, 3, 6, 6, 6, 12, 39, 40, 60, 140):
        with num_threads(threads):
            assert alike(weight_products.weight_products(x[:rows], weight)[0], whole[:rows]), rows


def test_products_of_other_types_and_of_nothing_are_numpys() -> None:
    for a, b in (
        (np.ones((2, 0), "f"), np.ones((0, 3), "f")),
        (np.ones((0, 4), "f"), np.ones((4, 3), "f")),
        (np.ones((2, 4), "f"), np.ones((4, 3))),
        (np.ones((2, 4), np.int64), np.ones((4, 3), np.int64)),
    ):
        for product in (
            products.matmul(a, b),
            products.column_products(a, b),
            weight_products.weight_products(a, b)[0],
        ):
            assert product.dtype == (a @ b).dtype
            assert np.array_equal(product, a @ b)


@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("inner", "outer"),
    [(768, 768), (768, 3072), (3072, 768), (384, 1536), (1536, 384), (384, 1000), (768, 2)],
)
def test_real_widths_have_the_same_bits(inner: int, outer: int, dtype: str) -> None:
    """A read-only weight, like a loaded model's, is used repeatedly with various numbers of rows."""
    x, weight = normal(140, inner, dtype=dtype), normal(inner, outer, dtype=dtype)
    weight.flags.writeable = False
    (whole,) = weight_products.weight_products(x, weight)
    for rows in (1, 2, 3, 6, 6, 6, 13, 34, 35, 57, 64, 65, 127, 6, 1):
        assert alike(weight_products.weight_products(x[:rows], weight)[0], whole[:rows])


@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3, 20])
@pytest.mark.parametrize("rows", [1, 6, 40, 200])
def test_parts_for_threads_have_the_same_bits(rows: int, threads: int, dtype: str) -> None:
    """With up to twenty threads, some of a weight's parts are narrower than a panel, and some have no columns."""
    x = normal(rows, 384, dtype=dtype)
    weights = [normal(384, outer, dtype=dtype, seed=outer) for outer in (384, 1536, 700, 37, 1)]
    for weight in weights:
        weight.flags.writeable = False
    expected = [products.matmul(x, weight) for weight in weights]
    for _ in range(4):
        with num_threads(threads):
            found = weight_products.weight_products(x, *weights)
        assert all(alike(*pair) for pair in zip(found, expected, strict=True))


def test_inputs_are_never_written_to() -> None:
    for shape in ((1, 768), (5, 768), (100, 768)):
        x, weight = normal(*shape), normal(768, 100)
        before = x.copy(), weight.copy()
        x.flags.writeable = weight.flags.writeable = False
        (product,) = weight_products.weight_products(x, weight)
        assert not np.shares_memory(product, x)
        assert product.flags.writeable
        assert np.array_equal(x, before[0])
        assert np.array_equal(weight, before[1])


# --- copies of weights in another layout -----------------------------------------------------------------------------


def layouts() -> list[str]:
    """Returns the variants that this kernel uses: panels, whole products, or a weight's edge columns."""
    if weight_products.few_rows():
        return ["panels", "neither"]
    return ["edges" if products.kernel(np.dtype("f")).has_edges(12) else "neither"]


@pytest.fixture(params=layouts())
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(weight_products, "panels_pay", lambda rows: request.param == "panels")
    return request.param


def kept(weight: np.ndarray) -> list[tuple]:
    return [key for key in weight_products._kept if id(weight) in key]


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("rows", [3, 12])
def test_a_weight_that_can_change_is_not_kept_in_another_layout(rows: int) -> None:
    """A copy would not follow changes of the weight, so no copy is kept, and each product uses the current weight."""
    x, weight = normal(rows, 512), normal(512, 128).copy()
    for _ in range(5):
        weight += 1
        assert alike(weight_products.weight_products(x, weight)[0], products.matmul(x, weight))
    assert not kept(weight)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("rows", [4, 12])
def test_a_view_of_a_writable_array_is_not_kept_in_another_layout(rows: int) -> None:
    base = np.random.default_rng(0).standard_normal((256, 512), np.float32)
    view = base.view()
    view.flags.writeable = False
    x = np.ones((rows, 256), np.float32)
    for _ in range(5):
        weight_products.weight_products(x, view)
    base[:] = 0
    assert not weight_products.weight_products(x, view)[0].any()


def test_a_copied_layout_is_freed_with_its_weight(layout: str) -> None:
    weight = normal(512, 128)
    weight.flags.writeable = False
    for use in range(3):
        weight_products.weight_products(normal(12, 512), weight)
        assert all(weight_products._kept[key][2] is None for key in kept(weight)) or use == 2
    keys = kept(weight)
    assert sum(weight_products._kept[key][2] is not None for key in keys) == (layout != "neither")
    del weight
    gc.collect()
    assert not any(key in weight_products._kept for key in keys)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("rows", [3, 12])
def test_a_new_weight_in_an_old_ones_place_is_not_taken_for_it(rows: int) -> None:
    x = normal(rows, 512)
    for seed in range(30):
        weight = normal(512, 128, seed=seed)
        weight.flags.writeable = False
        for _ in range(4):
            assert alike(weight_products.weight_products(x, weight)[0], products.matmul(x, weight))
        del weight


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the memory of a mapping is read from /proc")
def test_a_mapped_weight_with_panels_takes_no_memory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products with any number of rows read the panels. Kernels for larger products add the columns of a panel in a
    different order, so those products are plain and compared within rounding."""
    has_small_products = weight_products.few_rows() > 0
    monkeypatch.setattr(weight_products, "few_rows", lambda: 30)
    monkeypatch.setattr(weight_products, "panels_pay", lambda rows: True)
    x, weight = normal(300, 700), normal(700, 1088)
    path = tmp_path / "weight"
    path.write_bytes(weight.tobytes())
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped = np.frombuffer(memory, np.float32).reshape(weight.shape)
    for number, rows in enumerate((6, 200, 6, 6, 300, 140, 129, 128, 2, 17)):
        for threads in (1, 2):
            with num_threads(threads), plain_or_not(plain=not has_small_products):
                (found,) = weight_products.weight_products(x[:rows], mapped)
            (expected,) = weight_products.weight_products(x[:rows], weight.copy())
            np.testing.assert_allclose(found, expected, rtol=0, atol=0 if has_small_products else 1e-3)
        assert (resident(path) == 0) == (number > 1)


def resident(path: Path) -> int:
    """Returns the kilobytes of a mapped file in this process's memory."""
    _, _, after = Path("/proc/self/smaps").read_text().partition(str(path))
    return int(after.partition("Rss:")[2].split()[0])


def test_the_environment_decides_about_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_products, "few_rows", lambda: 34)
    for value, expected in (("0", False), ("1", True)):
        monkeypatch.setenv("NPFORMER_PANELS", value)
        weight_products.panels_pay.cache_clear()
        weight_products._trial.cache_clear()
        weight_products._way.cache_clear()
        assert weight_products.panels_pay(8) is expected
        trial = weight_products._trial(((768, 768),), 8, "f", (1, 2), 2, paneled=expected)
        assert set(trial.ways) == {(1, expected), (2, expected)}
    weight_products.panels_pay.cache_clear()
    weight_products._trial.cache_clear()
    weight_products._way.cache_clear()
