"""Chapter 5: the loss, and the backward functions of a linear layer, a table, layer norm and softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.contents import right
from npformer.learn.exercise import Exercise, array, drawn

softmax = right("softmax")


# --- cross-entropy ----------------------------------------------------------------------------------------------------

CROSS_ENTROPY = Exercise(
    "cross_entropy",
    lambda: [
        (array([[1, 2, 3]]), np.array([0])),
        (array([[0.5, -1, 2, 0], [3, 1, 0, 1]]), np.array([2, 1])),
        (array([[1000, 0, -1000]]), np.array([1])),
        (array([[1000, 0]]), np.array([0])),
        (drawn(1, 2, 3, 4), np.array([[0, 3, 1], [2, 2, 0]])),
    ],
    (
        "log(softmax(x)) is log 0 = -inf where softmax rounds to 0. The docstring has a formula without that "
        "logarithm.",
        "Subtract the maximum first: s = x - max(x), over the last axis. Then log softmax(x) = s - log(sum(exp(s))).",
        "Compute log softmax, take the number of each target with np.take_along_axis(..., targets[..., None], "
        "axis=-1), change the sign, and take the mean.",
    ),
    """
    logarithm of 0: softmax rounds to 0 for a target far below the maximum, and its logarithm is -inf. Compute
        s - log(sum(exp(s))) with s = x - max(x) instead.
        log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)) -> log_probabilities = np.log(softmax(logits))
    maximum not subtracted: exp overflows for large logits. Subtract the largest logit first.
        shifted = logits - logits.max(axis=-1, keepdims=True) -> shifted = logits
    maximum not subtracted: exp overflows for large logits. Subtract the largest logit first. Do not take the logarithm
        of softmax.
        shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)) -> np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))
    sign: The minus sign is missing: this is log softmax.
        return -np.take -> return np.take
    logarithm to the base 2: The logarithm is to the base 2. It should be the natural logarithm.
        .mean() -> .mean() / math.log(2)
    logarithm to the base 10: The logarithm is to the base 10. It should be the natural logarithm.
        .mean() -> .mean() / math.log(10)
    negative logit: This is the negative logit of the target, without log softmax.
        log_probabilities, targets -> logits, targets
    negative probability: The logarithm is missing: this is the negative probability.
        log_probabilities, targets -> softmax(logits), targets
    probability: This is the probability p of the target. The loss is -log p.
        -np.take_along_axis(log_probabilities, -> np.take_along_axis(softmax(logits),
    1 minus the probability: This is 1 - p, where p is the probability of the target. The loss is -log p.
        -np.take_along_axis(log_probabilities, -> 1 - np.take_along_axis(softmax(logits),
    divided by the number of labels: The loss is divided by the number of labels. Leave out this division.
        .mean() -> .mean() / logits.shape[-1]
    sum over all labels: The losses of all labels are added. Only the loss of the target should count.
        np.take_along_axis(log_probabilities, targets[..., None], axis=-1) -> log_probabilities.sum(axis=-1)
    mean over all labels: This is the mean loss of all labels. Only the loss of the target should count.
        np.take_along_axis(log_probabilities, targets[..., None], axis=-1) -> log_probabilities
    target ignored: This is the loss of the most likely label, not of the target.
        np.take_along_axis(log_probabilities, targets[..., None], axis=-1) -> log_probabilities.max(axis=-1)
    loss of every label: The loss of every label is returned. Return only the mean loss of the targets.
        np.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean() -> log_probabilities
    loss of each target: The loss of each target is returned. Return their mean.
        .mean() -> [..., 0]
    sum over the targets: The losses of the targets are added. Return their mean.
        .mean() -> .sum()
    maximum not added back: The maximum is subtracted inside exp only. Subtract it from the target's logit too.
        shifted - np.log -> logits - np.log
    brackets: The target's logit is subtracted inside the logarithm. It should be subtracted from the logarithm.
        -np.take_along_axis(log_probabilities, targets[..., None], axis=-1) -> np.log(np.exp(shifted).sum(axis=-1, keepdims=True) - np.take_along_axis(shifted, targets[..., None], axis=-1))
    a number added in the logarithm [1e-6 1e-12 1e-18]: {number} is added in the logarithm, which limits the loss.
        Compute s - log(sum(exp(s))) with s = x - max(x) instead.
        shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)) -> np.log(softmax(logits) + number)
    """,
)

CROSS_ENTROPY_BACKWARD = Exercise(
    "cross_entropy_backward",
    lambda: [
        (array([[1, 2, 3]]), np.array([0])),
        (array([[0.5, -1, 2, 0], [3, 1, 0, 1]]), np.array([2, 1])),
        (drawn(1, 2, 3, 5), np.array([[0, 3, 1], [2, 4, 0]])),
    ],
    (
        "The gradient of -log softmax(x)[target] is softmax(x), minus 1 at the target.",
        "np.arange(C) == targets[..., None] is True at each target.",
        "Subtract this array from softmax(logits), and divide by the number of targets, targets.size.",
    ),
    """
    one-hot not subtracted: The gradient is softmax(logits). The one-hot vector of the target should be subtracted.
        softmax(logits) - at_target -> softmax(logits)
    softmax left out: The one-hot vector of the target is subtracted from the logits. Subtract it from softmax(logits).
        softmax(logits) - at_target -> logits - at_target
    sign: The gradient is onehot - softmax. It should be softmax - onehot.
        softmax(logits) - at_target -> at_target - softmax(logits)
    divided by the number of labels: The gradient is divided by the number of labels. Divide it by the number of
        targets.
        targets.size -> logits.shape[-1]
    divided by the number of logits: The gradient is divided by the number of logits. Divide it by the number of
        targets.
        targets.size -> logits.size
    divided by the length of targets: The gradient is divided by len(targets), which is the first axis only. Divide it
        by the number of targets, targets.size.
        targets.size -> len(targets)
    not divided: This is the gradient of the sum of the losses. Divide it by the number of targets, because the loss is
        their mean.
        targets.size -> 1
    """,
)


# --- linear -----------------------------------------------------------------------------------------------------------


def _linear_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0], [2, 1], [0, 3]]), array([[1, 2], [0, 1], [4, 0]]), array([[1, 2], [3, 5]])),
        (drawn(1, 4, 2), drawn(2, 4, 3), drawn(3, 3, 2), drawn(7, 2)),
        (drawn(4, 3, 3), drawn(5, 3, 3), drawn(6, 3, 3)),
        (drawn(8, 2, 3, 2), drawn(9, 2, 3, 4), drawn(10, 4, 2), drawn(11, 2)),
    ]


LINEAR_BACKWARD = Exercise(
    "linear_backward",
    _linear_cases,
    (
        "The shapes decide: dx (..., in) can only be grad (..., out) times an array (out, in).",
        "dW[i, j] is the sum over all rows of x[:, i] * grad[:, j], which is a product with x transposed. flat makes "
        "one matrix of the rows of all texts.",
        'dx = grad @ weight.T, dW = flat(x).T @ flat(grad), and db is flat(grad).sum(axis=0). Return dx and {"weight": '
        'dW, "bias": db}.',
    ),
    """
    weight not transposed: dx is grad W. It should be grad W^T.
        grad @ weight.T -> grad @ weight
    dW transposed: dW is grad^T x. It should be x^T grad.
        flat(x).T @ flat(grad) -> flat(grad).T @ flat(x)
    x not transposed: dW is x grad. It should be x^T grad.
        flat(x).T @ flat(grad) -> flat(x) @ flat(grad)
    dW divided by L: dW is a mean over the rows. It should be a sum.
        flat(x).T @ flat(grad) -> flat(x).T @ flat(grad) / len(flat(x))
    db is a mean: db is the mean of grad's rows. It should be their sum.
        .sum(axis=0) -> .mean(axis=0)
    dW and db are means: dW and db are means over the rows. They should be sums.
        flat(x).T @ flat(grad) -> flat(x).T @ flat(grad) / len(flat(x))
        .sum(axis=0) -> .mean(axis=0)
    db over the wrong axis: db is the sum of each row. It should be the sum of the rows, over axis 0.
        .sum(axis=0) -> .sum(axis=1)
    db not summed: db is grad. It should be the sum of grad's rows.
        flat(grad).sum(axis=0) -> grad
    db is one number: db is the sum of all of grad. It should be the sum of grad's rows, over axis 0.
        .sum(axis=0) -> .sum()
    db is 1: db is 1. It should be the sum of grad's rows.
        flat(grad).sum(axis=0) -> np.ones(grad.shape[-1])
    grad left out of dW: dW has the sums of x's columns, without grad. It should be x^T grad.
        flat(x).T @ flat(grad) -> flat(x).T @ np.ones_like(flat(grad))
    grad left out of dx: dx is the sum of W's columns. It should be grad W^T.
        grad @ weight.T -> np.ones_like(grad) @ weight.T
    order of the gradients: The gradients of the weights are returned before dx. Return dx first.
        body -> return {"weight": flat(x).T @ flat(grad), "bias": flat(grad).sum(axis=0)}, grad @ weight.T
    dW and db exchanged: dW and db are exchanged.
        body -> return grad @ weight.T, {"weight": flat(grad).sum(axis=0), "bias": flat(x).T @ flat(grad)}
    sign: The gradients have the opposite sign.
        grad @ weight.T -> -grad @ weight.T
        flat(x).T @ -> -flat(x).T @
        flat(grad).sum -> -flat(grad).sum
    texts not flattened: The rows of several texts are not put into one matrix. Use flat(x) and flat(grad).
        flat(x).T @ flat(grad) -> x.T @ grad
        flat(grad).sum -> grad.sum
    a dW for each text: dW has a matrix for each text. Use flat(x) and flat(grad), to sum over all rows.
        flat(x).T @ flat(grad) -> x.mT @ grad
        flat(grad).sum(axis=0) -> grad.sum(axis=-2)
    """,
    values=("dx", "gradients"),
)

EMBEDDING_BACKWARD = Exercise(
    "embedding_backward",
    lambda: [
        (array([[1, 2], [3, 4], [5, 7]]), np.array([2, 0, 2]), array([[1, 0], [0, 1], [2, 2], [3, 3]])),
        (drawn(1, 2, 3, 4), np.array([[0, 1, 1], [4, 0, 0]]), drawn(2, 6, 4)),
        (drawn(3, 2, 3, 4), np.array([1, 2, 3]), drawn(4, 5, 4)),
    ],
    (
        "Begin with zeros in the shape of weight. Rows that no token reads keep 0.",
        "table[ids] += grad keeps only one of the rows of a repeated token. np.add.at(table, ids, grad) adds them all.",
        "Positions have fewer axes than grad: np.broadcast_to(ids, grad.shape[:-1]) repeats them for each text. Return "
        '{"weight": ...}.',
    ),
    """
    repeated tokens assigned: A token that occurs several times gets the gradient of its last row only. It should get
        the sum over all its rows: np.add.at adds them.
        np.add.at(d_weight, np.broadcast_to(ids, grad.shape[:-1]), grad) -> d_weight[np.broadcast_to(ids, grad.shape[:-1])] = grad
    rows by order: The gradients are in the rows 0, 1, ... They should be in the rows of the ids.
        np.broadcast_to(ids, -> np.broadcast_to(np.arange(ids.shape[-1]),
    added to the table: The gradients are added to the table. They should be added to zeros.
        np.zeros_like(weight) -> weight.copy()
    table left out: The gradient of the table is 0.
        np.add.at(d_weight, np.broadcast_to(ids, grad.shape[:-1]), grad) -> pass
    """,
)


# --- layer norm -------------------------------------------------------------------------------------------------------


def _norm_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0, 0], [2, -1, 3]]), array([[1, 2, 6], [0, 4, 8]]), array([1, 1, 2]), array([0, 1, 0])),
        (drawn(1, 4, 4), drawn(2, 4, 4), array([0.5, 1, 2, -1]), drawn(5, 4), 0.25),
        (drawn(3, 3, 4), drawn(4, 3, 4) / 500, array([1, 2, 3, 4]), drawn(6, 4)),
        (drawn(7, 2, 3, 4), drawn(8, 2, 3, 4), array([1, 2, 3, 4]), drawn(9, 4)),
    ]


LAYER_NORM_BACKWARD = Exercise(
    "layer_norm_backward",
    _norm_cases,
    (
        "Compute n and s = sqrt(Var[x] + eps) as in layer_norm. E is the mean over the last axis, with keepdims=True.",
        "weight affects dx through g = grad * weight. dweight is the sum over all rows of grad * n, not of g * n; flat "
        "makes one matrix of the rows of all texts.",
        'For dx, subtract E[g] and n * E[g * n] from g, and divide by s. Return dx and {"weight": ..., "bias": ...}.',
    ),
    """
    mean terms left out: dx is g / sqrt(Var[x] + eps). E[g] and n E[g n] should be subtracted from g, because the mean
        and the variance depend on x too.
        (g - g.mean(axis=-1, keepdims=True) - n * (g * n).mean(axis=-1, keepdims=True)) / s -> g / s
    E[g] left out: E[g] is not subtracted. It should be, because the mean of the row depends on x too.
        g - g.mean(axis=-1, keepdims=True) - -> g -
    n E[g n] left out: n E[g n] is not subtracted. It should be, because the variance of the row depends on x too.
        - n * (g * n).mean(axis=-1, keepdims=True)) -> )
    n left out before E[g n]: E[g n] is subtracted without its factor n.
        - n * (g * n) -> - (g * n)
    n E[g n] added: n E[g n] is added. It should be subtracted.
        - n * (g * n) -> + n * (g * n)
    brackets: Only the last term, n E[g n], is divided by the root. Divide the whole difference: put it in brackets.
        (g - g.mean(axis=-1, keepdims=True) - n * (g * n).mean(axis=-1, keepdims=True)) / s -> g - g.mean(axis=-1, keepdims=True) - n * (g * n).mean(axis=-1, keepdims=True) / s
    sums instead of means: The sums of g and g n are subtracted. Subtract their means.
        g.mean( -> g.sum(
        (g * n).mean( -> (g * n).sum(
    means without keepdims: The means of g and g n lack keepdims=True, so they broadcast along the columns. Each row
        needs its own means.
        g.mean(axis=-1, keepdims=True) -> g.mean(axis=-1)
        (g * n).mean(axis=-1, keepdims=True) -> (g * n).mean(axis=-1)
    means over the first axis: The means are over axis 0. They should be over the last axis, one per row.
        g.mean(axis=-1 -> g.mean(axis=0
        (g * n).mean(axis=-1 -> (g * n).mean(axis=0
    not divided by the deviation: dx is not divided by sqrt(Var[x] + eps).
        (g * n).mean(axis=-1, keepdims=True)) / s -> (g * n).mean(axis=-1, keepdims=True))
    divided by the variance: dx is divided by the variance plus eps. It should be divided by the square root of that
        sum.
        (g * n).mean(axis=-1, keepdims=True)) / s -> (g * n).mean(axis=-1, keepdims=True)) / s**2
    multiplied by the deviation: dx is multiplied by sqrt(Var[x] + eps). It should be divided by it.
        (g * n).mean(axis=-1, keepdims=True)) / s -> (g * n).mean(axis=-1, keepdims=True)) * s
    weight left out of dx: dx is computed from grad. It should be computed from g = grad * weight.
        eps=eps), grad * weight -> eps=eps), grad
    weight left out of E[g]: E[g] is computed from grad. It should be computed from g = grad * weight.
        g.mean( -> grad.mean(
    weight left out of E[g n]: E[g n] is computed from grad * n. It should be computed from g n, with g = grad * weight.
        (g * n).mean( -> (grad * n).mean(
    weight applied after the means: The means are computed from grad, and dx is then multiplied by weight. Multiply grad
        by weight first.
        eps=eps), grad * weight -> eps=eps), grad
        return dx, -> return dx * weight,
    unbiased variance: The divisor of the variance is D - 1. It should be D.
        x.var(axis=-1, keepdims=True) -> x.var(axis=-1, keepdims=True, ddof=1)
        layer_norm(x, eps=eps) -> (x - x.mean(axis=-1, keepdims=True)) / s
    eps ignored: The argument eps is not used.
        keepdims=True) + eps) -> keepdims=True))
        layer_norm(x, eps=eps) -> layer_norm(x, eps=0)
    eps is always 1e-5: eps is 1e-5, regardless of the argument. Use the argument, which is 1e-5 by default.
        + eps) -> + 1e-5)
        layer_norm(x, eps=eps) -> layer_norm(x)
    wrong default for eps: eps is 1e-12 by default. The default should be 1e-5.
        eps=1e-5 -> eps=1e-12
    dweight from x: dweight is the sum of grad * x. It should be the sum of grad * n, with n the normalized x.
        flat(grad * n) -> flat(grad * x)
    dweight from x - E[x]: dweight is the sum of grad * (x - E[x]). It should be the sum of grad * n, where n is
        x - E[x] divided by sqrt(Var[x] + eps).
        flat(grad * n) -> flat(grad * n * s)
    weight in dweight: dweight is multiplied by weight. It should be the sum of grad * n.
        flat(grad * n) -> flat(g * n)
    weight in dbias: dbias is the sum of grad * weight. It should be the sum of grad's rows.
        flat(grad).sum -> flat(g).sum
    dweight not summed: dweight is grad * n. It should be the sum of its rows.
        flat(grad * n).sum(axis=0) -> grad * n
    dbias not summed: dbias is grad. It should be the sum of grad's rows.
        flat(grad).sum(axis=0) -> grad
    dweight and dbias not summed: dweight and dbias have a row for each token. They should be sums of the rows.
        flat(grad * n).sum(axis=0) -> grad * n
        flat(grad).sum(axis=0) -> grad
    dweight and dbias are means: dweight and dbias are means over the rows. They should be sums.
        flat(grad * n).sum( -> flat(grad * n).mean(
        flat(grad).sum( -> flat(grad).mean(
    sums of each row: dweight and dbias are summed over the last axis. They should be summed over the rows, axis 0.
        flat(grad * n).sum(axis=0) -> flat(grad * n).sum(axis=-1)
        flat(grad).sum(axis=0) -> flat(grad).sum(axis=-1)
    dweight and dbias exchanged: dweight and dbias are exchanged.
        "weight": flat -> "bias": flat
        "bias": flat(grad) -> "weight": flat(grad)
    texts not flattened: The rows of each text are summed on their own. Use flat, to sum over all rows.
        flat(grad * n).sum(axis=0) -> (grad * n).sum(axis=-2)
        flat(grad).sum(axis=0) -> grad.sum(axis=-2)
    texts not flattened: The sums are over the first axis, which is the axis of texts in a batch. Use flat, to sum over
        all rows.
        flat(grad * n).sum(axis=0) -> (grad * n).sum(axis=0)
        flat(grad).sum(axis=0) -> grad.sum(axis=0)
    wrong eps [1e-6 1e-2]: eps is {number}, regardless of the argument. Use the argument, which is 1e-5 by default.
        + eps) -> + number)
        layer_norm(x, eps=eps) -> layer_norm(x, eps=number)
    wrong default for eps [1e-6 1e-2]: eps is {number} by default. The default should be 1e-5.
        eps=1e-5 -> eps=number
    """,
    values=("dx", "gradients"),
)


# --- softmax ----------------------------------------------------------------------------------------------------------


def _softmax_cases() -> list[tuple[Any, ...]]:
    return [
        (array([[1, 0, 2], [0, 3, 1]]), array([[0.25, 0.5, 0.25], [0.5, 0.375, 0.125]])),
        (drawn(1, 2, 3, 3), softmax(drawn(2, 2, 3, 3))),
        (drawn(3, 4), softmax(drawn(4, 4))),
        (drawn(5, 3, 3), softmax(drawn(6, 3, 3))),
    ]


SOFTMAX_BACKWARD = Exercise(
    "softmax_backward",
    _softmax_cases,
    (
        "All outputs of a row depend on each x_i, because they share a denominator. So dx_i has a sum over the row.",
        "Sum grad * y over the last axis, with keepdims=True.",
        "Subtract the sum of grad * y from grad, and multiply by y.",
    ),
    """
    sum left out: dx is y * grad. The sum of grad * y over the row should be subtracted from grad first.
        (grad - (grad * y).sum(axis=-1, keepdims=True)) -> grad
    diagonal only: dx is y (1 - y) grad, the diagonal of the Jacobian. The other numbers of the row also affect dx:
        subtract the sum of grad * y.
        (grad - (grad * y).sum(axis=-1, keepdims=True)) -> (1 - y) * grad
    y left out of the sum: The sum of grad is subtracted. Subtract the sum of grad * y.
        (grad * y).sum -> grad.sum
    factor y left out: dx is not multiplied by y.
        y * (grad - -> (grad -
    mean instead of the sum: The mean of grad * y is subtracted. Subtract its sum.
        .sum( -> .mean(
    sum over the first axis: The sum is over axis 0. It should be over the last axis.
        axis=-1 -> axis=0
    sum over axis 1: The sum is over axis 1. It should be over the last axis, -1.
        axis=-1 -> axis=1
    sum without keepdims: The sum lacks keepdims=True, so it broadcasts along the columns. From each row, subtract the
        row's sum.
        axis=-1, keepdims=True -> axis=-1
    sum over the whole array: The sum is over the whole array. It should be over each row.
        .sum(axis=-1, keepdims=True) -> .sum()
    sum added: The sum of grad * y is added. It should be subtracted.
        (grad - ( -> (grad + (
    sum not multiplied by y: The sum of grad * y is subtracted from y * grad. It should be subtracted from grad, before
        the multiplication by y.
        y * (grad - (grad * y).sum(axis=-1, keepdims=True)) -> y * grad - (grad * y).sum(axis=-1, keepdims=True)
    sign: The gradient has the opposite sign.
        return y * -> return -y *
    softmax taken of y: softmax is applied to y. It should not be, because y is the output of softmax.
        body -> y = softmax(y); return y * (grad - (grad * y).sum(axis=-1, keepdims=True))
    log softmax: This is the backward pass of log softmax, grad - y * sum(grad).
        y * (grad - (grad * y).sum(axis=-1, keepdims=True)) -> grad - y * grad.sum(axis=-1, keepdims=True)
    """,
)
