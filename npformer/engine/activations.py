"""Activations, named as in torch.nn.functional. Each backward function is directly below its activation.

A formula with several steps is a function `_name(x, y)` that writes its result to y, which may be x itself. `in_blocks`
applies it to a whole array. `_name_slope` computes the derivative of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.tiles import in_blocks


def relu(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0, out=out)


def relu_backward(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Backward of `relu`: dx = grad where x > 0, else 0. At x = 0, the slope is 0, as in torch."""
    return grad * (x > 0)


def tanh(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """(e^x - e^-x) / (e^x + e^-x)."""
    return np.tanh(x, out=out)


def tanh_backward(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Backward of `tanh`: dx = grad (1 - tanh(x)^2)."""
    y = np.tanh(x)
    return grad * (1 - y * y)


def soft_cap(x: np.ndarray, cap: float, out: np.ndarray | None = None) -> np.ndarray:
    """cap * tanh(x / cap): bounded by -cap and cap, and close to x near 0. Gemma Team, 2024, Gemma 2, section 2."""
    y = np.divide(x, cap, out=out)
    np.tanh(y, out=y)
    y *= cap
    return y


def soft_cap_backward(grad: np.ndarray, x: np.ndarray, cap: float) -> np.ndarray:
    """Backward of `soft_cap`: dx = grad (1 - tanh(x / cap)^2)."""
    y = np.tanh(x / cap)
    np.subtract(1, np.square(y, out=y), out=y)
    return np.multiply(grad, y, out=y)


def silu(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """x / (1 + exp(-x)), also called swish. Hendrycks and Gimpel, 2016, section 2.

    silu(inf) is inf. silu(-inf) is NaN, as in torch, although the limit is 0.
    """
    return in_blocks(_silu, x, out)


def silu_backward(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Backward of `silu`, with s = 1 / (1 + exp(-x)): dx = grad s (1 + x (1 - s))."""
    slope = in_blocks(_silu_slope, x)
    return np.multiply(grad, slope, out=slope)


def _silu(x: np.ndarray, y: np.ndarray) -> None:
    denominator = np.exp(-x)
    denominator += 1
    np.divide(x, denominator, out=y)  # x / (1 + exp(-x))


def _silu_slope(x: np.ndarray, y: np.ndarray) -> None:
    s = 1 / (1 + np.exp(-x))
    np.subtract(1, s, out=y)
    y *= x
    y += 1
    y *= s  # s * (1 + x * (1 - s))


# --- gelu ------------------------------------------------------------------------------------------------------------


def gelu(x: np.ndarray, approximate: str = "none", out: np.ndarray | None = None) -> np.ndarray:
    """x Phi(x), where Phi(x) = (1 + erf(x / sqrt(2))) / 2. Hendrycks and Gimpel, 2016, section 2.

    With approximate="tanh": x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. The absolute error is at most
    2 * 2^-23 |x| in float32 and 4 * 2^-52 |x| in float64. gelu(inf) is inf. gelu(-inf) is NaN, as in torch.
    """
    if approximate == "tanh":
        return in_blocks(_gelu_tanh, x, out)
    if approximate != "none":
        raise NpformerError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')
    return in_blocks(_gelu, x, out)


def gelu_backward(grad: np.ndarray, x: np.ndarray, approximate: str = "none") -> np.ndarray:
    """Backward of `gelu`: dx = grad (Phi(x) + x phi(x)), where phi is the normal density.

    With approximate="tanh", dx is grad times the derivative of the approximation.
    """
    slope = in_blocks(_gelu_tanh_slope if approximate == "tanh" else _gelu_slope, x)
    return np.multiply(grad, slope, out=slope)


def gelu_tanh(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """gelu(x, approximate="tanh"), which `Config` calls "gelu_tanh"."""
    return gelu(x, "tanh", out)


def gelu_tanh_backward(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Backward of `gelu_tanh`: gelu_backward(grad, x, approximate="tanh")."""
    return gelu_backward(grad, x, "tanh")


# NumPy has no erf, but erf(x / sqrt 2) = tanh(x P(x^2)) for a smooth function P. A polynomial that approximates P gives
# GELU without branches or clipping. These seven coefficients are a minimax fit of P for float32. The first two are
# close to a and b of the paper's approximation, sqrt(2 / pi) (x + 0.044715 x^3) = x (a + b x^2).
_EXACT = (0.79788494, 0.036333084, -3.2594951e-5, -5.5306205e-5, 3.9647466e-6, -1.3226354e-7, 1.7561766e-9)
_TANH = (math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715)


def _gelu(x: np.ndarray, y: np.ndarray) -> None:
    """y = x (1 + erf(x / sqrt(2))) / 2."""
    if x.dtype == np.float64:
        _gelu_by_erfc(x, y)
    else:
        _gelu_by_tanh(x, y, _EXACT)


def _gelu_tanh(x: np.ndarray, y: np.ndarray) -> None:
    """y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    _gelu_by_tanh(x, y, _TANH)


def _gelu_by_tanh(x: np.ndarray, y: np.ndarray, coefficients: tuple[float, ...]) -> None:
    """y = x (1 + tanh(x P(x^2))) / 2, with P evaluated by Horner's rule."""
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
    np.multiply(p, x, out=y)  # x * 0.5 * (1 + tanh(x * P(x * x)))


def _gelu_slope(x: np.ndarray, y: np.ndarray) -> None:
    """y = Phi(x) + x phi(x), with Phi(x) = gelu(x) / x."""
    _gelu(x, y)
    y /= x
    np.copyto(y, 0.5, where=x == 0)
    density = x * x
    density *= -0.5
    np.exp(density, out=density)
    density *= x
    density *= 1 / math.sqrt(2 * math.pi)
    y += density  # Phi(x) + x * exp(-x * x / 2) / sqrt(2 * pi)


def _gelu_tanh_slope(x: np.ndarray, y: np.ndarray) -> None:
    """y = (1 + tanh u) / 2 + x u' (1 - tanh(u)^2) / 2, with u = a x + b x^3.

    To avoid cancellation, 1 - tanh(u)^2 is computed as 4 e / (1 + e)^2 with e = exp(-2 |u|).
    """
    a, b = _TANH
    square = x * x
    u = (a + b * square) * x
    e = np.exp(-2 * np.abs(u))
    np.multiply(x * (a + 3 * b * square), 2 * e / ((1 + e) * (1 + e)), out=y)
    y += 0.5 + 0.5 * np.tanh(u)


# Coefficients of log(erfc(z) e^(z^2) / t) as a polynomial in 2 t - 1, where t = 2 / (2 + z) and z >= 0. The polynomial
# is a Chebyshev series without terms smaller than 10^-17.
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


def _gelu_by_erfc(x: np.ndarray, y: np.ndarray) -> None:
    """y = x Phi(x), from Phi(-|x|) = erfc(|x| / sqrt 2) / 2 and Phi(|x|) = 1 - Phi(-|x|)."""
    z = np.abs(x) * math.sqrt(0.5)
    t = 2 / (2 + z)
    s = 2 * t - 1
    p = np.full_like(s, _LOG_ERFC[-1])
    for coefficient in _LOG_ERFC[-2::-1]:
        p *= s
        p += coefficient
    tail = 0.5 * t * np.exp(p - z * z)
    np.multiply(x, np.where(x < 0, tail, 1 - tail), out=y)


ACTIVATIONS: dict[str, Callable[..., np.ndarray]] = {
    "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "silu": silu, "tanh": tanh,
}  # fmt: skip
BACKWARDS: dict[Callable[..., np.ndarray], Callable[..., np.ndarray]] = {
    gelu: gelu_backward, gelu_tanh: gelu_tanh_backward, relu: relu_backward, silu: silu_backward, tanh: tanh_backward,
}  # fmt: skip
