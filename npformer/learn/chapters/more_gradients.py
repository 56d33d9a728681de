"""Chapter 5, the backward pass of layer norm. `attention_gradients.py` has the backward pass of attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn

Array = np.ndarray


# --- layer norm -------------------------------------------------------------------------------------------------------


def _norm_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0, 0], [2, -1, 3]]), array([[1, 2, 6], [0, 4, 8]]), array([1, 1, 2])),
        (drawn(1, 4, 4), drawn(2, 4, 4), array([0.5, 1, 2, -1]), 0.25),
        (drawn(3, 3, 4), drawn(4, 3, 4) / 500, array([1, 2, 3, 4])),
    ]


def _mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)


def _norm(
    grad: Array,
    x: Array,
    weight: Array,
    eps: float = 1e-12,
    *,
    dx: Any = lambda g, n, s: (g - _mean(g) - n * _mean(g * n)) / s,
    variance: Any = lambda c: _mean(c * c),
    dweight: Any = lambda grad, n, x, w: (grad * n).sum(0),
    dbias: Any = lambda grad: grad.sum(0),
    g: Any = lambda grad, w: grad * w,
) -> tuple[Array, Array, Array]:
    """The gradients with one of the steps replaced."""
    centred = x - _mean(x)
    deviation = np.sqrt(variance(centred) + eps)
    n = centred / deviation
    return dx(g(grad, weight), n, deviation), dweight(grad, n, x, weight), dbias(grad)


LAYER_NORM_BACKWARD = Exercise(
    "layer_norm_backward",
    right.layer_norm_backward,
    _norm_cases,
    (
        "Compute n and sqrt(Var[x] + eps) as in layer_norm. E is the mean over the last axis, with keepdims=True.",
        "weight affects dx through g = grad * weight. dweight is the sum over the rows of grad * n, not of g * n.",
        "For dx, subtract E[g] and n * E[g * n] from g, and divide by sqrt(Var[x] + eps).",
    ),
    ("npformer.plain.gradients:layer_norm_backward",),
    (
        Slip(
            "mean terms left out",
            "dx is g / sqrt(Var[x] + eps). E[g] and n E[g n] should be subtracted from g, because the "
            "mean and the variance depend on x too.",
            partial(_norm, dx=lambda g, n, s: g / s),
        ),
        Slip(
            "E[g] left out",
            "E[g] is not subtracted. It should be, because the mean of the row depends on x too.",
            partial(_norm, dx=lambda g, n, s: (g - n * _mean(g * n)) / s),
        ),
        Slip(
            "n E[g n] left out",
            "n E[g n] is not subtracted. It should be, because the variance of the row depends on x too.",
            partial(_norm, dx=lambda g, n, s: (g - _mean(g)) / s),
        ),
        Slip(
            "n left out before E[g n]",
            "E[g n] is subtracted without its factor n.",
            partial(_norm, dx=lambda g, n, s: (g - _mean(g) - _mean(g * n)) / s),
        ),
        Slip(
            "n E[g n] added",
            "n E[g n] is added. It should be subtracted.",
            partial(_norm, dx=lambda g, n, s: (g - _mean(g) + n * _mean(g * n)) / s),
        ),
        Slip(
            "brackets",
            "Only the last term, n E[g n], is divided by the root. Divide the whole difference: put it in brackets.",
            partial(_norm, dx=lambda g, n, s: g - _mean(g) - n * _mean(g * n) / s),
        ),
        Slip(
            "sums instead of means",
            "The sums of g and g n are subtracted. Subtract their means.",
            lambda *a: _norm(
                *a, dx=lambda g, n, s: (g - g.sum(-1, keepdims=True) - n * (g * n).sum(-1, keepdims=True)) / s
            ),
        ),
        Slip(
            "means without keepdims",
            "The means of g and g n lack keepdims=True, so they broadcast along the columns. Each row needs its "
            "own means.",
            partial(_norm, dx=lambda g, n, s: (g - g.mean(-1) - n * (g * n).mean(-1)) / s),
        ),
        Slip(
            "means over the first axis",
            "The means are over axis 0. They should be over the last axis, one per row.",
            partial(_norm, dx=lambda g, n, s: (g - g.mean(0) - n * (g * n).mean(0)) / s),
        ),
        Slip(
            "not divided by the deviation",
            "dx is not divided by sqrt(Var[x] + eps).",
            partial(_norm, dx=lambda g, n, s: g - _mean(g) - n * _mean(g * n)),
        ),
        Slip(
            "divided by the variance",
            "dx is divided by the variance plus eps. It should be divided by the square root of that sum.",
            partial(_norm, dx=lambda g, n, s: (g - _mean(g) - n * _mean(g * n)) / s**2),
        ),
        Slip(
            "multiplied by the deviation",
            "dx is multiplied by sqrt(Var[x] + eps). It should be divided by it.",
            partial(_norm, dx=lambda g, n, s: (g - _mean(g) - n * _mean(g * n)) * s),
        ),
        Slip(
            "weight left out of dx",
            "dx is computed from grad. It should be computed from g = grad * weight.",
            partial(_norm, g=lambda grad, w: grad),
        ),
        Slip(
            "weight left out of E[g]",
            "E[g] is computed from grad. It should be computed from g = grad * weight.",
            lambda grad, x, w, eps=1e-12: _norm(
                grad, x, w, eps, dx=lambda g, n, s: (g - _mean(grad) - n * _mean(g * n)) / s
            ),
        ),
        Slip(
            "weight left out of E[g n]",
            "E[g n] is computed from grad * n. It should be computed from g n, with g = grad * weight.",
            lambda grad, x, w, eps=1e-12: _norm(
                grad, x, w, eps, dx=lambda g, n, s: (g - _mean(g) - n * _mean(grad * n)) / s
            ),
        ),
        Slip(
            "weight applied after the means",
            "The means are computed from grad, and dx is then multiplied by weight. Multiply grad by weight first.",
            lambda *a: _after(*a),
        ),
        Slip(
            "unbiased variance",
            "The divisor of the variance is D - 1. It should be D.",
            partial(_norm, variance=lambda c: (c * c).sum(-1, keepdims=True) / (c.shape[-1] - 1)),
        ),
        Slip("eps ignored", "The argument eps is not used.", lambda grad, x, w, eps=1e-12: _norm(grad, x, w, 0.0)),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, regardless of the argument. Use the argument, which is 1e-12 by default.",
            lambda grad, x, w, eps=1e-12: _norm(grad, x, w, 1e-5),
        ),
        Slip(
            "wrong default for eps",
            "eps is 1e-5 by default. The default should be 1e-12.",
            lambda grad, x, w, eps=1e-5: _norm(grad, x, w, eps),
        ),
        Slip(
            "dweight from x",
            "dweight is the sum of grad * x. It should be the sum of grad * n, with n the normalized x.",
            partial(_norm, dweight=lambda grad, n, x, w: (grad * x).sum(0)),
        ),
        Slip(
            "dweight from x - E[x]",
            "dweight is the sum of grad * (x - E[x]). It should be the sum of grad * n, where n is x - E[x] "
            "divided by sqrt(Var[x] + eps).",
            partial(_norm, dweight=lambda grad, n, x, w: (grad * (x - _mean(x))).sum(0)),
        ),
        Slip(
            "weight in dweight",
            "dweight is multiplied by weight. It should be the sum of grad * n.",
            partial(_norm, dweight=lambda grad, n, x, w: (grad * w * n).sum(0)),
        ),
        Slip(
            "weight in dbias",
            "dbias is the sum of grad * weight. It should be the sum of grad's rows.",
            lambda grad, x, w, eps=1e-12: (*_norm(grad, x, w, eps)[:2], (grad * w).sum(0)),
        ),
        Slip(
            "dweight not summed",
            "dweight is grad * n. It should be the sum of its rows.",
            partial(_norm, dweight=lambda grad, n, x, w: grad * n),
        ),
        Slip(
            "dbias not summed",
            "dbias is grad. It should be the sum of grad's rows.",
            partial(_norm, dbias=lambda grad: grad),
        ),
        Slip(
            "dweight and dbias not summed",
            "dweight and dbias have a row for each token. They should be sums of the rows.",
            partial(_norm, dweight=lambda grad, n, x, w: grad * n, dbias=lambda grad: grad),
        ),
        Slip(
            "dweight and dbias are means",
            "dweight and dbias are means over the rows. They should be sums.",
            partial(_norm, dweight=lambda grad, n, x, w: (grad * n).mean(0), dbias=lambda grad: grad.mean(0)),
        ),
        Slip(
            "sums of each row",
            "dweight and dbias are summed over the last axis. They should be summed over the rows, axis 0.",
            partial(_norm, dweight=lambda grad, n, x, w: (grad * n).sum(-1), dbias=lambda grad: grad.sum(-1)),
        ),
        Slip(
            "dweight and dbias exchanged",
            "dbias is returned before dweight. The order should be dx, dweight, dbias.",
            lambda *a: ordered(_norm(*a), 0, 2, 1),
        ),
    ),
    values=("dx", "dweight", "dbias"),
    constants=(
        Constant(
            "wrong eps",
            "eps is {number}, regardless of the argument. Use the argument, which is 1e-12 by default.",
            lambda number: lambda grad, x, w, eps=1e-12: _norm(grad, x, w, number),
            (1e-6, 1e-2),
        ),
    ),
)


def ordered(grads: tuple[Array, Array, Array], *order: int) -> tuple[Array, ...]:
    """Returns the gradients in the given order."""
    return tuple(grads[i] for i in order)


def _after(grad: Array, x: Array, weight: Array, eps: float = 1e-12) -> tuple[Array, Array, Array]:
    dx, dweight, dbias = _norm(grad, x, weight, eps, g=lambda grad, w: grad)
    return dx * weight, dweight, dbias
