"""Gemma: Llama with scaled embeddings, and with norms that multiply by 1 + weight. Gemma Team, 2024, Gemma, section 2.

The feed-forward networks are GeGLU: the activation is the tanh form of GELU. Heads may be wider than D / H. The table
of tokens is also the projection to the vocabulary.
"""

from npformer.plain.formulas import causal_mask, embedding, gated_feed_forward, rms_norm, rotary_angles
from npformer.plain.heads import classify_last, classify_tokens, hidden_states, predict_next
from npformer.plain.llama import grouped_query_attention


def gemma_norm(x, weight, eps):
    """x / sqrt(mean(x^2) + eps) * (1 + weight), (..., D). The 1 is in the published code, not in the paper.

    >>> gemma_norm(np.array([1.0, 2.0, 2.0, 4.0]), weight=0.0, eps=0.0)
    array([0.4, 0.8, 0.8, 1.6])
    """
    return rms_norm(x, 1 + weight, eps)


def embed(ids, scale, token):
    """scale E[ids], (..., L) -> (..., L, D). Vaswani et al., 2017, section 3.4.

    In Gemma, scale is sqrt(D) rounded to the dtype of training: for 3072 columns, 55.5 in bfloat16, not 55.43.
    """
    tokens = scale * embedding(ids, **token)
    return tokens


def gemma_layer(x, past, mask, heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(RMSNorm(X)); Z = Y + FFN(RMSNorm(Y)). Y, Z: attention_residual and ffn_residual.

    x (..., L, D), past two (..., G, P, K) -> Z (..., L, D), and the keys and values so far, two (..., G, P + L, K).
    """
    normed = gemma_norm(x, **attention_norm, eps=eps)
    attended, past = grouped_query_attention(normed, past, mask, heads, angles, **attention)
    attention_residual = x + attended
    normed = gemma_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual, past


def gemma(ids, positions, past, heads, frequencies, magnitude, activation, eps, scale, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embed(ids, scale, **embeddings)
    angles = rotary_angles(positions, frequencies, magnitude)
    mask = causal_mask(ids.shape[-1], past[0][0].shape[-2] + ids.shape[-1])  # (L, P + L)
    past = list(past)  # a copy, because the caller's list must not change
    for i, layer in enumerate(layers):
        x, past[i] = gemma_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return gemma_norm(x, **norm, eps=eps), past


MODEL = gemma
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
}
