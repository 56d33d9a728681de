"""Encoders and decoders on packed rows (texts one after another, with their lengths), built from engine layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.engine.blocks import Attention, PackedTexts, Source
from npformer.engine.blocks.block import Activation
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Causal
from npformer.engine.norms.layernorm import LayerNorm
from npformer.families.building import decoder_layer_of, encoder_layer_of

Layers = Sequence[Mapping[str, Any]]


def places_of(lengths: np.ndarray) -> np.ndarray:
    """Returns the index of each row in its text, (T,)."""
    return np.concatenate([np.arange(length) for length in lengths])


def encoder(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Layers,
    eps: float = 1e-12,
    row_indices: np.ndarray | None = None,
    norm_first: bool = False,
    norm: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Runs an encoder: x (T, D) -> (T, D), or only the row of each text in row_indices, (B, D)."""
    layer = encoder_layer_of(n_heads, activation, False, LayerNorm(eps), norm_first)
    return _applied(layer, layers, norm, eps, x, PackedTexts(lengths, attending=row_indices))


def decoder(
    x: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    source_lengths: np.ndarray,
    n_heads: int,
    activation: Activation,
    layers: Layers,
    eps: float = 1e-5,
    norm_first: bool = False,
    norm: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Runs a decoder: x (T, D) of the targets, source (S, D) -> (T, D)."""
    layer = decoder_layer_of(n_heads, activation, LayerNorm(eps), norm_first)
    texts = PackedTexts(lengths, source=Source(source, source_lengths), places=(places_of(lengths),) * 2)
    return _applied(layer, layers, norm, eps, x, texts)


def _applied(layer: Layer, layers: Layers, norm: Any, eps: float, x: np.ndarray, texts: PackedTexts) -> np.ndarray:
    stack = Stack((layer,) * len(layers), None if norm is None else LayerNorm(eps))
    return stack(x, texts, {"layers": layers, "norm": norm})


def self_attention(
    x: np.ndarray,
    lengths: np.ndarray,
    n_heads: int,
    is_causal: bool = False,
    *,
    row_indices: Any = None,
    **weights: Any,
) -> np.ndarray:
    """Runs self-attention: x (T, D) -> (T, D), or the rows in row_indices, the same number for each text."""
    block = Attention(n_heads, (Causal(),) if is_causal else ())
    places = (places_of(lengths),) * 2 if is_causal else None
    return block(x, PackedTexts(lengths, attending=row_indices, places=places), **weights)
