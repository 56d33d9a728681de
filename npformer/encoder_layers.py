"""The encoder: feed-forward network, layer and stack, on packed rows.

Packed rows are the tokens of several texts one after another, (T, D), with the texts' `lengths`; there is no padding.
Attention Is All You Need (Vaswani et al., 2017), section 3.1, in the form of BERT (Devlin et al., 2019). Weights are
nested dicts that are passed to the functions as keywords: `linear(x, **weights["query"])`. Next: `decoder_layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npformer.activations import BACKWARDS
from npformer.convolution import Convolution
from npformer.functions import (
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
    linears,
)
from npformer.mechanisms.mechanism import Mechanism, Sums
from npformer.mechanisms.placed import Placed, add_up
from npformer.multi_head import AttentionCache, Linear, self_attention, self_attention_backward
from npformer.tape import Stages
from npformer.taps import scope, spare, tap

Activation = Callable[..., np.ndarray]


def feed_forward(x: np.ndarray, activation: Activation, hidden: Linear, output: Linear) -> np.ndarray:
    """FFN(x) = act(x W_1 + b_1) W_2 + b_2.

    Parameters
    ----------
    x : (T, D) array
    activation : function such as `gelu`
    hidden, output : {"weight": (D, F), "bias": (F,)} and {"weight": (F, D), "bias": (D,)}

    Returns
    -------
    (T, D) array

    References
    ----------
    Vaswani et al., 2017, section 3.3.

    Examples
    --------
    >>> identity = {"weight": np.eye(2)}
    >>> npformer.feed_forward(np.array([[-1.0, 2.0]]), npformer.relu, hidden=identity, output=identity)
    array([[0., 2.]])
    """
    h = tap("hidden", linear(x, **hidden))
    h = tap("activation", activation(h, out=spare(h)))
    return tap("output", linear(h, **output))


def feed_forward_backward(
    grad: np.ndarray, stages: Stages, x: np.ndarray, activation: Activation, hidden: Linear, output: Linear
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Backward of `feed_forward`: dx (T, D) and the gradients of W_1, b_1, W_2, b_2."""
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["activation"], **output)
    grad = BACKWARDS[activation](stages.through_edit("activation", grad), stages["hidden"])
    grad, d_hidden = linear_backward(stages.through_edit("hidden", grad), x, **hidden)
    return grad, {"hidden": d_hidden, "output": d_output}


def gated_feed_forward(
    x: np.ndarray, activation: Activation, hidden: Linear, gate: Linear, output: Linear
) -> np.ndarray:
    """FFN(x) = (act(x W_1 + b_1) * (x V + c)) W_2 + b_2, with act = GELU called GeGLU, with SiLU SwiGLU.

    Parameters
    ----------
    x : (T, D) array
    activation : function such as `gelu`
    hidden, gate, output : linear layers (D, F), the W_1; (D, F), the V; and (F, D), as in `feed_forward`

    Returns
    -------
    (T, D) array

    References
    ----------
    Shazeer, 2020, GLU Variants Improve Transformer, section 2.

    Examples
    --------
    >>> identity, doubled = {"weight": np.eye(2)}, {"weight": 2 * np.eye(2)}
    >>> gated_feed_forward(np.array([[-1.0, 3.0]]), npformer.relu, hidden=identity, gate=doubled, output=identity)
    array([[ 0., 18.]])
    """
    h, v = linears(x, hidden, gate)
    h, v = tap("hidden", h), tap("gate", v)
    h = tap("activation", activation(h, out=spare(h)))
    return tap("output", linear(tap("gated", np.multiply(h, v, out=spare(h))), **output))


