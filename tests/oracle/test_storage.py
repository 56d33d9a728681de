"""Weights are read exactly even after torch has set the processor to flush subnormal numbers to 0 in this thread."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npformer.checkpoint import storage
from npformer.engine.runtime import narrow


def test_float16_widens_exactly_where_small_numbers_are_taken_for_0() -> None:
    halves = np.array([1e-5, -3e-6, 6e-8, 0.5], np.float16)
    expected = halves.astype(np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such setting")
    try:
        assert not narrow._has_subnormals()
        found = storage.converted(halves, np.dtype(np.float32))
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(found, expected)
