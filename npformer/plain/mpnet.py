"""MPNet: BERT with a bias for each distance between tokens. Song et al., 2020, MPNet.

MPNet differs from BERT in its attention, which adds T5's relative biases to the scores, from one table for all layers.
There are no token types. `positions` are rows of the position table, as from RoBERTa's `padded_positions`. Distances
are differences of `text_positions`, the positions in the text, 0 ... L - 1. mask is (..., 1, 1, L), True for tokens and
False for padding, or True without padding.
"""

import math

import numpy as np

from npformer.plain.distilbert import embed
from npformer.plain.formulas import combine_heads, feed_forward, layer_norm, linear, masked_softmax, split_heads
from npformer.plain.heads import classify_first, classify_tokens, find_answer, pooled_states, predict_words
from npformer.plain.t5 import relative_buckets


def distance_biases(text_positions, max_distance, weight):
    """b_h[bucket(j - i)] for head h, query i and key j, weight (32, H) -> (H, L, L). Raffel et al., 2020, T5, 2.1."""
    distances = text_positions - text_positions[:, None]  # (L, L)
    buckets = relative_buckets(distances, len(weight), max_distance)
    return np.moveaxis(weight[buckets], -1, 0)


def biased_attention(x, bias, mask, n_heads, query, key, value, output):
    """Concat(heads) W_O, head h = softmax(q k^T / sqrt(K) + bias_h) v. x (..., L, D), bias (H, L, L) -> (..., L, D)."""
    q, k, v = linear(x, **query), linear(x, **key), linear(x, **value)
    query_heads, key_heads, value_heads = (split_heads(each, n_heads) for each in (q, k, v))  # (..., H, L, K)
    scores = query_heads @ key_heads.mT / math.sqrt(query_heads.shape[-1]) + bias  # (..., H, L, L)
    weights = masked_softmax(scores, mask)
    context = weights @ value_heads
    combined = combine_heads(context)  # (..., L, D)
    return linear(combined, **output)


def mpnet_layer(x, bias, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = LayerNorm(X + SelfAttention(X)); Z = LayerNorm(Y + FFN(Y)). (..., L, D) -> (..., L, D)."""
    attention_residual = x + biased_attention(x, bias, mask, n_heads, **attention)
    y = layer_norm(attention_residual, **attention_norm, eps=eps)
    ffn_residual = y + feed_forward(y, activation, **ffn)
    return layer_norm(ffn_residual, **ffn_norm, eps=eps)


def mpnet(
    ids, positions, text_positions, mask, n_heads, max_distance, activation, eps, embeddings, relative_bias, layers
):
    """The hidden states of the last layer, (..., L, D). ids and positions (..., L), text_positions (L,)."""
    x = embed(ids, positions, eps, **embeddings)
    bias = distance_biases(text_positions, max_distance, **relative_bias)
    for layer in layers:
        x = mpnet_layer(x, bias, mask, n_heads, activation, eps, **layer)
    return x


MODEL = mpnet
HEADS = {
    "base": pooled_states,
    "sequence-classification": classify_first,
    "multiple-choice": classify_first,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
}
