"""The right answer of every exercise, in plain NumPy: what `npformer learn solution` prints.

The names and arguments are those of the learner's file, and each function passes if it is pasted there. Tests hold the
answers equal to the stages of a model. Each function works in the dtype of its arguments, because the checker computes
in float64 too.
"""

import math

import numpy as np


def embeddings(ids, token_table, position_table, start=0):
    return token_table[ids] + position_table[start : start + len(ids)]


def layer_norm(x, weight, bias, eps=1e-12):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * weight + bias


def gelu(x):
    return (x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2).astype(x.dtype)


def linear(x, weight, bias=0.0):
    return x @ weight + bias


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def split_heads(x, n_heads):
    *lead, length, width = x.shape
    return x.reshape(*lead, length, n_heads, width // n_heads).swapaxes(-2, -3)


def combine_heads(x):
    *lead, n_heads, length, width = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, length, n_heads * width)


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


def causal_mask(n_queries, n_keys):
    return np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)


def multi_head_attention(x, n_heads, query, key, value, output, mask=None):
    q, k, v = (split_heads(linear(x, **layer), n_heads) for layer in (query, key, value))
    return linear(combine_heads(scaled_dot_product_attention(q, k, v, mask)), **output)


def feed_forward(x, activation, hidden, output):
    return linear(activation(linear(x, **hidden)), **output)


def encoder_layer(x, n_heads, attention, attention_norm, ffn, ffn_norm):
    y = layer_norm(x + multi_head_attention(x, n_heads, **attention), **attention_norm)
    return layer_norm(y + feed_forward(y, gelu, **ffn), **ffn_norm)


def encoder(x, n_heads, layers):
    for layer in layers:
        x = encoder_layer(x, n_heads, **layer)
    return x


def pool(x, weight, bias):
    return np.maximum(linear(x[0], weight, bias), 0)


def classify(ids, n_heads, weights):
    tables = weights["embeddings"]
    x = embeddings(ids, tables["token"]["weight"], tables["position"]["weight"])
    z = encoder(layer_norm(x, **tables["norm"]), n_heads, weights["layers"])
    return linear(pool(z, **weights["pooler"]), **weights["head"]["output"])


def cross_entropy(logits, target):
    shifted = logits - logits.max()
    return np.log(np.exp(shifted).sum()) - shifted[target]


def linear_backward(grad, x, weight):
    return grad @ weight.T, x.T @ grad, grad.sum(axis=0)


def softmax_backward(grad, y):
    return y * (grad - (grad * y).sum(axis=-1, keepdims=True))


def layer_norm_backward(grad, x, weight, eps=1e-12):
    centred = x - x.mean(axis=-1, keepdims=True)
    root = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    n, g = centred / root, grad * weight
    dx = (g - g.mean(axis=-1, keepdims=True) - n * (g * n).mean(axis=-1, keepdims=True)) / root
    return dx, (grad * n).sum(axis=0), grad.sum(axis=0)


def attention_backward(grad, q, k, v):
    scale = 1 / math.sqrt(q.shape[-1])
    weights = softmax(q @ k.mT * scale)
    dv = weights.mT @ grad
    dscores = softmax_backward(grad @ v.mT, weights) * scale
    return dscores @ k, dscores.mT @ q, dv


def loss_and_gradients(ids, target, n_heads, weights):
    x = embeddings(ids, weights["token"]["weight"], weights["position"]["weight"])
    q, k, v = (split_heads(linear(x, **weights[name]), n_heads) for name in ("query", "key", "value"))
    total = x + combine_heads(scaled_dot_product_attention(q, k, v))
    y = layer_norm(total, **weights["norm"])
    logits = linear(y, **weights["output"])[0]
    grads = {}
    grad = np.zeros((len(ids), len(logits)), x.dtype)
    grad[0] = softmax(logits)
    grad[0, target] -= 1
    dy, dweight, dbias = linear_backward(grad, y, weights["output"]["weight"])
    grads["output"] = {"weight": dweight, "bias": dbias}
    dtotal, dweight, dbias = layer_norm_backward(dy, total, weights["norm"]["weight"])
    grads["norm"] = {"weight": dweight, "bias": dbias}
    dx = dtotal
    dheads = attention_backward(split_heads(dtotal, n_heads), q, k, v)
    for name, dhead in zip(("query", "key", "value"), dheads, strict=True):
        more, dweight, dbias = linear_backward(combine_heads(dhead), x, weights[name]["weight"])
        grads[name] = {"weight": dweight, "bias": dbias}
        dx = dx + more
    grads["token"] = {"weight": np.zeros_like(weights["token"]["weight"])}
    np.add.at(grads["token"]["weight"], ids, dx)
    grads["position"] = {"weight": np.zeros_like(weights["position"]["weight"])}
    grads["position"]["weight"][: len(ids)] = dx
    return cross_entropy(logits, target), {name: grads[name] for name in weights}


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def decoder_layer(x, n_heads, cache, attention, attention_norm, ffn, ffn_norm, eps=1e-5):
    h = layer_norm(x, **attention_norm, eps=eps)
    q, k, v = (split_heads(linear(h, **attention[name]), n_heads) for name in ("query", "key", "value"))
    if cache is not None:
        k, v = np.concatenate([cache[0], k], axis=1), np.concatenate([cache[1], v], axis=1)
    heads = scaled_dot_product_attention(q, k, v, causal_mask(q.shape[1], k.shape[1]))
    y = x + linear(combine_heads(heads), **attention["output"])
    return y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), gelu_tanh, **ffn), (k, v)


def decoder_step(ids, n_heads, weights, caches=None):
    start = 0 if caches is None else caches[0][0].shape[1]
    tables, new = weights["embeddings"], []
    x = embeddings(ids, tables["token"]["weight"], tables["position"]["weight"], start)
    for layer, cache in zip(weights["layers"], caches or [None] * len(weights["layers"]), strict=True):
        x, cache = decoder_layer(x, n_heads, cache, **layer)
        new.append(cache)
    return layer_norm(x[-1], **weights["norm"], eps=1e-5) @ weights["head"]["output"]["weight"], new


def sample(logits, temperature, top_p, u):
    p = softmax(logits / temperature)
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return int(np.searchsorted(np.cumsum(p / p.sum()), u, side="right"))
