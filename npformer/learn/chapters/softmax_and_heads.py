"""Chapter 2, softmax and heads. `attention_of_heads.py` has the rest of the chapter."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.functions import log_softmax
from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn
from npformer.learn.right import softmax

Array = np.ndarray


# --- softmax ----------------------------------------------------------------------------------------------------------


def _softmax_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[0, 1, 2], [1, 1, 3]]),),
        (array([[0, -np.inf, 1]]),),
        (drawn(1, 2, 3, 3),),
        (array([[1000, 1001], [-1000, -999], [0, 1]]),),
        (array([0.5, 0.25, 4]),),
        (drawn(2, 3, 3),),  # square, so that sums without keepdims broadcast along the columns
    ]


def _sum(y: Array, axis: Any = -1, keepdims: bool = True) -> Array:
    return y.sum(axis, keepdims=keepdims)


def _largest(x: Array, axis: Any = -1, keepdims: bool = True) -> Array:
    return x.max(axis, keepdims=keepdims)


def _over(
    x: Array, *, largest: Any = _largest, total: Any = _sum, exp: Any = np.exp, divided: Any = np.divide
) -> Array:
    """The softmax with some of its steps replaced."""
    y = exp(x - largest(x))
    return divided(y, total(y))


SOFTMAX = Exercise(
    "softmax",
    right.softmax,
    _softmax_cases,
    (
        "The numbers of a row add up to 1, so the sum is over the last axis, -1, with keepdims=True.",
        "exp(1000) overflows. Subtracting the same number from a whole row does not change the result, so "
        "subtract the row's maximum.",
        "Take the maximum over the last axis with keepdims=True and subtract it, take exp, and divide by the sum.",
    ),
    ("npformer.plain.formulas:softmax",),
    (
        Slip(
            "over the first axis",
            "Each column adds up to 1, because the sum is over axis 0. It should be over the last axis, so that each "
            "row adds up to 1.",
            lambda x: softmax(x, 0),
        ),
        Slip(
            "over axis 1",
            "The sum is over axis 1. That is the last axis of a matrix only: use axis -1.",
            lambda x: softmax(x, 1),
        ),
        Slip(
            "over the whole array",
            "All numbers together add up to 1. Each row should add up to 1: sum over the last axis.",
            lambda x: softmax(x, None),  # type: ignore[arg-type]
        ),
        Slip(
            "maximum not subtracted",
            "exp overflows for large x. Subtract the largest x of each row before exp.",
            partial(_over, largest=lambda x: 0),
        ),
        Slip(
            "maximum of the whole array",
            "The largest x of the whole array is subtracted, so exp is 0 in a row far below it, and 0 / 0 is NaN. "
            "Subtract the largest x of each row.",
            partial(_over, largest=np.max),
        ),
        Slip(
            "maximum of each column",
            "The largest x of each column is subtracted. Subtract the largest x of each row, over the last axis.",
            partial(_over, largest=partial(_largest, axis=0)),
        ),
        Slip(
            "sum of each column",
            "exp is divided by the sum of each column. Divide by the sum of each row, over the last axis.",
            partial(_over, total=partial(_sum, axis=0)),
        ),
        Slip(
            "sum without keepdims",
            "The sum lacks keepdims=True, so it broadcasts along the columns. Each row should be divided by its own "
            "sum.",
            partial(_over, total=partial(_sum, keepdims=False)),
        ),
        Slip(
            "maximum without keepdims",
            "The maximum lacks keepdims=True, so it broadcasts along the columns. From each row, "
            "subtract the row's maximum.",
            partial(_over, largest=partial(_largest, keepdims=False)),
        ),
        Slip(
            "maximum and sum without keepdims",
            "The maximum and the sum lack keepdims=True, so they broadcast along the columns. Each row needs its "
            "own maximum and sum.",
            partial(_over, largest=partial(_largest, keepdims=False), total=partial(_sum, keepdims=False)),
        ),
        Slip(
            "maximum subtracted in the numerator only",
            "The maximum is subtracted from x in exp(x), but not in the sum. Subtract it once, before exp.",
            lambda x: np.exp(x - x.max(-1, keepdims=True)) / np.exp(x).sum(-1, keepdims=True),
        ),
        Slip(
            "not divided by the sum",
            "This is exp(x - max(x)). It should be divided by the sum over the row.",
            partial(_over, divided=lambda y, total: y),
        ),
        Slip(
            "divided by the mean",
            "exp is divided by its mean. It should be divided by its sum.",
            partial(_over, divided=lambda y, total: y / total * y.shape[-1]),
        ),
        Slip(
            "sum over the whole array",
            "exp of each row is divided by the sum over all rows. Divide by the sum over the last axis.",
            partial(_over, total=np.sum),
        ),
        Slip("log softmax", "This is the logarithm of softmax.", log_softmax),
        Slip("sign", "exp is applied to -x. It should be applied to x.", lambda x: softmax(-x)),
        Slip(
            "base 2",
            "This is 2^x divided by its sum. It should be e^x divided by its sum.",
            partial(_over, exp=np.exp2),
        ),
        Slip(
            "x divided by its sum",
            "x is divided by its sum. It should be exp(x), divided by the sum of exp(x).",
            lambda x: x / x.sum(-1, keepdims=True),
        ),
        Slip("sigmoid", "This is 1 / (1 + exp(-x)), the sigmoid.", lambda x: 1 / (1 + np.exp(-x))),
    ),
    constants=(
        Constant(
            "constant added to the sum",
            "{number} is added to the sum, so the numbers of a row do not add up to 1.",
            lambda number: partial(_over, total=lambda y: _sum(y) + number),
            (1e-4, 1.0),
        ),
        Constant(
            "x multiplied",
            "exp is applied to x times {number}. It should be applied to x.",
            lambda number: lambda x: softmax(number * x),
        ),
    ),
)


# --- heads ------------------------------------------------------------------------------------------------------------


def _split_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]), 2),
        (drawn(1, 2, 6), 2),
        (drawn(2, 4, 12), 3),
        (drawn(3, 3, 4), 1),
        (drawn(4, 3, 9), 3),
    ]


def _k(x: Array, n_heads: int) -> int:
    return x.shape[1] // n_heads


SPLIT_HEADS = Exercise(
    "split_heads",
    right.split_heads,
    _split_cases,
    (
        "Two steps: cut the columns of each token into heads, then put the axis of heads first.",
        "reshape to (L, H, K) cuts the columns. It must not be followed by another reshape.",
        "Reshape to (L, n_heads, D // n_heads), then exchange the first two axes with transpose or swapaxes.",
    ),
    ("npformer.plain.formulas:split_heads",),
    (
        Slip(
            "reshaped without the transpose",
            "x is reshaped to (H, L, K), which mixes tokens. Reshape to (L, H, K), then exchange the first two axes.",
            lambda x, n_heads: x.reshape(n_heads, len(x), _k(x, n_heads)),
        ),
        Slip(
            "not transposed",
            "The result is (L, H, K). Exchange its first two axes.",
            lambda x, n_heads: x.reshape(len(x), n_heads, _k(x, n_heads)),
        ),
        Slip(
            "interleaved",
            "Head h has the columns h, h + H, h + 2 H, ... It should have adjacent columns, h K ... (h + 1) K - 1.",
            lambda x, n_heads: x.reshape(len(x), _k(x, n_heads), n_heads).transpose(2, 0, 1),
        ),
        Slip(
            "rows and columns of a head exchanged",
            "Each head is (K, L). It should be (L, K).",
            lambda x, n_heads: right.split_heads(x, n_heads).swapaxes(1, 2),
        ),
        Slip(
            "first and last axis exchanged",
            "The heads are (K, H, L): the first and the last axis of (L, H, K) are exchanged. Exchange the first two.",
            lambda x, n_heads: right.split_heads(x, n_heads).transpose(2, 0, 1),
        ),
        Slip(
            "axes of the heads in the wrong order",
            "The axes of the result are (K, L, H). They should be (H, L, K).",
            lambda x, n_heads: right.split_heads(x, n_heads).transpose(2, 1, 0),
        ),
        Slip(
            "number and width of heads exchanged",
            "There are K heads of width H. There should be n_heads heads of width D / n_heads.",
            lambda x, n_heads: right.split_heads(x, _k(x, n_heads)),
        ),
        Slip(
            "heads in reverse order",
            "The heads are in reverse order.",
            lambda x, n_heads: right.split_heads(x, n_heads)[::-1],
        ),
    ),
)

COMBINE_HEADS = Exercise(
    "combine_heads",
    right.combine_heads,
    lambda: [(right.split_heads(*case),) for case in _split_cases()],
    (
        "Undo the two steps of split_heads, in reverse order.",
        "First exchange the axes of heads and tokens: (H, L, K) becomes (L, H, K).",
        "Exchange the first two axes with transpose or swapaxes, then reshape to (L, H * K).",
    ),
    ("npformer.plain.formulas:combine_heads",),
    (
        Slip(
            "reshaped without the transpose",
            "x is reshaped to (L, D), which mixes tokens. Exchange the axes of heads and tokens first.",
            lambda x: x.reshape(x.shape[1], -1),
        ),
        Slip(
            "interleaved",
            "The first columns of all heads are side by side. Put the columns of each head side by side.",
            lambda x: x.transpose(1, 2, 0).reshape(x.shape[1], -1),
        ),
        Slip("heads in reverse order", "The heads are in reverse order.", lambda x: right.combine_heads(x[::-1])),
        Slip(
            "heads stacked vertically",
            "The heads are stacked vertically. They should be side by side: (L, H K).",
            lambda x: x.reshape(-1, x.shape[2]),
        ),
        Slip(
            "all axes reversed",
            "x.T reverses all three axes. Exchange the first two only: x.transpose(1, 0, 2).",
            lambda x: x.T.reshape(x.shape[1], -1),
        ),
        Slip("heads added", "The heads are added. They should be side by side.", lambda x: x.sum(0)),
        Slip(
            "mean of the heads", "This is the mean of the heads. The heads should be side by side.", lambda x: x.mean(0)
        ),
        Slip(
            "not reshaped",
            "The result is (L, H, K). Reshape it to (L, H K).",
            lambda x: x.swapaxes(0, 1),
        ),
    ),
)
