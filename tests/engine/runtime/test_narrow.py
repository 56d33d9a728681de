"""Weights stored in fewer bytes: exact widening, rounding to the nearest number, and conversion by NumPy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.engine.runtime import narrow
from npformer.engine.runtime.narrow import BFLOAT16, NARROW, NarrowWeight, narrowed, widen
from tests.support.draw import normal

pytestmark = pytest.mark.numbers


def rounded(array: np.ndarray, stored: str) -> np.ndarray:
    """Returns the array in float32, rounded to the nearest numbers of the dtype `stored`."""
    if stored == "float16":
        return array.astype(np.float16).astype(np.float32)
    if stored == "int8":
        scale = np.abs(array).max(axis=0) / np.float32(127)
        return np.rint(array / scale).astype(np.float32) * scale
    lower = (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
    upper = (lower.view(np.uint32) + 0x10000).view(np.float32)
    down, up = np.abs(array - lower), np.abs(upper - array)
    even = lower.view(np.uint32) & 0x10000 == 0
    return np.where((down < up) | ((down == up) & even), lower, upper)


@pytest.mark.parametrize("stored", NARROW)
@pytest.mark.parametrize("turned", [False, True])
def test_numbers_are_rounded_to_the_nearest(stored: str, turned: bool) -> None:
    array = normal(130, 70) if not turned else normal(70, 130).T
    array = np.concatenate([array[:-1], array[-1:] * 0 + 1.00390625])  # halfway between two bfloat16 numbers
    weight = narrowed(array if not turned else np.asfortranarray(array), stored)
    assert weight.stored == stored
    assert np.array_equal(np.asarray(weight), rounded(np.ascontiguousarray(array), stored))


def test_every_half_number_widens_exactly() -> None:
    bits = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    halves = bits.view(np.float16)[np.isfinite(bits.view(np.float16)).all(axis=1)]
    brains = bits.view(BFLOAT16).reshape(256, 256)
    around = np.zeros((256, 300), np.float32)
    for values, expected in ((halves, halves.astype("f")), (brains, (bits.astype("u4") << 16).view("f"))):
        out = around[: len(values), 20:276]
        widen(values, out, around)
        assert np.array_equal(out.view("u4"), expected.view("u4"))
        assert not around[:, :20].any()
        assert not around[:, 276:].any()


def test_float16_widens_exactly_in_a_thread_that_flushes_small_numbers_to_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another library sets the processor to flush small numbers to 0, NumPy converts the numbers instead."""
    assert narrow._has_subnormals()
    halves, out = np.array([1e-5, -3e-6, 6e-8, 0.5], np.float16), np.empty(4, np.float32)
    monkeypatch.setattr(narrow, "_has_subnormals", lambda: False)
    monkeypatch.setattr(narrow, "_widen_float16", None)
    widen(halves, out)
    assert np.array_equal(out, halves.astype(np.float32))


def test_int8_has_a_scale_for_each_output() -> None:
    array = normal(64, 3) * np.array([1, 100, 0], "f")
    weight, table = narrowed(array, "int8"), narrowed(np.ascontiguousarray(array.T), "int8", outputs=0)
    assert weight.scale is not None
    assert weight.scale.shape == (1, 3)
    assert np.array_equal(np.asarray(weight), np.asarray(table).T)
    assert np.array_equal(np.asarray(weight.T), np.asarray(weight).T)
    assert np.asarray(weight.T).flags.f_contiguous  # AVX-512 products depend on this layout of float32 weights
    assert (np.abs(np.asarray(weight) - array) <= weight.scale / 2 * 1.001).all()
    assert not np.asarray(weight)[:, 2].any()


def test_numpy_computes_with_the_float32_array() -> None:
    for stored in NARROW:
        weight = narrowed(normal(40, 30), stored)
        plain, x = np.asarray(weight), normal(3, 40)
        assert (weight.shape, weight.dtype, weight.ndim, weight.size, len(weight)) == (
            (40, 30),
            plain.dtype,
            2,
            1200,
            40,
        )
        assert weight.nbytes < plain.nbytes * 0.6
        for found, expected in (
            (x @ weight, x @ plain),
            (weight.T @ x.T, plain.T @ x.T),
            (2 * weight + 1, 2 * plain + 1),
            (weight[[3, 0]], plain[[3, 0]]),
            (weight[3:5, 7], plain[3:5, 7]),
            (weight.astype(np.float64), plain.astype(np.float64)),
            (np.concatenate([weight, plain]), np.concatenate([plain, plain])),
            (weight.mean(axis=0), plain.mean(axis=0)),
        ):
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
        for again in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
            assert isinstance(again, NarrowWeight)
            assert np.array_equal(np.asarray(again), plain)


def test_a_narrow_weight_cannot_be_changed() -> None:
    weight = narrowed(normal(40, 30), "int8")
    for change in (lambda: weight.__setitem__((0, 0), 1), lambda: weight.__iadd__(1)):
        with pytest.raises(NpformerError, match="stored in int8 cannot be changed; load the model with writable=True"):
            change()
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(weight)[0, 0] = 1


def test_a_matrix_that_is_narrow_is_not_copied() -> None:
    halves = normal(8, 9).astype(np.float16)
    assert narrowed(halves, "float16").values is halves
    assert narrowed(halves, "float16", copy=True).values is not halves
    assert narrowed(halves.T, "float16").values.flags.c_contiguous
    with pytest.raises(NpformerError, match="too large for float16"):
        narrowed(np.full((2, 2), 1e6, np.float32), "float16")
