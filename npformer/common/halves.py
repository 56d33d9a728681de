"""Rounds to 16-bit and other narrow floating-point formats, for ports that round more often than the model."""

from __future__ import annotations

import numpy as np

HALVES = ("bfloat16", "float16")  # bfloat16 is tried first, because most bfloat16 numbers are also exact in float16


def half(kind: str, array: np.ndarray) -> np.ndarray:
    """Rounds to float16 or bfloat16, to nearest with ties to even, and converts back to the array's dtype."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(array.dtype)
    return cut_bits(array, 16)


def cut_bits(array: np.ndarray, bits: int) -> np.ndarray:
    """Rounds to float32 without the last `bits` bits, to nearest with ties to even, and converts back."""
    number = array.astype(np.float32).view(np.uint32)
    nearest = number + (((1 << bits - 1) - 1) + (number >> bits & 1))
    return truncated(nearest.view(np.float32), bits).astype(array.dtype)


def truncated(array: np.ndarray, bits: int) -> np.ndarray:
    """Converts to float32 with zeros for the last `bits` bits, and converts back."""
    kept = array.astype(np.float32, copy=False).view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
    return kept.view(np.float32).astype(array.dtype)
