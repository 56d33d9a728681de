"""GELU's error in both dtypes, with any blocks and threads. `test_functions.py` tests other activations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npformer.engine.activations import gelu, gelu_tanh, silu
from tests.support import torch_values

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]


def every_exponent() -> np.ndarray:
    """Returns 66 float32 numbers for every exponent and sign, including subnormal numbers."""
    random = np.random.default_rng(0)
    numbers = [np.ldexp(np.append(1 + random.random(64), (1, 2 - 2**-23)), e) for e in range(-149, 128)]
    x = np.concatenate(numbers).astype(np.float32)
    return np.concatenate([x, -x])


def test_gelu_in_float32() -> None:
    x = every_exponent()
    truth = np.array([0.5 * each * math.erfc(-each * math.sqrt(0.5)) for each in x.tolist()])
    least = 2.0**-149  # the distance between adjacent subnormal numbers
    assert (np.abs(gelu(x) - truth) <= 2 * 2.0**-23 * np.abs(x.astype(np.float64)) + least).all()


def test_gelu_in_float64() -> None:
    """The expected values were computed with mpmath and rounded once."""
    x, truth = (torch_values.arrays("gelu.safetensors")[name] for name in ("x", "gelu"))
    assert (np.abs(gelu(x) - truth) <= 4 * 2.0**-52 * np.abs(x) + 2.0**-1074).all()


def test_tanh_form_of_gelu_in_float32() -> None:
    x = every_exponent()
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        truth = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert (np.abs(gelu(x, "tanh") - truth) <= 2 * 2.0**-23 * np.abs(wide) + 2.0**-149).all()


def test_tanh_form_of_gelu_in_float64() -> None:
    x, truth = (torch_values.arrays("gelu.safetensors")[name] for name in ("x", "gelu_tanh"))
    assert (np.abs(gelu(x, approximate="tanh") - truth) <= 4 * 2.0**-52 * np.abs(x) + 2.0**-1074).all()


def test_gelu_in_blocks_and_in_parts_is_gelu() -> None:
    """A large array is processed in blocks, and an element does not depend on its index or neighbours."""
    x = np.random.default_rng(0).standard_normal((5, 3, 7919)).astype(np.float32)
    for function in (gelu, gelu_tanh, silu):
        whole = function(x)
        assert np.array_equal(whole[3, 1, 100:200], function(x[3, 1, 100:200].copy()))
        assert np.array_equal(whole[4:], function(x[4:]))
