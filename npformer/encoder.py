"""The encoder: embeddings, feed-forward network, layer and stack, on packed rows.

A batch is its texts' tokens one after another, (T, D), with their `lengths`; there is no padding. The 2017 paper
(Vaswani et al.), section 3.1, in BERT's form (Devlin et al., 2019). A checkpoint's weights are splatted into the
functions that use them: `linear(x, **weights["query"])`. Next: `heads.py` for what is made of the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npformer.activations import BACKWARDS
from npformer.attention import Linear, self_attention, self_attention_backward
from npformer.functions import (
    embedding,
    embedding_backward,
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
)
from npformer.tap import scope, spare, tap
from npformer.tape import Stages

Activation = Callable[..., np.ndarray]


def sinusoidal_positions(length: int, width: int, dtype: type = np.float32, halves: bool = False) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos of the same, (length, D). Section 3.5.

    halves: all the sines and then all the cosines, as Marian has them.
    """
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    if halves:
        return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :width].astype(dtype)
    table: np.ndarray = np.empty((length, width), dtype)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : width // 2]
    return table


def embeddings(
    ids: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray | None,
    token: Mapping[str, np.ndarray],
    position: Mapping[str, np.ndarray],
    norm: Linear | None = None,
    segment: Mapping[str, np.ndarray] | None = None,
    project: Linear | None = None,
    eps: float = 1e-12,
    scale: float = 1.0,
) -> np.ndarray:
    """Normalize(token + position [+ segment]) [W + b], rows of learned tables: ids, positions, segments (T,) -> (T, D).

    The 2017 model has no norm here; its scale is sqrt(D), the token rows' only. Section 3.4. project: where the tables
    are narrower than the layers. Lan et al., 2020 (ALBERT), section 3.1.
    """
    with scope("embeddings"):
        tokens = embedding(ids, **token) if scale == 1 else embedding(ids, **token) * scale
        total = tap("token", tokens) + tap("position", embedding(positions, **position))
        if segment is not None:
            total += tap("segment", embedding(np.zeros_like(ids) if segments is None else segments, **segment))
        total = tap("sum", total)
        x = total if norm is None else tap("norm", layer_norm(total, **norm, eps=eps, out=spare(total)))
        return x if project is None else tap("project", linear(x, **project))


def embeddings_backward(
    grad: np.ndarray,
    stages: Stages,
    ids: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray | None,
    token: Mapping[str, np.ndarray],
    position: Mapping[str, np.ndarray],
    norm: Linear | None = None,
    segment: Mapping[str, np.ndarray] | None = None,
    project: Linear | None = None,
    eps: float = 1e-12,
    scale: float = 1.0,
    padding_idx: int | None = None,
) -> dict[str, Any]:
    """Of Normalize(token * scale + position [+ segment]) [W + b]: the gradients of the tables, mostly rows of zeros.

    padding_idx: a token whose row gets none, as in torch's nn.Embedding.
    """
    stages = stages.within("embeddings")
    grads: dict[str, Any] = {}
    if project is not None:
        normed = stages["sum" if norm is None else "norm"]
        grad, grads["project"] = linear_backward(stages.through_edit("project", grad), normed, **project)
    if norm is not None:
        grad, grads["norm"] = layer_norm_backward(stages.through_edit("norm", grad), stages["sum"], **norm, eps=eps)
    grad = stages.through_edit("sum", grad)
    d_token = stages.through_edit("token", grad)
    trained = slice(None) if padding_idx is None else ids != padding_idx
    grads["token"] = {"weight": embedding_backward((d_token if scale == 1 else d_token * scale)[trained], ids[trained])}
    grads["position"] = {"weight": embedding_backward(stages.through_edit("position", grad), positions)}
    if segment is not None:
        segments = np.zeros_like(ids) if segments is None else segments
        grads["segment"] = {"weight": embedding_backward(stages.through_edit("segment", grad), segments)}
    return grads


def feed_forward(x: np.ndarray, activation: Activation, hidden: Linear, output: Linear) -> np.ndarray:
    """FFN(x) = act(x W_1 + b_1) W_2 + b_2, (T, D) -> (T, D). Section 3.3."""
    h = tap("hidden", linear(x, **hidden))
    h = tap("activation", activation(h, out=spare(h)))
    return tap("output", linear(h, **output))


