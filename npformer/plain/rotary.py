"""Frequencies of rotary positions, (K / 2,), and how long texts change them. Su et al., 2021, RoFormer, section 3.2.2.

Frequencies are rounded to float32 for every dtype, as in the training of the checkpoints.
"""

import math

import numpy as np


def rotary_frequencies(d_head, theta):
    """theta^(-2 i / K) for i = 0 ... K / 2 - 1, -> (K / 2,). Section 3.2.2.

    >>> rotary_frequencies(4, 10000.0)
    array([1.  , 0.01], dtype=float32)
    """
    exponents = np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)
    return np.float32(1) / (theta ** exponents.astype(np.float64)).astype(np.float32)


def linear_scaling(frequencies, factor):
    """Positions divided by a factor. Chen et al., 2023, Position Interpolation, section 3."""
    return frequencies / np.float32(factor)


def llama3_scaling(frequencies, factor, low, high, original):
    """Divides low frequencies by a factor, keeps high ones, and blends those between. Llama 3.1's published code.

    A frequency is low if it turns fewer than `low` times in `original` positions, and high if more than `high` times.
    """
    turns = np.float32(original) / (np.float32(2 * math.pi) / frequencies)
    kept = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    return ((1 - kept) * frequencies / np.float32(factor) + kept * frequencies).astype(np.float32)
