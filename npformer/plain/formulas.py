"""The formulas of a Transformer, from a linear layer to an encoder, in plain NumPy.

x is (..., L, D): a row for each of L tokens, in one text or in a padded batch of B texts. H heads have K columns each,
and a feed-forward network has F hidden units. In the papers, D is d_model, K is d_k and F is d_ff. S is the number of
keys or of source tokens, V the size of the vocabulary, and C the number of labels. Weights are dicts of arrays
passed by `**`, nested like the calls. Without an entry "bias", no bias is added:

    a linear layer   {"weight": (in, out), "bias": (out,)}
    a norm           {"weight": (D,), "bias": (D,)}
    attention        {"query": W_Q (D, D), "key": W_K (D, D), "value": W_V (D, D), "output": W_O (D, D)}, linear layers
    ffn              {"hidden": W_1 (D, F), "output": W_2 (F, D)}, linear layers
    layers           [{"attention": attention, "attention_norm": norm, "ffn": ffn, "ffn_norm": norm}, ...]

A mask is True where a query may attend to a key: (L, S) for all texts, (..., 1, 1, S) for padding, (..., 1, L, S), or
True for every key. Vaswani et al., 2017, Attention Is All You Need, unless a docstring names another paper.
"""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[float])  # slow, but NumPy has no erf


def linear(x, weight, bias=0.0):
    """y = x W + b. x (..., in), weight (in, out), transposed compared to torch, bias (out,) -> (..., out).

    >>> linear(np.array([1.0, 2.0]), np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]), np.array([0.5, 0.0, 0.0]))
    array([1.5, 2. , 6. ])
    """
    return x @ weight + bias


def embedding(ids, weight):
    """The rows of a table. ids (..., L), weight (V, D) -> (..., L, D). Section 3.4.

    >>> embedding(np.array([2, 0]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    array([[5., 6.],
           [1., 2.]])
    """
    return weight[ids]


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, (..., D). Ba et al., 2016, section 3.

    >>> layer_norm(np.array([1.0, 2.0, 3.0, 6.0])).round(4)
    array([-1.069 , -0.5345,  0.    ,  1.6036])
    """
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def rms_norm(x, weight=1.0, eps=1e-6):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, (..., D). Zhang and Sennrich, 2019, equation 4.

    >>> rms_norm(np.array([1.0, 2.0, 2.0, 4.0])).round(4)
    array([0.4, 0.8, 0.8, 1.6])
    """
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def relu(x):
    """max(x, 0).

    >>> relu(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    return np.maximum(x, 0)


def gelu(x):
    """x Phi(x), where Phi(x) = (1 + erf(x / sqrt(2))) / 2. Hendrycks and Gimpel, 2016, section 2.

    x: floats. math.erf computes in float64, and the result is converted to the dtype of x.
    >>> gelu(np.array([-1.0, 0.0, 2.0])).round(4)
    array([-0.1587,  0.    ,  1.9545])
    """
    return (x * (1 + erf(x / math.sqrt(2))) / 2).astype(x.dtype)


def gelu_tanh(x):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, close to GELU. Hendrycks and Gimpel, 2016, section 2.

    >>> gelu_tanh(np.array([-1.0, 0.0, 2.0])).round(4)
    array([-0.1588,  0.    ,  1.9546])
    """
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


@np.errstate(over="ignore")  # exp(-x) may be infinite, and x / inf is 0
def silu(x):
    """x / (1 + exp(-x)), also called swish. Hendrycks and Gimpel, 2016, section 2.

    >>> silu(np.array([-1.0, 0.0, 2.0])).round(4)
    array([-0.2689,  0.    ,  1.7616])
    """
    return x / (1 + np.exp(-x))


def softmax(x, axis=-1):
    """exp(x_i) / sum_j exp(x_j) along an axis, (..., D). Subtracting the maximum prevents overflow.

    >>> softmax(np.log([1.0, 3.0, 1.0]))
    array([0.2, 0.6, 0.2])
    """
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def split_heads(x, n_heads):
    """(..., L, D) -> (..., H, L, K): head_1 has the first K columns, head_2 the next K, and so on. Section 3.2.2.

    >>> split_heads(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), n_heads=2).tolist()
    [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    """
    return x.reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3)


