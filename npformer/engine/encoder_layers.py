"""The encoder layer and the encoder, on packed rows.

Packed rows are the concatenated tokens of several texts, (T, D), with the `lengths` of the texts; there is no padding.
Attention Is All You Need (Vaswani et al., 2017), section 3.1, in the form of BERT (Devlin et al., 2019). Weights are
nested dicts that are passed to functions as keyword arguments: `linear(x, **weights["query"])`. The functions and
the models use the same `Layer` and `Stack`, from `layers/`. Next: `decoder_layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.engine.blocks import Attention, FeedForward, Gated, Rows
from npformer.engine.blocks.block import Activation, Linear
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.norms.norm import Norm


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
) -> np.ndarray:
    """Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)).

    With norm_first: Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)).

    Parameters
    ----------
    x : (T, D) array, the concatenated tokens of the texts
    lengths : (B,) integer array, number of tokens of each text
    n_heads : int
    activation : function such as `gelu`
    attention, ffn : dicts of linear layers, as in `self_attention` and `feed_forward`, or `gated_feed_forward`
    attention_norm, ffn_norm : {"weight": (D,), "bias": (D,)}; the first may be None
    eps : float, eps of the norms
    row_indices : (B,) integer array, optional, one row of each text; only these rows are computed and returned
    norm_first : bool

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
    >>> from npformer.engine.activations import gelu
    >>> encoder_layer(x, np.array([3, 2]), 12, gelu, **model.weights["layers"][0]).shape
    (5, 384)
    """
    weights = {"attention": attention, "attention_norm": attention_norm, "ffn": ffn, "ffn_norm": ffn_norm}
    layer = _layer(n_heads, activation, weights, eps, norm_first)
    return layer(x, Rows(lengths, attending=row_indices), weights)


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
    """Applies the layers in sequence, then the final norm if given.

    Parameters
    ----------
    x : (T, D) array, the concatenated embeddings of the texts' tokens
    lengths : (B,) integer array, number of tokens of each text
    n_heads : int
    activation : function such as `gelu`
    layers : sequence of dicts of weights, as in `encoder_layer`
    eps : float, eps of the norms
    row_indices : (B,) integer array, optional, one row of each text; the last layer computes only these rows
    norm_first : bool, as in `encoder_layer`
    norm : {"weight": (D,), "bias": (D,)}, optional, the final norm; usual with norm_first

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
    >>> from npformer.engine.activations import gelu
    >>> encoder(x, np.array([3, 2]), 12, gelu, model.weights["layers"]).shape
    (5, 384)
    """
    of_layers = tuple([_layer(n_heads, activation, each, eps, norm_first) for each in layers])
    stack = Stack(of_layers, None if norm is None else LayerNorm(eps))
    return stack(x, Rows(lengths, attending=row_indices), {"layers": layers, "norm": norm})


def _layer(n_heads: int, activation: Activation, weights: Mapping[str, Any], eps: float, norm_first: bool) -> Layer:
    """The layer with these weights, which determine whether its FFN is gated and whether its attention has a norm."""
    unnormed = ("attention",) if weights.get("attention_norm") is None else ()
    return layer_of(n_heads, activation, "up" in weights["ffn"], LayerNorm(eps), norm_first, unnormed=unnormed)


def layer_of(
    n_heads: int,
    activation: Activation,
    gated: bool,
    norm: Norm,
    norm_first: bool,
    mechanisms: tuple[Mechanism, ...] = (),
    d_ffn: int = 0,
    bias: bool = True,
    unnormed: tuple[str, ...] = (),
) -> Layer:
    """An encoder layer: attention, then the feed-forward network."""
    feed = (Gated if gated else FeedForward)(activation, d_ffn, bias)
    return Layer((("attention", Attention(n_heads, mechanisms, bias)), ("ffn", feed)), norm, norm_first, unnormed)
