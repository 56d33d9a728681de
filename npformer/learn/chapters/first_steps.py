"""Chapter 1, embeddings and layer norm. `gelu_and_linear.py` has the rest of the chapter."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

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


def _sum(
    ids: Array,
    token: Array,
    position: Array,
    start: int = 0,
    *,
    rows: Any = lambda table, ids: table[ids],
    places: Any = lambda table, start, ids: table[start + np.arange(len(ids))],
) -> Array:
    """The sum of two tables' rows, with either lookup replaced."""
    return rows(token, ids) + places(position, start, ids)


EMBEDDINGS = Exercise(
    "embeddings",
    right.embeddings,
    _embeddings_cases,
    (
        "An array can be indexed with an array of integers: table[ids] has a row for each id.",
        "The positions of the tokens are start, start + 1, ... Make them with np.arange.",
        "Index the token table with the ids and the position table with the positions, and add the two results.",
    ),
    ("npformer.plain.distilbert:embed", "npformer.plain.formulas:embedding"),
    (
        Slip(
            "positions from 1",
            "The first token has position start + 1 here. The first position should be start.",
            partial(_sum, places=lambda table, start, ids: table[start + 1 + np.arange(len(ids))]),
        ),
        Slip(
            "positions from 1, whatever start is",
            "The first token always has position 1. Its position should be start, which is 0 for a whole text.",
            partial(_sum, places=lambda table, start, ids: table[1 : len(ids) + 1]),
        ),
        Slip(
            "positions begin before start",
            "The first token has position start - 1 here. The first position should be start.",
            partial(_sum, places=lambda table, start, ids: table[start - 1 + np.arange(len(ids))]),
        ),
        Slip(
            "start ignored",
            "The positions begin at 0 even when start is larger. They should be start, start + 1, ...",
            partial(_sum, places=lambda table, start, ids: table[: len(ids)]),
        ),
        Slip(
            "positions end too early",
            "The position rows are start ... len(ids) - 1. They should end at start + len(ids) - 1.",
            partial(_sum, places=lambda table, start, ids: table[start : len(ids)]),
        ),
        Slip(
            "positions do not end",
            "All position rows from start onwards are added. They should end at start + len(ids) - 1.",
            partial(_sum, places=lambda table, start, ids: table[start:]),
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
            partial(_sum, places=lambda table, start, ids: table[ids]),
        ),
        Slip(
            "tables exchanged",
            "The token table is indexed with the positions, and the position table with the ids. Exchange the tables.",
            lambda ids, token, position, start=0: position[ids] + token[start : start + len(ids)],
        ),
        Slip(
            "positions looked up by token id and start",
            "The position table is indexed with start + ids. It should be indexed with start, start + 1, ...",
            partial(_sum, places=lambda table, start, ids: table[start + ids]),
        ),
        Slip(
            "one position for all tokens",
            "Every token has position start. The positions should be start, start + 1, ...",
            partial(_sum, places=lambda table, start, ids: table[start]),
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
            partial(_sum, rows=lambda table, ids: table[ids] * table.shape[1] ** 0.5),
        ),
        Slip(
            "ids one too low",
            "The token table is indexed with ids - 1. The ids begin at 0: index it with ids.",
            partial(_sum, rows=lambda table, ids: table[ids - 1]),
        ),
        Slip(
            "tokens in reverse order",
            "The rows of the tokens are in reverse order.",
            partial(_sum, rows=lambda table, ids: table[ids[::-1]]),
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


def _mean(x: Array, axis: Any = -1, keepdims: bool = True) -> Array:
    return x.mean(axis, keepdims=keepdims)


def _variance(x: Array, axis: Any = -1, keepdims: bool = True, ddof: int = 0) -> Array:
    return x.var(axis, keepdims=keepdims, ddof=ddof)


def _mean_square(x: Array) -> Array:
    return _mean(x * x)


def _root(variance: Array, eps: float) -> Array:
    return np.sqrt(variance + eps)


def _layer_norm(
    x: Array,
    weight: Array,
    bias: Array,
    eps: float | None = None,
    *,
    mean: Any = _mean,
    variance: Any = _variance,
    root: Any = _root,
    affine: Any = lambda n, weight, bias: n * weight + bias,
    eps_of: Any = lambda eps: 1e-12 if eps is None else eps,
) -> Array:
    """The layer norm with some of its steps replaced."""
    return affine((x - mean(x)) / root(variance(x), eps_of(eps)), weight, bias)


def _always(eps: float) -> Any:
    return lambda given: eps


def _by_default(eps: float) -> Any:
    return lambda given: eps if given is None else given


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
    ("npformer.plain.formulas:layer_norm",),
    (
        Slip(
            "unbiased variance",
            "The divisor of the variance is D - 1. It should be D.",
            partial(_layer_norm, variance=partial(_variance, ddof=1)),
        ),
        Slip(
            "eps outside the root",
            "eps is added to the square root of the variance. It should be added to the variance, inside the root.",
            partial(_layer_norm, root=lambda variance, eps: np.sqrt(variance) + eps),
        ),
        Slip(
            "root of each",
            "The square roots of the variance and of eps are added. Take the square root of variance + eps.",
            partial(_layer_norm, root=lambda variance, eps: np.sqrt(variance) + eps**0.5),
        ),
        Slip(
            "eps ignored",
            "The argument eps is not used. It should be added to the variance, inside the root.",
            partial(_layer_norm, eps_of=_always(1e-12)),
        ),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, regardless of the argument. Use the argument, which is 1e-12 by default.",
            partial(_layer_norm, eps_of=_always(1e-5)),
        ),
        Slip(
            "wrong default for eps",
            "eps is 1e-5 by default. The default should be 1e-12, as in BERT.",
            partial(_layer_norm, eps_of=_by_default(1e-5)),
        ),
        Slip(
            "divided by the variance",
            "x - E[x] is divided by the variance plus eps. It should be divided by the square root of that sum.",
            partial(_layer_norm, root=lambda variance, eps: variance + eps),
        ),
        Slip(
            "mean not subtracted",
            "x is divided by sqrt(Var[x] + eps), but its mean is not subtracted first.",
            partial(_layer_norm, mean=lambda x: 0),
        ),
        Slip(
            "weight + 1",
            "The result is multiplied by 1 + weight. It should be multiplied by weight.",
            partial(_layer_norm, affine=lambda n, weight, bias: n * (1 + weight) + bias),
        ),
        Slip(
            "RMS norm",
            "x is divided by the root of its mean square, which is RMSNorm. A layer norm subtracts the mean first.",
            partial(_layer_norm, mean=lambda x: 0, variance=_mean_square),
        ),
        Slip(
            "mean square instead of the variance",
            "The mean of x^2 is used as the variance, which should be the mean of (x - E[x])^2.",
            partial(_layer_norm, variance=_mean_square),
        ),
        Slip(
            "not divided by the deviation",
            "The mean is subtracted, but the result is not divided by sqrt(Var[x] + eps).",
            partial(_layer_norm, root=lambda variance, eps: 1),
        ),
        Slip(
            "over the first axis",
            "Mean and variance are computed for each column, over axis 0. Compute them for each row, over the last "
            "axis.",
            partial(_layer_norm, mean=partial(_mean, axis=0), variance=partial(_variance, axis=0)),
        ),
        Slip(
            "over axis 1",
            "Mean and variance are computed over axis 1. That is the last axis only if x is a matrix: use axis -1.",
            partial(_layer_norm, mean=partial(_mean, axis=1), variance=partial(_variance, axis=1)),
        ),
        Slip(
            "over the whole array",
            "Mean and variance are computed over all numbers together. Compute them for each row, over the last axis.",
            partial(_layer_norm, mean=partial(_mean, axis=None), variance=partial(_variance, axis=None)),
        ),
        Slip(
            "variance over the whole array",
            "The variance is computed over all numbers together. Compute it for each row, like the mean.",
            partial(_layer_norm, variance=partial(_variance, axis=None)),
        ),
        Slip(
            "mean over the whole array",
            "The mean is computed over all numbers together. Compute it for each row, like the variance.",
            partial(_layer_norm, mean=partial(_mean, axis=None)),
        ),
        Slip(
            "mean without keepdims",
            "The mean lacks keepdims=True, so it broadcasts along the columns. From each row, subtract the row's mean.",
            partial(_layer_norm, mean=partial(_mean, keepdims=False), variance=lambda x: _mean_square(x - x.mean(-1))),
        ),
        Slip(
            "mean without keepdims",
            "The mean lacks keepdims=True where it is subtracted from x, so it broadcasts along the columns.",
            partial(_layer_norm, mean=partial(_mean, keepdims=False)),
        ),
        Slip(
            "variance without keepdims",
            "The variance lacks keepdims=True, so it broadcasts along the columns. Each row needs its own variance.",
            partial(_layer_norm, variance=partial(_variance, keepdims=False)),
        ),
        Slip(
            "mean and variance without keepdims",
            "Mean and variance lack keepdims=True, so they broadcast along the columns. Each row needs its own mean "
            "and variance.",
            partial(_layer_norm, mean=partial(_mean, keepdims=False), variance=partial(_variance, keepdims=False)),
        ),
        Slip(
            "mean of each column",
            "The mean is computed for each column. Compute it for each row, over the last axis, like the variance.",
            partial(_layer_norm, mean=partial(_mean, axis=0)),
        ),
        Slip(
            "variance of each column",
            "The variance is computed for each column. Compute it for each row, over the last axis, like the mean.",
            partial(_layer_norm, variance=partial(_variance, axis=0)),
        ),
        Slip(
            "weight left out",
            "The result is not multiplied by weight.",
            partial(_layer_norm, affine=lambda n, weight, bias: n + bias),
        ),
        Slip(
            "bias left out",
            "bias is not added.",
            partial(_layer_norm, affine=lambda n, weight, bias: n * weight),
        ),
        Slip(
            "normalized x left out",
            "Only bias is returned, for every row. It should be added to the normalized x times weight.",
            partial(_layer_norm, affine=lambda n, weight, bias: 0 * n + bias),
        ),
        Slip(
            "normalized twice",
            "The norm is applied to its own output. Apply it once.",
            lambda x, weight, bias, eps=1e-12: _layer_norm(_layer_norm(x, weight, bias, eps), weight, bias, eps),
        ),
        Slip(
            "weight and bias left out",
            "The result is not multiplied by weight, and bias is not added.",
            partial(_layer_norm, affine=lambda n, weight, bias: n),
        ),
        Slip(
            "weight and bias exchanged",
            "The result is multiplied by bias, and weight is added. Exchange the two.",
            partial(_layer_norm, affine=lambda n, weight, bias: n * bias + weight),
        ),
        Slip(
            "bias added before the weight",
            "bias is added before the multiplication by weight. It should be added after the multiplication.",
            partial(_layer_norm, affine=lambda n, weight, bias: (n + bias) * weight),
        ),
        Slip(
            "bias added to the weight",
            "The result is multiplied by weight + bias. Multiply by weight first, and add bias to the product.",
            partial(_layer_norm, affine=lambda n, weight, bias: n * (weight + bias)),
        ),
        Slip(
            "mean divided alone",
            "Only the mean is divided by the root. Divide x - E[x]: put it in brackets.",
            lambda x, weight, bias, eps=1e-12: (x - _mean(x) / _root(_variance(x), eps)) * weight + bias,
        ),
    ),
    constants=(
        Constant(
            "wrong eps",
            "eps is {number}, regardless of the argument. Use the argument, which is 1e-12 by default.",
            lambda number: partial(_layer_norm, eps_of=_always(number)),
            (1e-6, 1e-2),
        ),
        Constant(
            "wrong default for eps",
            "eps is {number} by default. The default should be 1e-12, as in BERT.",
            lambda number: partial(_layer_norm, eps_of=_by_default(number)),
            (1e-6, 1e-2),
        ),
    ),
)
