"""Gemma 2: Gemma with soft caps, a norm after each block, and a window in every other layer.

Gemma Team, 2024, Gemma 2, section 2. `reaches` has an entry for each layer: the number of earlier tokens that a token
attends to, `math.inf` or, in layers with a window, 4095, because sliding_window is 4096 and counts the token itself. As
in Gemma, norms multiply by 1 + weight. The weights of the norm after a block are in the group of the block, so the
block applies the norm.
"""

import numpy as np

from npformer.plain.formulas import (
    causal_window_mask,
    combine_heads,
    gated_feed_forward,
    linear,
    masked_softmax,
    rotary_angles,
    rotate,
    split_heads,
)
from npformer.plain.gemma import embed, gemma_norm
from npformer.plain.heads import classify_last, classify_tokens, hidden_states, predict_next
from npformer.plain.mistral import all_positions


def soft_cap(x, cap):
    """cap tanh(x / cap): between -cap and cap, and close to x near 0. Section 2, "Logit soft-capping".

    >>> soft_cap(np.array([-1000.0, 0.0, 1.0]), 10.0).round(4)
    array([-10.    ,   0.    ,   0.9967])
    """
    return cap * np.tanh(x / cap)


def capped_attention(q, k, v, mask, score_scale, score_cap):
    """softmax(cap tanh(scale q k^T / cap)) v. q (..., L, K), k and v (..., S, K), mask (L, S) -> (..., L, K).

    The cap is 50, and the scale is 1 / sqrt(K), except in the 27B model, where it is 1 / sqrt(D / H).
    """
    uncapped_scores = q @ k.mT * score_scale
    scores = soft_cap(uncapped_scores, score_cap)
    weights = masked_softmax(scores, mask)
    return weights @ v


def gemma2_attention(x, past, mask, heads, angles, scale_and_cap, eps, query, key, value, output, output_norm):
    """RMSNorm(SelfAttention(X)), and the keys and values so far. Queries share keys and values as in Llama.

    x (..., L, D), past two (..., G, P, K), mask (L, P + L) -> (..., L, D), and two (..., G, P + L, K). heads: H and G.
    scale_and_cap: the factor and the soft cap of the scores.
    """
    n_heads, n_kv_heads = heads
    query_rotated = rotate(split_heads(linear(x, **query), n_heads), *angles)  # (..., H, L, K)
    key_rotated = rotate(split_heads(linear(x, **key), n_kv_heads), *angles)  # (..., G, L, K)
    value_heads = split_heads(linear(x, **value), n_kv_heads)
    keys = np.concatenate([past[0], key_rotated], axis=-2)  # (..., G, P + L, K)
    values = np.concatenate([past[1], value_heads], axis=-2)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (keys, values))  # (..., H, P + L, K)
    context = capped_attention(query_rotated, k, v, mask, *scale_and_cap)
    combined = combine_heads(context)
    return gemma_norm(linear(combined, **output), **output_norm, eps=eps), (keys, values)


def gemma2_feed_forward(x, activation, eps, gate, up, output, output_norm):
    """RMSNorm(FFN(X)), (..., L, D) -> (..., L, D)."""
    return gemma_norm(gated_feed_forward(x, activation, gate, up, output), **output_norm, eps=eps)


def gemma2_layer(
    x, past, mask, heads, angles, scale_and_cap, activation, eps, attention, attention_norm, ffn, ffn_norm
):
    """Y = X + RMSNorm(SelfAttention(RMSNorm(X))); Z = Y + RMSNorm(FFN(RMSNorm(Y))). Section 2.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    normed = gemma_norm(x, **attention_norm, eps=eps)
    attended, past = gemma2_attention(normed, past, mask, heads, angles, scale_and_cap, eps, **attention)
    attention_residual = x + attended  # attended is normalized already
    normed = gemma_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gemma2_feed_forward(normed, activation, eps, **ffn)
    return ffn_residual, past


def gemma2(
    ids, positions, past, heads, frequencies, magnitude, reaches, scale_and_cap, activation, eps, scale,
    embeddings, layers, norm,
):  # fmt: skip
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embed(ids, scale, **embeddings)
    angles = rotary_angles(positions, frequencies, magnitude)
    key_positions = all_positions(positions, past)  # (P + L,)
    past = list(past)  # a copy, because the caller's list must not change
    for i, (layer, reach) in enumerate(zip(layers, reaches)):
        mask = causal_window_mask(positions, key_positions, reach)
        x, past[i] = gemma2_layer(x, past[i], mask, heads, angles, scale_and_cap, activation, eps, **layer)
    return gemma_norm(x, **norm, eps=eps), past


def predict_capped(x, logit_cap, head):
    """Logits of the token after each token, cap tanh(x E^T / cap), (..., L, V). Section 2. The cap is 30."""
    logits = soft_cap(linear(x, **head["output"]), logit_cap)
    return {"logits": logits}


MODEL = gemma2
WITHOUT_CAP = predict_next
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_capped,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
}
