"""Chapter 1, embeddings and layer norm. `gelu_and_linear.py` has the rest of the chapter."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.functions import layer_norm as normed
from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn

Array = np.ndarray


# --- embeddings -------------------------------------------------------------------------------------------------------


def _embeddings_cases() -> list[tuple[Any, ...]]:
    return [
        (np.array([2, 0, 2]), array([[1, 2], [3, 4], [5, 6]]), array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])),
        (np.array([1, 0]), drawn(1, 4, 3), drawn(2, 6, 3), 3),
        (np.array([3, 3, 1, 0]), drawn(3, 4, 3), drawn(4, 4, 3)),
    ]


EMBEDDINGS = Exercise(
    "embeddings",
    right.embeddings,
    _embeddings_cases,
    (
        "An array can be indexed with an array of integers: table[ids] has a row for each id.",
        "The positions of the tokens are start, start + 1, ... Make them with np.arange.",
        "Index the token table with the ids and the position table with the positions, and add the two results.",
    ),
    ("npformer.embeddings:embeddings", "npformer.functions:embedding"),
    (
        Slip(
            "positions from 1",
            "The first token has position start + 1 here. The first position should be start.",
            lambda ids, token, position, start=0: token[ids] + position[start + 1 + np.arange(len(ids))],
        ),
        Slip(
            "positions from 1, whatever start is",
            "The first token always has position 1. Its position should be start, which is 0 for a whole text.",
            lambda ids, token, position, start=0: token[ids] + position[1 : len(ids) + 1],
        ),
        Slip(
            "positions begin before start",
            "The first token has position start - 1 here. The first position should be start.",
            lambda ids, token, position, start=0: token[ids] + position[start - 1 + np.arange(len(ids))],
        ),
        Slip(
            "start ignored",
            "The positions begin at 0 even when start is larger. They should be start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[: len(ids)],
        ),
        Slip(
            "positions end too early",
            "The position rows are start ... len(ids) - 1. They should end at start + len(ids) - 1.",
            lambda ids, token, position, start=0: token[ids] + position[start : len(ids)],
        ),
        Slip(
            "positions do not end",
            "All position rows from start onwards are added. They should end at start + len(ids) - 1.",
            lambda ids, token, position, start=0: token[ids] + position[start:],
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
            "The position table is indexed with the token ids. It should be indexed with start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[ids],
        ),
        Slip(
            "tables exchanged",
            "The token table is indexed with the positions, and the position table with the ids. Exchange the tables.",
            lambda ids, token, position, start=0: position[ids] + token[start : start + len(ids)],
        ),
        Slip(
            "positions looked up by token id and start",
            "The position table is indexed with start + ids. It should be indexed with start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[start + ids],
        ),
        Slip(
            "one position for all tokens",
            "Every token has position start. The positions should be start, start + 1, ...",
            lambda ids, token, position, start=0: token[ids] + position[start],
        ),
        Slip(
            "tables multiplied",
            "The rows of the two tables are multiplied. They should be added.",
            lambda ids, token, position, start=0: token[ids] * position[start + np.arange(len(ids))],
        ),
        Slip(
            "tokens scaled by sqrt(D)",
            "The rows of the tokens are multiplied by sqrt(D), as in the original Transformer. Here they should "
            "be added as they are.",
            lambda ids, token, position, start=0: (
                token[ids] * token.shape[1] ** 0.5 + position[start + np.arange(len(ids))]
            ),
        ),
    ),
    constants=(
        Constant(
            "tokens multiplied",
            "The rows of the tokens are multiplied by {number}. They should be added as they are.",
            lambda number: lambda ids, token, position, start=0: right.embeddings(ids, number * token, position, start),
            (1.0, -1.0),
        ),
        Constant(
            "positions multiplied",
            "The rows of the positions are multiplied by {number}. They should be added as they are.",
            lambda number: lambda ids, token, position, start=0: right.embeddings(ids, token, number * position, start),
            (1.0, -1.0),
        ),
    ),
)


# --- layer norm -------------------------------------------------------------------------------------------------------


def _layer_norm_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2, 6], [0, 4, 8]]), array([1, 1, 2]), array([0, 1, 0.5])),
        (drawn(1, 4, 4), array([0.5, 1, 2, -1]), drawn(2, 4), 0.25),
        (drawn(3, 3, 4) / 500, array([1, 2, 3, 4]), drawn(4, 4)),  # makes variances close to common values of eps
        (drawn(5, 2, 3, 4), array([1, 2, 3, 4]), drawn(6, 4)),
        (drawn(7, 4), array([1, 2, 3, 4]), drawn(8, 4)),
    ]


def _over_deviation(x: Array, eps: float, axis: Any = -1, ddof: int = 0) -> Array:
    """Normalizes with the mean and variance over the given axis."""
    return _divided(x - x.mean(axis, keepdims=True), x.var(axis, keepdims=True, ddof=ddof), eps)


def _divided(centred: Array, variance: Array, eps: float) -> Array:
    return centred / np.sqrt(variance + eps)


LAYER_NORM = Exercise(
    "layer_norm",
    right.layer_norm,
    _layer_norm_cases,
    (
        "Mean and variance are computed for each row separately: over the last axis, -1.",
        "keepdims=True keeps the last axis with size 1, so that the mean of each row can be subtracted from the row.",
        "The variance is the mean of the squares of x - mean. Divide x - mean by the square root of variance + eps, "
        "then multiply by weight and add bias.",
    ),
    ("npformer.functions:layer_norm",),
    (
        Slip(
            "unbiased variance",
            "The divisor of the variance is D - 1. It should be D.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, ddof=1) * weight + bias,
        ),
        Slip(
            "eps outside the root",
            "eps is added to the square root of the variance. It should be added to the variance, inside the root.",
            lambda x, weight, bias, eps=1e-12: (
                (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) * weight + bias
            ),
        ),
        Slip(
            "root of each",
            "The square roots of the variance and of eps are added. Take the square root of variance + eps.",
            lambda x, weight, bias, eps=1e-12: (
                (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps**0.5) * weight + bias
            ),
        ),
        Slip(
            "eps ignored",
            "The argument eps is not used. It should be added to the variance, inside the root.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, 1e-12) * weight + bias,
        ),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, regardless of the argument. Use the argument, which is 1e-12 by default.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, 1e-5) * weight + bias,
        ),
        Slip(
            "wrong default for eps",
            "eps is 1e-5 by default. The default should be 1e-12, as in BERT.",
            lambda x, weight, bias, eps=1e-5: _over_deviation(x, eps) * weight + bias,
        ),
        Slip(
            "divided by the variance",
            "x - E[x] is divided by the variance plus eps. It should be divided by the square root of that sum.",
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
            "mean square instead of the variance",
            "The mean of x^2 is used as the variance, which should be the mean of (x - E[x])^2.",
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
            "Mean and variance are computed for each column, over axis 0. Compute them for each row, over the last "
            "axis.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, axis=0) * weight + bias,
        ),
        Slip(
            "over axis 1",
            "Mean and variance are computed over axis 1. That is the last axis only if x is a matrix: use axis -1.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, axis=1) * weight + bias,
        ),
        Slip(
            "over the whole array",
            "Mean and variance are computed over all numbers together. Compute them for each row, over the last axis.",
            lambda x, weight, bias, eps=1e-12: _over_deviation(x, eps, axis=None) * weight + bias,
        ),
        Slip(
            "variance over the whole array",
            "The variance is computed over all numbers together. Compute it for each row, like the mean.",
            lambda x, weight, bias, eps=1e-12: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var() + eps) * weight + bias,
        ),
        Slip(
            "mean over the whole array",
            "The mean is computed over all numbers together. Compute it for each row, like the variance.",
            lambda x, weight, bias, eps=1e-12: (x - x.mean()) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias,
        ),
        Slip(
            "mean without keepdims",
            "The mean lacks keepdims=True, so it broadcasts along the columns. From each row, subtract the row's mean.",
            lambda x, weight, bias, eps=1e-12: (
                _divided(x - x.mean(-1), ((x - x.mean(-1)) ** 2).mean(-1, keepdims=True), eps) * weight + bias
            ),
        ),
        Slip(
            "mean without keepdims",
            "The mean lacks keepdims=True where it is subtracted from x, so it broadcasts along the columns.",
            lambda x, weight, bias, eps=1e-12: _divided(x - x.mean(-1), x.var(-1, keepdims=True), eps) * weight + bias,
        ),
        Slip(
            "variance without keepdims",
            "The variance lacks keepdims=True, so it broadcasts along the columns. Each row needs its own variance.",
            lambda x, weight, bias, eps=1e-12: _divided(x - x.mean(-1, keepdims=True), x.var(-1), eps) * weight + bias,
        ),
        Slip(
            "mean and variance without keepdims",
            "Mean and variance lack keepdims=True, so they broadcast along the columns. Each row needs its own mean "
            "and variance.",
            lambda x, weight, bias, eps=1e-12: _divided(x - x.mean(-1), x.var(-1), eps) * weight + bias,
        ),
        Slip(
            "mean of each column",
            "The mean is computed for each column. Compute it for each row, over the last axis, like the variance.",
            lambda x, weight, bias, eps=1e-12: _divided(x - x.mean(0), x.var(-1, keepdims=True), eps) * weight + bias,
        ),
        Slip(
            "variance of each column",
            "The variance is computed for each column. Compute it for each row, over the last axis, like the mean.",
            lambda x, weight, bias, eps=1e-12: _divided(x - x.mean(-1, keepdims=True), x.var(0), eps) * weight + bias,
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
            "bias is added before the multiplication by weight. It should be added after the multiplication.",
            lambda x, weight, bias, eps=1e-12: (normed(x, eps=eps) + bias) * weight,
        ),
        Slip(
            "bias added to the weight",
            "The result is multiplied by weight + bias. Multiply by weight first, and add bias to the product.",
            lambda x, weight, bias, eps=1e-12: normed(x, weight + bias, eps=eps),
        ),
        Slip(
            "mean divided alone",
            "Only the mean is divided by the root. Divide x - E[x]: put it in brackets.",
            lambda x, weight, bias, eps=1e-12: (
                (x - x.mean(-1, keepdims=True) / np.sqrt(x.var(-1, keepdims=True) + eps)) * weight + bias
            ),
        ),
    ),
    constants=(
        Constant(
            "wrong eps",
            "eps is {number}, regardless of the argument. Use the argument, which is 1e-12 by default.",
            lambda number: lambda x, weight, bias, eps=1e-12: _over_deviation(x, number) * weight + bias,
            (1e-6, 1e-2),
        ),
        Constant(
            "wrong default for eps",
            "eps is {number} by default. The default should be 1e-12, as in BERT.",
            lambda number: lambda x, weight, bias, eps=number: _over_deviation(x, eps) * weight + bias,
            (1e-6, 1e-2),
        ),
    ),
)
