"""Qwen3: Llama with norms of queries and keys, and with a window in some layers.

Yang et al., 2025, Qwen3 Technical Report, section 2. Qwen3 differs from Llama in its attention: each head of queries
and keys is normalized before the rotation (Dehghani et al., 2023). `reaches` has an entry for each layer: the number of
earlier tokens that a token attends to, sliding_window - 1, or `math.inf` for all.
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
    rotate,
    scaled_dot_product_attention,
    split_heads,
)
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next
from npformer.plain.mistral import all_positions


def qwen3_attention(x, past, mask, heads, angles, eps, query, key, value, query_norm, key_norm, output):
    """Grouped attention of normalized heads. x (..., L, D), past two (..., G, P, K), mask (L, P + L) -> (..., L, D).

    The weights of the two norms are (K,), shared by the heads of a layer. heads: H and G.
    """
    n_heads, n_kv_heads = heads
    query_normed = rms_norm(split_heads(linear(x, **query), n_heads), **query_norm, eps=eps)  # (..., H, L, K)
    key_normed = rms_norm(split_heads(linear(x, **key), n_kv_heads), **key_norm, eps=eps)  # (..., G, L, K)
    query_rotated, key_rotated = rotate(query_normed, *angles), rotate(key_normed, *angles)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, P + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, P + L, K)
    context = scaled_dot_product_attention(query_rotated, k, v, mask)
    combined = combine_heads(context)
    return linear(combined, **output), (keys, values)


def qwen3_layer(x, past, mask, heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(RMSNorm(X)); Z = Y + FFN(RMSNorm(Y)). Y, Z: attention_residual and ffn_residual.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    normed = rms_norm(x, **attention_norm, eps=eps)
    attended, past = qwen3_attention(normed, past, mask, heads, angles, eps, **attention)
    attention_residual = x + attended
    normed = rms_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual, past


def qwen3(ids, positions, past, heads, frequencies, magnitude, reaches, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    key_positions = all_positions(positions, past)  # (P + L,)
    past = list(past)  # a copy, because the caller's list must not change
    for i, (layer, reach) in enumerate(zip(layers, reaches)):
        mask = causal_window_mask(positions, key_positions, reach)
        x, past[i] = qwen3_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = qwen3
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
