"""OLMo 2: Llama with norms after the blocks, and with norms of queries and keys. Team OLMo, 2024, 2 OLMo 2 Furious.

OLMo 2 differs from Llama in its layer (equations 1 and 2), and in its attention, which normalizes queries and keys
before the rotation, with one norm over all heads of a row.
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
from npformer.plain.heads import classify_last, hidden_states, predict_next


def olmo2_attention(x, past, mask, heads, angles, eps, query, key, value, query_norm, key_norm, output, output_norm):
    """RMSNorm(SelfAttention(X)), with the norm after the block, because its weights are in `attention`. heads: H and G.

    x (..., L, D), past two (..., G, P, K), mask (L, P + L) -> (..., L, D), and two (..., G, P + L, K).
    """
    n_heads, n_kv_heads = heads
    query_normed = rms_norm(linear(x, **query), **query_norm, eps=eps)  # (..., L, H K)
    key_normed = rms_norm(linear(x, **key), **key_norm, eps=eps)  # (..., L, G K)
    query_rotated = rotate(split_heads(query_normed, n_heads), *angles)  # (..., H, L, K)
    key_rotated = rotate(split_heads(key_normed, n_kv_heads), *angles)  # (..., G, L, K)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, P + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, P + L, K)
    context = scaled_dot_product_attention(query_rotated, k, v, mask)
    combined = combine_heads(context)
    return rms_norm(linear(combined, **output), **output_norm, eps=eps), (keys, values)


def olmo2_feed_forward(x, activation, eps, gate, up, output, output_norm):
    """RMSNorm(FFN(X)), (..., L, D) -> (..., L, D). The norm's weights are in `ffn`."""
    return rms_norm(gated_feed_forward(x, activation, gate, up, output), **output_norm, eps=eps)


def olmo2_layer(x, past, mask, heads, angles, activation, eps, attention, ffn):
    """Y = X + RMSNorm(SelfAttention(X)); Z = Y + RMSNorm(FFN(Y)). Y, Z: attention_residual and ffn_residual.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    attended, past = olmo2_attention(x, past, mask, heads, angles, eps, **attention)  # normalized
    attention_residual = x + attended
    ffn_residual = attention_residual + olmo2_feed_forward(attention_residual, activation, eps, **ffn)  # normalized
    return ffn_residual, past


def olmo2(ids, positions, past, heads, frequencies, magnitude, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    mask = causal_mask(ids.shape[-1], past[0][0].shape[-2] + ids.shape[-1])  # (L, P + L)
    past = list(past)  # a copy, because the caller's list must not change
    for i, layer in enumerate(layers):
        x, past[i] = olmo2_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = olmo2
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
}
