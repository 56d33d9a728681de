"""The trial finds correct settings for BLAS, with every kernel that this CPU can run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npformer
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.products import kernel
from npformer.engine.runtime.same_bits import FAR, GROUP, Kernel
from npformer.engine.runtime.threads import products, run_tasks, single_blas_thread
from tests.support import kernels

pytestmark = pytest.mark.numbers

DTYPES = ("float32", "float64")

PROGRAM = """
import json
import numpy as np
from npformer.engine.runtime import products
from npformer.engine.runtime.threads import blas_libraries
print(json.dumps({
    "kernels": [library.get("architecture") for library in blas_libraries()],
    "same bits": [products.same_bits(np.dtype(each)) for each in ("float32", "float64")],
}))
"""


def found(environment: dict[str, str]) -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", kernels.working())
def test_a_method_for_the_same_bits_is_found_on_every_kernel(name: str) -> None:
    """Each kernel runs in its own process, because a BLAS chooses its kernels when it is loaded.

    A NumPy with a different BLAS ignores the kernel's environment variable; the test then checks only that trials end.
    """
    facts = found(kernels.under(name))
    if facts["kernels"] and all(facts["kernels"]):
        assert facts["same bits"] == [True, True], facts


def test_a_way_to_the_same_bits_is_found_as_this_process_runs() -> None:
    facts = found(dict(os.environ))
    if any(each in (facts["kernels"] or ()) for names in kernels.KERNELS.values() for each in names):
        assert facts["same bits"] == [True, True], facts


@settings(max_examples=60)
@given(inner=st.integers(1, 3000), dtype=st.sampled_from(DTYPES))
def test_cuts_are_where_a_large_product_cuts(inner: int, dtype: str) -> None:
    """Together, the parts cover the inner axis exactly once. Their products, added in order, have the same bits as the
    whole product.

    If npformer never has to split products, as with BLIS, the last part may be too short for the trial to notice.
    """
    k, random = kernel(np.dtype(dtype)), np.random.default_rng(inner)
    parts = k.k_blocks(inner)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (0, inner)
    a, b = random.random((96, inner)).astype(dtype), random.random((inner, 256)).astype(dtype)

    def in_parts(*parts: slice) -> np.ndarray:
        return sum(a[:, part] @ b[part] for part in parts)

    with single_blas_thread():
        if np.array_equal(in_parts(*parts), a @ b) or a.size * 256 <= k.small:
            return
        assert k.small == 0
        places = range(parts[-1].start + 1, inner)[-FAR - GROUP :]
        seen = (in_parts(*parts[:-1], slice(parts[-1].start, place), slice(place, inner)) for place in places)
        assert any(np.array_equal(each, a @ b) for each in seen)


@pytest.mark.parametrize("dtype", DTYPES)
def test_terms_of_one_block_are_added_in_order(dtype: str) -> None:
    """Zeros between the terms, such as the zeros of beams that share a cache, do not change a sum."""
    k, random = kernel(np.dtype(dtype)), np.random.default_rng(0)
    dense, b = random.random((k.usable(2), 16)).astype(dtype), random.random((16, 64)).astype(dtype)
    with single_blas_thread():
        expected = dense @ b
    for spread in range(1, k.k_block_size // 16 + 1):
        places = np.sort(random.permutation(16 * spread)[:16])
        wide, tall = np.zeros((len(dense), 16 * spread), dtype), np.zeros((16 * spread, 64), dtype)
        wide[:, places], tall[places] = dense, b
        with single_blas_thread():
            assert np.array_equal(wide @ tall, expected), spread


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_rows_repeat_and_are_at_least_two(dtype: str) -> None:
    k = kernel(np.dtype(dtype))
    counts = [k.usable(count) for count in range(300)]
    assert counts[0] >= 2
    assert all(count <= rows < count + 48 for count, rows in enumerate(counts) if count > 1)
    assert all(k.usable(rows) == rows for rows in counts)


def test_a_single_row_is_padded_even_if_no_method_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS computes a single row with its matrix-vector routine, which adds in a different order."""
    noise = np.random.default_rng(0)
    monkeypatch.setattr(Kernel, "product", lambda self, a, b, out=None: a @ b + noise.random((len(a), b.shape[1])))
    k = Kernel(np.dtype("float32"))
    assert (k.usable(1), k.plain().usable(1)) == (2, 1)


# --- same_bits on and off --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False])
def test_a_model_is_right_with_the_same_bits_and_without(wanted: bool) -> None:
    """With same_bits=False, rows are not padded, and a text's numbers differ only by rounding."""
    model, exact = (npformer.load("distilbert-sst2", dtype=dtype, same_bits=wanted) for dtype in DTYPES)
    random = np.random.default_rng(0)
    texts = [Text(random.integers(1000, 30000, length)) for length in (1, 5, 16, 16, 40, 130)]
    together, truth = model.run(texts), exact.run(texts)
    for text, answer, true in zip(texts, together, truth, strict=True):
        alone = model.run([text])[0]
        assert np.abs(answer["logits"] - true["logits"]).max() < 1e-4
        assert np.abs(alone["logits"] - true["logits"]).max() < 1e-4
        assert not wanted or np.array_equal(alone["logits"], answer["logits"])


def test_without_the_same_bits_no_thread_pads_rows() -> None:
    """With same_bits=False, a single row uses BLAS's matrix-vector routine, which reads the weight without a copy."""

    def counts() -> list[int]:
        return [kernel(np.dtype("float32")).usable(rows) for rows in range(1, 60)]

    with products(plain=True):
        found = run_tasks([counts] * 4, 2)
        assert not kernel(np.dtype("float32")).has_edges(48)
    assert found == [list(range(1, 60))] * 4
    assert run_tasks([counts] * 4, 2) == [counts()] * 4


def test_the_environment_decides_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPFORMER_SAME_BITS", "0")
    assert not npformer.load("distilbert-sst2").same_bits
    assert npformer.load("distilbert-sst2", same_bits=True).same_bits
    monkeypatch.setenv("NPFORMER_SAME_BITS", "no")
    with pytest.raises(npformer.NpformerError, match="NPFORMER_SAME_BITS: expected 0 or 1, got 'no'"):
        npformer.load("distilbert-sst2")
    with pytest.raises(npformer.NpformerError, match="same_bits: expected True or False, got 3"):
        npformer.load("distilbert-sst2", same_bits=3)  # type: ignore[arg-type]
