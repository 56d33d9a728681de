"""Llama: causal pre-norm layers with RMSNorm, rotary positions, grouped queries and gated feed-forward networks.

Touvron et al., 2023, LLaMA, section 2.2, and Llama 2, section 2.2. H heads of queries share G heads of keys and values.
`past` has the keys and values of S earlier tokens, a pair of arrays (..., G, S, K) for each layer. At the beginning of
a text, S is 0.
"""

import numpy as np

from npformer.plain.formulas import (
    causal_mask,
    combine_heads,
    embedding,
    gated_feed_forward,
    linear,
    rms_norm,
    rotary_angles,
    rotate,
    scaled_dot_product_attention,
    split_heads,
)
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next


def all_positions(positions, past):
    """The positions of earlier tokens, 0 ... S - 1, followed by those of new tokens, (L,) -> (S + L,)."""
    return np.concatenate([np.arange(past[0][0].shape[-2]), positions])


def grouped_query_attention(x, past, mask, heads, angles, query, key, value, output):
    """Multi-head attention in which H / G heads of queries share a head of keys and values. Ainslie et al., 2023, GQA.

    x (..., L, D), past two (..., G, S, K), mask (L, S + L) -> (..., L, D), and two (..., G, S + L, K). heads: H and G.
    """
    n_heads, n_kv_heads = heads
    query_rotated = rotate(split_heads(linear(x, **query), n_heads), *angles)  # (..., H, L, K)
    key_rotated = rotate(split_heads(linear(x, **key), n_kv_heads), *angles)  # (..., G, L, K)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, S + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, S + L, K)
    context = scaled_dot_product_attention(query_rotated, k, v, mask)
    combined = combine_heads(context)
    return linear(combined, **output), (keys, values)


def llama_layer(x, past, mask, heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)). Returns Z, and the keys and values so far."""
    normed = rms_norm(x, **attention_norm, eps=eps)
    attended, past = grouped_query_attention(normed, past, mask, heads, angles, **attention)
    attention_residual = x + attended
    normed = rms_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual, past


def llama(ids, positions, past, heads, frequencies, magnitude, activation, eps, embeddings, layers, norm):
    """The normalized rows of the last layer, (..., L, D), and the next `past`. ids (..., L), positions (L,)."""
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    mask = causal_mask(ids.shape[-1], past[0][0].shape[-2] + ids.shape[-1])
    past = list(past)  # the caller's stays as it is
    for i, layer in enumerate(layers):
        x, past[i] = llama_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = llama
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
