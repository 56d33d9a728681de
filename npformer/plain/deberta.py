"""DeBERTa 2 and 3: BERT with disentangled attention. He et al., 2021, DeBERTa; He et al., 2023, DeBERTaV3.

DeBERTa differs from BERT in its scores, to which each token adds products of its content and the other token's relative
position (2021, section 3.1), and in its embeddings, which have no positions or token types in the published models.
`positions` are rows of the position table, if the model has this table. Relative positions are differences of
`text_positions` (L,), the positions in the text, 0 ... L - 1. mask is (..., 1, 1, L), True for tokens and False for
padding, or True without padding. The table of relative positions has R rows.
"""

import math

import numpy as np

from npformer.plain.formulas import (
    combine_heads,
    embedding,
    feed_forward,
    layer_norm,
    linear,
    masked_softmax,
    split_heads,
)
from npformer.plain.heads import classify_first, classify_tokens, find_answer, hidden_states, predict_words


def embed(ids, positions, token_type_ids, eps, token, norm, **tables):
    """LayerNorm(token [+ position] [+ segment]): (..., L) three times -> (..., L, D).

    tables: the tables of positions and token types (segment), if the model has them.
    """
    read = {"position": positions, "segment": token_type_ids}
    total = embedding(ids, **token) + sum(embedding(read[name], **tables[name]) for name in tables)
    return layer_norm(total, **norm, eps=eps)


def own_buckets(distances, n_buckets, max_distance):
    """Each distance has its own bucket, as in the first DeBERTa."""
    return distances


