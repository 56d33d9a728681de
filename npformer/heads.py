"""Heads: what is made of the encoder's last layer, one small function each. The tasks in `tasks/` read the answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.activations import BACKWARDS
from npformer.attention import Linear
from npformer.encoder import Activation
from npformer.functions import layer_norm, layer_norm_backward, linear, linear_backward
from npformer.tap import scope, spare, tap
from npformer.tape import Stages


def pool(first: np.ndarray, activation: Activation, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """act(x W + b) of each text's first row, (B, D) -> (B, D): tanh in BERT's pooler, relu in DistilBERT's."""
    dense = tap("pooler", linear(first, weight, bias))
    return tap("pooled", activation(dense, out=spare(dense)))


def pool_backward(
    grad: np.ndarray,
    stages: Stages,
    first: np.ndarray,
    activation: Activation,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Of act(x W + b): the gradients of the first rows (B, D) and of the weights."""
    grad = BACKWARDS[activation](stages.through_edit("pooled", grad), stages["pooler"])
    return linear_backward(stages.through_edit("pooler", grad), first, weight, bias)


def classify(pooled: np.ndarray, output: Linear) -> np.ndarray:
    """Logits of each row's labels, (..., D) -> (..., C): sequences from their pooled row, tokens from their own."""
    return tap("logits", linear(pooled, **output))


def classify_backward(
    grad: np.ndarray, stages: Stages, pooled: np.ndarray, output: Linear
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of x W + b: the gradients of the rows (..., D) and of the weights."""
    grad, d_output = linear_backward(stages.through_edit("logits", grad), pooled, **output)
    return grad, {"output": d_output}


def spans(x: np.ndarray, output: Linear) -> tuple[np.ndarray, np.ndarray]:
    """The logits of an answer starting and ending at each token, (T, D) -> (T,), (T,). Devlin et al., section 4.2."""
    start, end = np.moveaxis(linear(x, **output), -1, 0)
    return tap("start_logits", start), tap("end_logits", end)


def spans_backward(
    start: np.ndarray, end: np.ndarray, stages: Stages, x: np.ndarray, output: Linear
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of x W + b, whose two columns are the logits of start and end: the gradients of x (T, D) and of the weights."""
    grad = np.stack([stages.through_edit("start_logits", start), stages.through_edit("end_logits", end)], axis=-1)
    grad, d_output = linear_backward(grad, x, **output)
    return grad, {"output": d_output}


def masked_words(
    x: np.ndarray, activation: Activation, hidden: Linear, norm: Linear, output: Linear, eps: float = 1e-12
) -> np.ndarray:
    """Logits of the vocabulary at each token, Normalize(act(x W + b)) E^T + c, (T, D) -> (T, V).

    Devlin et al., section 3.1; E is the table of token embeddings.
    """
    with scope("head"):
        h = tap("hidden", linear(x, **hidden))
        h = tap("activation", activation(h, out=spare(h)))
        h = tap("norm", layer_norm(h, **norm, eps=eps, out=spare(h)))
    return tap("logits", linear(h, **output))


def masked_words_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    activation: Activation,
    hidden: Linear,
    norm: Linear,
    output: Linear,
    eps: float = 1e-12,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of Normalize(act(x W + b)) E^T + c: the gradients of x (T, D) and of the weights, that of E^T among them."""
    grad, stages = stages.through_edit("logits", grad), stages.within("head")
    grad, d_output = linear_backward(grad, stages["norm"], **output)
    grad, d_norm = layer_norm_backward(stages.through_edit("norm", grad), stages["activation"], **norm, eps=eps)
    grad = BACKWARDS[activation](stages.through_edit("activation", grad), stages["hidden"])
    grad, d_hidden = linear_backward(stages.through_edit("hidden", grad), x, **hidden)
    return grad, {"hidden": d_hidden, "norm": d_norm, "output": d_output}
