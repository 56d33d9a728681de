"""The decoder: masked self-attention, attention to the encoder's output, feed-forward network; layer and stack.

Attention Is All You Need (Vaswani et al., 2017), section 3.1, on packed rows, with the functions of
`encoder_layers.py`. Next: `transformer.py` joins encoder and decoder, `generation/` writes text with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.encoder_layers import (
    Activation,
    add_and_norm,
    add_and_norm_backward,
    feed_forward,
    feed_forward_backward,
)
from npformer.errors import NpformerError
from npformer.functions import layer_norm, layer_norm_backward, linear, linear_backward
from npformer.multi_head import (
    AttentionCache,
    Linear,
    multi_head_attention,
    multi_head_attention_backward,
    self_attention,
    self_attention_backward,
)
from npformer.tape import Stages
from npformer.taps import scope, tap

EVERY_KEY = np.ones(1, bool)  # the mask of cross-attention: each row of a target may attend to its whole source


def shift(target: Any, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes the decoder's input and its labels for teacher forcing: [start, *target] and [*target, end].

    Parameters
    ----------
    target : (L,) token ids
    start, end : int, token ids

    Returns
    -------
    (L + 1,) and (L + 1,) arrays, the input and the labels

    Raises
    ------
    NpformerError
        target is not one sequence.

    Examples
    --------
    >>> npformer.shift([12, 4433, 2304], start=0, end=99999)
    (array([   0,   12, 4433, 2304]), array([   12,  4433,  2304, 99999]))
    """
    ids = np.asarray(target, np.int64)
    if ids.ndim != 1:
        raise NpformerError(f"shift: expected the ids of one target, (L,), got shape {ids.shape}")
    return np.concatenate([[start], ids]), np.concatenate([ids, [end]])


def decoder_layer(
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Any],
    attention_norm: Linear,
    cross_attention: Mapping[str, Any],
    cross_attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-5,
    norm_first: bool = False,
    caches: tuple[AttentionCache, AttentionCache] | None = None,
) -> np.ndarray:
    """Y = Add&Norm(X, Attention(X)); Z = Add&Norm(Y, Attention(Y, source)); result Add&Norm(Z, FFN(Z)).

    A row of X attends to itself and to earlier rows of its text, a row of Y to all rows of its source.

    Parameters
    ----------
    x : (T, D) array, the targets' tokens one after another
    lengths : (B,) integer array, tokens of each target
    source : (S, D) array, the encoder's output, one source after another
    source_lengths : (B,) integer array, tokens of each source
    n_heads : int
    activation : function such as `relu`
    attention, cross_attention, ffn : dicts of linear layers, as in `self_attention` and `feed_forward`
    attention_norm, cross_attention_norm, ffn_norm : {"weight": (D,), "bias": (D,)}
    eps : float, of the norms
    norm_first : bool, x + block(Normalize(x)) instead of Normalize(x + block(x))
    caches : the keys and values that both attentions keep from earlier calls, optional

    Returns
    -------
    (T, D) array

    References
    ----------
    Vaswani et al., 2017, section 3.1.

    Examples
    --------
    >>> identity = {"weight": np.eye(4)}
    >>> attention = dict.fromkeys(("query", "key", "value", "output"), identity)
    >>> layer = {"attention": attention, "cross_attention": attention, "ffn": {"hidden": identity, "output": identity}}
    >>> layer |= {f"{name}_norm": {} for name in layer}  # norms without weight and bias
    >>> x, source = np.eye(4)[:2], np.eye(4)[1:]
    >>> npformer.decoder_layer(x, np.array([2]), source, np.array([3]), 2, npformer.relu, **layer)
    array([[ 1.732 , -0.5928, -0.5696, -0.5696],
           [-0.5096,  1.7306, -0.6105, -0.6105]])
    """
    own, across = caches or (None, None)

    def masked_self_attention(h: np.ndarray) -> np.ndarray:
        return self_attention(h, lengths, n_heads, is_causal=True, cache=own, **attention)

    def source_attention(h: np.ndarray) -> np.ndarray:
        return multi_head_attention(
            h, lengths, source, source_lengths, n_heads, mask=EVERY_KEY, cache=across, **cross_attention
        )

    y = add_and_norm("attention", x, masked_self_attention, attention_norm, eps, norm_first)
    z = add_and_norm("cross_attention", y, source_attention, cross_attention_norm, eps, norm_first)
    return add_and_norm("ffn", z, lambda h: feed_forward(h, activation, **ffn), ffn_norm, eps, norm_first)


