"""Chapter 1: embeddings, layer norm, GELU and linear layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npformer.activations import relu, silu
from npformer.functions import layer_norm as normed
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn
from npformer.learn.right import gelu, gelu_tanh

Array = np.ndarray


# --- embeddings -------------------------------------------------------------------------------------------------------


def _embeddings_cases() -> list[tuple[Any, ...]]:
    return [
        (np.array([2, 0, 2]), array([[1, 2], [3, 4], [5, 6]]), array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])),
        (np.array([1, 0]), drawn(1, 4, 3), drawn(2, 6, 3), 3),
        (np.array([3, 3, 1, 0]), drawn(3, 4, 3), drawn(4, 5, 3)),
    ]


EMBEDDINGS = Exercise(
    "embeddings",
    right.embeddings,
    _embeddings_cases,
    (
        "An array can be indexed with an array of integers: table[ids] has a row for each id.",
        "The positions of the tokens are start, start + 1, ... Make them with np.arange.",
        "Look up the rows of both tables, the one with ids and the other with the positions, and add them.",
    ),
    ("npformer.embeddings:embeddings", "npformer.functions:embedding"),
    (
        Slip(
            "positions from 1",
            "The first token has position start + 1 here. Positions are counted from 0: the first one is start.",
            lambda ids, token, position, start=0: token[ids] + position[start + 1 + np.arange(len(ids))],
        ),
        Slip(
            "positions from 1, whatever start is",
            "The first token always has position 1. Its position should be start, which is 0 for a whole text.",
            lambda ids, token, position, start=0: token[ids] + position[1 : len(ids) + 1],
        ),
        Slip(
            "positions end before start",
            "The first token has position start - 1 here. The first position should be start.",
            lambda ids, token, position, start=0: token[ids] + position[start - 1 + np.arange(len(ids))],
        ),
        Slip(
            "start ignored",
            "The positions begin at 0 even when start is larger. They should be start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[: len(ids)],
        ),
        Slip(
            "positions left out",
            "Only the rows of the tokens are returned. The rows of their positions should be added to them.",
            lambda ids, token, position, start=0: token[ids],
        ),
        Slip(
            "tokens left out",
            "Only the rows of the positions are returned. They should be added to the rows of the tokens.",
            lambda ids, token, position, start=0: position[start + np.arange(len(ids))],
        ),
        Slip(
            "positions looked up by token id",
            "The rows of the position table are those of the token ids. They should be the rows start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[ids],
        ),
        Slip(
            "positions looked up by token id and start",
            "The rows of the position table are start + ids. They should be start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[start + ids],
        ),
        Slip(
            "one position for all tokens",
            "Every token gets the position start. Each token has its own: start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[start],
        ),
        Slip(
            "tables multiplied",
            "The rows of the two tables are multiplied. They should be added.",
            lambda ids, token, position, start=0: token[ids] * position[start + np.arange(len(ids))],
        ),
        Slip(
            "tokens scaled by sqrt(D)",
            "The rows of the tokens are multiplied by sqrt(D), as in the Transformer of 2017. Here they should "
            "be added as they are.",
            lambda ids, token, position, start=0: (
                token[ids] * token.shape[1] ** 0.5 + position[start + np.arange(len(ids))]
            ),
        ),
    ),
)


# --- layer norm -------------------------------------------------------------------------------------------------------


def _layer_norm_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2, 6], [0, 4, 8]]), array([1, 1, 2]), array([0, 1, 0.5])),
        (drawn(1, 4, 4), array([0.5, 1, 2, -1]), drawn(2, 4), 0.25),
        (drawn(3, 3, 4) / 500, array([1, 2, 3, 4]), drawn(4, 4)),  # of a variance near common values of eps
        (drawn(5, 2, 3, 4), array([1, 2, 3, 4]), drawn(6, 4)),
        (drawn(7, 4), array([1, 2, 3, 4]), drawn(8, 4)),
    ]


def _over_deviation(x: Array, eps: float, axis: Any = -1, ddof: int = 0) -> Array:
    """Normalises with the mean and variance over these axes."""
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True, ddof=ddof) + eps)


LAYER_NORM = Exercise(
    "layer_norm",
    right.layer_norm,
    _layer_norm_cases,
    (
        "Mean and variance are computed for each row on its own: over the last axis, -1.",
        "keepdims=True keeps the last axis with size 1, so that the mean of each row can be subtracted from the row.",
        "Subtract the mean. The variance is the mean of the squares of that. Add eps, take the root, divide by it, "
        "multiply by weight, add bias.",
    ),
    ("npformer.functions:layer_norm",),
    (
        Slip(
            "unbiased variance",
            "The variance divides by D - 1. In a layer norm it divides by D.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, ddof=1) * weight + bias,
        ),
        Slip(
            "eps outside the root",
            "eps is added to the root of the variance. It should be added to the variance, below the root.",
            lambda x, weight, bias, eps=1e-12: (
                (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) * weight + bias
            ),
        ),
        Slip(
            "eps ignored",
            "The argument eps is not used. It should be added to the variance, below the root.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, 1e-12) * weight + bias,
        ),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, whatever the argument is. Use the argument, which is 1e-12 by default.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, 1e-5) * weight + bias,
        ),
        Slip(
            "another default of eps",
            "eps is 1e-5 by default. The default is 1e-12, as in BERT.",
            lambda x, weight, bias, eps=1e-5: _over_deviation(x, eps) * weight + bias,
        ),
        Slip(
            "divided by the variance",
            "x - E[x] is divided by the variance plus eps. It should be divided by the square root of that.",
            lambda x, weight, bias, eps=1e-12: (
                (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) * weight + bias
            ),
        ),
        Slip(
            "mean not subtracted",
            "x is divided by sqrt(Var[x] + eps), but its mean is not subtracted first.",
            lambda x, weight, bias, eps=1e-12: x / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias,
        ),
        Slip(
            "weight + 1",
            "The result is multiplied by 1 + weight. It should be multiplied by weight.",
            lambda x, weight, bias, eps=1e-12: right.layer_norm(x, 1 + weight, bias, eps),
        ),
        Slip(
            "RMS norm",
            "x is divided by the root of its mean square, which is RMSNorm. A layer norm subtracts the mean first.",
            lambda x, weight, bias, eps=1e-12: x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight + bias,
        ),
        Slip(
            "mean square for the variance",
            "The mean of x^2 takes the place of the variance. The variance is the mean of (x - E[x])^2.",
            lambda x, weight, bias, eps=1e-12: (
                (x - x.mean(-1, keepdims=True)) / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight + bias
            ),
        ),
        Slip(
            "not divided by the deviation",
            "The mean is subtracted, but the result is not divided by sqrt(Var[x] + eps).",
            lambda x, weight, bias, eps=1e-12: (x - x.mean(-1, keepdims=True)) * weight + bias,
        ),
        Slip(
            "over the first axis",
            "Mean and variance are those of each column, over axis 0. They should be those of each row, over the "
            "last axis.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, axis=0) * weight + bias,
        ),
        Slip(
            "over axis 1",
            "Mean and variance are computed over axis 1. That is the last axis of a matrix only: use axis -1.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, axis=1) * weight + bias,
        ),
        Slip(
            "over the whole array",
            "Mean and variance are those of all numbers together. Each row has its own: over the last axis.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, axis=None) * weight + bias,
        ),
        Slip(
            "variance over the whole array",
            "The variance is that of all numbers together. Each row has its own, like the mean: over the last axis.",
            lambda x, weight, bias, eps=1e-12: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var() + eps) * weight + bias,
        ),
        Slip(
            "mean over the whole array",
            "The mean is that of all numbers together. Each row has its own, like the variance: over the last axis.",
            lambda x, weight, bias, eps=1e-12: (x - x.mean()) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias,
        ),
        Slip(
            "weight left out",
            "The result is not multiplied by weight.",
            lambda x, weight, bias, eps=1e-12: normed(x, eps=eps) + bias,
        ),
        Slip(
            "bias left out",
            "bias is not added.",
            lambda x, weight, bias, eps=1e-12: normed(x, weight, eps=eps),
        ),
        Slip(
            "weight and bias left out",
            "The result is not multiplied by weight, and bias is not added.",
            lambda x, weight, bias, eps=1e-12: normed(x, eps=eps),
        ),
        Slip(
            "weight and bias exchanged",
            "The result is multiplied by bias, and weight is added. Exchange the two.",
            lambda x, weight, bias, eps=1e-12: normed(x, bias, weight, eps),
        ),
        Slip(
            "bias added before the weight",
            "bias is added before the multiplication by weight. It should be added after it.",
            lambda x, weight, bias, eps=1e-12: (normed(x, eps=eps) + bias) * weight,
        ),
    ),
)


# --- gelu -------------------------------------------------------------------------------------------------------------


def _phi(x: Array) -> Array:
    """The normal distribution, x Phi(x) / x with its limit at 0."""
    return np.where(x == 0, 0.5, gelu(x) / np.where(x == 0, 1, x))


def _erf(x: Array) -> Array:
    """erf(x) = 2 Phi(x sqrt(2)) - 1."""
    return 2 * _phi(x * 2**0.5) - 1


def _density(x: Array) -> Array:
    """The density of the normal distribution."""
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


GELU = Exercise(
    "gelu",
    right.gelu,
    lambda: [(array([-2, -1, 0, 1, 2]),), (drawn(1, 3, 4) * 2,), (array([[-30, 30, 5, -5]]),)],
    (
        "np.vectorize(math.erf) is a function that takes erf of each number of an array.",
        "The argument of erf is x / sqrt(2). Use math.sqrt, and .astype(x.dtype) for a float32 result.",
        "y is half of x, times 1 plus erf(x / sqrt(2)).",
    ),
    ("npformer.activations:gelu", "npformer.activations:_gelu"),
    (
        Slip(
            "tanh form",
            "This is the tanh approximation of GELU. The exact form computes with erf, and differs by up to 0.0005.",
            gelu_tanh,
        ),
        Slip(
            "quick GELU",
            "This is x sigmoid(1.702 x), a rough approximation of GELU. The exact form computes with erf.",
            lambda x: x / (1 + np.exp(-1.702 * x)),
        ),
        Slip(
            "not multiplied by x",
            "This is Phi(x). GELU is x Phi(x).",
            _phi,
        ),
        Slip(
            "density of the normal distribution",
            "This is x times exp(-x^2 / 2) / sqrt(2 pi), the density. Phi is the distribution: compute it with erf.",
            lambda x: x * _density(x),
        ),
        Slip(
            "not halved",
            "This is x (1 + erf(x / sqrt(2))). Phi(x) is half of the bracket.",
            lambda x: 2 * gelu(x),
        ),
        Slip(
            "erf(x) for erf(x / sqrt(2))",
            "erf is taken of x. It should be taken of x / sqrt(2).",
            lambda x: x * (1 + _erf(x)) / 2,
        ),
        Slip(
            "erf(x / 2) for erf(x / sqrt(2))",
            "erf is taken of x / 2. It should be taken of x / sqrt(2).",
            lambda x: x * (1 + _erf(x / 2)) / 2,
        ),
        Slip(
            "erf(x sqrt(2)) for erf(x / sqrt(2))",
            "erf is taken of x sqrt(2). It should be taken of x / sqrt(2).",
            lambda x: x * (1 + _erf(x * 2**0.5)) / 2,
        ),
        Slip(
            "1 left out",
            "This is x erf(x / sqrt(2)) / 2. The 1 in Phi(x) = (1 + erf(x / sqrt(2))) / 2 is missing.",
            lambda x: gelu(x) - x / 2,
        ),
        Slip("relu", "This is relu, max(x, 0). GELU is x Phi(x).", relu),
        Slip("silu", "This is SiLU, x sigmoid(x). GELU is x Phi(x).", silu),
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
        "Multiply x by the weight with @ and add the bias, which is added to every row.",
    ),
    ("npformer.functions:linear",),
    (
        Slip("bias left out", "bias is not added.", lambda x, weight, bias: x @ weight),
        Slip(
            "weight transposed",
            "x is multiplied by the transpose of weight, as in torch. Here weight is (in, out), without a transpose.",
            lambda x, weight, bias: x @ weight.T + bias,
        ),
        Slip(
            "weight @ x",
            "The product is weight @ x. It should be x @ weight: each row of x is multiplied by the weight.",
            lambda x, weight, bias: weight @ x + bias,
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
            "bias multiplied",
            "The product is multiplied by bias. bias is added to it.",
            lambda x, weight, bias: x @ weight * bias,
        ),
    ),
)
