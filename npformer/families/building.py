"""Builds the parts that most families share, from a `Config`: embeddings, stacks and heads."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from npformer.config import POOLED_HEADS, Config
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.blocks import Attention, CrossAttention, FeedForward, Gated, Normed
from npformer.engine.blocks.block import Activation
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Causal, Mechanism
from npformer.engine.norms.norm import Norm
from npformer.engine.output_heads.capped_logits import CappedLogits
from npformer.engine.output_heads.heads import Head, HiddenStates, Logits, Pooler, ReplacedTokens, Spans, Transform
from npformer.engine.output_heads.output_scale import OutputScale


def embeddings_of(config: Config, norm: Norm | None, n_tokens: int, projected: bool = False) -> Embeddings:
    """The embeddings of a stack. If n_tokens is 0, the input consists of vectors, and there are no tables."""
    n_positions = config.n_positions if n_tokens and config.positions.table != "none" else 0
    rows = (n_tokens, n_positions, config.n_token_types)
    first, padding = config.positions.first, config.padding_idx
    return Embeddings(norm, config.token_scale, first, padding, *rows, config.table_width, projected=projected)


def stack_of(config: Config, norm: Norm, after_first: Layer | None = None, bias: bool = True) -> Stack:
    """The stack of an encoder or of a decoder-only model. bias: False removes the biases of linear layers."""
    choices = config.n_heads, ACTIVATIONS[config.activation], config.gated, norm, config.norm_first
    sizes = config.d_ffn, bias and config.bias
    layers = [encoder_layer_of(*choices, mechanisms_of(config, i), *sizes) for i in range(config.n_layers)]
    return Stack(tuple(layers), norm if config.final_norm else None, after_first)


def encoder_layer_of(
    n_heads: int,
    activation: Activation,
    gated: bool,
    norm: Norm,
    norm_first: bool,
    mechanisms: tuple[Mechanism, ...] = (),
    d_ffn: int = 0,
    bias: bool = True,
) -> Layer:
    """A layer of an encoder or of a decoder-only model: attention, then the feed-forward network."""
    feed = (Gated if gated else FeedForward)(activation, d_ffn, bias)
    return Layer((("attention", Attention(n_heads, mechanisms, bias)), ("ffn", feed)), norm, norm_first)


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


def with_output_norms(stack: Stack, norm: Norm) -> Stack:
    """Adds a norm of each block's output to a stack."""
    layers = [
        replace(layer, blocks=tuple((name, Normed(block, norm)) for name, block in layer.blocks))
        for layer in stack.layers
    ]
    return replace(stack, layers=tuple(layers))


def mechanisms_of(config: Config, layer: int) -> tuple[Mechanism, ...]:
    """The mechanisms in the attention of a layer, including the causal mask."""
    own = tuple(each.for_model(config) for each in config.mechanisms_of(layer))
    return (*own, Causal()) if config.causal else own


def decoder_stack_of(config: Config, norm: Norm) -> Stack:
    """The decoder stack of an encoder-decoder model."""
    activation, decoder = ACTIVATIONS[config.activation], config.decoder
    layer = decoder_layer_of(decoder.n_heads, activation, norm, config.norm_first, decoder.d_ffn, config.bias)
    return Stack((layer,) * decoder.n_layers, norm if config.final_norm else None)


def head_of(config: Config, head: str, groups: Container[str], norm: Norm, bias: bool = True) -> Head | HiddenStates:
    """The head with this name.

    groups: the groups of weights of the head, which determine whether the head has a pooler or a transform. bias:
    whether its last layer has a bias.
    """
    of_texts = head in POOLED_HEADS
    pooler = Pooler(ACTIVATIONS[config.pooler]) if "pooler" in groups else None
    if head == "base":
        return HiddenStates(pooler)
    below: Pooler | Transform | OutputScale | None = pooler
    if config.scale_output and head in ("causal-lm", "translation"):
        below = OutputScale(config.d_model**-0.5)
    if "head.norm" in groups:
        below = Transform(ACTIVATIONS[config.below_head], norm, of_texts, _width(config, head), config.bias)
    if head == "replaced-token":
        return ReplacedTokens(n_outputs=config.n_outputs, activation=ACTIVATIONS[config.below_head])
    if head == "causal-lm" and config.logit_cap:
        return CappedLogits(below, n_outputs=config.n_outputs, bias=bias, cap=config.logit_cap)
    kind = Spans if head == "question-answering" else Logits
    return kind(below, of_texts, of_texts and config.pooling == "mean", config.n_outputs, bias)


def _width(config: Config, head: str) -> int:
    """The input width of the head's linear layer: the width of the token table if it predicts tokens, else d_model."""
    return config.table_width if head in ("masked-lm", "causal-lm") else config.d_model
