"""Phi-3 and Phi-4: Llama with a window, and with rotary positions for texts of up to 128,000 tokens.

Abdin et al., 2024, Phi-3 Technical Report, section 2. Phi-3 differs from Llama in its mask: a token attends to itself
and to the `reach` tokens before it (reach = sliding_window - 1). The rotation can also differ: Phi-4 mini rotates only
the first columns of each head. Models for long texts have the frequencies of LongRoPE (`rotary.py`).
"""

import numpy as np

from npformer.plain.formulas import (
    causal_window_mask,
    combine_heads,
    embedding,
    gated_feed_forward,
    linear,
    rms_norm,
    rotary_angles,
    rotate_first,
    scaled_dot_product_attention,
    split_heads,
)
from npformer.plain.heads import classify_last, classify_tokens, hidden_states, predict_next
from npformer.plain.mistral import all_positions


def phi3_attention(x, past, mask, heads, angles, query, key, value, output):
    """Grouped attention with the first columns of heads rotated. (..., L, D) -> (..., L, D), and the keys and values.

    past two (..., G, P, K), mask (L, P + L), angles two (L, R / 2) for R rotated columns. heads: H and G.
    """
    n_heads, n_kv_heads = heads
    query_rotated = rotate_first(split_heads(linear(x, **query), n_heads), *angles)  # (..., H, L, K)
    key_rotated = rotate_first(split_heads(linear(x, **key), n_kv_heads), *angles)  # (..., G, L, K)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, P + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, P + L, K)
    context = scaled_dot_product_attention(query_rotated, k, v, mask)
    combined = combine_heads(context)
    return linear(combined, **output), (keys, values)


def phi3_layer(x, past, mask, heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(RMSNorm(X)); Z = Y + FFN(RMSNorm(Y)). Y, Z: attention_residual and ffn_residual.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    normed = rms_norm(x, **attention_norm, eps=eps)
    attended, past = phi3_attention(normed, past, mask, heads, angles, **attention)
    attention_residual = x + attended
    normed = rms_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual, past


def phi3(ids, positions, past, heads, frequencies, magnitude, reach, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    key_positions = all_positions(positions, past)  # (P + L,)
    mask = causal_window_mask(positions, key_positions, reach)
    past = list(past)  # a copy, because the caller's list must not change
    for i, layer in enumerate(layers):
        x, past[i] = phi3_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = phi3
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
}
