"""The functions of a Transformer, named as in torch.nn.functional. Each backward function is below its function.

Functions take arrays with any leading axes, in float32 or float64, and return arrays of the same dtype. Only `linears`
needs rows (T, in). Activations are in `activations.py`, attention in `attention.py`, layers in `layers/`, heads in
`output_heads/`.

A backward function takes grad, the gradient of the loss with respect to the output, and returns the gradients dx, dW
... with respect to the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from npformer.common.arraylike import scalar
from npformer.common.checks import number, one_of, whole
from npformer.common.errors import NpformerError
from npformer.engine.runtime.weight_products import weight_products

Linear = Mapping[str, np.ndarray]  # the weight and bias of a linear layer

IGNORE_INDEX = -100  # the loss ignores targets with this value

_weights_are_constant: ContextVar[bool] = ContextVar("weights_are_constant", default=False)


@contextmanager
def constant_weights() -> Iterator[None]:
    """Inside the `with` block, `linear_backward` omits the gradient of the weight matrix, which halves the work."""
    token = _weights_are_constant.set(True)
    try:
        yield
    finally:
        _weights_are_constant.reset(token)


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """y = x W + b, (..., in) -> (..., out). weight (in, out) is the transpose of torch's weight.

    Inside a model, the bits of a row of y do not depend on the other rows of x.
    """
    _check_linear(x, weight, bias)
    (y,) = weight_products(_rows(x), weight)  # x @ weight
    if bias is not None:
        y += bias
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[-1])


def linears(x: np.ndarray, *layers: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """[linear(x, **layer) for layer in layers] for rows (T, in), with all products computed together."""
    for layer in layers:
        _check_linear(x, **layer)
    products = weight_products(x, *[layer["weight"] for layer in layers])
    for y, layer in zip(products, layers, strict=True):
        if "bias" in layer:
            y += layer["bias"]
    return products


def _check_linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[0]:
        raise NpformerError(f"linear: weight must be (in, out) for x (..., in), got {weight.shape} and {x.shape}")
    if bias is not None and bias.shape != weight.shape[1:]:
        raise NpformerError(f"linear: bias must be {weight.shape[1:]} for weight {weight.shape}, got {bias.shape}")


def _rows(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def linear_backward(
    grad: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Backward of `linear`: dx = grad W^T, dW = x^T grad, db = sum of the rows of grad. (..., out) -> (..., in)."""
    rows, grads = grad.reshape(-1, grad.shape[-1]), {}
    if not _weights_are_constant.get():
        grads["weight"] = x.reshape(-1, x.shape[-1]).T @ rows
    if bias is not None:
        grads["bias"] = rows.sum(axis=0)
    return (rows @ weight.T).reshape(x.shape), grads


