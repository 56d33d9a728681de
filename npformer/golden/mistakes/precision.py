"""Mistakes in precision: rounding of weights alone, of the inputs of each product, or of every stage.

Using 16 or 8 bits on purpose is not a mistake; `compare` has separate budgets for such ports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from npformer.common.halves import HALVES, cut_bits, half, truncated
from npformer.golden.at import At
from npformer.golden.budget import RATIOS, largest_error
from npformer.golden.graph import INNER, parted
from npformer.golden.mistake import Mistake, Rules, Ways
from npformer.golden.port import Port

Round = Callable[[np.ndarray], np.ndarray]


def tf32(array: np.ndarray) -> np.ndarray:
    """Rounds to the 10 fraction bits that graphics cards keep of float32 in TF32 products."""
    return cut_bits(array, 13)


def tf32_cut(array: np.ndarray) -> np.ndarray:
    """Truncates to the bits of `tf32` instead of rounding."""
    return truncated(array, 13)


def held(kind: str, array: np.ndarray) -> bool:
    """Returns whether float16 or bfloat16 represents every number of an array exactly."""
    return bool(np.isfinite(array).all()) and np.array_equal(half(kind, array), array)


def held_before(kind: str, array: np.ndarray, bias: np.ndarray) -> bool:
    """Returns whether every number is a float16 or bfloat16 number plus the bias, added in float32."""
    if array.shape[-1:] != bias.shape or not np.isfinite(array).all():
        return False
    product = array.astype(np.float64) - bias
    return bool((np.abs(half(kind, product.astype(np.float32)) - product) <= np.spacing(np.abs(array))).all())


def half_of(port: Port, budget: float, dtype: str) -> tuple[str, str] | None:
    """Returns the 16-bit type to which a port meant for `dtype` rounded a correct stage, and the rounded part, or None.

    A port may round the product before it adds the bias. budget: the stage's budget for float32.
    """
    bias = port.weights.get(f"{port.stage}.bias")
    for kind in HALVES:
        if not RATIOS[kind] > RATIOS[dtype] or largest_error(port.theirs, port.rightly) > budget * RATIOS[kind]:
            continue
        if all(held(kind, array) for array in port.theirs):
            if not any(held(kind, array.astype(np.float32)) for array in port.rightly):
                return kind, "the whole stage"
        elif bias is not None and all(held_before(kind, array, bias) for array in port.theirs):
            return kind, "the product, before the bias is added"
    return None


def quantized(
    array: np.ndarray, axis: int | tuple[int, ...] | None = None, symmetric: float = 127, bits: int = 8,
    stored: Callable[[np.ndarray], np.ndarray] | None = None, nearest: np.ufunc = np.rint, zero_point: bool = True,
) -> np.ndarray:  # fmt: skip
    """Rounds to the steps of an integer type, and converts back.

    axis: the axis that shares one scale, None for the whole array. symmetric: the step to which the largest absolute
    value maps, with 0 at step 0. If symmetric is 0, the steps range from the smallest to the largest value.
    stored: rounds the scales, with which the steps are converted back. nearest: rounds to whole steps.
    zero_point: False if the step of 0 is not subtracted before the steps are converted back
    """
    low, high = array.min(axis=axis, keepdims=True), array.max(axis=axis, keepdims=True)
    with np.errstate(all="ignore"):
        if symmetric:
            step, zero, first = np.maximum(-low, high) / symmetric, None, -(2 ** (bits - 1))
        else:
            low = np.minimum(low, 0)
            step, first = (np.maximum(high, 0) - low) / (2**bits - 1), 0
            zero = np.rint(-low / step)
        rounded = array / step  # changed in place from here on, because weights are large
        nearest(rounded, out=rounded)
        if zero is not None:
            rounded += zero
        np.clip(rounded, first, first + 2**bits - 1, out=rounded)
        if zero is not None and zero_point:
            rounded -= zero
        rounded *= stored(step) if stored else step
    np.copyto(rounded, 0, where=step == 0)
    return rounded


DECIMALS = range(1, 8)  # float32 holds about seven decimals
BITS = range(2, 9)
GROUPS = (128, 64, 32, 16)  # how many numbers may share one scale
SOME = np.s_[:2, :64]  # the part of an array that is tried first
LEAST = 8  # rounding can be seen only if at least this many numbers share a scale


def rounded(theirs: np.ndarray, ours: np.ndarray) -> str:
    """Describes how the port's numbers are rounded: to decimals, to steps, or to a few values; "" if not rounded."""
    for decimals in DECIMALS:
        if np.abs(theirs - np.round(ours, decimals)).max() <= 1e-6 * np.abs(ours).max():
            return f"rounded to {decimals} decimals"
    scaled: dict[str, tuple[np.ndarray, np.ndarray]] = {"": (theirs.reshape(1, -1), ours.reshape(1, -1))}
    if theirs.ndim == 2:
        scaled |= {" per row": (theirs, ours), " per column": (theirs.T, ours.T)}
        for size in GROUPS:
            for said, a, b in (("columns", theirs, ours), ("rows", theirs.T, ours.T)):
                if a.shape[1] % size == 0 and a.shape[1] > size:
                    scaled[f" per group of {size} {said}"] = a.reshape(-1, size), b.reshape(-1, size)
    for per, (a, b) in scaled.items():
        if a.shape[1] < LEAST:
            continue
        low, high = a.min(axis=1, keepdims=True), a.max(axis=1, keepdims=True)
        if bits := next((bits for bits in BITS if _in_steps(a, b, low, high, bits)), 0):
            return f"rounded to {bits} bits, one scale{per}"
        if all(map(_is_nearest, a, b)):
            return f"rounded to a few values{per}"
    return ""