def combine_heads(x):
    """Concat(head_1, ..., head_H), the inverse of `split_heads`. (..., H, L, K) -> (..., L, D). Section 3.2.2.

    >>> combine_heads(np.array([[[1, 2], [5, 6]], [[3, 4], [7, 8]]])).tolist()
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    return np.concatenate(np.moveaxis(x, -3, 0), axis=-1)


def causal_mask(n_queries, n_keys=0):
    """True where a key is not later than the query, (L, S). The last query attends to every key. Section 3.2.3.

    Without n_keys, S = L. Otherwise the first S - L keys are earlier tokens.
    >>> causal_mask(2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    return np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), dtype=bool)


def full_mask(n_queries, n_keys=0):
    """True for every key, (L, S): tokens also attend to later tokens, as in LLM2Vec and gte-Qwen2.

    >>> full_mask(2, 3).astype(int).tolist()
    [[1, 1, 1], [1, 1, 1]]
    """
    return np.ones((n_queries, max(n_queries, n_keys)), dtype=bool)


def window_mask(positions, key_positions, reach):
    """True where a key is at most `reach` positions from the query, (L,) and (S,) -> (L, S).

    With a reach of `math.inf`, a query attends to all keys. Beltagy et al., 2020, Longformer, section 3.1.
    >>> window_mask(np.array([2, 3]), np.array([0, 1, 2, 3]), reach=1).astype(int).tolist()
    [[0, 1, 1, 1], [0, 0, 1, 1]]
    """
    return np.abs(positions[:, None] - key_positions) <= reach


