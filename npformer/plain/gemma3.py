"""Gemma 3 for text, and EmbeddingGemma: Gemma 2 with norms of queries and keys instead of soft caps.

Gemma Team, 2025, Gemma 3, section 2. Five of six layers have a window. `reaches` and `rotations` have an entry for each
layer: the number of earlier tokens that a token attends to, and the frequencies and magnitude of rotary positions. In
layers with a window, the reach is sliding_window - 1 and the base of the frequencies is 10,000. In other layers, the
reach is `math.inf` and the base is 1,000,000. In EmbeddingGemma (Vera et al., 2025), a token also attends to later
tokens. Logits have a cap only in some checkpoints. The weights of the norm after a block are in the group of that
block, which applies the norm.
"""

import numpy as np

from npformer.plain.formulas import (
    causal_window_mask,
    combine_heads,
    linear,
    masked_softmax,
    rotary_angles,
    rotate,
    split_heads,
    window_mask,
)
from npformer.plain.gemma import embed, gemma_norm
from npformer.plain.gemma2 import gemma2_feed_forward, predict_capped
from npformer.plain.heads import classify_last, hidden_states, predict_next
from npformer.plain.mistral import all_positions


def scaled_attention(q, k, v, mask, score_scale):
    """softmax(score_scale q k^T) v. q (..., L, K), k and v (..., S, K), mask (L, S) -> (..., L, K)."""
    scores = q @ k.mT * score_scale
    weights = masked_softmax(scores, mask)
    return weights @ v


def gemma3_attention(
    x, past, mask, heads, angles, score_scale, eps, query, key, value, query_norm, key_norm, output, output_norm
):
    """RMSNorm(SelfAttention(X)), and the keys and values so far. heads: H and G.

    x (..., L, D), past two (..., G, P, K), mask (L, P + L) -> (..., L, D), and two (..., G, P + L, K). Each head of
    queries and keys is normalized before the rotation, with a weight (K,) for all heads of a layer.
    """
    n_heads, n_kv_heads = heads
    query_normed = gemma_norm(split_heads(linear(x, **query), n_heads), **query_norm, eps=eps)  # (..., H, L, K)
    key_normed = gemma_norm(split_heads(linear(x, **key), n_kv_heads), **key_norm, eps=eps)  # (..., G, L, K)
    query_rotated, key_rotated = rotate(query_normed, *angles), rotate(key_normed, *angles)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, P + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, P + L, K)
    context = scaled_attention(query_rotated, k, v, mask, score_scale)
    combined = combine_heads(context)
    return gemma_norm(linear(combined, **output), **output_norm, eps=eps), (keys, values)


def gemma3_layer(x, past, mask, heads, angles, score_scale, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + RMSNorm(SelfAttention(RMSNorm(X))); Z = Y + RMSNorm(FFN(RMSNorm(Y))). Section 2.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    normed = gemma_norm(x, **attention_norm, eps=eps)
    attended, past = gemma3_attention(normed, past, mask, heads, angles, score_scale, eps, **attention)
    attention_residual = x + attended  # attended is normalized already
    normed = gemma_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gemma2_feed_forward(normed, activation, eps, **ffn)
    return ffn_residual, past


def gemma3(
    ids, positions, past, heads, rotations, visible, reaches, score_scale, activation, eps, scale,
    embeddings, layers, norm,
):  # fmt: skip
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past and heads: as in `llama`. score_scale: 1 / sqrt(K), or a
    number from the checkpoint. visible: the mask function, `causal_window_mask` or, in EmbeddingGemma, `window_mask`.
    """
    x = embed(ids, scale, **embeddings)
    key_positions = all_positions(positions, past)  # (P + L,)
    past = list(past)  # a copy, because the caller's list must not change
    for i, (layer, rotation, reach) in enumerate(zip(layers, rotations, reaches)):
        angles = rotary_angles(positions, *rotation)
        mask = visible(positions, key_positions, reach)
        x, past[i] = gemma3_layer(x, past[i], mask, heads, angles, score_scale, activation, eps, **layer)
    return gemma_norm(x, **norm, eps=eps), past


MODEL = gemma3
WITH_CAP = predict_capped
CHOICES = {"visible": {"causal": causal_window_mask, "bidirectional": window_mask}}
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
}