def _in_steps(theirs: np.ndarray, ours: np.ndarray, low: np.ndarray, high: np.ndarray, bits: int) -> bool:
    """Returns whether each row is the correct one rounded to equal steps, from -max to max or from min to max.

    low, high: the smallest and the largest number of each row
    """
    largest = np.maximum(-low, high)
    for first, steps in (
        (0, largest / (2 ** (bits - 1) - 1)),
        (0, largest / 2 ** (bits - 1)),
        (low, (high - low) / (2**bits - 1)),
    ):
        if (steps <= 0).any():
            continue
        # The steps are first tried on a few numbers, which usually suffice to rule them out.
        if all(_are_steps(theirs[some], ours[some], first, steps) for some in (SOME, ...)):
            return bool((np.abs(theirs - ours) <= 0.51 * steps).mean() > 0.9)
    return False


def _are_steps(theirs: np.ndarray, ours: np.ndarray, first: np.ndarray | int, steps: np.ndarray) -> bool:
    """Returns whether rows have whole steps, at most about one step away from the correct numbers."""
    first, steps = (np.broadcast_to(each, (len(steps), 1))[: len(theirs)] for each in (first, steps))
    number = (theirs - first) / steps
    return bool(np.abs(number - np.rint(number)).max() < 0.01 and (np.abs(theirs - ours) <= 1.01 * steps).all())


