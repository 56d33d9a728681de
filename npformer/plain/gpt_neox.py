"""GPT-NeoX and Pythia: GPT-2 with rotary positions and parallel blocks. Black et al., 2022, GPT-NeoX-20B, section 2.1.

Only the first columns of each head are rotated. Attention and the feed-forward network read the same rows, each through
its own norm. In some models of this family, the feed-forward network follows attention, as in GPT-2.
"""

from npformer.plain.formulas import (
    causal_mask,
    combine_heads,
    embedding,
    feed_forward,
    layer_norm,
    linear,
    rotary_angles,
    rotate_first,
    scaled_dot_product_attention,
    split_heads,
)
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next


def gpt_neox_attention(x, mask, n_heads, angles, query, key, value, output):
    """Multi-head attention with the first columns of each head rotated. x (..., L, D), angles two (L, R / 2)."""
    query_rotated = rotate_first(split_heads(linear(x, **query), n_heads), *angles)  # (..., H, L, K)
    key_rotated = rotate_first(split_heads(linear(x, **key), n_heads), *angles)
    value_heads = split_heads(linear(x, **value), n_heads)
    context = scaled_dot_product_attention(query_rotated, key_rotated, value_heads, mask)
    combined = combine_heads(context)  # (..., L, D)
    return linear(combined, **output)


def parallel_layer(x, mask, n_heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Z = X + SelfAttention(LayerNorm_1(X)) + FFN(LayerNorm_2(X)). (..., L, D) -> (..., L, D)."""
    normed = layer_norm(x, **attention_norm, eps=eps)
    attended = gpt_neox_attention(normed, mask, n_heads, angles, **attention)
    normed = layer_norm(x, **ffn_norm, eps=eps)
    ffn_residual = x + attended + feed_forward(normed, activation, **ffn)
    return ffn_residual


def sequential_layer(x, mask, n_heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(LayerNorm_1(X)); Z = Y + FFN(LayerNorm_2(Y)). (..., L, D) -> (..., L, D).

    Y and Z: attention_residual and ffn_residual.
    """
    normed = layer_norm(x, **attention_norm, eps=eps)
    attention_residual = x + gpt_neox_attention(normed, mask, n_heads, angles, **attention)
    normed = layer_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + feed_forward(normed, activation, **ffn)
    return ffn_residual


def gpt_neox(ids, positions, n_heads, frequencies, magnitude, neox_layer, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, ids (..., L), positions (L,) -> (..., L, D).

    neox_layer: `parallel_layer` or `sequential_layer`.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    mask = causal_mask(ids.shape[-1], ids.shape[-1])
    for layer in layers:
        x = neox_layer(x, mask, n_heads, angles, activation, eps, **layer)
    return layer_norm(x, **norm, eps=eps)


MODEL = gpt_neox
CHOICES = {"neox_layer": {"parallel": parallel_layer, "sequential": sequential_layer}}
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
