"""Element-wise formulas, worked a block at a time: what `functions.silu` and `functions.gelu` compute, and slopes.

A formula reads one flat block and writes another, which may be the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npformer.runtime.threads import fork, parts

# Elements in a block: few enough for a core's own cache, and enough that two threads do not wait for each other at the
# interpreter between a formula's passes.
BLOCK = 1 << 16

Formula = Callable[[np.ndarray, np.ndarray], None]


def in_blocks(formula: Formula, x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """formula(x, y) over blocks of the flat array: read x, write y; the two may be the same memory."""
    x = np.asarray(x, order="C")
    y = out if out is not None and out.flags.c_contiguous else np.empty_like(x)
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)

    def part(index: int, of: int) -> None:
        first, last = x.size * index // of, x.size * (index + 1) // of
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(first, last, BLOCK):
                block = slice(start, min(start + BLOCK, last))
                formula(flat_x[block], flat_y[block])

    fork(part, parts(nanoseconds=2.0 * x.size))
    if out is None or out is y:
        return y
    out[...] = y
    return out


def silu(x: np.ndarray, y: np.ndarray) -> None:
    denominator = np.exp(-x)
    denominator += 1
    np.divide(x, denominator, out=y)


def silu_slope(x: np.ndarray, y: np.ndarray) -> None:
    s = 1 / (1 + np.exp(-x))
    np.subtract(1, s, out=y)
    y *= x
    y += 1
    y *= s


# erf(x / sqrt 2) = tanh(x g(x^2)) for a smooth g, so that a polynomial for g gives GELU without a case or a clip. These
# seven terms are its minimax fit for float32; the tanh approximation is its first two, a little rounded.
_EXACT = (0.79788494, 0.036333084, -3.2594951e-5, -5.5306205e-5, 3.9647466e-6, -1.3226354e-7, 1.7561766e-9)
_TANH = (math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715)


def gelu_float32(x: np.ndarray, y: np.ndarray) -> None:
    _half_tanh(x, y, _EXACT)


def gelu_tanh(x: np.ndarray, y: np.ndarray) -> None:
    _half_tanh(x, y, _TANH)


def gelu_slope(x: np.ndarray, y: np.ndarray) -> None:
    """y = Phi(x) + x phi(x), with Phi(x) = gelu(x) / x."""
    (gelu_float64 if x.dtype == np.float64 else gelu_float32)(x, y)
    y /= x
    np.copyto(y, 0.5, where=x == 0)
    density = x * x
    density *= -0.5
    np.exp(density, out=density)
    density *= x
    density *= 1 / math.sqrt(2 * math.pi)
    y += density


def gelu_tanh_slope(x: np.ndarray, y: np.ndarray) -> None:
    """y = (1 + tanh u) / 2 + x u' (1 - tanh(u)^2) / 2, u = a x + b x^3.

    1 - tanh(u)^2 = 4 e / (1 + e)^2 with e = e^-2|u|, which cancels nothing.
    """
    a, b = _TANH
    square = x * x
    u = (a + b * square) * x
    e = np.exp(-2 * np.abs(u))
    np.multiply(x * (a + 3 * b * square), 2 * e / ((1 + e) * (1 + e)), out=y)
    y += 0.5 + 0.5 * np.tanh(u)


def _half_tanh(x: np.ndarray, y: np.ndarray, coefficients: tuple[float, ...]) -> None:
    """y = x (1 + tanh(x P(x^2))) / 2, P by Horner's rule."""
    square = x * x
    p = square * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        p += coefficient
        p *= square
    p += coefficients[0]
    p *= x
    np.tanh(p, out=p)
    p += 1
    p *= 0.5
    np.multiply(p, x, out=y)


# log(erfc(z) e^(z^2) / t) with t = 2 / (2 + z), as a polynomial in 2 t - 1: its Chebyshev series to 10^-17, z >= 0.
_LOG_ERFC = (
    -0.6717940840566923, 0.6726432239776567, 0.04734330684190441, -0.0468956102311753,
    -0.009872689366388684, 0.008824938557060623, 0.001758933557766382, -0.002345812500482853,
    -0.0001462468629421063, 0.000673678795580235, -9.373503465815823e-05, -0.0001743029472030762,
    7.140103219748502e-05, 3.17451797494374e-05, -3.0187948093951486e-05, 1.3772664134464417e-07,
    8.562779099386524e-06, -2.947986876998259e-06, -1.2725805279147717e-06, 1.2500276612569754e-06,
    -1.6817283194044123e-07, -2.495832761719667e-07, 1.5307318366323928e-07, 1.4448658046252676e-09,
    -3.9024931626661816e-08, 1.1172352263623759e-08, 4.013877704214506e-09, -1.8902306008944537e-09,
    6.714920393601979e-12,
)  # fmt: skip


def gelu_float64(x: np.ndarray, y: np.ndarray) -> None:
    """y = x Phi(x), with Phi(-|x|) = erfc(|x| / sqrt 2) / 2 and Phi(|x|) the rest of 1."""
    z = np.abs(x) * math.sqrt(0.5)
    t = 2 / (2 + z)
    s = 2 * t - 1
    p = np.full_like(s, _LOG_ERFC[-1])
    for coefficient in _LOG_ERFC[-2::-1]:
        p *= s
        p += coefficient
    tail = 0.5 * t * np.exp(p - z * z)
    np.multiply(x, np.where(x < 0, tail, 1 - tail), out=y)