def causal_window_mask(positions, key_positions, reach):
    """True where a key is the token itself or one of the `reach` positions before it, (L,) and (S,) -> (L, S).

    >>> causal_window_mask(np.array([2, 3]), np.array([0, 1, 2, 3]), reach=1).astype(int).tolist()
    [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    return window_mask(positions, key_positions, reach) & (key_positions <= positions[:, None])


def scaled_dot_product_attention(q, k, v, mask=True):
    """softmax(q k^T / sqrt(K)) v. q (..., L, K), k and v (..., S, K), mask (..., L, S) -> (..., L, K). Equation 1.

    A query that may attend to no key gives zeros. For a factor other than 1 / sqrt(K): `gemma3.scaled_attention`.
    >>> values = np.array([[1.0], [3.0]])
    >>> scaled_dot_product_attention(np.eye(2), np.eye(2), values, causal_mask(2, 2)).round(4).tolist()
    [[1.0], [2.3395]]
    """
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = masked_softmax(scores, mask)
    return weights @ v


def masked_softmax(scores, mask):
    """softmax over the keys that the mask allows, scores and mask (..., L, S). Other weights are 0. Section 3.2.3.

    Masked scores become the lowest finite number, because -inf would give nan for a query without any key. With the
    finite number, all weights of such a query are equal, and `* mask` makes the weights 0.
    >>> masked_softmax(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[True, False], [False, False]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return softmax(np.where(mask, scores, np.finfo(scores.dtype).min)) * mask


def multi_head_attention(x, source, mask, n_heads, query, key, value, output):
    """Concat(head_1, ..., head_H) W_O, where head_h attends with its columns of q, k and v. Section 3.2.2.

    q = x W_Q, k = source W_K and v = source W_V, for x (..., L, D) and source (..., S, D). In self-attention, source is
    x. mask: (L, S) for all texts, (..., 1, 1, S) for padding, (..., 1, L, S), or True.
    """
    q, k, v = linear(x, **query), linear(source, **key), linear(source, **value)
    query_heads, key_heads, value_heads = (split_heads(each, n_heads) for each in (q, k, v))  # (..., H, L or S, K)
    context = scaled_dot_product_attention(query_heads, key_heads, value_heads, mask)
    combined = combine_heads(context)  # (..., L, D)
    return linear(combined, **output)


def self_attention(x, mask, n_heads, query, key, value, output):
    """Multi-head attention among rows x (..., L, D), mask (L, L), (..., 1, 1, L), (..., 1, L, L) or True.

    Section 3.2.3. Layers write multi_head_attention(x, x, ...) instead, which is equivalent.
    """
    return multi_head_attention(x, x, mask, n_heads, query, key, value, output)


def feed_forward(x, activation, hidden, output):
    """act(x W_1 + b_1) W_2 + b_2 for each row, (..., D) -> (..., F) -> (..., D). Section 3.3.

    hidden has W_1 (D, F) and b_1, output has W_2 (F, D) and b_2.
    >>> feed_forward(np.array([-1.0, 2.0]), relu, {"weight": np.eye(2)}, {"weight": np.eye(2)})
    array([0., 2.])
    """
    activated = activation(linear(x, **hidden))  # (..., F)
    return linear(activated, **output)


def gated_feed_forward(x, activation, gate, up, output):
    """(act(x W_gate) * x W_up) W_output, (..., D) -> (..., D): SwiGLU if act is SiLU, GeGLU if it is GELU.

    Shazeer, 2020, GLU Variants Improve Transformer, section 2.
    >>> identity, doubled = {"weight": np.eye(2)}, {"weight": 2 * np.eye(2)}
    >>> gated_feed_forward(np.array([-1.0, 3.0]), relu, gate=identity, up=doubled, output=identity)
    array([ 0., 18.])
    """
    activated = activation(linear(x, **gate))  # (..., F)
    gated = activated * linear(x, **up)
    return linear(gated, **output)


def rotary_angles(positions, frequencies, magnitude=1.0):
    """cos and sin of position * frequency: positions (L,), frequencies (K / 2,) -> two arrays (L, K / 2).

    Su et al., 2021, RoFormer, section 3.2.2; `rotary.py` has the frequencies. With a frequency of 0 there is no
    rotation, as in the layers of SmolLM3 without positions. The magnitude multiplies cos and sin. It is 1, except in
    some models that read longer texts than in training. For texts with different positions: (B, 1, L).
    """
    angles = positions[..., None] * frequencies.astype(np.float64)
    return magnitude * np.cos(angles), magnitude * np.sin(angles)


def rotate(x, cos, sin):
    """Rotates columns i and i + K / 2 of each head by an angle, x (..., L, K), cos and sin (L, K / 2).

    Su et al., 2021, RoFormer, equation 34, pairs columns 2 i and 2 i + 1. Most checkpoints order each head's columns so
    that i and i + K / 2 are a pair. Otherwise (Cohere), put the even columns of each head in W_Q and W_K first.
    >>> rotate(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])).tolist()
    [[-3.0, 2.0, 1.0, 4.0]]
    """
    first, second = np.split(x, 2, axis=-1)  # (..., L, K / 2)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def rotate_first(x, cos, sin):
    """`rotate` for the first R columns of each head, x (..., L, K), cos and sin (L, R / 2). Others do not change.

    Black et al., 2022, GPT-NeoX-20B, section 2.1.
    >>> rotate_first(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.0]]), np.array([[1.0]])).tolist()
    [[-2.0, 1.0, 3.0, 4.0]]
    """
    n_rotated = 2 * cos.shape[-1]
    return np.concatenate([rotate(x[..., :n_rotated], cos, sin), x[..., n_rotated:]], axis=-1)


def rotary_attention(x, mask, n_heads, angles, query, key, value, output):
    """Multi-head self-attention with rotated queries and keys. x (..., L, D), angles as from `rotary_angles`.

    Scores depend on positions only through the signed distance from query to key. Su et al., 2021, RoFormer,
    equation 16.
    """
    q, k, v = linear(x, **query), linear(x, **key), linear(x, **value)
    query_rotated, key_rotated = (rotate(split_heads(each, n_heads), *angles) for each in (q, k))  # (..., H, L, K)
    value_heads = split_heads(v, n_heads)
    context = scaled_dot_product_attention(query_rotated, key_rotated, value_heads, mask)
    combined = combine_heads(context)  # (..., L, D)
    return linear(combined, **output)


def encoder_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = LayerNorm(X + SelfAttention(X)); Z = LayerNorm(Y + FFN(Y)). (..., L, D) -> (..., L, D). Section 3.1.

    attention has the linear layers query, key, value and output, and ffn has hidden and output; attention_norm and
    ffn_norm have weight and bias. The sums in the brackets are attention_residual and ffn_residual.
    """
    attention_residual = x + multi_head_attention(x, x, mask, n_heads, **attention)
    y = layer_norm(attention_residual, **attention_norm, eps=eps)
    ffn_residual = y + feed_forward(y, activation, **ffn)
    return layer_norm(ffn_residual, **ffn_norm, eps=eps)


def encoder(x, mask, n_heads, activation, eps, layers):
    """Applies the layers in order, (..., L, D) -> (..., L, D). Section 3.1, "Encoder"."""
    for layer in layers:
        x = encoder_layer(x, mask, n_heads, activation, eps, **layer)
    return x
