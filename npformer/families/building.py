"""The parts that most families share, made from a `Config`: embeddings, stacks and heads."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from npformer.activations import ACTIVATIONS
from npformer.config import POOLED_HEADS, Config
from npformer.decoder_layers import decoder_layer_of
from npformer.embeddings import Embeddings
from npformer.encoder_layers import layer_of
from npformer.heads import Head, HiddenStates, Logits, Pooler, ReplacedTokens, Spans, Transform
from npformer.layers import Layer, Stack
from npformer.mechanisms import Causal, Mechanism
from npformer.norms import LayerNorm


def embeddings_of(config: Config) -> Embeddings:
    """The embeddings of each stack."""
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    return Embeddings(config.eps, scale, config.first_position, config.padding_idx)


def stack_of(
    config: Config,
    mechanisms: Sequence[tuple[Mechanism, ...]] | None = None,
    gated: bool = False,
    after_first: Layer | None = None,
) -> Stack:
    """The layers of an encoder, or of a decoder on its own.

    mechanisms: those of each layer's attention; by default causal masks if the config has them. gated: the feed-forward
    networks have a gate.
    """
    norm, activation = LayerNorm(config.eps), ACTIVATIONS[config.activation]
    each = mechanisms or [(Causal(),) if config.causal else ()] * config.n_layers
    layers = [layer_of(config.n_heads, activation, gated, norm, config.norm_first, of_layer) for of_layer in each]
    return Stack(tuple(layers), norm, after_first)


def decoder_of(config: Config) -> Stack:
    """The layers of a decoder that reads a source."""
    norm, activation = LayerNorm(config.eps), ACTIVATIONS[config.activation]
    layer = decoder_layer_of(config.decoder.n_heads, activation, norm, config.norm_first)
    return Stack((layer,) * config.decoder.n_layers, norm)


def head_of(config: Config, head: str, groups: Container[str]) -> Head | HiddenStates:
    """The head of this name. groups: its groups of weights, which show if it has a pooler or a transform."""
    of_texts, pooler = head in POOLED_HEADS, Pooler(ACTIVATIONS[config.pooler])
    if head == "base":
        return HiddenStates(pooler)
    below: Pooler | Transform | None = pooler if "pooler" in groups else None
    if "head.norm" in groups:
        below = Transform(ACTIVATIONS[config.below_head], LayerNorm(config.eps), of_texts)
    if head == "replaced-token":
        return ReplacedTokens(activation=ACTIVATIONS[config.below_head])
    kind = Spans if head == "question-answering" else Logits
    return kind(below, of_texts, of_texts and config.pooling == "mean")