def decoder_layer_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    attention: Mapping[str, Any],
    attention_norm: Linear,
    cross_attention: Mapping[str, Any],
    cross_attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-5,
    norm_first: bool = False,
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Backward of `decoder_layer`: dx (T, D), dsource (S, D) and the gradients of the weights."""
    done = "residual" if norm_first else "norm"
    y, z = stages[f"attention_{done}"], stages[f"cross_attention_{done}"]
    of_source = []

    def feed(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        return feed_forward_backward(grad, stages.within("ffn"), h, activation, **ffn)

    def across(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        inside = stages.within("cross_attention")
        dh, dsource, grads = multi_head_attention_backward(
            grad, inside, h, lengths, source, source_lengths, n_heads, **cross_attention
        )
        of_source.append(dsource)
        return dh, grads

    def own(grad: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        return self_attention_backward(grad, stages.within("attention"), h, lengths, n_heads, **attention)

    grad, grads = add_and_norm_backward("ffn", grad, stages, z, feed, ffn_norm, eps, norm_first)
    grad, more = add_and_norm_backward(
        "cross_attention", grad, stages, y, across, cross_attention_norm, eps, norm_first
    )
    grad, first = add_and_norm_backward("attention", grad, stages, x, own, attention_norm, eps, norm_first)
    return grad, of_source[0], first | more | grads


def decoder(
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Sequence[Mapping[str, Any]],
    eps: float = 1e-5,
    norm_first: bool = False,
    norm: Linear | None = None,
    caches: Sequence[tuple[AttentionCache, AttentionCache]] | None = None,
) -> np.ndarray:
    """Applies the layers one after another, then a last norm where there is one.

    Parameters
    ----------
    x : (T, D) array, the embeddings of the targets' tokens one after another
    lengths : (B,) integer array, tokens of each target
    source : (S, D) array, the encoder's output, one source after another
    source_lengths : (B,) integer array, tokens of each source
    n_heads : int
    activation : function such as `relu`
    layers : sequence of dicts of weights, as in `decoder_layer`
    eps : float, of the norms
    norm_first : bool, as in `decoder_layer`
    norm : {"weight": (D,), "bias": (D,)}, optional
    caches : sequence, the caches of each layer, as in `decoder_layer`, optional

    Returns
    -------
    (T, D) array

    Raises
    ------
    NpformerError
        There are not as many targets as sources.

    References
    ----------
    Vaswani et al., 2017, section 3.1.

    Examples
    --------
    >>> identity = {"weight": np.eye(4)}
    >>> attention = dict.fromkeys(("query", "key", "value", "output"), identity)
    >>> layer = {"attention": attention, "cross_attention": attention, "ffn": {"hidden": identity, "output": identity}}
    >>> layer |= {f"{name}_norm": {} for name in layer}  # norms without weight and bias
    >>> x, source = np.eye(4)[:2], np.eye(4)[1:]
    >>> npformer.decoder(x, np.array([2]), source, np.array([3]), 2, npformer.relu, [layer, layer]).shape
    (2, 4)
    """
    if len(lengths) != len(source_lengths):
        raise NpformerError(f"decoder: {len(lengths)} targets for {len(source_lengths)} sources")
    for i, weights in enumerate(layers):
        with scope(f"layers.{i}"):
            kept = caches[i] if caches is not None else None
            x = decoder_layer(
                x, lengths, source, source_lengths, n_heads, activation, **weights, eps=eps,
                norm_first=norm_first, caches=kept,
            )  # fmt: skip
    return x if norm is None else tap("norm", layer_norm(x, **norm, eps=eps))


def decoder_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Sequence[Mapping[str, Any]],
    eps: float = 1e-5,
    norm_first: bool = False,
    norm: Linear | None = None,
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Backward of `decoder`: dx (T, D), dsource (S, D) and the weights' gradients, {"layers": [...], "norm": ...}."""
    last = "ffn_residual" if norm_first else "ffn_norm"
    grads: dict[str, Any] = {"layers": [{} for _ in layers]}
    inputs = [x, *(stages[f"layers.{i}.{last}"] for i in range(len(layers)))]
    if norm is not None:
        grad, grads["norm"] = layer_norm_backward(stages.through_edit("norm", grad), inputs[-1], **norm, eps=eps)
    total = np.zeros_like(source)
    for i in reversed(range(len(layers))):
        grad, dsource, grads["layers"][i] = decoder_layer_backward(
            grad, stages.within(f"layers.{i}"), inputs[i], lengths, source, source_lengths, n_heads, activation,
            **layers[i], eps=eps, norm_first=norm_first,
        )  # fmt: skip
        total += dsource
    return grad, total, grads


def project(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """The vocabulary's logits x E^T + b, (T, D) -> (T, V); softmax gives probabilities. Section 3.4."""
    return tap("logits", linear(x, weight, bias))


def project_backward(
    grad: np.ndarray, stages: Stages, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Backward of `project`: dx (T, D) and the gradients of E^T and b."""
    return linear_backward(stages.through_edit("logits", grad), x, weight, bias)