def feed_forward_backward(
    grad: np.ndarray, stages: Stages, x: np.ndarray, activation: Activation, hidden: Linear, output: Linear
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Of act(x W_1 + b_1) W_2 + b_2: the gradients of x and of the weights."""
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["activation"], **output)
    grad = BACKWARDS[activation](stages.through_edit("activation", grad), stages["hidden"])
    grad, d_hidden = linear_backward(stages.through_edit("hidden", grad), x, **hidden)
    return grad, {"hidden": d_hidden, "output": d_output}


def add_and_norm(
    name: str,
    x: np.ndarray,
    block: Callable[[np.ndarray], np.ndarray],
    norm: Linear,
    eps: float,
    norm_first: bool,
    row_indices: np.ndarray | None = None,
) -> np.ndarray:
    """Normalize(x + block(x)); with norm_first x + block(Normalize(x)). (T, D) -> (T, D). Section 5.4's residual.

    row_indices: the rows of x that the block answers, where that is not all of them.
    """
    h = tap(f"{name}_norm", layer_norm(x, **norm, eps=eps)) if norm_first else x
    with scope(name):
        y = block(h)
    y = tap(f"{name}_residual", (x if row_indices is None else x[row_indices]) + y)
    return y if norm_first else tap(f"{name}_norm", layer_norm(y, **norm, eps=eps, out=spare(y)))


def add_and_norm_backward(
    name: str,
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    block_backward: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, dict[str, Any]]],
    norm: Linear,
    eps: float,
    norm_first: bool,
    row_indices: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of Normalize(x + block(x)), or x + block(Normalize(x)): the gradients of x and of the weights.

    block_backward: the gradient of block(h), and h -> the gradients of h and of the block's weights.
    """
    if norm_first:  # x + block(Normalize(x))
        dy = stages.through_edit(f"{name}_residual", grad)
        dh, grads = block_backward(dy, stages[f"{name}_norm"])
        dx, d_norm = layer_norm_backward(stages.through_edit(f"{name}_norm", dh), x, **norm, eps=eps)
    else:  # Normalize(x + block(x))
        residual = stages[f"{name}_residual"]
        dy, d_norm = layer_norm_backward(stages.through_edit(f"{name}_norm", grad), residual, **norm, eps=eps)
        dy = stages.through_edit(f"{name}_residual", dy)
        dx, grads = block_backward(dy, x)
    dx[slice(None) if row_indices is None else row_indices] += dy
    return dx, {name: grads, f"{name}_norm": d_norm}


def encoder_layer(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Any],
    attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
) -> np.ndarray:
    """Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)), (T, D) -> (T, D). Section 3.1.

    row_indices: the one row of each text that is wanted, (B,); the rest is not computed, and the answer is (B, D).
    norm_first: Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)). Xiong et al., 2020, figure 1.
    """

    def attend(h: np.ndarray) -> np.ndarray:
        return self_attention(h, lengths, n_heads, row_indices=row_indices, **attention)

    y = add_and_norm("attention", x, attend, attention_norm, eps, norm_first, row_indices)
    return add_and_norm("ffn", y, lambda h: feed_forward(h, activation, **ffn), ffn_norm, eps, norm_first)


def encoder_layer_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Any],
    attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)): the gradients of X (T, D) and of the weights.

    row_indices: grad (B, D) is that of one row of each text. norm_first as in `encoder_layer`.
    """
    y = stages["attention_residual" if norm_first else "attention_norm"]

    def feed(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        return feed_forward_backward(grad, stages.within("ffn"), h, activation, **ffn)

    def attend(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        return self_attention_backward(grad, stages.within("attention"), h, lengths, n_heads, row_indices, **attention)

    grad, grads = add_and_norm_backward("ffn", grad, stages, y, feed, ffn_norm, eps, norm_first)
    grad, first = add_and_norm_backward(
        "attention", grad, stages, x, attend, attention_norm, eps, norm_first, row_indices
    )
    return grad, first | grads


def encoder(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Sequence[Mapping[str, Any]],
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
    norm: Linear | None = None,
) -> np.ndarray:
    """The layers one after another, (T, D) -> (T, D).

    row_indices: the one row of each text that is wanted of the last layer, whose answer is (B, D).
    norm: of the last layer's rows, which models with norm_first have.
    """
    for i, weights in enumerate(layers):
        rows = row_indices if i + 1 == len(layers) else None
        with scope(f"layers.{i}"):
            x = encoder_layer(
                x, lengths, n_heads, activation, **weights, eps=eps, row_indices=rows, norm_first=norm_first
            )
    return x if norm is None else tap("norm", layer_norm(x, **norm, eps=eps))


def encoder_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Sequence[Mapping[str, Any]],
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
    norm: Linear | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of the layers one after another: the gradients of x (T, D) and of the weights, {"layers": [...]} and "norm"."""
    last = "ffn_residual" if norm_first else "ffn_norm"
    grads: dict[str, Any] = {"layers": [{} for _ in layers]}
    inputs = [x, *(stages[f"layers.{i}.{last}"] for i in range(len(layers)))]
    if norm is not None:
        grad, grads["norm"] = layer_norm_backward(stages.through_edit("norm", grad), inputs[-1], **norm, eps=eps)
    for i in reversed(range(len(layers))):
        rows = row_indices if i + 1 == len(layers) else None
        grad, grads["layers"][i] = encoder_layer_backward(
            grad, stages.within(f"layers.{i}"), inputs[i], lengths, n_heads, activation, **layers[i],
            eps=eps, row_indices=rows, norm_first=norm_first,
        )  # fmt: skip
    return grad, grads
