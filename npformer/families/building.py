"""The parts that most families share, made from a `Config`: embeddings, stacks and heads."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace

from npformer.activations import ACTIVATIONS
from npformer.config import POOLED_HEADS, Config
from npformer.decoder_layers import decoder_layer_of
from npformer.embeddings import Embeddings
from npformer.encoder_layers import layer_of
from npformer.heads import Head, HiddenStates, Logits, Pooler, ReplacedTokens, Spans, Transform
from npformer.layers import Layer, Stack
from npformer.mechanisms import Causal, Mechanism
from npformer.norms import LayerNorm


def norm_of(config: Config) -> LayerNorm:
    """The norm of all parts."""
    return LayerNorm(config.eps)


def embeddings_of(config: Config) -> Embeddings:
    """The embeddings of an encoder."""
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    rows = (config.vocab_size, config.n_positions, config.n_token_types)
    return Embeddings(norm_of(config), scale, config.positions.first, config.padding_idx, *rows, config.table_width)


def stack_of(config: Config, gated: bool = False, after_first: Layer | None = None) -> Stack:
    """The layers of an encoder, or of a decoder on its own. gated: the feed-forward networks have a gate."""
    norm, activation = norm_of(config), ACTIVATIONS[config.activation]
    choices = config.n_heads, activation, gated, norm, config.norm_first
    layers = [layer_of(*choices, _mechanisms(config, i), config.d_ffn) for i in range(config.n_layers)]
    return Stack(tuple(layers), norm, after_first)


def _mechanisms(config: Config, layer: int) -> tuple[Mechanism, ...]:
    own = tuple(each.for_model(config) for each in config.mechanisms_of(layer))
    return (*own, Causal()) if config.causal else own


def decoder_of(config: Config) -> tuple[Embeddings, Stack]:
    """The embeddings and layers of a decoder that reads a source."""
    norm, activation = norm_of(config), ACTIVATIONS[config.activation]
    layer = decoder_layer_of(config.decoder.n_heads, activation, norm, config.norm_first, config.decoder.d_ffn)
    embeddings = replace(embeddings_of(config), n_tokens=config.decoder.vocab_size)
    return embeddings, Stack((layer,) * config.decoder.n_layers, norm)


def head_of(config: Config, head: str, groups: Container[str]) -> Head | HiddenStates:
    """The head of this name. groups: its groups of weights, which show if it has a pooler or a transform."""
    of_texts, pooler = head in POOLED_HEADS, Pooler(ACTIVATIONS[config.pooler])
    if head == "base":
        return HiddenStates(pooler)
    below: Pooler | Transform | None = pooler if "pooler" in groups else None
    if "head.norm" in groups:
        below = Transform(ACTIVATIONS[config.below_head], norm_of(config), of_texts, _width(config, head))
    if head == "replaced-token":
        return ReplacedTokens(n_outputs=config.n_outputs, activation=ACTIVATIONS[config.below_head])
    kind = Spans if head == "question-answering" else Logits
    return kind(below, of_texts, of_texts and config.pooling == "mean", config.n_outputs)


def _width(config: Config, head: str) -> int:
    """The width of the last layer's input: that of the token table in a head of words."""
    return config.table_width if head in ("masked-lm", "causal-lm") else config.d_model
