"""Chapter 5, the backward pass of attention. `whole_gradient.py` has the last exercise of the chapter."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from npformer.learn import right
from npformer.learn.chapters.more_gradients import ordered
from npformer.learn.exercise import Exercise, Slip, array, drawn
from npformer.learn.right import softmax, softmax_backward

Array = np.ndarray


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
    """The gradients with one step replaced. forward and scale are exponents of K; -0.5 means 1 / sqrt(K)."""
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
        "Every product has two gradients: for C = A B they are dA = dC B^T and dB = A^T dC. Start with context = W v.",
        "dv = W^T grad and dW = grad v^T, then dS = softmax_backward(dW, W), then dq = dS k and dk = dS^T q, "
        "both divided by sqrt(K).",
    ),
    ("npformer.plain.gradients:scaled_dot_product_attention_backward",),
    (
        Slip(
            "not divided by sqrt(K)",
            "dq and dk are not divided by sqrt(K). Divide them by it, because the scores are divided by it.",
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
            "dS is W * dW. Subtract the sum of dW * W over each row from dW first: use softmax_backward.",
            partial(_backward, dscores=lambda dw, w: w * dw),
        ),
        Slip(
            "softmax's backward left out",
            "dW is used as dS. Pass it through softmax_backward first.",
            partial(_backward, dscores=lambda dw, w: dw),
        ),
        Slip(
            "softmax's diagonal only",
            "dS is W (1 - W) dW, the diagonal of the Jacobian. Use softmax_backward.",
            partial(_backward, dscores=lambda dw, w: w * (1 - w) * dw),
        ),
        Slip(
            "softmax_backward's arguments exchanged",
            "The arguments of softmax_backward are exchanged. They should be dW and W.",
            partial(_backward, dscores=lambda dw, w: softmax_backward(w, dw)),
        ),
        Slip(
            "softmax_backward of the scores",
            "softmax_backward is applied to the scores. It should be applied to the weights, W = softmax(S).",
            lambda g, q, k, v: _of_weights(g, q, k, v, lambda s, w: (s, w)),
        ),
        Slip(
            "dv from the scores",
            "dv is S^T grad, from the scores. It should be W^T grad, with W = softmax(S).",
            lambda g, q, k, v: _of_weights(g, q, k, v, lambda s, w: (w, s)),
        ),
        Slip(
            "softmax left out",
            "The scores are used as the weights everywhere. The weights should be W = softmax(S).",
            lambda g, q, k, v: _of_weights(g, q, k, v, lambda s, w: (s, s)),
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
            "dk is returned before dq. The order should be dq, dk, dv.",
            lambda g, q, k, v: ordered(_backward(g, q, k, v), 1, 0, 2),
        ),
        Slip(
            "dv first",
            "dv is returned first. The order should be dq, dk, dv.",
            lambda g, q, k, v: ordered(_backward(g, q, k, v), 2, 0, 1),
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
            "dq is dS q and dk is dS^T k. They should be dS k and dS^T q.",
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
    """Multiplies the gradients of queries and keys by factors."""
    return grads[0] * dq, grads[1] * dk, grads[2]


def _of_scores(grad: Array, q: Array, k: Array, v: Array, gradients: Any) -> tuple[Array, Array, Array]:
    """The gradients, with dq and dk computed from dS / sqrt(K) by `gradients`."""
    w = softmax(q @ k.mT / math.sqrt(q.shape[-1]))
    ds = softmax_backward(grad @ v.mT, w) / math.sqrt(q.shape[-1])
    return (*gradients(ds), w.mT @ grad)


def _of_weights(grad: Array, q: Array, k: Array, v: Array, read: Any) -> tuple[Array, Array, Array]:
    """The gradients with arrays returned by `read` instead of W: one for softmax_backward, one for dv."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    of_softmax, of_v = read(scores, softmax(scores))
    ds = softmax_backward(grad @ v.mT, of_softmax) / math.sqrt(q.shape[-1])
    return ds @ k, ds.mT @ q, of_v.mT @ grad
