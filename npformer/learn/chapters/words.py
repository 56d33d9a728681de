"""Chapter 1: from words to rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.exercise import Exercise, array, drawn, norm_weights

LINEAR = Exercise(
    "linear",
    lambda: [
        (array([[1, 2], [0, 1]]), array([[1, 2], [3, 4]]), array([0.5, 1])),
        (drawn(1, 4, 3), drawn(2, 3, 2), drawn(3, 2)),
        (drawn(4, 3), drawn(5, 3, 2), drawn(6, 2)),
        (drawn(7, 2, 3, 4), drawn(8, 4, 4), drawn(9, 4)),
        (drawn(10, 2, 3), drawn(11, 3, 3)),
    ],
    (
        "@ multiplies matrices.",
        "The weight is (in, out), so it needs no transpose.",
        "Multiply x by the weight with @, and add the bias: NumPy adds it to every row.",
    ),
    """
    bias left out: bias is not added.
        x @ weight + bias -> x @ weight
    product left out: Only bias is returned, for every row. It should be added to x @ weight.
        x @ weight + bias -> 0 * (x @ weight) + bias
    weight transposed: x is multiplied by the transpose of weight, as in torch. Here weight is (in, out) and needs no
        transpose.
        @ weight -> @ weight.T
    weight @ x: The product is weight @ x. It should be x @ weight, which multiplies each row of x by the weight.
        x @ weight -> weight @ x
    transpose of the product: The product is weight.T @ x.T, the transpose of x @ weight.
        x @ weight -> weight.T @ x.T
    bias subtracted: bias is subtracted. It should be added.
        + bias -> - bias
    bias added twice: bias is added twice.
        + bias -> + 2 * bias
    bias added to x: bias is added to x, before the product. It should be added to the product.
        x @ weight + bias -> (x + bias) @ weight
    bias added to the weight: bias is added to weight, before the product. It should be added to the product.
        weight + bias -> (weight + bias)
    bias multiplied: The product is multiplied by bias. bias should be added to the product.
        + bias -> * bias
    """,
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


LAYER_NORM = Exercise(
    "layer_norm",
    _layer_norm_cases,
    (
        "Mean and variance are computed for each row separately: over the last axis, -1.",
        "keepdims=True keeps the last axis with size 1, so that the mean of each row can be subtracted from the row.",
        "The variance is the mean of the squares of x - mean. Divide x - mean by the square root of variance + eps, "
        "then multiply by weight and add bias.",
    ),
    """
    unbiased variance: The divisor of the variance is D - 1. It should be D.
        x.var(axis=-1, keepdims=True) -> x.var(axis=-1, keepdims=True, ddof=1)
    eps outside the root: eps is added to the square root of the variance. It should be added to the variance, inside
        the root.
        np.sqrt(variance + eps) -> (np.sqrt(variance) + eps)
    root of each: The square roots of the variance and of eps are added. Take the square root of variance + eps.
        np.sqrt(variance + eps) -> (np.sqrt(variance) + math.sqrt(eps))
    eps ignored: The argument eps is not used. It should be added to the variance, inside the root.
        variance + eps -> variance
    eps is always 1e-5: eps is 1e-5, regardless of the argument. Use the argument, which is 1e-5 by default.
        variance + eps -> variance + 1e-5
    wrong default for eps: eps is 1e-12 by default. The default should be 1e-5.
        eps=1e-5 -> eps=1e-12
    divided by the variance: x - E[x] is divided by the variance plus eps. It should be divided by the square root of
        that sum.
        np.sqrt(variance + eps) -> (variance + eps)
    mean not subtracted: x is divided by sqrt(Var[x] + eps), but its mean is not subtracted first.
        (x - mean) -> x
    weight + 1: The result is multiplied by 1 + weight. It should be multiplied by weight.
        * weight -> * (1 + weight)
    RMS norm: x is divided by the root of its mean square, which is RMSNorm. A layer norm subtracts the mean first.
        (x - mean) -> x
        x.var(axis=-1, keepdims=True) -> (x * x).mean(axis=-1, keepdims=True)
    mean square instead of the variance: The mean of x^2 is used as the variance, which should be the mean of
        (x - E[x])^2.
        x.var(axis=-1, keepdims=True) -> (x * x).mean(axis=-1, keepdims=True)
    not divided by the deviation: The mean is subtracted, but the result is not divided by sqrt(Var[x] + eps).
        (x - mean) / np.sqrt(variance + eps) -> (x - mean)
    over the first axis: Mean and variance are computed for each column, over axis 0. Compute them for each row, over
        the last axis.
        x.mean(axis=-1 -> x.mean(axis=0
        x.var(axis=-1 -> x.var(axis=0
    over axis 1: Mean and variance are computed over axis 1. That is the last axis only if x is a matrix: use axis -1.
        x.mean(axis=-1 -> x.mean(axis=1
        x.var(axis=-1 -> x.var(axis=1
    over the whole array: Mean and variance are computed over all numbers together. Compute them for each row, over the
        last axis.
        x.mean(axis=-1 -> x.mean(axis=None
        x.var(axis=-1 -> x.var(axis=None
    variance over the whole array: The variance is computed over all numbers together. Compute it for each row, like the
        mean.
        x.var(axis=-1 -> x.var(axis=None
    mean over the whole array: The mean is computed over all numbers together. Compute it for each row, like the
        variance.
        x.mean(axis=-1 -> x.mean(axis=None
    mean without keepdims: The mean lacks keepdims=True, so it broadcasts along the columns. From each row, subtract the
        row's mean.
        x.mean(axis=-1, keepdims=True) -> x.mean(axis=-1)
        x.var(axis=-1, keepdims=True) -> ((x - x.mean(axis=-1)) ** 2).mean(axis=-1, keepdims=True)
    mean without keepdims: The mean lacks keepdims=True where it is subtracted from x, so it broadcasts along the
        columns.
        x.mean(axis=-1, keepdims=True) -> x.mean(axis=-1)
    variance without keepdims: The variance lacks keepdims=True, so it broadcasts along the columns. Each row needs its
        own variance.
        x.var(axis=-1, keepdims=True) -> x.var(axis=-1)
    mean and variance without keepdims: Mean and variance lack keepdims=True, so they broadcast along the columns. Each
        row needs its own mean and variance.
        x.mean(axis=-1, keepdims=True) -> x.mean(axis=-1)
        x.var(axis=-1, keepdims=True) -> x.var(axis=-1)
    mean of each column: The mean is computed for each column. Compute it for each row, over the last axis, like the
        variance.
        x.mean(axis=-1 -> x.mean(axis=0
    variance of each column: The variance is computed for each column. Compute it for each row, over the last axis, like
        the mean.
        x.var(axis=-1 -> x.var(axis=0
    weight left out: The result is not multiplied by weight.
        * weight + bias -> + bias
    bias left out: bias is not added.
        * weight + bias -> * weight
    normalized x left out: Only bias is returned, for every row. It should be added to the normalized x times weight.
        (x - mean) / np.sqrt(variance + eps) * weight + bias -> 0 * x + bias
    normalized twice: The norm is applied to its own output. Apply it once.
        mean, variance = x.mean -> for _ in range(2): mean, variance = x.mean
        x.var(axis=-1, keepdims=True) -> x.var(-1, keepdims=True); x = (x - mean) / np.sqrt(variance + eps) * weight + bias
        (x - mean) / np.sqrt(variance + eps) * weight + bias -> x
    weight and bias left out: The result is not multiplied by weight, and bias is not added.
        np.sqrt(variance + eps) * weight + bias -> np.sqrt(variance + eps)
    weight and bias exchanged: The result is multiplied by bias, and weight is added. Exchange the two.
        * weight + bias -> * bias + weight
    bias added before the weight: bias is added before the multiplication by weight. It should be added after the
        multiplication.
        (x - mean) / np.sqrt(variance + eps) * weight + bias -> ((x - mean) / np.sqrt(variance + eps) + bias) * weight
    bias added to the weight: The result is multiplied by weight + bias. Multiply by weight first, and add bias to the
        product.
        weight + bias -> (weight + bias)
    mean divided alone: Only the mean is divided by the root. Divide x - E[x]: put it in brackets.
        (x - mean) / np.sqrt(variance + eps) -> (x - mean / np.sqrt(variance + eps))
    wrong eps [1e-6 1e-2]: eps is {number}, regardless of the argument. Use the argument, which is 1e-5 by default.
        variance + eps -> variance + number
    wrong default for eps [1e-6 1e-2]: eps is {number} by default. The default should be 1e-5.
        eps=1e-5 -> eps=number
    """,
)


# --- GELU -------------------------------------------------------------------------------------------------------------

GELU = Exercise(
    "gelu",
    lambda: [(array([-2, -1, 0, 1, 2]),), (drawn(1, 3, 4) * 2,), (array([[-30, 30, 5, -5]]),)],
    (
        "erf, above, applies to each number of an array.",
        "Apply erf to x / sqrt(2). Use math.sqrt, and .astype(x.dtype) for a float32 result.",
        "y = x / 2 * (1 + erf(x / sqrt(2))).",
    ),
    """
    tanh form: This is the tanh approximation of GELU. The exact form uses erf, and differs by up to 0.0005.
        x * (1 + erf(x / math.sqrt(2))) / 2 -> gelu_tanh(x)
    quick GELU: This is x sigmoid(1.702 x), a rough approximation of GELU. The exact form uses erf.
        x * (1 + erf(x / math.sqrt(2))) / 2 -> x / (1 + np.exp(-1.702 * x))
    not multiplied by x: This is Phi(x). GELU is x Phi(x).
        x * (1 -> (1
    density of the normal distribution: This is x times the density exp(-x^2 / 2) / sqrt(2 pi). Phi is the cumulative
        distribution: use erf.
        x * (1 + erf(x / math.sqrt(2))) / 2 -> x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    not halved: This is x (1 + erf(x / sqrt(2))). GELU is half of that.
        / 2).astype -> / 1).astype
    erf(x) instead of erf(x / sqrt(2)): erf is applied to x. It should be applied to x / sqrt(2).
        erf(x / math.sqrt(2)) -> erf(x)
    erf(x / 2) instead of erf(x / sqrt(2)): erf is applied to x / 2. It should be applied to x / sqrt(2).
        erf(x / math.sqrt(2)) -> erf(x / 2)
    erf(x sqrt(2)) instead of erf(x / sqrt(2)): erf is applied to x sqrt(2). It should be applied to x / sqrt(2).
        erf(x / math.sqrt(2)) -> erf(x * math.sqrt(2))
    erf(x) / sqrt(2) instead of erf(x / sqrt(2)): erf is applied to x, and the result is divided by sqrt(2). Divide x by
        sqrt(2), inside erf.
        erf(x / math.sqrt(2)) -> erf(x) / math.sqrt(2)
    1 left out: This is x erf(x / sqrt(2)) / 2. The 1 in Phi(x) = (1 + erf(x / sqrt(2))) / 2 is missing.
        1 + erf -> erf
    brackets: Only erf is halved. Halve 1 + erf(x / sqrt(2)): put it in brackets.
        erf(x / math.sqrt(2))) / 2 -> erf(x / math.sqrt(2)) / 2)
    brackets: erf is added to x / 2. Add it to 1, and multiply the sum by x / 2: put 1 + erf in brackets.
        x * (1 + erf(x / math.sqrt(2))) / 2 -> x / 2 + erf(x / math.sqrt(2))
    relu: This is relu, max(x, 0). GELU is x Phi(x).
        x * (1 + erf(x / math.sqrt(2))) / 2 -> relu(x)
    silu: This is SiLU, x sigmoid(x). GELU is x Phi(x).
        x * (1 + erf(x / math.sqrt(2))) / 2 -> x / (1 + np.exp(-x))
    erf of a wrong multiple of x: erf is applied to x times {number}. It should be applied to x / sqrt(2).
        erf(x / math.sqrt(2)) -> erf(number * x)
    erf multiplied [1 -1]: erf(x / sqrt(2)) is multiplied by {number}. It should be added to 1 as it is.
        1 + erf -> 1 + number * erf
    sigmoid: This is x sigmoid({number} x), an approximation of GELU. The exact form uses erf.
        x * (1 + erf(x / math.sqrt(2))) / 2 -> x / (1 + np.exp(-number * x))
    """,
)


# --- embeddings -------------------------------------------------------------------------------------------------------


def tables(seed: int, words: int, places: int, width: int) -> dict[str, Any]:
    """Returns the tables of tokens and positions."""
    return {"token": {"weight": drawn(seed, words, width)}, "position": {"weight": drawn(seed + 1, places, width)}}


def _embed_cases() -> list[tuple[Any, ...]]:
    small = {
        "token": {"weight": array([[1, 2], [3, 5], [5, 6]])},
        "position": {"weight": array([[0, 1], [2, 0], [1, 1]])},
    }
    identity = {"weight": array([1, 1]), "bias": array([0, 0])}
    faint = {name: {"weight": each["weight"] / 300} for name, each in tables(3, 4, 5, 4).items()}
    return [
        (np.array([2, 0, 2]), np.arange(3), 0.25, *small.values(), identity),
        (np.array([1, 0]), np.array([3, 4]), 1e-12, *tables(1, 4, 6, 3).values(), norm_weights(5, 3)),
        (np.array([3, 3, 1, 0]), np.arange(4), 1e-12, *faint.values(), norm_weights(6, 4)),  # eps matters
        (
            np.array([[2, 0, 1], [1, 1, 3]]),
            np.array([1, 2, 3]),
            1e-12,
            *tables(7, 4, 5, 4).values(),
            norm_weights(9, 4),
        ),
    ]


EMBED = Exercise(
    "embed",
    _embed_cases,
    (
        "embedding(ids, **token) looks up the row of each token.",
        "The rows of the positions are looked up in their own table, and added to the rows of the tokens.",
        "Add the two lookups, then apply layer_norm with **norm and eps=eps.",
    ),
    """
    positions one too high: The rows of positions + 1 are added. The rows of positions should be added.
        embedding(positions, -> embedding(positions + 1,
    positions one too low: The rows of positions - 1 are added. The rows of positions should be added.
        embedding(positions, -> embedding(positions - 1,
    positions ignored: The rows of positions 0, 1, ... are added, although the argument positions may begin later.
        embedding(positions, -> embedding(np.arange(ids.shape[-1]),
    positions left out: Only the rows of the tokens are normalized. The rows of their positions should be added to them.
        embedding(ids, **token) + embedding(positions, **position) -> embedding(ids, **token)
    tokens left out: Only the rows of the positions are normalized. They should be added to the rows of the tokens.
        embedding(ids, **token) + embedding(positions, **position) -> np.broadcast_to(embedding(positions, **position), (*ids.shape, len(norm["bias"])))
    positions looked up by token id: The position table is indexed with the token ids. It should be indexed with
        positions.
        embedding(positions, -> embedding(ids,
    tables exchanged: The token table is indexed with the positions, and the position table with the ids. Exchange the
        tables.
        **token) -> **position)
        **position) -> **token)
    one position for all tokens: Every token gets the row of the first position. Each should get its own.
        embedding(positions, -> embedding(positions[0],
    tables multiplied: The rows of the two tables are multiplied. They should be added.
        **token) + -> **token) *
    tokens scaled by sqrt(D): The rows of the tokens are multiplied by sqrt(D), as in the original Transformer. Here
        they should be added as they are.
        embedding(ids, **token) -> embedding(ids, **token) * math.sqrt(token["weight"].shape[1])
    ids one too low: The token table is indexed with ids - 1. The ids begin at 0: index it with ids.
        embedding(ids, -> embedding(ids - 1,
    tokens in reverse order: The rows of the tokens are in reverse order.
        embedding(ids, -> embedding(ids[..., ::-1],
    norm left out: The sum of the rows is not normalized.
        layer_norm(total, **norm, eps=eps) -> total
    normalized twice: The sum of the rows is normalized twice.
        layer_norm(total, -> layer_norm(layer_norm(total, **norm, eps=eps),
    tables normalized separately: The rows of tokens and positions are normalized separately. Their sum should be
        normalized.
        layer_norm(total, **norm, eps=eps) -> layer_norm(embedding(ids, **token), **norm, eps=eps) + layer_norm(embedding(positions, **position), **norm, eps=eps)
    positions added after the norm: The positions are added after the norm. The sum of tokens and positions should be
        normalized.
        layer_norm(total, **norm, eps=eps) -> layer_norm(embedding(ids, **token), **norm, eps=eps) + embedding(positions, **position)
    norm without weight and bias: The sum is normalized without the weight and bias of the norm.
        layer_norm(total, **norm, eps=eps) -> layer_norm(total, eps=eps)
    eps not passed on: eps is not passed to layer_norm, whose default is 1e-5. Write eps=eps.
        **norm, eps=eps -> **norm
    tokens multiplied [1 -1]: The rows of the tokens are multiplied by {number}. They should be added as they are.
        embedding(ids, **token) -> number * embedding(ids, **token)
    positions multiplied [1 -1]: The rows of the positions are multiplied by {number}. They should be added as they are.
        embedding(positions, **position) -> number * embedding(positions, **position)
    wrong eps [1e-6 1e-2]: eps is {number}, regardless of the argument. Pass the argument to layer_norm.
        **norm, eps=eps -> **norm, eps=number
    """,
)
