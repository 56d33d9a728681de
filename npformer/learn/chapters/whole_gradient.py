"""The last exercise of chapter 5: the loss and the gradients of a small classifier."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.functions import cross_entropy_backward
from npformer.functions import softmax as _softmax
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, drawn, linear_weights, norm_weights
from npformer.learn.right import (
    attention_backward,
    combine_heads,
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
    split_heads,
)

Array = np.ndarray


def tiny_weights(seed: int = 1, words: int = 5, width: int = 4, labels: int = 3) -> dict[str, Any]:
    """The weights of the small classifier. Its softmax does not saturate, so that query and key have gradients."""
    layers = {name: linear_weights(seed + 2 + i, width, width) for i, name in enumerate(("query", "key", "value"))}
    return {
        "token": {"weight": drawn(seed, words, width)},
        "position": {"weight": drawn(seed + 1, 6, width)},
        **{name: {"weight": layer["weight"] / 4, "bias": layer["bias"]} for name, layer in layers.items()},
        "norm": norm_weights(seed + 5, width),
        "output": linear_weights(seed + 6, width, labels),
    }


def _gradients(
    ids: Array,
    target: int,
    h: int,
    w: Any,
    *,
    dlogits: Any = lambda logits, target: cross_entropy_backward(1.0, logits, np.array(target)),
    read: int | slice = 0,
    of_row: Any = lambda logits: logits[0],
    residual: float = 1.0,
    paths: tuple[str, ...] = ("query", "key", "value"),
    scatter: Any = None,
    dposition: Any = None,
    order: tuple[int, int, int] = (0, 1, 2),
    skips: tuple[str, ...] = (),
    added: float = 1.0,
    norm_of: Any = lambda total, y: total,
    layers_of: Any = lambda x, y: x,
    output_of: Any = lambda x, total, y: y,
    loss: Any = lambda logits, target: right.cross_entropy(logits[0], target),
) -> tuple[Any, dict[str, Any]]:
    """`right.loss_and_gradients` with one of its steps replaced."""
    x = right.embeddings(ids, w["token"]["weight"], w["position"]["weight"])
    q, k, v = (split_heads(linear(x, **w[name]), h) for name in ("query", "key", "value"))
    total = added * x + combine_heads(right.scaled_dot_product_attention(q, k, v))
    y = layer_norm(total, **w["norm"])
    logits = linear(y, **w["output"])
    grads: dict[str, Any] = {}
    grad = np.zeros_like(logits)
    grad[read] = dlogits(of_row(logits), target)
    grad, *grads["output"] = linear_backward(grad, output_of(x, total, y), w["output"]["weight"])
    of_norm, *grads["norm"] = layer_norm_backward(grad, norm_of(total, y), w["norm"]["weight"])
    dx = residual * (grad if "x" in skips else of_norm)
    grad = grad if "attention" in skips else of_norm
    heads = attention_backward(split_heads(grad, h), q, k, v)
    for i, name in enumerate(("query", "key", "value")):
        more, *grads[name] = linear_backward(combine_heads(heads[order[i]]), layers_of(x, y), w[name]["weight"])
        dx = dx + more * (name in paths)
    token, position = np.zeros_like(w["token"]["weight"]), np.zeros_like(w["position"]["weight"])
    (scatter or np.add.at)(token, ids, dx)
    position[: len(ids)] = dx
    if dposition is not None:
        position = dposition(position, dx, ids)
    found = {"token": {"weight": token}, "position": {"weight": position}}
    found |= {name: dict(zip(("weight", "bias"), arrays, strict=True)) for name, arrays in grads.items()}
    return loss(logits, target), {name: found[name] for name in w}


def _of_rows(logits: Array, target: int) -> Array:
    return np.stack([cross_entropy_backward(1.0, row, np.array(target)) for row in logits])


def _assigned(table: Array, ids: Array, dx: Array) -> None:
    table[ids] = dx


def _by_id(position: Array, dx: Array, ids: Array) -> Array:
    found = np.zeros_like(position)
    np.add.at(found, ids, dx)
    return found


def _changed(name: str, change: Any) -> Any:
    """Returns a function that computes the right gradients, but changes those of one group."""

    def wrong(ids: Array, target: int, h: int, w: Any) -> tuple[Any, dict[str, Any]]:
        loss, grads = right.loss_and_gradients(ids, target, h, w)
        return loss, {
            key: {k: change(a) for k, a in each.items()} if key == name else each for key, each in grads.items()
        }

    return wrong


LOSS_AND_GRADIENTS = Exercise(
    "loss_and_gradients",
    right.loss_and_gradients,
    lambda: [
        (np.array([1, 3]), 0, 1, tiny_weights()),
        (np.array([2, 0, 2, 4]), 2, 2, tiny_weights(20, width=6)),
        (np.array([3, 3, 3]), 1, 2, tiny_weights(40)),
    ],
    (
        "Keep every intermediate result of the forward pass. Then go backward through the same steps in reverse order.",
        "Only the first row of the logits has a gradient, so start with zeros and set row 0. The residual sum sends "
        "the same gradient to x and to combine_heads. The gradient of x is the sum of this gradient and of the three "
        "gradients through query, key and value.",
        "np.add.at(dtoken, ids, dx) adds the rows of repeated tokens. Rows 0 ... L - 1 of dposition are dx. Return "
        "loss and a dict of dicts with the keys of weights.",
    ),
    (
        "npformer.learn.right:loss_and_gradients",
        "npformer.plain.gradients:distilbert_backward",
        "npformer.plain.gradients:encoder_layer_backward",
    ),
    (
        Slip(
            "repeated tokens assigned",
            "A token that occurs several times gets the gradient of its last row only. It should get the sum "
            "over all its rows: np.add.at adds them.",
            partial(_gradients, scatter=_assigned),
        ),
        Slip(
            "residual left out",
            "The gradient of x lacks the part that comes directly through the sum x + attention.",
            partial(_gradients, residual=0.0),
        ),
        Slip(
            "residual counted twice",
            "The part of the gradient of x that comes directly through the sum x + attention is added twice.",
            partial(_gradients, residual=2.0),
        ),
        Slip(
            "attention's part left out",
            "The gradient of x lacks the parts that come through query, key and value.",
            partial(_gradients, paths=()),
        ),
        Slip(
            "query's part left out",
            "The gradient of x lacks the part that comes through query.",
            partial(_gradients, paths=("key", "value")),
        ),
        Slip(
            "key's part left out",
            "The gradient of x lacks the part that comes through key.",
            partial(_gradients, paths=("query", "value")),
        ),
        Slip(
            "value's part left out",
            "The gradient of x lacks the part that comes through value.",
            partial(_gradients, paths=("query", "key")),
        ),
        Slip(
            "value's part alone",
            "The gradient of x has the part that comes through value, without the parts through query and key.",
            partial(_gradients, paths=("value",)),
        ),
        Slip(
            "one-hot not subtracted",
            "The gradient of the logits is softmax(logits). The one-hot vector of the target should be subtracted.",
            partial(_gradients, dlogits=lambda logits, target: _softmax(logits)),
        ),
        Slip(
            "sign",
            "The gradient of the logits is onehot - softmax. It should be softmax - onehot.",
            lambda *a: _gradients(
                *a, dlogits=lambda logits, target: -cross_entropy_backward(1.0, logits, np.array(target))
            ),
        ),
        Slip(
            "divided by the number of labels",
            "The gradient of the logits is divided by the number of labels.",
            lambda *a: _gradients(
                *a, dlogits=lambda logits, target: cross_entropy_backward(1.0, logits, np.array(target)) / len(logits)
            ),
        ),
        Slip(
            "gradient in every row",
            "Every row of the logits gets the gradient. Only the first row should have one, because the other rows are "
            "not part of the loss.",
            partial(_gradients, read=slice(None)),
        ),
        Slip(
            "gradient in every row",
            "Every row of the logits gets its own gradient, softmax(row) - onehot. Only the first row should have one, "
            "because the other rows are not part of the loss.",
            partial(_gradients, read=slice(None), of_row=lambda logits: logits, dlogits=_of_rows),
        ),
        Slip(
            "mean loss of all tokens",
            "The loss is the mean over all tokens. It should be the loss for the first token only.",
            partial(_gradients, loss=lambda logits, target: np.mean([right.cross_entropy(z, target) for z in logits])),
        ),
        Slip(
            "sum x + attention left out",
            "y is Normalize(attention), without x. It should be Normalize(x + attention).",
            partial(_gradients, added=0.0),
        ),
        Slip(
            "sum x + attention left out",
            "y is Normalize(attention), without x, and the gradient of x lacks the part that comes through that sum.",
            partial(_gradients, added=0.0, residual=0.0),
        ),
        Slip(
            "norm's backward of y",
            "layer_norm_backward gets y, the output of the norm. It should get the norm's input, x + attention.",
            partial(_gradients, norm_of=lambda total, y: y),
        ),
        Slip(
            "gradients of query, key and value from y",
            "linear_backward of query, key and value gets y. It should get their input, x.",
            partial(_gradients, layers_of=lambda x, y: y),
        ),
        Slip(
            "gradient of output from x + attention",
            "linear_backward of output gets x + attention. It should get the input of that layer, y.",
            partial(_gradients, output_of=lambda x, total, y: total),
        ),
        Slip(
            "gradient of output from x",
            "linear_backward of output gets x. It should get the input of that layer, y.",
            partial(_gradients, output_of=lambda x, total, y: x),
        ),
        Slip(
            "gradient in the last row",
            "The last row of the logits gets the gradient. The first row should get it.",
            partial(_gradients, read=-1),
        ),
        Slip(
            "norm's backward left out",
            "The gradient does not go through layer_norm_backward on its way to x and attention.",
            partial(_gradients, skips=("x", "attention")),
        ),
        Slip(
            "norm's backward left out before attention",
            "The gradient does not go through layer_norm_backward on its way to attention. It does on its way to x.",
            partial(_gradients, skips=("attention",)),
        ),
        Slip(
            "norm's backward left out before x",
            "The gradient does not go through layer_norm_backward on its way to x. It does on its way to attention.",
            partial(_gradients, skips=("x",)),
        ),
        Slip(
            "positions by token id",
            "The gradient of the position table is in the rows of the token ids. It should be in rows 0, 1, ...",
            partial(_gradients, dposition=_by_id),
        ),
        Slip(
            "position table left out",
            "The gradient of the position table is 0. It should be dx in rows 0 ... L - 1.",
            partial(_gradients, dposition=lambda p, dx, ids: 0 * p),
        ),
        Slip(
            "query and key exchanged",
            "The gradients of query and key are exchanged.",
            partial(_gradients, order=(1, 0, 2)),
        ),
        Slip(
            "query and value exchanged",
            "The gradients of query and value are exchanged. attention_backward returns dq, dk, dv.",
            partial(_gradients, order=(2, 1, 0)),
        ),
        Slip(
            "key and value exchanged",
            "The gradients of key and value are exchanged. attention_backward returns dq, dk, dv.",
            partial(_gradients, order=(0, 2, 1)),
        ),
        Slip(
            "token table left out", "The gradient of the token table is 0.", _changed("token", lambda array: 0 * array)
        ),
    ),
    values=("loss", "gradients"),
)
