"""Chapter 5, the loss, and the backward passes of a linear layer and of softmax."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from npformer.functions import log_softmax
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn
from npformer.learn.right import softmax, softmax_backward

Array = np.ndarray


# --- cross-entropy ----------------------------------------------------------------------------------------------------


def _loss(logits: Array, target: int, *, log_softmax: Any = log_softmax, factor: float = -1.0) -> Any:
    """`right.cross_entropy` with one of its steps replaced."""
    return factor * log_softmax(logits)[target]


CROSS_ENTROPY = Exercise(
    "cross_entropy",
    right.cross_entropy,
    lambda: [(array([1, 2, 3]), 0), (array([0.5, -1, 2, 0]), 2), (array([1000, 0, -1000]), 1), (array([1000, 0]), 0)],
    (
        "log(softmax(x)) is log 0 = -inf where softmax rounds to 0. The docstring has a formula without that "
        "logarithm.",
        "Subtract the maximum first: s = x - max(x). Then log softmax(x)_i = s_i - log(sum(exp(s))).",
        "Compute s, take s[target], subtract log(sum(exp(s))), and change the sign.",
    ),
    ("npformer.plain.training:cross_entropy", "npformer.plain.formulas:softmax"),
    (
        Slip(
            "logarithm of 0",
            "softmax rounds to 0 for a target far below the maximum, and its logarithm is -inf. "
            "Compute s - log(sum(exp(s))) with s = x - max(x) instead.",
            partial(_loss, log_softmax=lambda x: np.log(softmax(x))),
        ),
        Slip(
            "maximum not subtracted",
            "exp overflows for large logits. Subtract the largest logit first.",
            lambda logits, target: -(logits[target] - np.log(np.exp(logits).sum())),
        ),
        Slip(
            "maximum not subtracted",
            "exp overflows for large logits. Subtract the largest logit first. Do not take the logarithm of softmax.",
            lambda logits, target: -np.log(np.exp(logits)[target] / np.exp(logits).sum()),
        ),
        *(
            Slip(
                f"{small:g} added in the logarithm",
                f"{small:g} is added in the logarithm. This limits the loss to {-math.log(small):.0f}. "
                "Compute s - log(sum(exp(s))) with s = x - max(x) instead.",
                partial(_loss, log_softmax=lambda x, small=small: np.log(softmax(x) + small)),
            )
            for small in (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15, 1e-20)
        ),
        Slip("sign", "The minus sign is missing: this is log softmax.", partial(_loss, factor=1.0)),
        Slip(
            "logarithm to the base 2",
            "The logarithm is to the base 2. It should be the natural logarithm.",
            partial(_loss, factor=-1 / math.log(2)),
        ),
        Slip(
            "logarithm to the base 10",
            "The logarithm is to the base 10. It should be the natural logarithm.",
            partial(_loss, factor=-1 / math.log(10)),
        ),
        Slip(
            "negative logit",
            "This is the negative logit of the target, without log softmax.",
            lambda x, target: -x[target],
        ),
        Slip(
            "negative probability",
            "The logarithm is missing: this is the negative probability.",
            lambda x, target: -softmax(x)[target],
        ),
        Slip(
            "probability",
            "This is the probability p of the target. The loss is -log p.",
            lambda x, target: softmax(x)[target],
        ),
        Slip(
            "1 minus the probability",
            "This is 1 - p, where p is the probability of the target. The loss is -log p.",
            lambda x, target: 1 - softmax(x)[target],
        ),
        Slip(
            "divided by the number of labels",
            "The loss is divided by the number of labels. Leave out this division.",
            lambda x, target: -log_softmax(x)[target] / len(x),
        ),
        Slip(
            "sum over all labels",
            "The losses of all labels are added. Only the loss of the target should count.",
            lambda x, target: -log_softmax(x).sum(),
        ),
        Slip(
            "target ignored",
            "This is the loss of the most likely label, not of the target.",
            lambda x, target: -log_softmax(x).max(),
        ),
        Slip(
            "loss of every label",
            "The loss of every label is returned. Return only the loss of the target.",
            lambda x, target: -log_softmax(x),
        ),
        Slip(
            "maximum not added back",
            "The maximum is subtracted inside exp only. Subtract it from the target's logit too.",
            lambda x, target: -(x[target] - np.log(np.exp(x - x.max()).sum())),
        ),
        Slip(
            "brackets",
            "The target's logit is subtracted inside the logarithm. It should be subtracted from the logarithm.",
            lambda x, target: np.log(np.exp(x - x.max()).sum() - (x - x.max())[target]),
        ),
    ),
)


# --- linear -----------------------------------------------------------------------------------------------------------


def _linear_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0], [2, 1], [0, 3]]), array([[1, 2], [0, 1], [4, 0]]), array([[1, 2], [3, 5]])),
        (drawn(1, 4, 2), drawn(2, 4, 3), drawn(3, 3, 2)),
        (drawn(4, 3, 3), drawn(5, 3, 3), drawn(6, 3, 3)),
    ]


LINEAR_BACKWARD = Exercise(
    "linear_backward",
    right.linear_backward,
    _linear_cases,
    (
        "The shapes decide: dx (L, in) can only be grad (L, out) times an array (out, in).",
        "dweight[i, j] is the sum over the rows of x[:, i] * grad[:, j], which is a product with x transposed.",
        "dx = grad @ weight.T, dweight = x.T @ grad, and dbias is grad.sum(axis=0).",
    ),
    ("npformer.plain.gradients:linear_backward",),
    (
        Slip(
            "weight not transposed", "dx is grad W. It should be grad W^T.", lambda g, x, w: (g @ w, x.T @ g, g.sum(0))
        ),
        Slip(
            "dweight transposed",
            "dweight is grad^T x. It should be x^T grad.",
            lambda g, x, w: (g @ w.T, g.T @ x, g.sum(0)),
        ),
        Slip(
            "x not transposed", "dweight is x grad. It should be x^T grad.", lambda g, x, w: (g @ w.T, x @ g, g.sum(0))
        ),
        Slip(
            "dweight divided by L",
            "dweight is a mean over the rows. It should be a sum.",
            lambda g, x, w: (g @ w.T, x.T @ g / len(x), g.sum(0)),
        ),
        Slip(
            "dbias is a mean",
            "dbias is the mean of grad's rows. It should be their sum.",
            lambda g, x, w: (g @ w.T, x.T @ g, g.mean(0)),
        ),
        Slip(
            "dweight and dbias are means",
            "dweight and dbias are means over the rows. They should be sums.",
            lambda g, x, w: (g @ w.T, x.T @ g / len(x), g.mean(0)),
        ),
        Slip(
            "dbias over the wrong axis",
            "dbias is the sum of each row. It should be the sum of the rows, over axis 0.",
            lambda g, x, w: (g @ w.T, x.T @ g, g.sum(1)),
        ),
        Slip(
            "dbias not summed",
            "dbias is grad. It should be the sum of grad's rows.",
            lambda g, x, w: (g @ w.T, x.T @ g, g),
        ),
        Slip(
            "dbias is one number",
            "dbias is the sum of all of grad. It should be the sum of grad's rows, over axis 0.",
            lambda g, x, w: (g @ w.T, x.T @ g, g.sum()),
        ),
        Slip(
            "dbias is 1",
            "dbias is 1. It should be the sum of grad's rows.",
            lambda g, x, w: (g @ w.T, x.T @ g, np.ones(g.shape[1])),
        ),
        Slip(
            "grad left out of dweight",
            "dweight has the sums of x's columns, without grad. It should be x^T grad.",
            lambda g, x, w: (g @ w.T, x.T @ np.ones_like(g), g.sum(0)),
        ),
        Slip(
            "grad left out of dx",
            "dx is the sum of W's columns. It should be grad W^T.",
            lambda g, x, w: (np.ones_like(g) @ w.T, x.T @ g, g.sum(0)),
        ),
        Slip(
            "order of the gradients",
            "dweight is returned before dx. The order should be dx, dweight, dbias.",
            lambda g, x, w: (x.T @ g, g @ w.T, g.sum(0)),
        ),
        Slip(
            "dweight and dbias exchanged",
            "dbias is returned before dweight. The order should be dx, dweight, dbias.",
            lambda g, x, w: (g @ w.T, g.sum(0), x.T @ g),
        ),
        Slip("sign", "The gradients have the opposite sign.", lambda g, x, w: (-g @ w.T, -x.T @ g, -g.sum(0))),
    ),
    values=("dx", "dweight", "dbias"),
)


# --- softmax ----------------------------------------------------------------------------------------------------------


def _softmax_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0, 2], [0, 3, 1]]), array([[0.25, 0.5, 0.25], [0.5, 0.375, 0.125]])),
        (drawn(1, 2, 3, 3), softmax(drawn(2, 2, 3, 3))),
        (drawn(3, 4), softmax(drawn(4, 4))),
        (drawn(5, 3, 3), softmax(drawn(6, 3, 3))),
    ]


def _less(g: Array, y: Array, total: Any) -> Array:
    return y * (g - total)


SOFTMAX_BACKWARD = Exercise(
    "softmax_backward",
    right.softmax_backward,
    _softmax_cases,
    (
        "All outputs of a row depend on each x_i, because they share a denominator. So dx_i has a sum over the row.",
        "Sum grad * y over the last axis, with keepdims=True.",
        "Subtract the sum of grad * y from grad, and multiply by y.",
    ),
    ("npformer.plain.gradients:softmax_backward",),
    (
        Slip(
            "sum left out",
            "dx is y * grad. The sum of grad * y over the row should be subtracted from grad first.",
            lambda g, y: y * g,
        ),
        Slip(
            "diagonal only",
            "dx is y (1 - y) grad, the diagonal of the Jacobian. The other numbers of the row also affect dx: "
            "subtract the sum of grad * y.",
            lambda g, y: y * (1 - y) * g,
        ),
        Slip(
            "y left out of the sum",
            "The sum of grad is subtracted. Subtract the sum of grad * y.",
            lambda g, y: _less(g, y, g.sum(-1, keepdims=True)),
        ),
        Slip("factor y left out", "dx is not multiplied by y.", lambda g, y: g - (g * y).sum(-1, keepdims=True)),
        Slip(
            "mean instead of the sum",
            "The mean of grad * y is subtracted. Subtract its sum.",
            lambda g, y: _less(g, y, (g * y).mean(-1, keepdims=True)),
        ),
        Slip(
            "sum over the first axis",
            "The sum is over axis 0. It should be over the last axis.",
            lambda g, y: _less(g, y, (g * y).sum(0, keepdims=True)),
        ),
        Slip(
            "sum over axis 1",
            "The sum is over axis 1. It should be over the last axis, -1.",
            lambda g, y: _less(g, y, (g * y).sum(1, keepdims=True)),
        ),
        Slip(
            "sum without keepdims",
            "The sum lacks keepdims=True, so it broadcasts along the columns. From each row, subtract the row's sum.",
            lambda g, y: _less(g, y, (g * y).sum(-1)),
        ),
        Slip(
            "sum over the whole array",
            "The sum is over the whole array. It should be over each row.",
            lambda g, y: _less(g, y, (g * y).sum()),
        ),
        Slip(
            "sum added",
            "The sum of grad * y is added. It should be subtracted.",
            lambda g, y: _less(g, y, -(g * y).sum(-1, keepdims=True)),
        ),
        Slip(
            "sum not multiplied by y",
            "The sum of grad * y is subtracted from y * grad. It should be subtracted from grad, before the "
            "multiplication by y.",
            lambda g, y: y * g - (g * y).sum(-1, keepdims=True),
        ),
        Slip("sign", "The gradient has the opposite sign.", lambda g, y: -softmax_backward(g, y)),
        Slip(
            "softmax taken of y",
            "softmax is applied to y. It should not be, because y is the output of softmax.",
            lambda g, y: softmax_backward(g, softmax(y)),
        ),
        Slip(
            "log softmax",
            "This is the backward pass of log softmax, grad - y * sum(grad).",
            lambda g, y: g - y * g.sum(-1, keepdims=True),
        ),
    ),
)
