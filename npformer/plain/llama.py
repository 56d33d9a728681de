"""Llama: causal pre-norm layers with RMSNorm, rotary positions, grouped queries and gated feed-forward networks.

Touvron et al., 2023, LLaMA, section 2.2, and Llama 2, section 2.2. H heads of queries share G heads of keys and values.
`past` is the KV cache, the keys and values of P earlier tokens: in a layer, a pair of arrays (..., G, P, K); in the
model, a list with a pair for each layer. At the start of a text, P is 0 (`decoding.no_past`). There are S = P + L keys.

    a norm       {"weight": (D,)}
    attention    {"query": (D, H K), "key": (D, G K), "value": (D, G K), "output": (H K, D)}, linear layers
    ffn          {"gate": (D, F), "up": (D, F), "output": (F, D)}, linear layers
    layers       [{"attention": attention, "attention_norm": norm, "ffn": ffn, "ffn_norm": norm}, ...]
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


def grouped_query_attention(x, past, mask, heads, angles, query, key, value, output):
    """Attention in which query head h reads head h // (H / G) of keys and values, counted from 0.

    x (..., L, D), past two (..., G, P, K), mask (L, P + L) -> (..., L, D), and two (..., G, P + L, K). heads: H and G.
    W_Q is (D, H K), W_K and W_V are (D, G K). Ainslie et al., 2023, GQA, section 2.2.
    """
    n_heads, n_kv_heads = heads
    query_rotated = rotate(split_heads(linear(x, **query), n_heads), *angles)  # (..., H, L, K)
    key_rotated = rotate(split_heads(linear(x, **key), n_kv_heads), *angles)  # (..., G, L, K)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, P + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, P + L, K)
    context = scaled_dot_product_attention(query_rotated, k, v, mask)
    combined = combine_heads(context)
    return linear(combined, **output), (keys, values)


def llama_layer(x, past, mask, heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(RMSNorm(X)); Z = Y + FFN(RMSNorm(Y)). Y, Z: attention_residual and ffn_residual.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    normed = rms_norm(x, **attention_norm, eps=eps)
    attended, past = grouped_query_attention(normed, past, mask, heads, angles, **attention)
    attention_residual = x + attended
    normed = rms_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual, past


def llama(ids, positions, past, heads, frequencies, magnitude, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L): the new tokens, at positions P ... P + L - 1, (L,). heads: H and G. frequencies (K / 2,) and magnitude
    come from `rotary.py`: rotary_frequencies(K, 10000.0) and 1.0 in the first Llama.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    mask = causal_mask(ids.shape[-1], past[0][0].shape[-2] + ids.shape[-1])  # (L, P + L)
    past = list(past)  # a copy, because the caller's list must not change
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
