"""Frequencies of rotary positions, (K / 2,), and scalings for long texts. Su et al., 2021, RoFormer, section 3.2.2.

With a scaling, a model can read texts that are longer than the texts in training, which had `original` tokens.
Frequencies are rounded to float32 for every dtype, as in training. Angles are not rounded. transformers computes
cosines of angles in float32 even for float64 models, so its logits may differ by 1e-6. The magnitude, a factor of
cosines and sines, is 1 unless the scaling defines it (`yarn_magnitude`, `longrope_magnitude`).
"""

import math

import numpy as np


def rotary_periods(d_head, theta):
    """theta^(2 i / K) for i = 0 ... K / 2 - 1, the number of tokens over which pair i rotates by 1 radian.

    >>> rotary_periods(4, 10000.0)
    array([  1., 100.], dtype=float32)
    """
    exponents = np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)
    return (theta ** exponents.astype(np.float64)).astype(np.float32)


def rotary_frequencies(d_head, theta):
    """theta^(-2 i / K) for i = 0 ... K / 2 - 1, -> (K / 2,). Section 3.2.2.

    >>> rotary_frequencies(4, 10000.0)
    array([1.  , 0.01], dtype=float32)
    """
    return np.float32(1) / rotary_periods(d_head, theta)


def linear_scaling(frequencies, factor):
    """Frequencies divided by a factor, which has the same effect as dividing positions by the factor.

    Chen et al., 2023, Extending Context Window of Large Language Models via Positional Interpolation, section 2.3.
    """
    return frequencies / np.float32(factor)


def dynamic_frequencies(d_head, theta, factor, original, length):
    """Frequencies whose base grows with the length of the text: theta (s n / original - s + 1)^(K / (K - 2)).

    s is the factor, and n is the length of the text, or `original` for shorter texts. Peng et al., 2023, YaRN, section
    3.3.
    """
    longest = np.float32(max(length, original))
    grown = np.float32(factor) * longest / np.float32(original) - np.float32(factor - 1)
    base = np.float32(theta) * np.float32(float(grown) ** (d_head / (d_head - 2)))
    return rotary_frequencies(d_head, float(base))


def llama3_scaling(frequencies, factor, low, high, original):
    """Divides low frequencies by a factor, keeps high frequencies, and blends the rest. Llama 3.1's published code.

    A low frequency makes fewer than `low` rotations in `original` positions, and a high frequency more than `high`
    rotations.
    """
    turns = np.float32(original) / (np.float32(2 * math.pi) / frequencies)
    kept = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    return ((1 - kept) * frequencies / np.float32(factor) + kept * frequencies).astype(np.float32)


def yarn_pair(turns, d_head, theta, original):
    """The pair i, a fractional number, that makes this many turns in training: original theta^(-2 i / K) = 2 pi turns.

    Peng et al., 2023, YaRN, section 3.2 and its published code, which rounds i.
    """
    return d_head * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_ramp(first, last, d_head):
    """0 for pairs up to `first`, 1 for pairs from `last` on, and linear between the two, (K / 2,). Section 3.2.

    >>> yarn_ramp(1, 3, d_head=10)
    array([0. , 0. , 0.5, 1. , 1. ], dtype=float32)
    """
    first, last = max(first, 0), min(last, d_head - 1)
    last = last + 0.001 * (first == last)  # equal ends give a step, not a division by 0
    pairs = np.arange(d_head // 2, dtype=np.float32)
    return np.clip((pairs - np.float32(first)) / np.float32(last - first), 0, 1)


def yarn_scaling(frequencies, factor, ramp):
    """Divides low frequencies by a factor, keeps high frequencies, and blends the rest by the ramp. Section 3.2."""
    return (frequencies / np.float32(factor) * ramp + frequencies * (1 - ramp)).astype(np.float32)


def yarn_magnitude(factor):
    """0.1 ln(s) + 1 for factor s. Scores are multiplied by its square. Peng et al., 2023, YaRN, section 3.4."""
    return 0.1 * math.log(max(factor, 1.0)) + 1.0


def longrope_divisors(length, original, short, long):
    """The divisors for a text of this length, (K / 2,): `long` beyond `original` tokens, else `short`.

    >>> longrope_divisors(5, 4, short=[1.0, 1.5], long=[2.0, 3.0]).tolist()
    [2.0, 3.0]
    """
    return np.where(length > original, long, short)


def longrope_frequencies(d_head, theta, divisors):
    """theta^(-2 i / K) / divisor_i, (K / 2,). The divisors depend on whether a text has more than `original` tokens.

    Ding et al., 2024, LongRoPE, section 3. A search found the divisors, which are in config.json.
    """
    return np.float32(1) / (np.array(divisors, np.float32) * rotary_periods(d_head, theta))


def longrope_magnitude(factor, original):
    """sqrt(1 + ln(s) / ln(original)), where the longest text has s * original tokens. Phi-3's published code."""
    return math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