def gated_feed_forward_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    activation: Activation,
    hidden: Linear,
    gate: Linear,
    output: Linear,
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Backward of `gated_feed_forward`: dx (T, D) and the gradients of the three linear layers."""
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["gated"], **output)
    grad = stages.through_edit("gated", grad)
    dh = stages.through_edit("activation", grad * stages["gate"])
    dv = stages.through_edit("gate", grad * stages["activation"])
    dh = stages.through_edit("hidden", BACKWARDS[activation](dh, stages["hidden"]))
    dx, d_gate = linear_backward(dv, x, **gate)
    from_hidden, d_hidden = linear_backward(dh, x, **hidden)
    dx += from_hidden
    return dx, {"hidden": d_hidden, "gate": d_gate, "output": d_output}


def add_and_norm(
    name: str,
    x: np.ndarray,
    block: Callable[[np.ndarray], np.ndarray],
    norm: Linear | None,
    eps: float,
    norm_first: bool,
    row_indices: np.ndarray | None = None,
) -> np.ndarray:
    """Normalize(x + block(x)), or x + block(Normalize(x)) with norm_first, (T, D) -> (T, D). Section 5.4.

    Without a norm: x + block(x).

    row_indices: the rows of x that the block returns, where it does not return all.
    """
    h = tap(f"{name}_norm", layer_norm(x, **norm, eps=eps)) if norm_first and norm is not None else x
    with scope(name):
        y = block(h)
    y = tap(f"{name}_residual", (x if row_indices is None else x[row_indices]) + y)
    return y if norm_first or norm is None else tap(f"{name}_norm", layer_norm(y, **norm, eps=eps, out=spare(y)))


def add_and_norm_backward(
    name: str,
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    block_backward: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, dict[str, Any]]],
    norm: Linear | None,
    eps: float,
    norm_first: bool,
    row_indices: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `add_and_norm`: dx and the gradients of the block's weights and the norm's.

    block_backward maps the gradient of block(h), and h, to the gradients of h and of the block's weights.
    """
    if norm is None:  # x + block(x)
        dy = stages.through_edit(f"{name}_residual", grad)
        dx, grads = block_backward(dy, x)
        dx[slice(None) if row_indices is None else row_indices] += dy
        return dx, {name: grads}
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
    attention_norm: Linear | None,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
    placed: Placed | None = None,
    cache: AttentionCache | None = None,
) -> np.ndarray:
    """Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)).

    With norm_first: Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)).

    Parameters
    ----------
    x : (T, D) array, the tokens of the texts one after another
    lengths : (B,) integer array, tokens of each text
    n_heads : int
    activation : function such as `gelu`
    attention, ffn : dicts of linear layers, as in `self_attention` and `feed_forward`, or `gated_feed_forward`
    attention_norm, ffn_norm : {"weight": (D,), "bias": (D,)}; the first may be None, for a layer without it
    eps : float, of the norms
    row_indices : (B,) integer array, one row of each text; only these are returned, and only what they need is computed
    norm_first : bool
    placed : `Placed`, the mechanisms by which attention depends on places, optional
    cache : the keys and values that attention keeps from earlier calls, optional

    Returns
    -------
    (T, D) array, or (B, D) with row_indices

    References
    ----------
    Vaswani et al., 2017, section 3.1; Xiong et al., 2020, figure 1, for norm_first.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> x = np.ones((5, model.config.d_model), np.float32)  # a text of 3 tokens and one of 2
    >>> npformer.encoder_layer(x, np.array([3, 2]), 12, npformer.gelu, **model.weights["layers"][0]).shape
    (5, 384)
    """

    def attend(h: np.ndarray) -> np.ndarray:
        return self_attention(h, lengths, n_heads, row_indices=row_indices, placed=placed, cache=cache, **attention)

    y = add_and_norm("attention", x, attend, attention_norm, eps, norm_first, row_indices)
    feed = gated_feed_forward if "gate" in ffn else feed_forward
    return add_and_norm("ffn", y, lambda h: feed(h, activation, **ffn), ffn_norm, eps, norm_first)


