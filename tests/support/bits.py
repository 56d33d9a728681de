"""Compares the bits of two results."""

from __future__ import annotations

import numpy as np

from npformer.engine.runtime import products


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether two results of one computation are equal, bit for bit.

    If no method for the same bits is known for this BLAS, equality up to rounding is enough.
    `tests/engine/runtime/test_same_bits.py` lists the kernels for which a method must be known.
    """
    if products.same_bits(a.dtype):
        return np.array_equal(a, b)
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=1e5 * np.finfo(a.dtype).eps * np.abs(b).max(initial=1))
