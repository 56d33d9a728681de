"""The decoder layer and the decoder: masked self-attention, attention to the encoder's output, feed-forward network.

Attention Is All You Need (Vaswani et al., 2017), section 3.1, on packed rows. Next: `transformer.py` combines the
encoder and the decoder, and `generation/` generates text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.common.arraylike import as_numbers
from npformer.common.errors import NpformerError
from npformer.engine.blocks import Attention, CrossAttention, FeedForward, Rows
from npformer.engine.blocks.block import Activation, Linear
from npformer.engine.functions import linear
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Causal
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.norms.norm import Norm
from npformer.engine.runtime.packing import places_of
from npformer.engine.taps import tap


def shift_right(target: Any, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the decoder's input and labels for teacher forcing: [start, *target] and [*target, end].

    Parameters
    ----------
    target : (L,) token ids
    start, end : int, token ids

    Returns
    -------
    two (L + 1,) arrays, the input and the labels

    Raises
    ------
    NpformerError
        target is not a sequence of whole numbers.

    Examples
    --------
    >>> npformer.shift_right([12, 4433, 2304], start=0, end=99999)
    (array([   0,   12, 4433, 2304]), array([   12,  4433,  2304, 99999]))
    """
    ids = as_numbers("shift_right: target", target, keeps=True)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise NpformerError(f"shift_right: target: expected whole numbers (L,), got {ids.dtype} of shape {ids.shape}")
    ids = ids.astype(np.int64)
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
) -> np.ndarray:
    """Y = Add&Norm(X, Attention(X)); Z = Add&Norm(Y, Attention(Y, source)); returns Add&Norm(Z, FFN(Z)).

    A row of X attends to itself and to the earlier rows of its text. A row of Y attends to all rows of its source.

    Parameters
    ----------
    x : (T, D) array, the concatenated tokens of the targets
    lengths : (B,) integer array, number of tokens of each target
    source : (S, D) array, the encoder's output for the concatenated sources
    source_lengths : (B,) integer array, number of tokens of each source
    n_heads : int
    activation : function such as `relu`
    attention, cross_attention, ffn : dicts of linear layers, as in `self_attention` and `feed_forward`
    attention_norm, cross_attention_norm, ffn_norm : {"weight": (D,), "bias": (D,)}
    eps : float, eps of the norms
    norm_first : bool, x + block(Normalize(x)) instead of Normalize(x + block(x))

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
    >>> from npformer.engine.activations import relu
    >>> decoder_layer(x, np.array([2]), source, np.array([3]), 2, relu, **layer)
    array([[ 1.732 , -0.5928, -0.5696, -0.5696],
           [-0.5096,  1.7306, -0.6105, -0.6105]])
    """
    weights = {
        "attention": attention,
        "attention_norm": attention_norm,
        "cross_attention": cross_attention,
        "cross_attention_norm": cross_attention_norm,
        "ffn": ffn,
        "ffn_norm": ffn_norm,
    }
    layer = decoder_layer_of(n_heads, activation, LayerNorm(eps), norm_first)
    return layer(x, _rows(lengths, source, source_lengths), weights)


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
) -> np.ndarray:
    """Applies the layers in sequence, then the final norm if given.

    Parameters
    ----------
    x : (T, D) array, the concatenated embeddings of the targets' tokens
    lengths : (B,) integer array, number of tokens of each target
    source : (S, D) array, the encoder's output for the concatenated sources
    source_lengths : (B,) integer array, number of tokens of each source
    n_heads : int
    activation : function such as `relu`
    layers : sequence of dicts of weights, as in `decoder_layer`
    eps : float, eps of the norms
    norm_first : bool, as in `decoder_layer`
    norm : {"weight": (D,), "bias": (D,)}, optional, the final norm

    Returns
    -------
    (T, D) array

    Raises
    ------
    NpformerError
        The numbers of targets and sources differ.

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
    >>> from npformer.engine.activations import relu
    >>> decoder(x, np.array([2]), source, np.array([3]), 2, relu, [layer, layer]).shape
    (2, 4)
    """
    if len(lengths) != len(source_lengths):
        raise NpformerError(f"decoder: expected a target for each source, got {len(lengths)} for {len(source_lengths)}")
    layer = decoder_layer_of(n_heads, activation, LayerNorm(eps), norm_first)
    stack = Stack((layer,) * len(layers), None if norm is None else LayerNorm(eps))
    return stack(x, _rows(lengths, source, source_lengths), {"layers": layers, "norm": norm})


def decoder_layer_of(
    n_heads: int, activation: Activation, norm: Norm, norm_first: bool, d_ffn: int = 0, bias: bool = True
) -> Layer:
    """A decoder layer: causal self-attention, cross-attention, and the feed-forward network."""
    blocks = (
        ("attention", Attention(n_heads, (Causal(),), bias)),
        ("cross_attention", CrossAttention(n_heads, bias)),
        ("ffn", FeedForward(activation, d_ffn, bias)),
    )
    return Layer(blocks, norm, norm_first)


def _rows(lengths: np.ndarray, source: np.ndarray, source_lengths: np.ndarray) -> Rows:
    return Rows(lengths, source=source, source_lengths=source_lengths, places=(places_of(lengths),) * 2)


def project(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Logits over the vocabulary: x E^T + b, (T, D) -> (T, V). Vaswani et al., 2017, section 3.4."""
    return tap("logits", linear(x, weight, bias))