def _is_nearest(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Returns whether the port's array has few distinct values, each the one nearest to the correct value."""
    values = np.unique(theirs)
    if not 1 < len(values) <= len(theirs) // 2:
        return False
    borders = (values[1:] + values[:-1]) / 2
    slack = 1e-5 * np.abs(values).max()  # a tie may be rounded either way
    low, high = np.r_[-np.inf, borders - slack], np.r_[borders + slack, np.inf]
    at = np.searchsorted(values, theirs)
    return bool(np.all((low[at] <= ours) & (ours <= high[at])))


#: Quantizations of weights (in, out). torch stores (out, in), so its "per channel" is a column here.
SCHEMES: dict[str, Round] = {
    f"int{bits}, {said}{' with a zero point' if zero else ''}": partial(
        quantized, axis=axis, symmetric=0 if zero else largest, bits=bits
    )
    for bits, most in ((8, 127), (4, 7))
    for said, axis in (("one scale per tensor", None), ("one scale per column", 0), ("one scale per row", 1))
    for zero, largest in ((False, most), (True, 0))
} | {
    "int8, one scale per tensor, largest value at 127.5": partial(quantized, symmetric=127.5),
    "int8, one scale per column, largest value at 127.5": partial(quantized, axis=0, symmetric=127.5),
    "int8, one scale per tensor, largest value at 128": partial(quantized, symmetric=128),
}


def misscaled(array: np.ndarray, axis: int) -> np.ndarray:
    """Rounds a square weight to int8 with one scale along an axis, and converts it back with the other axis's scales.

    A weight that is not square does not change, because its scales do not fit the other axis.
    """
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        return array
    step = np.abs(array).max(axis=axis, keepdims=True) / 127
    made: np.ndarray = np.rint(array / np.where(step == 0, 1, step)) * step.T
    return made


SCALES = "scales of the wrong axis"
MISSCALED: dict[str, Round] = {
    "the scales of columns applied to rows": partial(misscaled, axis=0),
    "the scales of rows applied to columns": partial(misscaled, axis=1),
}


def products(of_x: Round, of_weight: Round, of_product: Round = lambda y: y) -> Rules:
    """Rounds the inputs of each product, x and W, and its result x W."""
    last: list[np.ndarray] = []  # the last weight and its rounded copy, which the next text reuses

    def rounded(weight: np.ndarray) -> np.ndarray:
        if not last or last[0] is not weight:
            last[:] = weight, of_weight(weight)
        return last[1]

    def linear(y: np.ndarray, at: At) -> np.ndarray:
        if at.name == "logits" and at.config.logit_cap:
            return y
        group = "head.output" if at.name == "logits" else at.name
        weight, bias = at.weight(group), at.weight(group, "bias")
        assert weight is not None
        made: np.ndarray = of_product(of_x(at.source) @ rounded(weight))
        return made if bias is None else made + bias

    def scores(y: np.ndarray, at: At) -> np.ndarray:
        q, k = of_x(at.heads("query")), of_x(at.heads("key"))
        return at.scored(of_product(q @ k.swapaxes(-1, -2)) * at.scale, y)

    def context(y: np.ndarray, at: At) -> np.ndarray:
        return of_product(of_x(at("attention.weights")) @ of_x(at.heads("value")))

    linears = ("query", "key", "value", "output")
    inner = (f"*.{name}" for name in INNER)
    others = ("*.ffn.output", "embeddings.project", "pooler", "head.hidden", "head.output", "logits")
    return {
        **dict.fromkeys((*(f"*.attention.{name}" for name in linears), *inner, *others), linear),
        "*.attention.scores": scores,
        "*.attention.context": context,
    }


def _of_weights(port: Port, rounding: Round, linear_only: bool = False) -> Port:
    """Returns the port with rounded matrices; linear_only leaves out the embedding tables."""
    matrices = (name for name in port.weights if name.endswith(".weight") and not name.endswith("norm.weight"))
    tables = ("embeddings.token.", "embeddings.position.", "embeddings.segment.")
    return port.rounding(rounding, (name for name in matrices if not (linear_only and name.startswith(tables))))


def half_precision(port: Port) -> Ways:
    for kind in HALVES:
        rounding = partial(half, kind)
        yield f"{kind}, the weights", port.rounding(rounding, port.weights)
        if sum(port.weights.get(f"{group}.weight", np.zeros(0)).ndim == 2 for group in port.groups) > 1:
            # with one matrix, nothing shows whether others are rounded: "one weight rounded" covers that case
            yield f"{kind}, the weights except norms and biases", _of_weights(port, rounding)
        yield f"{kind}, the products' inputs", products(rounding, rounding)
        yield (f"{kind}, the products' inputs except weights", products(rounding, lambda weight: weight))
        whole = port.ruling(products(rounding, rounding, rounding))
        yield f"{kind}, the products, without the bias", replace(whole, dtype=kind)
        if all(held(kind, array) for array in port.theirs):
            in_half = port.rounding(rounding, port.weights).ruling({"*": lambda y, at, rounding=rounding: rounding(y)})
            yield f"{kind}, every stage", replace(in_half, dtype=kind)
            alone = port.ruling({"*": lambda y, at, rounding=rounding: rounding(y)})
            yield f"{kind}, every stage except weights", replace(alone, dtype=kind)


def tensor_cores(port: Port) -> Ways:
    yield "rounded", products(tf32, tf32)
    yield "cut off", products(tf32_cut, tf32_cut)


def integers(port: Port) -> Ways:
    for decimals in (1, 2, 3, 4):
        rounded = port.rounding(lambda array, decimals=decimals: array.round(decimals), port.weights)
        yield f"to {decimals} decimals, biases too", rounded
    for way, rounding in SCHEMES.items():
        yield way, _of_weights(port, rounding, linear_only=True)
        if port.from_ids:
            yield f"{way}, tables too", _of_weights(port, rounding)


def other_scales(port: Port) -> Ways:
    """Dequantizes one weight of each layer, or all square weights, from int8 with the scales of the wrong axis."""
    own = dict.fromkeys(f"{parted(group)[2]}.weight" for group in port.groups)
    alike = {rest: [name for name in port.weights if parted(name)[2] == rest] for rest in own}
    for way, rounding in MISSCALED.items():
        yield f"{way}, in all weights", _of_weights(port, rounding, linear_only=True)
        for rest, names in alike.items():
            yield f"{way}, in {rest}", port.rounding(rounding, names)


def integer_products(port: Port) -> Ways:
    for bits in (8, 7):
        for way in (
            "int8, one scale per tensor",
            "int8, one scale per column",
            "int8, one scale per tensor, largest value at 127.5",
        ):
            of_x = partial(quantized, symmetric=0, bits=bits)
            yield f"{way}, the other inputs in {bits} bits", products(of_x, SCHEMES[way])


HALF = Mistake(
    "half precision", "weights or stages are rounded to 16 bits; use float32, or compare with --dtype", half_precision
)
MISTAKES = (
    Mistake(
        "tf32 products",
        "TF32 rounds the inputs of float32 products to 10 fraction bits on a graphics card; turn it off",
        tensor_cores,
    ),
    HALF,
    Mistake("quantized weights", "weights are quantized; compare with --dtype int8 if they are meant to be", integers),
    Mistake(SCALES, "each row or column of a quantized weight is converted back with its own scale", other_scales),
    Mistake(
        "quantized weights",
        "the inputs of products are quantized; compare with --dtype int8 if they are meant to be",
        integer_products,
    ),
)