def encoder_layer_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Any],
    attention_norm: Linear | None,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
    placed: Placed | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `encoder_layer`: dx (T, D) and the gradients of the weights. With row_indices, grad is (B, D)."""
    y = stages["attention_residual" if norm_first or attention_norm is None else "attention_norm"]

    def feed(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        backward = gated_feed_forward_backward if "gate" in ffn else feed_forward_backward
        return backward(grad, stages.within("ffn"), h, activation, **ffn)

    def attend(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        stages_of_it = stages.within("attention")
        return self_attention_backward(grad, stages_of_it, h, lengths, n_heads, row_indices, placed, **attention)

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
    placed: Sequence[Placed] | None = None,
    caches: Sequence[AttentionCache] | None = None,
    convolution: Convolution | None = None,
) -> np.ndarray:
    """Applies the layers one after another, then a last norm where there is one.

    Parameters
    ----------
    x : (T, D) array, the embeddings of the texts' tokens one after another
    lengths : (B,) integer array, tokens of each text
    n_heads : int
    activation : function such as `gelu`
    layers : sequence of dicts of weights, as in `encoder_layer`
    eps : float, of the norms
    row_indices : (B,) integer array, one row of each text; only these are computed in the last layer
    norm_first : bool, as in `encoder_layer`
    norm : {"weight": (D,), "bias": (D,)}, optional; models with norm_first have it
    placed : a `Placed` for each layer, the mechanisms by which attention depends on places, optional
    caches : the cache of each layer, as in `encoder_layer`, optional
    convolution : `Convolution` of x, which is added to the first layer, with a norm, optional

    Returns
    -------
    (T, D) array, or (B, D) with row_indices

    References
    ----------
    Vaswani et al., 2017, section 3.1.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> x = np.ones((5, model.config.d_model), np.float32)  # a text of 3 tokens and one of 2
    >>> npformer.encoder(x, np.array([3, 2]), 12, npformer.gelu, model.weights["layers"]).shape
    (5, 384)
    """
    embedded = x

    def convolve(_: np.ndarray) -> np.ndarray:
        assert convolution is not None
        return convolution(embedded, lengths)

    for i, weights in enumerate(layers):
        rows = row_indices if i + 1 == len(layers) else None
        with scope(f"layers.{i}"):
            x = encoder_layer(
                x, lengths, n_heads, activation, **{"attention_norm": None, **weights},
                eps=eps, row_indices=rows, norm_first=norm_first,
                placed=None if placed is None else placed[i], cache=None if caches is None else caches[i],
            )  # fmt: skip
        if convolution is not None and i == 0:
            x = add_and_norm("convolution", x, convolve, convolution.norm, eps, False)
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
    placed: Sequence[Placed] | None = None,
    convolution: Convolution | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Backward of `encoder`: dx (T, D) and the gradients of the weights, {"layers": [...], "norm": ...}.

    The gradients of the arrays that mechanisms share in all layers are in "mechanisms".
    """
    last = "ffn_residual" if norm_first else "ffn_norm"
    grads: dict[str, Any] = {"layers": [{} for _ in layers]}
    sums: dict[Mechanism, Sums] = {}
    inputs = [x, *(stages[f"layers.{i}.{last}"] for i in range(len(layers)))]
    d_embedded: list[np.ndarray] = []

    def convolve(grad: np.ndarray, layer: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        assert convolution is not None
        dx, d_hidden = convolution.backward(grad, stages.within("convolution"), x, lengths)
        d_embedded.append(dx)
        return np.zeros_like(layer), d_hidden

    if convolution is not None:
        of_first, inputs[1] = inputs[1], stages["convolution_norm"]
    if norm is not None:
        grad, grads["norm"] = layer_norm_backward(stages.through_edit("norm", grad), inputs[-1], **norm, eps=eps)
    for i in reversed(range(len(layers))):
        rows = row_indices if i + 1 == len(layers) else None
        if convolution is not None and i == 0:
            grad, more = add_and_norm_backward(
                "convolution", grad, stages, of_first, convolve, convolution.norm, eps, False
            )
            grads |= more
        grad, grads["layers"][i] = encoder_layer_backward(
            grad, stages.within(f"layers.{i}"), inputs[i], lengths, n_heads, activation,
            **{"attention_norm": None, **layers[i]},
            eps=eps, row_indices=rows, norm_first=norm_first, placed=None if placed is None else placed[i],
        )  # fmt: skip
        for mechanism, more_sums in grads["layers"][i]["attention"].pop("mechanisms", {}).items():
            add_up(sums.setdefault(mechanism, {}), more_sums)
    return sum(d_embedded, grad), {**grads, "mechanisms": sums}