def log_buckets(distances, n_buckets, max_distance):
    """d up to m = n_buckets / 2, and sign(d) (m + ceil(log(|d| / m) / log((max_distance - 1) / m) (m - 1))) beyond.

    Large distances share buckets. Source: the published code of version 2, which computes in float32.
    >>> log_buckets(np.array([-3, 0, 4, 5, 100, 511]), 8, 512).tolist()
    [-3, 0, 4, 5, 6, 7]
    """
    m = np.float32(n_buckets // 2)
    far = np.maximum(np.abs(distances), m).astype(np.float32) / m
    steps = np.ceil(np.log(far) / np.log(np.float32((max_distance - 1) / m)) * (m - 1))
    return np.where(np.abs(distances) <= m, distances, np.sign(distances) * (m + steps)).astype(int)


def distance_rows(text_positions, buckets, max_distance, n_rows):
    """delta(i, j), the row of the distance i - j in a table with distance 0 in the middle, (L,) -> (L, L).

    >>> distance_rows(np.arange(3), own_buckets, max_distance=0, n_rows=4).tolist()
    [[2, 1, 0], [3, 2, 1], [3, 3, 2]]
    """
    n_buckets = n_rows // 2  # number of buckets in each direction, and the row of distance 0
    distances = text_positions[:, None] - text_positions  # (L, L)
    return np.clip(n_buckets + buckets(distances, n_buckets, max_distance), 0, n_rows - 1)


def content_to_position(content_query, position_key, rows):
    """Qc_i . Kr_delta(i, j), from Qc (..., H, L, K) and Kr (H, R, K) -> (..., H, L, L). Equation 4."""
    products = content_query @ position_key.mT  # (..., H, L, R)
    return products[..., np.arange(len(rows))[:, None], rows]  # at i, j: row i, column delta(i, j)


def position_to_content(position_query, content_key, rows):
    """Qr_delta(i, j) . Kc_j, from Qr (H, R, K) and Kc (..., H, L, K) -> (..., H, L, L). Equation 4.

    The row is delta(i, j), as in the published code. The paper has delta(j, i).
    """
    products = position_query @ content_key.mT  # (..., H, R, L)
    return products[..., rows, np.arange(len(rows))]  # at i, j: row delta(i, j), column j


def disentangled_attention(x, table, rows, forms, mask, n_heads, query, key, value, output, **relative_projections):
    """score_ij = (Qc_i . Kc_j + Qc_i . Kr_delta(i, j) + Qr_delta(i, j) . Kc_j) / sqrt(3 K), (..., L, D). Equation 4.

    Qc and Kc: x (..., L, D) projected by query and key. Qr and Kr: the table (R, D), also projected by query and key,
    or by distance_query and distance_key in relative_projections, if the model has these. rows: delta, (L, L). With
    only one of the forms "c2p" and "p2c", the divisor is sqrt(2 K).
    """
    q, k, v = linear(x, **query), linear(x, **key), linear(x, **value)
    query_heads, key_heads, value_heads = (split_heads(each, n_heads) for each in (q, k, v))  # (..., H, L, K)
    position_query = split_heads(linear(table, **relative_projections.get("distance_query", query)), n_heads)
    position_key = split_heads(linear(table, **relative_projections.get("distance_key", key)), n_heads)  # (H, R, K)
    c2p = content_to_position(query_heads, position_key, rows)
    p2c = position_to_content(position_query, key_heads, rows)
    terms = {"c2p": c2p, "p2c": p2c}
    divisor = math.sqrt((1 + len(forms)) * query_heads.shape[-1])
    distance_scores = sum(terms[form] for form in forms) / divisor
    scores = query_heads @ key_heads.mT / divisor + distance_scores
    weights = masked_softmax(scores, mask)
    context = weights @ value_heads
    combined = combine_heads(context)
    return linear(combined, **output)


def deberta_layer(x, table, rows, forms, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = LayerNorm(X + SelfAttention(X)); Z = LayerNorm(Y + FFN(Y)). (..., L, D) -> (..., L, D)."""
    attention_residual = x + disentangled_attention(x, table, rows, forms, mask, n_heads, **attention)
    y = layer_norm(attention_residual, **attention_norm, eps=eps)
    ffn_residual = y + feed_forward(y, activation, **ffn)
    return layer_norm(ffn_residual, **ffn_norm, eps=eps)


def convolve(x, text_positions, mask, activation, weight, bias):
    """act(b + sum_s x_(i + s) W_s), s = -(n - 1) / 2 ... (n - 1) / 2. (..., L, D), weight (n D, D) -> (..., L, D).

    For each s, a matrix of 0 and 1 picks row i + s, or zeros for padding and outside the text. combine_heads joins the
    n rows of a token as it joins heads. The code of version 2 calls this nGram induced input encoding.
    """
    n = len(weight) // x.shape[-1]
    steps = np.arange(n)[:, None, None] - n // 2
    picked = (text_positions == text_positions[:, None] + steps) & mask  # (..., n, L, L)
    hidden = linear(combine_heads(picked @ x[..., None, :, :]), weight, bias)  # (..., n, L, D) -> (..., L, D)
    activated = activation(hidden)
    return activated


def unchanged(table, eps):
    """The table of distances itself, for models that do not normalize the table."""
    return table


def deberta(
    ids, positions, token_type_ids, text_positions, mask, n_heads, max_distance, activation, eps,
    buckets, forms, distance_norm, embeddings, distances, distances_norm, layers,
):  # fmt: skip
    """The hidden states of the last layer, (..., L, D).

    forms: "c2p", "p2c" or both. CHOICES has the functions that differ between checkpoints.
    """
    x = embed(ids, positions, token_type_ids, eps, **embeddings)
    table = distance_norm(distances["weight"], **distances_norm, eps=eps)  # (R, D)
    rows = distance_rows(text_positions, buckets, max_distance, len(table))
    for layer in layers:
        x = deberta_layer(x, table, rows, forms, mask, n_heads, activation, eps, **layer)
    return x


def convolutional_deberta(
    ids, positions, token_type_ids, text_positions, mask, n_heads, max_distance, activation, convolution_activation,
    eps, buckets, forms, distance_norm, embeddings, distances, distances_norm, convolution, convolution_norm, layers,
):  # fmt: skip
    """The hidden states of the last layer, (..., L, D). After the first layer, LayerNorm(Z + act(Conv(X))) replaces Z.

    X: the embeddings, Z: the result of the first layer. The largest models of version 2 have this convolution.
    """
    embedded = embed(ids, positions, token_type_ids, eps, **embeddings)
    table = distance_norm(distances["weight"], **distances_norm, eps=eps)
    rows = distance_rows(text_positions, buckets, max_distance, len(table))
    layer, *others = layers
    x = deberta_layer(embedded, table, rows, forms, mask, n_heads, activation, eps, **layer)
    convolution_residual = x + convolve(embedded, text_positions, mask, convolution_activation, **convolution)
    x = layer_norm(convolution_residual, **convolution_norm, eps=eps)
    for layer in others:
        x = deberta_layer(x, table, rows, forms, mask, n_heads, activation, eps, **layer)
    return x


MODEL = deberta
WITH_CONVOLUTION = convolutional_deberta
CHOICES = {
    "buckets": {"own": own_buckets, "log": log_buckets},
    "distance_norm": {"norm": layer_norm, "no norm": unchanged},
}
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify_first,
    "multiple-choice": classify_first,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
}
