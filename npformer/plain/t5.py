"""T5, FLAN-T5 and mT5: a pre-norm encoder and decoder with biases for distances. Raffel et al., 2020, T5.

T5 differs from the Transformer of 2017 in its norms, RMSNorm before the blocks, and in its scores, which are not
divided by sqrt(K). Linear layers have no biases, and no table of positions is added to the embeddings. Each stack has
one table of biases for the scores of all its layers, with a bias for each head and each bucket of distances (section
2.1). `ffn_function`: `feed_forward` in T5 1.0, with ReLU, and `gated_feed_forward` in T5 1.1 and mT5 (Shazeer, 2020).
`source` is the result of the encoder, and text_positions are the positions in the text, 0 ... L - 1.
"""

import math

import numpy as np

from npformer.plain.formulas import causal_mask, combine_heads, embedding, linear, masked_softmax, rms_norm, split_heads
from npformer.plain.heads import classify_end, classify_tokens, find_answer, hidden_states, translate


def one_sided_buckets(distances, n_buckets, max_distance):
    """Bucket d for distances d < n / 2, and logarithmic buckets up to max_distance. Section 2.1 and the published code.

    >>> one_sided_buckets(np.array([0, 1, 9, 20, 200]), 32, 128).tolist()
    [0, 1, 9, 17, 31]
    """
    exact = n_buckets // 2
    steps = np.log(np.maximum(distances, 1) / exact) / math.log(max_distance / exact) * (n_buckets - exact)
    far = exact + np.floor(steps + 1e-6).astype(int)  # 1e-6: log(10 / 5) / log(160 / 5) * 5 is 1 - 1e-16
    return np.where(distances < exact, distances, np.minimum(far, n_buckets - 1))


def relative_buckets(distances, n_buckets, max_distance):
    """The bucket of each distance key - query in an encoder, with the upper half of the buckets for later keys.

    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9, 200]), 32, 128).tolist()
    [15, 8, 1, 0, 17, 24, 31]
    """
    half = n_buckets // 2
    return one_sided_buckets(np.abs(distances), half, max_distance) + half * (distances > 0)


def causal_buckets(distances, n_buckets, max_distance):
    """The bucket of each distance key - query in a decoder, which has buckets only for earlier keys."""
    return one_sided_buckets(np.maximum(-distances, 0), n_buckets, max_distance)


def biases(text_positions, buckets, max_distance, weight):
    """b_h[bucket(j - i)] for head h, query i and key j: text_positions (L,), weight (n_buckets, H) -> (H, L, L)."""
    n_buckets = len(weight)
    distances = text_positions - text_positions[:, None]  # (L, L)
    return np.moveaxis(weight[buckets(distances, n_buckets, max_distance)], -1, 0)


def biased_attention(x, source, bias, mask, n_heads, query, key, value, output):
    """Concat(heads) W_O, head h = softmax(q k^T + bias_h) v. x (..., L, D), source (..., S, D) -> (..., L, D)."""
    q, k, v = linear(x, **query), linear(source, **key), linear(source, **value)
    query_heads, key_heads, value_heads = (split_heads(each, n_heads) for each in (q, k, v))
    scores = query_heads @ key_heads.mT + bias  # (..., H, L, S)
    weights = masked_softmax(scores, mask)
    context = weights @ value_heads
    combined = combine_heads(context)
    return linear(combined, **output)


def t5_encoder_layer(x, bias, n_heads, ffn_function, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(RMSNorm(X)); Z = Y + FFN(RMSNorm(Y)). (..., S, D) -> (..., S, D), bias (H, S, S).

    Y and Z: attention_residual and ffn_residual.
    """
    normed = rms_norm(x, **attention_norm, eps=eps)
    attention_residual = x + biased_attention(normed, normed, bias, True, n_heads, **attention)
    normed = rms_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + ffn_function(normed, activation, **ffn)
    return ffn_residual


def t5_decoder_layer(
    x, source, bias, n_heads, ffn_function, activation, eps,
    attention, attention_norm, cross_attention, cross_attention_norm, ffn, ffn_norm,
):  # fmt: skip
    """Y = X + SelfAttention(RMSNorm(X)); Z = Y + CrossAttention(RMSNorm(Y), source); Z + FFN(RMSNorm(Z)).

    x (..., L, D), source (..., S, D), bias (H, L, L) -> (..., L, D). Cross-attention has no bias. Y, Z and the result:
    attention_residual, cross_attention_residual and ffn_residual.
    """
    mask = causal_mask(x.shape[-2])
    normed = rms_norm(x, **attention_norm, eps=eps)
    attention_residual = x + biased_attention(normed, normed, bias, mask, n_heads, **attention)
    normed = rms_norm(attention_residual, **cross_attention_norm, eps=eps)
    crossed = biased_attention(normed, source, 0, True, n_heads, **cross_attention)
    cross_attention_residual = attention_residual + crossed
    normed = rms_norm(cross_attention_residual, **ffn_norm, eps=eps)
    ffn_residual = cross_attention_residual + ffn_function(normed, activation, **ffn)
    return ffn_residual


def encode(
    ids, text_positions, n_heads, ffn_function, activation, eps, max_distance, embeddings, relative_bias, layers, norm
):
    """The normalized hidden states of the encoder, ids and text_positions (S,) -> (S, D)."""
    x = embedding(ids, **embeddings["token"])
    bias = biases(text_positions, relative_buckets, max_distance, **relative_bias)  # (H, S, S)
    for layer in layers:
        x = t5_encoder_layer(x, bias, n_heads, ffn_function, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps)


def decode(
    ids, text_positions, source, n_heads, ffn_function, activation, eps, max_distance,
    embeddings, relative_bias, layers, norm,
):  # fmt: skip
    """The normalized hidden states of the decoder, ids and text_positions (L,) -> (L, D), for source (S, D)."""
    x = embedding(ids, **embeddings["token"])
    bias = biases(text_positions, causal_buckets, max_distance, **relative_bias)  # (H, L, L)
    for layer in layers:
        x = t5_decoder_layer(x, source, bias, n_heads, ffn_function, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps)


def t5(
    ids, text_positions, target_ids, target_text_positions, n_heads, ffn_function, activation, eps, max_distance,
    encoder, decoder,
):  # fmt: skip
    """The normalized hidden states of the decoder, (L, D), and of the encoder, (S, D)."""
    sizes = (n_heads, ffn_function, activation, eps, max_distance)
    source = encode(ids, text_positions, *sizes, **encoder)
    x = decode(target_ids, target_text_positions, source, *sizes, **decoder)
    return x, source


MODEL = t5
ALONE = encode
HEADS = {
    "base": hidden_states,
    "token-classification": classify_tokens,
    "translation": translate,
    "sequence-classification": classify_end,
    "question-answering": find_answer,
}
