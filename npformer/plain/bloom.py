"""BLOOM: GPT-2 with ALiBi instead of positions, and with a norm of the embeddings.

BigScience Workshop, 2022, BLOOM, section 3.2. ALiBi subtracts from each score the distance between query and key, times
a slope that differs between heads. Press et al., 2022, Train Short, Test Long: Attention with Linear Biases, section 3.
"""

import math

import numpy as np

from npformer.plain.formulas import (
    causal_mask,
    combine_heads,
    embedding,
    feed_forward,
    layer_norm,
    linear,
    masked_softmax,
    split_heads,
)
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next


def geometric(count):
    """2^(-8 h / count) for h = 1 ... count, as powers of a ratio in float32, as in training.

    >>> 1 / geometric(4)
    array([  4.,  16.,  64., 256.], dtype=float32)
    """
    return np.power(np.float32(2.0 ** (-8 / count)), np.arange(1, count + 1), dtype=np.float32)


def alibi_slopes(n_heads):
    """The slope of each head, (H,): 2^(-8 h / H) if H is a power of 2.

    Otherwise, these are the slopes for the largest power of 2 below H, then every second slope for the next power of 2.
    Press et al., 2022, section 3 and its published code.
    >>> 1 / alibi_slopes(6)
    array([  4.,  16.,  64., 256.,   2.,   8.], dtype=float32)
    """
    below = 2 ** math.floor(math.log2(n_heads))
    return np.concatenate([geometric(below), geometric(2 * below)[::2][: n_heads - below]])


def alibi(n_heads, length):
    """slope_h * (j - i) for query i and key j, (H, L, L). Press et al., 2022, section 3, figure 3."""
    distances = np.arange(length) - np.arange(length)[:, None]  # (L, L)
    return alibi_slopes(n_heads)[:, None, None] * distances


def alibi_attention(x, mask, n_heads, query, key, value, output):
    """Concat(head_1, ..., head_H) W_O, where head_h = softmax(q k^T / sqrt(K) + alibi_h) v, (..., L, D)."""
    q, k, v = linear(x, **query), linear(x, **key), linear(x, **value)
    query_heads, key_heads, value_heads = (split_heads(each, n_heads) for each in (q, k, v))  # (..., H, L, K)
    bias = alibi(n_heads, x.shape[-2]).astype(x.dtype)
    scores = query_heads @ key_heads.mT / math.sqrt(query_heads.shape[-1]) + bias  # (..., H, L, L)
    weights = masked_softmax(scores, mask)
    context = weights @ value_heads  # (..., H, L, K)
    combined = combine_heads(context)  # (..., L, D)
    return linear(combined, **output)


def bloom_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(LayerNorm(X)); Z = Y + FFN(LayerNorm(Y)). (..., L, D) -> (..., L, D).

    Y and Z: attention_residual and ffn_residual.
    """
    normed = layer_norm(x, **attention_norm, eps=eps)
    attention_residual = x + alibi_attention(normed, mask, n_heads, **attention)
    normed = layer_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + feed_forward(normed, activation, **ffn)
    return ffn_residual


def bloom(ids, n_heads, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer: ids (..., L) -> (..., L, D)."""
    x = layer_norm(embedding(ids, **embeddings["token"]), **embeddings["norm"], eps=eps)
    mask = causal_mask(ids.shape[-1], ids.shape[-1])
    for layer in layers:
        x = bloom_layer(x, mask, n_heads, activation, eps, **layer)
    return layer_norm(x, **norm, eps=eps)


MODEL = bloom
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
