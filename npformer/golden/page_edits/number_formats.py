"""Number formats of values and weights: each function rounds an array as a program stores it, and converts it back.

Some also make the mistakes of programs: they round toward zero, omit a zero point, use the scale of another group, or
read the bits of one type as another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from npformer.common.halves import half, truncated
from npformer.golden.mistakes.precision import misscaled, quantized, tf32


def _of_floats(kind: str) -> Callable[[Any], np.ndarray]:
    return lambda x: half(kind, np.asarray(x, np.float32)).astype(np.float64)


_float16 = _of_floats("float16")
_bfloat16 = _of_floats("bfloat16")


def bfloat16(x: np.ndarray, toward_zero: bool = False) -> np.ndarray:
    """Rounds to bfloat16, to nearest or toward zero, and converts back. Toward zero, the low 16 bits are cut off."""
    return truncated(np.asarray(x, np.float64), 16) if toward_zero else _bfloat16(x)


def bfloat16_read_as_float16(x: np.ndarray) -> np.ndarray:
    """Reads the bits of a bfloat16 array as float16."""
    bits = np.asarray(_bfloat16(x), np.float32).view(np.uint32) >> 16
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def float16_read_as_bfloat16(x: np.ndarray) -> np.ndarray:
    """Reads the bits of a float16 array as bfloat16."""
    bits = np.asarray(x, np.float16).view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


def float8(x: np.ndarray, largest: float = 448.0, fraction: int = 3, least: int = -6) -> np.ndarray:
    """Rounds to a sign, four bits of exponent and three of fraction, and converts back."""
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**least)))
    step = 2.0 ** (exponent - fraction)
    return np.clip(np.rint(x / step) * step, -largest, largest)


def in_groups(x: np.ndarray, quantise: Callable[[np.ndarray], np.ndarray], size: int = 32) -> np.ndarray:
    """Rounds groups of consecutive numbers of each column, which a linear layer reads as one row of torch's weight."""
    columns = x.mT if x.ndim > 1 else x
    groups = [columns[..., at : at + size] for at in range(0, columns.shape[-1], size)]
    made = np.concatenate([quantise(each) for each in groups], axis=-1)
    return made.mT if x.ndim > 1 else made


