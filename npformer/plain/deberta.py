"""DeBERTa 2 and 3: BERT with disentangled attention. He et al., 2021, DeBERTa; He et al., 2023, DeBERTaV3.

A token is two vectors, its content and its distance from another token (2021, section 3.1). It differs from BERT in
its scores, and in its embeddings: the published models have no position table and no token types. mask is
(..., 1, 1, L), or True for a text alone; places, (L,), are the indices of tokens in their text.
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

ZEROS = {"weight": np.broadcast_to(False, (2**31, 1))}  # the rows of a table that a model does not have


def embed(ids, positions, token_type_ids, eps, token, norm, position=ZEROS, segment=ZEROS):
    """Normalize(token [+ position] [+ segment]): (..., L) three times -> (..., L, D)."""
    total = embedding(ids, **token) + embedding(positions, **position) + embedding(token_type_ids, **segment)
    return layer_norm(total, **norm, eps=eps)


def own_buckets(distances, n_buckets, max_distance):
    """A bucket for each distance, as in the first DeBERTa."""
    return distances


def log_buckets(distances, n_buckets, max_distance):
    """Distances up to m = n_buckets / 2 have buckets of their own, greater ones share them. The published code of 2.

    bucket(d) = sign(d) (m + ceil(log(|d| / m) / log((max_distance - 1) / m) (m - 1))), rounded as in float32.
    >>> log_buckets(np.array([-3, 0, 4, 5, 100, 511]), 8, 512).tolist()
    [-3, 0, 4, 5, 6, 7]
    """
    m = np.float32(n_buckets // 2)
    far = np.maximum(np.abs(distances), m).astype(np.float32) / m
    steps = np.ceil(np.log(far) / np.log(np.float32((max_distance - 1) / m)) * (m - 1))
    return np.where(np.abs(distances) <= m, distances, np.sign(distances) * (m + steps)).astype(int)


def distance_rows(places, buckets, max_distance, n_rows):
    """r(i, j), the row of the distance i - j in a table whose middle row is distance 0. places (L,) -> (L, L)."""
    zero = n_rows // 2
    return np.clip(zero + buckets(places[:, None] - places, zero, max_distance), 0, n_rows - 1)


def content_to_distance(q, k, distance_q, distance_k, rows):
    """q_i . K_r(i, j), from content (..., H, L, K) and distances (H, R, K) -> (..., H, L, L). Equation 4."""
    products = q @ distance_k.mT  # (..., H, L, R)
    return products[..., np.arange(len(rows))[:, None], rows]


def distance_to_content(q, k, distance_q, distance_k, rows):
    """Q_r(i, j) . k_j, from content (..., H, L, K) and distances (H, R, K) -> (..., H, L, L). Equation 4.

    The paper has r(j, i), the published code r(i, j).
    """
    products = distance_q @ k.mT  # (..., H, R, L)
    return products[..., rows, np.arange(len(rows))]


def unchanged(table, eps):
    """The table of distances itself, in models without a norm of it."""
    return table


def disentangled_attention(x, distances, rows, forms, mask, n_heads, query, key, value, output, **own):
    """score = (q_i . k_j + q_i . K_r(i, j) + Q_r(i, j) . k_j) / sqrt(3 K). Equation 4; sqrt(2 K) with one form.

    own: distance_query and distance_key, the projections of the distances, if they are not those of the content.
    """
    projections = {"distance_query": query, "distance_key": key, **own}
    tables = [linear(distances, **projections[name]) for name in ("distance_query", "distance_key")]  # (R, D)
    distance_heads = [split_heads(each, n_heads) for each in tables]  # (H, R, K)
    q, k, v = linear(x, **query), linear(x, **key), linear(x, **value)
    query_heads, key_heads, value_heads = (split_heads(each, n_heads) for each in (q, k, v))  # (..., H, L, K)
    scale = math.sqrt((1 + len(forms)) * query_heads.shape[-1])
    distance_scores = sum(form(query_heads, key_heads, *distance_heads, rows) for form in forms) / scale
    scores = query_heads @ key_heads.mT / scale + distance_scores
    weights = masked_softmax(scores, mask)
    context = weights @ value_heads
    combined = combine_heads(context)
    return linear(combined, **output)


def deberta_layer(x, distances, rows, forms, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = Normalize(X + Attention(X)); Z = Normalize(Y + FFN(Y)). (..., L, D) -> (..., L, D)."""
    attention_residual = x + disentangled_attention(x, distances, rows, forms, mask, n_heads, **attention)
    y = layer_norm(attention_residual, **attention_norm, eps=eps)
    ffn_residual = y + feed_forward(y, activation, **ffn)
    return layer_norm(ffn_residual, **ffn_norm, eps=eps)


def convolve(x, places, mask, activation, weight, bias):
    """act(b + sum_s x_(i + s) W_s), s = -(n - 1) / 2 ... (n - 1) / 2. (..., L, D), weight (n D, D) -> (..., L, D).

    A matrix of 0 and 1 for each s picks row i + s, or zeros if that is padding or outside the text. The published code
    of version 2, which calls it nGram induced input encoding.
    """
    n = len(weight) // x.shape[-1]
    steps = np.arange(n)[:, None, None] - n // 2
    picked = (places == places[:, None] + steps) & mask  # (..., n, L, L)
    rows = combine_heads(picked @ x[..., None, :, :])  # (..., L, n D)
    hidden = linear(rows, weight, bias)
    activated = activation(hidden)
    return activated


def deberta(
    ids, positions, token_type_ids, places, mask, n_heads, max_distance, activation, eps,
    buckets, forms, distance_norm, embeddings, distances, distances_norm, layers,
):  # fmt: skip
    """The rows of the last layer, (..., L, D)."""
    x = embed(ids, positions, token_type_ids, eps, **embeddings)
    table = distance_norm(distances["weight"], **distances_norm, eps=eps)  # (R, D)
    rows = distance_rows(places, buckets, max_distance, len(table))
    for layer in layers:
        x = deberta_layer(x, table, rows, forms, mask, n_heads, activation, eps, **layer)
    return x


def convolutional_deberta(
    ids, positions, token_type_ids, places, mask, n_heads, max_distance, activation, convolution_activation, eps,
    buckets, forms, distance_norm, embeddings, distances, distances_norm, convolution, convolution_norm, layers,
):  # fmt: skip
    """The largest models, which add a convolution of the embeddings to the rows of the first layer."""
    embedded = embed(ids, positions, token_type_ids, eps, **embeddings)
    table = distance_norm(distances["weight"], **distances_norm, eps=eps)
    rows = distance_rows(places, buckets, max_distance, len(table))
    layer, *others = layers
    x = deberta_layer(embedded, table, rows, forms, mask, n_heads, activation, eps, **layer)
    convolution_residual = x + convolve(embedded, places, mask, convolution_activation, **convolution)
    x = layer_norm(convolution_residual, **convolution_norm, eps=eps)
    for layer in others:
        x = deberta_layer(x, table, rows, forms, mask, n_heads, activation, eps, **layer)
    return x


MODEL = deberta
WITH_CONVOLUTION = convolutional_deberta
CHOICES = {
    "buckets": {"own": own_buckets, "log": log_buckets},
    "forms": {
        "none": [],
        "key": [content_to_distance],
        "query": [distance_to_content],
        "key and query": [content_to_distance, distance_to_content],
    },
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
