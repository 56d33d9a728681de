"""Chapter 5, the backward of layer norm and of attention. `whole_gradient.py` has the last exercise."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn
from npformer.learn.right import softmax, softmax_backward

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
    """The gradients with one of the steps exchanged."""
    centred = x - _mean(x)
    deviation = np.sqrt(variance(centred) + eps)
    n = centred / deviation
    return dx(g(grad, weight), n, deviation), dweight(grad, n, x, weight), dbias(grad)


LAYER_NORM_BACKWARD = Exercise(
    "layer_norm_backward",
    right.layer_norm_backward,
    _norm_cases,
    (
        "Compute n and the root again, as in layer_norm. E is the mean over the last axis, with keepdims=True.",
        "weight has a part in dx through g = grad * weight. dweight is the sum over the rows of grad * n, not of "
        "g * n.",
        "From g subtract its mean and n times the mean of g * n, and divide by the root: that is dx.",
    ),
    ("npformer.functions:layer_norm_backward",),
    (
        Slip(
            "mean terms left out",
            "dx is g / sqrt(Var[x] + eps). E[g] and n E[g n] should be subtracted from g: the mean and the "
            "variance depend on x too.",
            partial(_norm, dx=lambda g, n, s: g / s),
        ),
        Slip(
            "E[g] left out",
            "E[g] is not subtracted: the mean of the row depends on x too.",
            partial(_norm, dx=lambda g, n, s: (g - n * _mean(g * n)) / s),
        ),
        Slip(
            "n E[g n] left out",
            "n E[g n] is not subtracted: the variance of the row depends on x too.",
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
            "sums for means",
            "The sums of g and g n are subtracted. Their means should be.",
            lambda *a: _norm(
                *a, dx=lambda g, n, s: (g - g.sum(-1, keepdims=True) - n * (g * n).sum(-1, keepdims=True)) / s
            ),
        ),
        Slip(
            "means over the first axis",
            "The means are over axis 0. They should be over each row, the last axis.",
            partial(_norm, dx=lambda g, n, s: (g - g.mean(0) - n * (g * n).mean(0)) / s),
        ),
        Slip(
            "not divided by the deviation",
            "dx is not divided by sqrt(Var[x] + eps).",
            partial(_norm, dx=lambda g, n, s: g - _mean(g) - n * _mean(g * n)),
        ),
        Slip(
            "divided by the variance",
            "dx is divided by the variance plus eps. It should be divided by the root of that.",
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
            "weight applied after the means",
            "The means are those of grad, and dx is multiplied by weight afterwards. Multiply grad by weight first.",
            lambda *a: _after(*a),
        ),
        Slip(
            "unbiased variance",
            "The variance divides by D - 1. It should divide by D.",
            partial(_norm, variance=lambda c: (c * c).sum(-1, keepdims=True) / (c.shape[-1] - 1)),
        ),
        Slip("eps ignored", "The argument eps is not used.", lambda grad, x, w, eps=1e-12: _norm(grad, x, w, 0.0)),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, whatever the argument is. Use the argument, which is 1e-12 by default.",
            lambda grad, x, w, eps=1e-12: _norm(grad, x, w, 1e-5),
        ),
        Slip(
            "another default of eps",
            "eps is 1e-5 by default. The default is 1e-12.",
            lambda grad, x, w, eps=1e-5: _norm(grad, x, w, eps),
        ),
        Slip(
            "dweight from x",
            "dweight is the sum of grad * x. It should be the sum of grad * n, with n the normalised x.",
            partial(_norm, dweight=lambda grad, n, x, w: (grad * x).sum(0)),
        ),
        Slip(
            "dweight from x - E[x]",
            "dweight is the sum of grad * (x - E[x]). It should be the sum of grad * n, where n is x - E[x] "
            "divided by the root.",
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
            "dbias is returned before dweight. The order is dx, dweight, dbias.",
            lambda *a: _ordered(_norm(*a), 0, 2, 1),
        ),
        Slip("sign", "The gradients have the opposite sign.", lambda *a: tuple(-each for each in _norm(*a))),
    ),
    values=("dx", "dweight", "dbias"),
)


def _ordered(grads: tuple[Array, Array, Array], *order: int) -> tuple[Array, ...]:
    """The gradients in another order."""
    return tuple(grads[i] for i in order)


def _after(grad: Array, x: Array, weight: Array, eps: float = 1e-12) -> tuple[Array, Array, Array]:
    dx, dweight, dbias = _norm(grad, x, weight, eps, g=lambda grad, w: grad)
    return dx * weight, dweight, dbias


# --- attention --------------------------------------------------------------------------------------------------------


def _attention_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[[1, 0], [0, 2]]]), array([[[2, 0], [0, 2]]]), array([[[1, 0], [1, 1]]]), array([[[1, 0], [0, 10]]])),
        (drawn(1, 2, 3, 3), drawn(2, 2, 3, 3), drawn(3, 2, 3, 3), drawn(4, 2, 3, 3)),
        (drawn(1, 2, 3, 4), drawn(2, 2, 3, 4), drawn(3, 2, 5, 4), drawn(4, 2, 5, 4)),
    ]


def _backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    forward: float = -0.5,
    scale: float = -0.5,
    dscores: Any = softmax_backward,
    dv: Any = lambda grad, w: w.mT @ grad,
    dw: Any = lambda grad, v: grad @ v.mT,
) -> tuple[Array, Array, Array]:
    """The gradients with one of the steps exchanged. forward and scale are powers of K, -0.5 for 1 / sqrt(K)."""
    width = q.shape[-1]
    w = softmax(q @ k.mT * width**forward)
    ds = dscores(dw(grad, v), w) * width**scale
    return ds @ k, ds.mT @ q, dv(grad, w)


def _root(q: Array) -> float:
    return math.sqrt(q.shape[-1])


ATTENTION_BACKWARD = Exercise(
    "attention_backward",
    right.attention_backward,
    _attention_cases,
    (
        "Compute the scores and the weights W again, as in scaled_dot_product_attention.",
        "Every product has two gradients: of C = A B they are dA = dC B^T and dB = A^T dC. Start with context = W v.",
        "dv = W^T grad and dW = grad v^T, then dS = softmax_backward(dW, W), then dq = dS k and dk = dS^T q, "
        "both divided by sqrt(K).",
    ),
    ("npformer.attention:scaled_dot_product_attention_backward",),
    (
        Slip(
            "not divided by sqrt(K)",
            "dq and dk are not divided by sqrt(K), which divides the scores.",
            partial(_backward, scale=0),
        ),
        Slip(
            "divided by K",
            "dq and dk are divided by K. They should be divided by its square root.",
            partial(_backward, scale=-1),
        ),
        Slip(
            "scores not divided",
            "The scores are not divided by sqrt(K) before the softmax.",
            partial(_backward, forward=0),
        ),
        Slip(
            "sqrt(K) left out everywhere",
            "Neither the scores nor dq and dk are divided by sqrt(K).",
            partial(_backward, forward=0, scale=0),
        ),
        Slip(
            "dq not divided by sqrt(K)",
            "dq is not divided by sqrt(K).",
            lambda g, q, k, v: _each(_backward(g, q, k, v), dq=_root(q)),
        ),
        Slip(
            "dk not divided by sqrt(K)",
            "dk is not divided by sqrt(K).",
            lambda g, q, k, v: _each(_backward(g, q, k, v), dk=_root(q)),
        ),
        Slip(
            "softmax's sum left out",
            "dS is W * dW. The sum of dW * W over each row should be subtracted from dW first: use softmax_backward.",
            partial(_backward, dscores=lambda dw, w: w * dw),
        ),
        Slip(
            "softmax's backward left out",
            "dW is taken for dS. It should go through softmax_backward first.",
            partial(_backward, dscores=lambda dw, w: dw),
        ),
        Slip(
            "softmax's diagonal only",
            "dS is W (1 - W) dW, the diagonal of the Jacobian. Use softmax_backward.",
            partial(_backward, dscores=lambda dw, w: w * (1 - w) * dw),
        ),
        Slip(
            "softmax's arguments exchanged",
            "The arguments of softmax_backward are exchanged. They should be dW and W.",
            partial(_backward, dscores=lambda dw, w: softmax_backward(w, dw)),
        ),
        Slip(
            "scores divided by K",
            "The scores are divided by K before the softmax. They should be divided by its square root.",
            partial(_backward, forward=-1),
        ),
        Slip(
            "divided by K everywhere",
            "The scores, dq and dk are divided by K. They should be divided by its square root.",
            partial(_backward, forward=-1, scale=-1),
        ),
        Slip(
            "dq and dk exchanged",
            "dk is returned before dq. The order is dq, dk, dv.",
            lambda g, q, k, v: _ordered(_backward(g, q, k, v), 1, 0, 2),
        ),
        Slip(
            "dv first",
            "dv is returned first. The order is dq, dk, dv.",
            lambda g, q, k, v: _ordered(_backward(g, q, k, v), 2, 0, 1),
        ),
        Slip(
            "dS not transposed",
            "dk is dS q. It should be dS^T q.",
            lambda g, q, k, v: _of_scores(g, q, k, v, lambda ds: (ds @ k, ds @ q)),
        ),
        Slip(
            "dS transposed in dq",
            "dq is dS^T k. It should be dS k.",
            lambda g, q, k, v: _of_scores(g, q, k, v, lambda ds: (ds.mT @ k, ds.mT @ q)),
        ),
        Slip(
            "dk from k",
            "dk is dS^T k. It should be dS^T q.",
            lambda g, q, k, v: _of_scores(g, q, k, v, lambda ds: (ds @ k, ds.mT @ k)),
        ),
        Slip(
            "dq from q",
            "dq is dS q. It should be dS k.",
            lambda g, q, k, v: _of_scores(g, q, k, v, lambda ds: (ds @ q, ds.mT @ q)),
        ),
        Slip(
            "q and k exchanged",
            "dq is dS q and dk is dS^T k. dq is dS k, and dk is dS^T q.",
            lambda g, q, k, v: _of_scores(g, q, k, v, lambda ds: (ds @ q, ds.mT @ k)),
        ),
        Slip(
            "weights not transposed",
            "dv is W grad. It should be W^T grad.",
            partial(_backward, dv=lambda grad, w: w @ grad),
        ),
        Slip(
            "dv is grad",
            "dv is grad. It should be W^T grad.",
            partial(_backward, dv=lambda grad, w: grad),
        ),
        Slip(
            "v not transposed",
            "dW is grad v. It should be grad v^T.",
            partial(_backward, dw=lambda grad, v: grad @ v),
        ),
        Slip(
            "dW transposed",
            "dW is v grad^T. It should be grad v^T.",
            partial(_backward, dw=lambda grad, v: v @ grad.mT),
        ),
    ),
    values=("dq", "dk", "dv"),
)


def _each(grads: tuple[Array, Array, Array], dq: float = 1.0, dk: float = 1.0) -> tuple[Array, Array, Array]:
    """The gradients with factors."""
    return grads[0] * dq, grads[1] * dk, grads[2]


def _of_scores(grad: Array, q: Array, k: Array, v: Array, gradients: Any) -> tuple[Array, Array, Array]:
    """dq and dk by another formula of dS / sqrt(K)."""
    w = softmax(q @ k.mT / math.sqrt(q.shape[-1]))
    ds = softmax_backward(grad @ v.mT, w) / math.sqrt(q.shape[-1])
    return (*gradients(ds), w.mT @ grad)