def _steps(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.divide(x, step, out=np.zeros_like(x), where=step != 0)


def q8_0(group: np.ndarray) -> np.ndarray:
    """ggml's format of 8 bits: the largest absolute value is step 127. Scales are stored in float16."""
    scale = np.abs(group).max(axis=-1, keepdims=True) / 127
    return np.rint(_steps(group, scale)) * _float16(scale)


def q4_0(group: np.ndarray) -> np.ndarray:
    """ggml's format of 4 bits: the number of largest absolute value is step -8. Scales are stored in float16."""
    at = np.abs(group).argmax(axis=-1)[..., None]
    scale = np.take_along_axis(group, at, axis=-1) / -8
    return (np.clip(np.floor(_steps(group, scale) + 8.5), 0, 15) - 8) * _float16(scale)


def q4_1(group: np.ndarray) -> np.ndarray:
    """ggml's format of 4 bits with a minimum. Scales and minima are stored in float16."""
    low = group.min(axis=-1, keepdims=True)
    scale = (group.max(axis=-1, keepdims=True) - low) / 15
    return np.clip(np.floor(_steps(group - low, scale) + 0.5), 0, 15) * _float16(scale) + _float16(low)


#: The levels of bitsandbytes' NF4: quantiles of a normal distribution. Dettmers et al., 2023, QLoRA, appendix E.
NF4 = np.array(
    [
        -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
        0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
    ]
)  # fmt: skip


def nf4(group: np.ndarray) -> np.ndarray:
    """The nearest of 16 levels, times the largest absolute value."""
    scale = np.abs(group).max(axis=-1, keepdims=True)
    return NF4[np.abs(_steps(group, scale)[..., None] - NF4).argmin(-1)] * scale


def sums_in_float16(x: np.ndarray) -> np.ndarray:
    """Converts an array so that NumPy computes its sums in float16."""
    return np.asarray(x, np.float16)


def product_in_16_bits(
    x: np.ndarray, weight: np.ndarray, kind: str = "float16", fused: bool = False, operands: bool = True, block: int = 1
) -> np.ndarray:
    """x W, (..., in) and (in, out) -> (..., out), with the running sum in 16 bits, as in a plain loop.

    fused: whether a product is added before it is rounded. operands: whether x and W are rounded, too. block: the
    number of products whose sum is added at once
    """
    x, weight = (np.asarray(each, np.float32) for each in (x, weight))
    x, weight = (half(kind, each) for each in (x, weight)) if operands else (x, weight)
    made = np.zeros((*x.shape[:-1], weight.shape[-1]), np.float32)
    for i in range(0, x.shape[-1], block):
        product = x[..., i : i + block] @ weight[..., i : i + block, :]
        made = half(kind, made + (product if fused else half(kind, product)))
    return made.astype(np.float64)


def norm_in_16_bits(
    x: np.ndarray, weight: Any, bias: Any, eps: float, kind: str, steps: str, centred: bool = False
) -> np.ndarray:
    """RMSNorm, or LayerNorm if centred, with some steps rounded to 16 bits, such as "square mean root normed result".

    With "inverse" in steps, x is multiplied by 1 / root.
    """
    chosen = steps.split()

    def rounded(step: str, value: Any) -> Any:
        return half(kind, np.asarray(value, np.float32)).astype(np.float64) if step in chosen else value

    x = rounded("x", x)
    x = rounded("centre", x - rounded("mean", x.mean(axis=-1, keepdims=True))) if centred else x
    mean = rounded("mean", rounded("square", x**2).mean(axis=-1, keepdims=True))
    root = np.sqrt(rounded("sum", mean + eps))
    normed = x * rounded("root", 1 / root) if "inverse" in chosen else x / rounded("root", root)
    made: np.ndarray = rounded("result", rounded("normed", normed) * rounded("weight", weight) + bias)
    return made


def integers(
    x: np.ndarray,
    axis: int | tuple[int, ...] | None = None,
    bits: int = 8,
    stored: Any = None,
    toward_zero: bool = False,
    off: int = 0,
) -> np.ndarray:
    """Rounds to integers with a symmetric scale for an array, row or column, and converts back.

    off: a number that is added to all integers, as by a wrong zero point
    """
    most = 2 ** (bits - 1) - 1
    made = quantized(x, axis, most, bits, stored, np.trunc if toward_zero else np.rint)
    return made + off * np.abs(x).max(axis=axis, keepdims=True) / most if off else made


def integers_in_groups(
    x: np.ndarray, bits: int = 8, stored: Any = None, size: int = 32, scale_of: int = 0, toward_zero: bool = False,
    off: int = 0, strided: bool = False,
) -> np.ndarray:  # fmt: skip
    """Rounds to integers with a scale for each group.

    scale_of: how many groups later the scale for converting back is taken from, wrapping around; -1 is the group
    before. strided: row r belongs to group r % G of G groups, but is
    converted back with the scale of group r // size, as if the file did not say to which group a row belongs
    """
    n = len(x) // size if strided and len(x) % size == 0 else 1
    order = np.arange(len(x)).reshape(-1, n).T.ravel()  # the rows of each group after one another
    made, scales = np.empty_like(x), np.empty_like(x)
    made[order] = in_groups(x[order], lambda group: integers(group, -1, bits, stored, toward_zero, off), size)
    if not (scale_of or strided):
        return made
    largest = in_groups(
        np.abs(x[order]), lambda group: np.broadcast_to(group.max(-1, keepdims=True), group.shape), size
    )
    scales[order] = largest
    return _steps(made, scales) * np.roll(largest, -scale_of * size, axis=-2)


def in_range(x: np.ndarray, largest: float = 1.0, steps: int = 127) -> np.ndarray:
    """Rounds to whole multiples of largest / steps, and clips at -largest and largest, as with a fixed scale."""
    return np.clip(np.rint(x * (steps / largest)), -steps, steps) * (largest / steps)


def unsigned(
    x: np.ndarray, axis: int | tuple[int, ...] | None = None, zero_point: bool = True, bits: int = 8
) -> np.ndarray:
    """Rounds to integers from 0 to 2^bits - 1 with a zero point, and converts back, with or without subtracting it."""
    return quantized(x, axis, 0, bits, zero_point=zero_point)


def int8_misscaled(x: np.ndarray, axis: int = 0) -> np.ndarray:
    """Rounds to int8 with one scale along an axis; a square weight is converted back with the other axis's scales."""
    return misscaled(x, axis) if x.ndim == 2 and x.shape[0] == x.shape[1] else integers(x, axis)


def unsigned_in_groups(
    x: np.ndarray, bits: int = 8, size: int = 32, zero_point: bool = True, off_by_one: bool = False
) -> np.ndarray:
    """Rounds to integers with a scale and a zero point for each group, and converts back.

    off_by_one: the zero point is too low by 1, as in files that store it minus 1
    """
    made = in_groups(x, lambda group: unsigned(group, -1, zero_point, bits), size)
    if not off_by_one:
        return made

    def steps(group: np.ndarray) -> np.ndarray:
        low, high = np.minimum(group.min(-1, keepdims=True), 0), np.maximum(group.max(-1, keepdims=True), 0)
        return np.broadcast_to((high - low) / (2**bits - 1), group.shape)

    return made + in_groups(x, steps, size)


def _in_whole_groups(x: np.ndarray, size: int, shape: tuple[int, int]) -> np.ndarray:
    """Transposes the rows of each whole group of `size` rows, read as an array of this shape; the rest stays."""
    whole = len(x) // size * size
    groups = x[:whole].reshape(-1, *shape, x.shape[-1])
    return np.concatenate([np.moveaxis(groups, 1, 2).reshape(whole, x.shape[-1]), x[whole:]])


def nibbles_swapped(x: np.ndarray) -> np.ndarray:
    """Exchanges neighbouring numbers of each column, as if the low four bits of a byte held the second number."""
    order = np.arange(len(x)) ^ 1
    return x[np.where(order < len(x), order, len(x) - 1)]


def nibbles_interleaved(x: np.ndarray, size: int = 32) -> np.ndarray:
    """Reads a group whose bytes hold numbers i and i + size / 2 as if they held numbers 2 i and 2 i + 1."""
    size = min(size, len(x) // 2 * 2)
    return _in_whole_groups(x, size, (2, size // 2))


def nibbles_halved(x: np.ndarray, size: int = 32) -> np.ndarray:
    """Reads a group whose bytes hold numbers 2 i and 2 i + 1 as if they held numbers i and i + size / 2."""
    size = min(size, len(x) // 2 * 2)
    return _in_whole_groups(x, size, (size // 2, 2))


#: The functions that edits call, by name. int8 has one scale for an array, and the others have one for each row,
#: column or group of 32 numbers.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "float16": _float16,
    "bfloat16": bfloat16,
    "bfloat16_read_as_float16": bfloat16_read_as_float16,
    "float16_read_as_bfloat16": float16_read_as_bfloat16,
    "tf32": tf32,
    "float8": float8,
    "float8_e5m2": partial(float8, largest=57344.0, fraction=2, least=-14),
    "int8": integers,
    "int8_rows": partial(integers, axis=-1),
    "int8_columns": partial(integers, axis=-2),
    "int8_tokens": partial(integers, axis=(-3, -1)),
    "int8_heads": partial(integers, axis=(-2, -1)),
    "uint8": unsigned,
    "uint8_rows": partial(unsigned, axis=-1),
    "uint8_columns": partial(unsigned, axis=-2),
    "uint8_heads": partial(unsigned, axis=(-2, -1)),
    "int4_rows": partial(integers, axis=-1, bits=4),
    "uint4_rows": partial(unsigned, axis=-1, bits=4),
    "int4_columns": partial(integers, axis=-2, bits=4),
    "q8_0": partial(in_groups, quantise=q8_0),
    "q4_0": partial(in_groups, quantise=q4_0),
    "q4_1": partial(in_groups, quantise=q4_1),
    "int8_groups": integers_in_groups,
    "int4_groups": partial(integers_in_groups, bits=4),
    "uint4_groups": partial(unsigned_in_groups, bits=4),
    "in_range": in_range,
    "nf4": partial(in_groups, quantise=nf4, size=64),
    "nibbles_swapped": nibbles_swapped,
    "nibbles_interleaved": nibbles_interleaved,
    "nibbles_halved": nibbles_halved,
    "sums_in_float16": sums_in_float16,
    "int8_misscaled": int8_misscaled,
    "norm_in_16_bits": norm_in_16_bits,
    "product_in_16_bits": product_in_16_bits,
}