def embedding(ids: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Looks up rows of a table (V, D): weight[ids], (...) -> (..., D)."""
    ids = np.asanyarray(ids)
    if weight.ndim != 2:
        raise NpformerError(f"embedding: weight must be (V, D), got {weight.shape} for ids {ids.shape}")
    if not np.issubdtype(ids.dtype, np.integer):
        raise NpformerError(f"embedding: ids must be integers, got {ids.dtype}")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(weight)):
        wrong = ids[(ids < 0) | (ids >= len(weight))].flat[0]
        raise NpformerError(f"embedding: ids must be in 0 ... {len(weight) - 1}, got {wrong}")
    return weight[ids]


class SparseRows(NamedTuple):
    """The gradient of a table: values[i] (D,) for row ids[i], and zeros for other rows. ids is strictly increasing."""

    ids: np.ndarray
    values: np.ndarray


def embedding_backward(grad: np.ndarray, ids: np.ndarray) -> SparseRows:
    """Backward of `embedding`: dweight[i] = sum of the rows of grad (..., D) where ids == i, added in order."""
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    rows = grad.reshape(-1, grad.shape[-1])[order]
    return SparseRows(ordered[starts], np.add.reduceat(rows, starts, axis=0) if len(flat) else rows)


def layer_norm(
    x: np.ndarray,
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    eps: float = 1e-5,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """y = (x - E[x]) / sqrt(Var[x] + eps) * weight + bias, with mean and biased variance over the last axis.

    A row becomes NaN if it has an infinite element, or if its variance overflows the dtype. Ba et al., 2016, section 3.
    """
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.shape != x.shape[-1:]:
            raise NpformerError(f"layer_norm: {name} must be {x.shape[-1:]} for x {x.shape}, got {parameter.shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.subtract(x, np.add.reduce(x, axis=-1, keepdims=True) / x.shape[-1], out=out)
        variance = np.vecdot(y, y)[..., None] / x.shape[-1]
        variance += 0 * variance  # inf becomes NaN: 1 / sqrt(inf) would make the row 0
        y *= 1 / np.sqrt(variance + eps)
    if weight is not None:
        y *= weight
    if bias is not None:
        y += bias
    return y


def layer_norm_backward(
    grad: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    eps: float = 1e-5,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Backward of `layer_norm`, with n = (x - E[x]) / sqrt(Var[x] + eps) and g = grad * weight:

    dx = (g - E[g] - n E[g n]) / sqrt(Var[x] + eps), dweight = sum of the rows of grad * n,
    dbias = sum of the rows of grad.
    """
    width, grads = x.shape[-1], {}
    n = x - np.add.reduce(x, axis=-1, keepdims=True) / width
    scale = 1 / np.sqrt(np.vecdot(n, n)[..., None] / width + eps)
    n *= scale
    dx = grad * n
    if weight is not None:
        grads["weight"] = dx.reshape(-1, width).sum(axis=0)
    if bias is not None:
        grads["bias"] = grad.reshape(-1, width).sum(axis=0)
    g = grad if weight is None else np.multiply(grad, weight, out=dx)
    n *= np.vecdot(g, n)[..., None] / width
    n += np.add.reduce(g, axis=-1, keepdims=True) / width
    dx = np.subtract(g, n, out=n)
    dx *= scale
    return dx, grads


def rms_norm(
    x: np.ndarray, weight: np.ndarray | None = None, eps: float = 1e-6, out: np.ndarray | None = None
) -> np.ndarray:
    """x / sqrt(E[x^2] + eps) * weight over the last axis. Zhang and Sennrich, 2019, equation 4."""
    if weight is not None and weight.shape != x.shape[-1:]:
        raise NpformerError(f"rms_norm: weight must be {x.shape[-1:]} for x {x.shape}, got {weight.shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.vecdot(x, x)[..., None] / x.shape[-1]
        square += 0 * square  # inf becomes NaN: 1 / sqrt(inf) would make the row 0
        y = np.multiply(x, 1 / np.sqrt(square + eps), out=out)
    if weight is not None:
        y *= weight
    return y


def rms_norm_backward(
    grad: np.ndarray, x: np.ndarray, weight: np.ndarray | None = None, eps: float = 1e-6
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Backward of `rms_norm`, with n = x / sqrt(E[x^2] + eps) and g = grad * weight:

    dx = (g - n E[g n]) / sqrt(E[x^2] + eps), dweight = sum of the rows of grad * n.
    """
    width = x.shape[-1]
    scale = 1 / np.sqrt(np.vecdot(x, x)[..., None] / width + eps)
    n = x * scale
    grads = {} if weight is None else {"weight": (grad * n).reshape(-1, width).sum(axis=0)}
    g = grad if weight is None else grad * weight
    n *= np.vecdot(g, n)[..., None] / width
    dx = np.subtract(g, n, out=n)
    dx *= scale
    return dx, grads


def softmax(
    x: np.ndarray, axis: int = -1, out: np.ndarray | None = None, total: Callable[..., np.ndarray] = np.sum
) -> np.ndarray:
    """y_i = exp(x_i) / sum_j exp(x_j), computed from x - max(x) so that nothing overflows.

    An element of -inf gives 0. As in torch, a slice with +inf, or with only -inf, gives NaN. total: the function that
    sums the exponentials, with the signature of numpy.sum.
    """
    with np.errstate(all="ignore"):  # a difference that overflows to -inf has the correct exponential, 0
        y = np.subtract(x, x.max(axis=axis, keepdims=True, initial=-np.inf), out=out)
        np.exp(y, out=y)
        y *= 1 / total(y, axis=axis, keepdims=True)
    return y


def softmax_backward(grad: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
    """Backward of `softmax`, from its output y: dx_i = y_i (grad_i - sum_j grad_j y_j)."""
    dx = grad * y
    np.subtract(grad, np.add.reduce(dx, axis=axis, keepdims=True), out=dx)
    dx *= y  # this takes fewer passes over memory than dx - y * sum
    return dx


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """y_i = x_i - log sum_j exp(x_j), computed from x - max(x) so that nothing overflows.

    Infinities are treated as in `softmax`.

    Parameters
    ----------
    x : array
    axis : int, the axis of the sum

    Returns
    -------
    array like x

    Examples
    --------
    >>> npformer.log_softmax(np.array([0.0, 1.0, 2.0]))
    array([-2.4076, -1.4076, -0.4076])
    """
    whole("log_softmax: axis", scalar(axis), -x.ndim, x.ndim - 1)
    with np.errstate(all="ignore"):
        y = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
        y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y


def cross_entropy(
    logits: np.ndarray,
    targets: np.ndarray,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    log_probabilities: np.ndarray | None = None,
) -> np.ndarray:
    """-log softmax(logits)[target], averaged over the targets that are not ignored.

    Parameters
    ----------
    logits : (..., C) array
    targets : (...) integer array of classes 0 ... C - 1, or ignore_index
    ignore_index : int, the loss ignores targets with this value
    label_smoothing : float e; the target has probability 1 - e + e / C, and every other class has e / C
    reduction : "mean", "sum", or "none" for the loss of each target, which is 0 for ignored targets
    log_probabilities : (..., C) array, log_softmax(logits) if it is already computed, optional

    Returns
    -------
    scalar, or (...) array for "none". If all targets are ignored, the mean is NaN, as in torch.

    Raises
    ------
    NpformerError
        targets or log_probabilities do not match logits, targets are not classes, or a setting is invalid.

    References
    ----------
    Szegedy et al., 2016, Rethinking the Inception Architecture for Computer Vision, section 7, for label smoothing.

    Examples
    --------
    >>> float(npformer.cross_entropy(np.log([[0.5, 0.5], [0.25, 0.75]]), np.array([0, -100])).round(4))
    0.6931
    """
    targets = np.asarray(targets)
    if targets.shape != logits.shape[:-1] or not np.issubdtype(targets.dtype, np.integer):
        raise NpformerError(
            f"cross_entropy: targets must be integers of shape {logits.shape[:-1]} for logits {logits.shape}, "
            f"got {targets.dtype} of shape {targets.shape}"
        )
    one_of("cross_entropy: reduction", reduction, ("mean", "sum", "none"))
    label_smoothing = number("cross_entropy: label_smoothing", scalar(label_smoothing), 0, 1)
    kept = targets != whole("cross_entropy: ignore_index", scalar(ignore_index), -(2**63), 2**63 - 1)
    if (outside := targets[kept & ((targets < 0) | (targets >= logits.shape[-1]))]).size:
        bounds = f"0 ... {logits.shape[-1] - 1} or be {ignore_index}"
        raise NpformerError(f"cross_entropy: targets must be in {bounds}, got {outside[0]}")
    log_probabilities = log_softmax(logits) if log_probabilities is None else log_probabilities
    if (shape := np.shape(log_probabilities)) != logits.shape:
        raise NpformerError(f"cross_entropy: log_probabilities: expected {logits.shape}, got {shape}")
    chosen = np.take_along_axis(log_probabilities, np.where(kept, targets, 0)[..., None], axis=-1)[..., 0]
    loss = -(1 - label_smoothing) * chosen
    if label_smoothing:
        loss -= label_smoothing * log_probabilities.mean(axis=-1)
    loss = np.where(kept, loss, loss.dtype.type(0))
    if reduction == "none":
        return loss
    total: Any = loss.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return total if reduction == "sum" else total / total.dtype.type(kept.sum())


def cross_entropy_backward(
    grad: np.ndarray | float,
    logits: np.ndarray,
    targets: np.ndarray,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    log_probabilities: np.ndarray | None = None,
) -> np.ndarray:
    """Backward of `cross_entropy`: dlogits = grad (softmax(logits) - onehot(target)), 0 for ignored targets.

    With reduction="mean", dlogits is divided by the number of targets that are not ignored. Label smoothing replaces
    onehot with (1 - e) onehot + e / C. grad is a number, or (...) for reduction="none".
    """
    kept, classes = targets != ignore_index, np.where(targets == ignore_index, 0, targets)[..., None]
    dx = softmax(logits) if log_probabilities is None else np.exp(log_probabilities)
    dx -= float(label_smoothing) / logits.shape[-1]
    np.put_along_axis(dx, classes, np.take_along_axis(dx, classes, -1) - (1 - float(label_smoothing)), -1)
    count = kept.sum() if reduction == "mean" else 1
    dx *= (kept * np.asarray(grad) / count).astype(dx.dtype)[..., None]
    return dx
