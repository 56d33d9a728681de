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
from npformer.attention import Linear, multi_head_attention, multi_head_attention_backward
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


def encoder_layer(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Linear],
    attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-12,
    only: np.ndarray | None = None,
    norm_first: bool = False,
) -> np.ndarray:
    """Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)), (T, D) -> (T, D). Section 3.1.

    only: the one row of each text that is wanted, (B,); the rest is not computed, and the answer is (B, D).
    norm_first: Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)). Xiong et al., 2020, figure 1.
    """
    row_lengths = lengths if only is None else np.full_like(lengths, len(only) // len(lengths))
    if norm_first:
        h = tap("attention_norm", layer_norm(x, **attention_norm, eps=eps))
        with scope("attention"):
            a = multi_head_attention(_wanted(h, only), row_lengths, h, lengths, n_heads, **attention)  # type: ignore[arg-type]
        y = tap("attention_residual", _wanted(x, only) + a)
        h = tap("ffn_norm", layer_norm(y, **ffn_norm, eps=eps))
        with scope("ffn"):
            f = feed_forward(h, activation, **ffn)
        return tap("ffn_residual", y + f)
    with scope("attention"):
        a = multi_head_attention(_wanted(x, only), row_lengths, x, lengths, n_heads, **attention)  # type: ignore[arg-type]
    y = tap("attention_residual", _wanted(x, only) + a)
    y = tap("attention_norm", layer_norm(y, **attention_norm, eps=eps, out=spare(y)))
    with scope("ffn"):
        f = feed_forward(y, activation, **ffn)
    z = tap("ffn_residual", y + f)
    return tap("ffn_norm", layer_norm(z, **ffn_norm, eps=eps, out=spare(z)))


def _wanted(x: np.ndarray, only: np.ndarray | None) -> np.ndarray:
    return x if only is None else x[only]


def encoder_layer_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Linear],
    attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-12,
    only: np.ndarray | None = None,
    norm_first: bool = False,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Of Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)): the gradients of X (T, D) and of the weights.

    only: grad (B, D) is that of one row of each text. norm_first as in `encoder_layer`.
    """
    row_lengths = lengths if only is None else np.ones_like(lengths)
    grads: dict[str, Any] = {}
    if norm_first:  # Z = Y + FFN(Normalize(Y)); Y = X + Attention(Normalize(X))
        dy = stages.through_edit("ffn_residual", grad)
        dh, grads["ffn"] = feed_forward_backward(dy, stages.within("ffn"), stages["ffn_norm"], activation, **ffn)
        dh, grads["ffn_norm"] = layer_norm_backward(
            stages.through_edit("ffn_norm", dh), stages["attention_residual"], **ffn_norm, eps=eps
        )
        dy = stages.through_edit("attention_residual", dy + dh)
        source = stages["attention_norm"]
    else:  # Z = Normalize(Y + FFN(Y)); Y = Normalize(X + Attention(X))
        dz, grads["ffn_norm"] = layer_norm_backward(
            stages.through_edit("ffn_norm", grad), stages["ffn_residual"], **ffn_norm, eps=eps
        )
        dz = stages.through_edit("ffn_residual", dz)
        dy, grads["ffn"] = feed_forward_backward(dz, stages.within("ffn"), stages["attention_norm"], activation, **ffn)
        dy += dz
        dy, grads["attention_norm"] = layer_norm_backward(
            stages.through_edit("attention_norm", dy), stages["attention_residual"], **attention_norm, eps=eps
        )
        dy = stages.through_edit("attention_residual", dy)
        source = x
    rows = source if only is None else source[only]
    drows, dx, grads["attention"] = multi_head_attention_backward(
        dy, stages.within("attention"), rows, row_lengths, source, lengths, n_heads, **attention
    )
    where: Any = slice(None) if only is None else only
    dx[where] += drows
    if norm_first:
        dx, grads["attention_norm"] = layer_norm_backward(
            stages.through_edit("attention_norm", dx), x, **attention_norm, eps=eps
        )
    dx[where] += dy
    return dx, grads


def encoder(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Sequence[Mapping[str, Any]],
    eps: float = 1e-12,
    only: np.ndarray | None = None,
    norm_first: bool = False,
    norm: Linear | None = None,
) -> np.ndarray:
    """The layers one after another, (T, D) -> (T, D), or (B, D) where `only` one row of each text is wanted.

    norm: of the last layer's rows, which models with norm_first have.
    """
    for i, weights in enumerate(layers):
        rows = only if i + 1 == len(layers) else None
        with scope(f"layers.{i}"):
            x = encoder_layer(x, lengths, n_heads, activation, **weights, eps=eps, only=rows, norm_first=norm_first)
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
    only: np.ndarray | None = None,
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
        rows = only if i + 1 == len(layers) else None
        grad, grads["layers"][i] = encoder_layer_backward(
            grad, stages.within(f"layers.{i}"), inputs[i], lengths, n_heads, activation, **layers[i],
            eps=eps, only=rows, norm_first=norm_first,
        )  # fmt: skip
    return grad, grads
