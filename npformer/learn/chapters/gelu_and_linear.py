"""Chapter 1, GELU and linear layers."""

from __future__ import annotations

import math

import numpy as np

from npformer.activations import relu, silu
from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn
from npformer.learn.right import gelu, gelu_tanh

Array = np.ndarray


# --- gelu -------------------------------------------------------------------------------------------------------------


def _phi(x: Array) -> Array:
    """The standard normal distribution function Phi(x) = gelu(x) / x, with its limit at 0."""
    return np.where(x == 0, 0.5, gelu(x) / np.where(x == 0, 1, x))


def _erf(x: Array) -> Array:
    """erf(x) = 2 Phi(x sqrt(2)) - 1."""
    return 2 * _phi(x * 2**0.5) - 1


def _density(x: Array) -> Array:
    """The density of the standard normal distribution."""
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


GELU = Exercise(
    "gelu",
    right.gelu,
    lambda: [(array([-2, -1, 0, 1, 2]),), (drawn(1, 3, 4) * 2,), (array([[-30, 30, 5, -5]]),)],
    (
        "np.vectorize(math.erf) is a function that applies erf to each number of an array.",
        "Apply erf to x / sqrt(2). Use math.sqrt, and .astype(x.dtype) for a float32 result.",
        "y = x / 2 * (1 + erf(x / sqrt(2))).",
    ),
    ("npformer.plain.formulas:gelu",),
    (
        Slip(
            "tanh form",
            "This is the tanh approximation of GELU. The exact form uses erf, and differs by up to 0.0005.",
            gelu_tanh,
        ),
        Slip(
            "quick GELU",
            "This is x sigmoid(1.702 x), a rough approximation of GELU. The exact form uses erf.",
            lambda x: x / (1 + np.exp(-1.702 * x)),
        ),
        Slip(
            "not multiplied by x",
            "This is Phi(x). GELU is x Phi(x).",
            _phi,
        ),
        Slip(
            "density of the normal distribution",
            "This is x times the density exp(-x^2 / 2) / sqrt(2 pi). Phi is the cumulative distribution: use erf.",
            lambda x: x * _density(x),
        ),
        Slip(
            "not halved",
            "This is x (1 + erf(x / sqrt(2))). GELU is half of that.",
            lambda x: 2 * gelu(x),
        ),
        Slip(
            "erf(x) instead of erf(x / sqrt(2))",
            "erf is applied to x. It should be applied to x / sqrt(2).",
            lambda x: x * (1 + _erf(x)) / 2,
        ),
        Slip(
            "erf(x / 2) instead of erf(x / sqrt(2))",
            "erf is applied to x / 2. It should be applied to x / sqrt(2).",
            lambda x: x * (1 + _erf(x / 2)) / 2,
        ),
        Slip(
            "erf(x sqrt(2)) instead of erf(x / sqrt(2))",
            "erf is applied to x sqrt(2). It should be applied to x / sqrt(2).",
            lambda x: x * (1 + _erf(x * 2**0.5)) / 2,
        ),
        Slip(
            "erf(x) / sqrt(2) instead of erf(x / sqrt(2))",
            "erf is applied to x, and the result is divided by sqrt(2). Divide x by sqrt(2), inside erf.",
            lambda x: x * (1 + _erf(x) / 2**0.5) / 2,
        ),
        Slip(
            "1 left out",
            "This is x erf(x / sqrt(2)) / 2. The 1 in Phi(x) = (1 + erf(x / sqrt(2))) / 2 is missing.",
            lambda x: gelu(x) - x / 2,
        ),
        Slip(
            "brackets",
            "Only erf is halved. Halve 1 + erf(x / sqrt(2)): put it in brackets.",
            lambda x: x * (1 + _erf(x / 2**0.5) / 2),
        ),
        Slip(
            "brackets",
            "erf is added to x / 2. Add it to 1, and multiply the sum by x / 2: put 1 + erf in brackets.",
            lambda x: x / 2 + _erf(x / 2**0.5),
        ),
        Slip("relu", "This is relu, max(x, 0). GELU is x Phi(x).", relu),
        Slip("silu", "This is SiLU, x sigmoid(x). GELU is x Phi(x).", silu),
    ),
    constants=(
        Constant(
            "erf of a wrong multiple of x",
            "erf is applied to x times {number}. It should be applied to x / sqrt(2).",
            lambda number: lambda x: x * (1 + _erf(number * x)) / 2,
        ),
        Constant(
            "erf multiplied",
            "erf(x / sqrt(2)) is multiplied by {number}. It should be added to 1 as it is.",
            lambda number: lambda x: x * (1 + number * _erf(x / 2**0.5)) / 2,
            (1.0, -1.0),
        ),
        Constant(
            "sigmoid",
            "This is x sigmoid({number} x), an approximation of GELU. The exact form uses erf.",
            lambda number: lambda x: x / (1 + np.exp(-number * x)),
        ),
    ),
)


# --- linear -----------------------------------------------------------------------------------------------------------

LINEAR = Exercise(
    "linear",
    right.linear,
    lambda: [
        (array([[1, 2], [0, 1]]), array([[1, 2], [3, 4]]), array([0.5, 1])),
        (drawn(1, 4, 3), drawn(2, 3, 2), drawn(3, 2)),
        (drawn(4, 3), drawn(5, 3, 2), drawn(6, 2)),
        (drawn(7, 2, 3, 4), drawn(8, 4, 4), drawn(9, 4)),
    ],
    (
        "@ multiplies matrices.",
        "The weight is (in, out), so it needs no transpose.",
        "Multiply x by the weight with @, and add the bias: NumPy adds it to every row.",
    ),
    ("npformer.plain.formulas:linear",),
    (
        Slip("bias left out", "bias is not added.", lambda x, weight, bias: x @ weight),
        Slip(
            "product left out",
            "Only bias is returned, for every row. It should be added to x @ weight.",
            lambda x, weight, bias: 0 * (x @ weight) + bias,
        ),
        Slip(
            "weight transposed",
            "x is multiplied by the transpose of weight, as in torch. Here weight is (in, out) and needs no transpose.",
            lambda x, weight, bias: x @ weight.T + bias,
        ),
        Slip(
            "weight @ x",
            "The product is weight @ x. It should be x @ weight, which multiplies each row of x by the weight.",
            lambda x, weight, bias: weight @ x + bias,
        ),
        Slip(
            "transpose of the product",
            "The product is weight.T @ x.T, the transpose of x @ weight.",
            lambda x, weight, bias: weight.T @ x.T + bias,
        ),
        Slip(
            "bias subtracted",
            "bias is subtracted. It should be added.",
            lambda x, weight, bias: x @ weight - bias,
        ),
        Slip(
            "bias added twice",
            "bias is added twice.",
            lambda x, weight, bias: x @ weight + 2 * bias,
        ),
        Slip(
            "bias added to x",
            "bias is added to x, before the product. It should be added to the product.",
            lambda x, weight, bias: (x + bias) @ weight,
        ),
        Slip(
            "bias added to the weight",
            "bias is added to weight, before the product. It should be added to the product.",
            lambda x, weight, bias: x @ (weight + bias),
        ),
        Slip(
            "bias multiplied",
            "The product is multiplied by bias. bias should be added to the product.",
            lambda x, weight, bias: x @ weight * bias,
        ),
    ),
)
