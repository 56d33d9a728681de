"""A learner's file with unusual but correct solutions: plain loops, einsum, different reshapes, float64 inside."""

import math

import numpy as np


def as_given(answer, x):
    return np.asarray(answer).astype(x.dtype)


def embeddings(ids, token_table, position_table, start=0):
    rows = []
    for i, token in enumerate(ids):
        rows.append([float(a) + float(b) for a, b in zip(token_table[token], position_table[start + i], strict=True)])
    return as_given(rows, token_table)


def layer_norm(x, weight, bias, eps=1e-12):
    wide = x.astype(np.float64)
    mean = np.einsum("...d->...", wide) / x.shape[-1]
    variance = np.einsum("...d,...d->...", wide, wide) / x.shape[-1] - mean**2
    return as_given((wide - mean[..., None]) * (variance[..., None] + eps) ** -0.5 * weight + bias, x)


def gelu(x):
    flat = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.ravel().tolist()]
    return as_given(flat, x).reshape(x.shape)


def linear(x, weight, bias):
    return np.einsum("...i,io->...o", x, weight) + bias


def softmax(x):
    rows = x.reshape(-1, x.shape[-1])
    found = np.empty_like(rows)
    for i, row in enumerate(rows):
        top = max(row)
        total = 0.0
        for value in row:
            total += math.exp(value - top)
        for j, value in enumerate(row):
            found[i, j] = math.exp(value - top) / total
    return found.reshape(x.shape)


def split_heads(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=1))


def combine_heads(x):
    return np.concatenate(list(x), axis=-1)


def scaled_dot_product_attention(q, k, v, mask=None):
    q64, k64, v64 = (each.astype(np.float64) for each in (q, k, v))
    weights = np.exp(np.einsum("hik,hjk->hij", q64, k64) / np.sqrt(q.shape[-1]))
    if mask is not None:
        weights *= mask
    return as_given(np.einsum("hij,hjk->hik", weights, v64) / weights.sum(-1)[..., None], q)


def causal_mask(n_queries, n_keys):
    return np.array([[j <= n_keys - n_queries + i for j in range(n_keys)] for i in range(n_queries)])


def multi_head_attention(x, n_heads, query, key, value, output, mask=None):
    width = x.shape[1] // n_heads
    total = np.zeros_like(x) + output["bias"]
    for h in range(n_heads):
        columns = slice(h * width, (h + 1) * width)
        q, k, v = (x @ w["weight"][:, columns] + w["bias"][columns] for w in (query, key, value))
        head = scaled_dot_product_attention(q[None], k[None], v[None], mask)[0]
        total = total + head @ output["weight"][columns]
    return total


def feed_forward(x, activation, hidden, output):
    return np.stack([linear(activation(linear(row, **hidden)), **output) for row in x])


def block(x, norm, of):
    return layer_norm(of(x) + x, norm["weight"], norm["bias"])


def encoder_layer(x, n_heads, attention, attention_norm, ffn, ffn_norm):
    y = block(x, attention_norm, lambda x: multi_head_attention(x, n_heads, **attention))
    return block(y, ffn_norm, lambda y: feed_forward(y, gelu, **ffn))


def encoder(x, n_heads, layers):
    return encoder(encoder_layer(x, n_heads, **layers[0]), n_heads, layers[1:]) if layers else x


def pool(x, weight, bias):
    y = linear(x[:1], weight, bias)[0]
    return y * (y > 0)


def classify(ids, n_heads, weights):
    e = weights["embeddings"]
    rows = e["token"]["weight"][list(ids)] + e["position"]["weight"][np.arange(len(ids))]
    x = layer_norm(rows, e["norm"]["weight"], e["norm"]["bias"])
    for layer in weights["layers"]:
        x = encoder_layer(x=x, n_heads=n_heads, **layer)
    pooled = pool(x, weights["pooler"]["weight"], weights["pooler"]["bias"])
    return (
        np.array([pooled @ column for column in weights["head"]["output"]["weight"].T], np.float32)
        + weights["head"]["output"]["bias"]
    )


def cross_entropy(logits, target):
    return float(np.logaddexp.reduce(logits.astype(np.float64)) - logits[target])


def linear_backward(grad, x, weight):
    dweight = np.zeros_like(weight)
    for row, g in zip(x, grad, strict=True):
        dweight += np.outer(row, g)
    return np.einsum("lo,io->li", grad, weight), dweight, np.ones(len(grad), grad.dtype) @ grad


def softmax_backward(grad, y):
    flat, grads = y.reshape(-1, y.shape[-1]), grad.reshape(-1, y.shape[-1])
    return np.stack([(np.diag(p) - np.outer(p, p)) @ g for p, g in zip(flat, grads, strict=True)]).reshape(y.shape)


def layer_norm_backward(grad, x, weight, eps=1e-12):
    g64, x64, w64 = (each.astype(np.float64) for each in (grad, x, weight))
    width = x.shape[-1]
    dx = np.empty_like(x)
    dweight = np.zeros(width)
    for i in range(len(x)):
        centred = x64[i] - x64[i].mean()
        root = np.sqrt(centred @ centred / width + eps)
        jacobian = (np.eye(width) - 1 / width) / root - np.outer(centred, centred) / (width * root**3)
        dx[i] = jacobian @ (g64[i] * w64)
        dweight += g64[i] * centred / root
    return dx, as_given(dweight, x), grad.sum(0)


def attention_backward(grad, q, k, v):
    """softmax_backward needs the row sums of dW * W, which equal the row sums of grad * context."""
    scale = 1 / math.sqrt(q.shape[-1])
    scores = np.einsum("hik,hjk->hij", q, k) * scale
    weights = np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))
    total = np.einsum("hik,hik->hi", grad, weights @ v)[..., None]
    dscores = weights * (np.einsum("hik,hjk->hij", grad, v) - total) * scale
    return [
        np.einsum("hij,hjk->hik", dscores, k),
        np.einsum("hij,hik->hjk", dscores, q),
        np.einsum("hij,hik->hjk", weights, grad),
    ]


def loss_and_gradients(ids, target, n_heads, weights):
    x = embeddings(ids, weights["token"]["weight"], weights["position"]["weight"])
    parts = {name: split_heads(linear(x, **weights[name]), n_heads) for name in ("query", "key", "value")}
    total = combine_heads(scaled_dot_product_attention(*parts.values())) + x
    y = layer_norm(total, **weights["norm"])
    logits = y[0] @ weights["output"]["weight"] + weights["output"]["bias"]
    dlogits = softmax(logits[None])[0] - np.eye(len(logits), dtype=x.dtype)[target]
    grads = {"output": {"weight": np.outer(y[0], dlogits), "bias": dlogits}}
    dy = np.vstack([weights["output"]["weight"] @ dlogits, np.zeros((len(ids) - 1, x.shape[1]), x.dtype)])
    dtotal, dweight, dbias = layer_norm_backward(dy, total, weights["norm"]["weight"])
    grads["norm"] = {"weight": dweight, "bias": dbias}
    dheads = attention_backward(split_heads(dtotal, n_heads), *parts.values())
    dx = [dtotal]
    for name, dhead in zip(parts, dheads, strict=True):
        back, dweight, dbias = linear_backward(combine_heads(dhead), x, weights[name]["weight"])
        grads[name] = {"weight": dweight, "bias": dbias}
        dx.append(back)
    rows = np.sum(dx, axis=0)
    chosen = np.eye(len(weights["token"]["weight"]), dtype=x.dtype)[ids]
    grads["token"] = {"weight": chosen.T @ rows}
    grads["position"] = {"weight": np.pad(rows, ((0, len(weights["position"]["weight"]) - len(ids)), (0, 0)))}
    return cross_entropy(logits, target), grads


def gelu_tanh(x):
    inner = math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)
    return x / (1 + np.exp(-2 * inner.astype(np.float64))).astype(x.dtype)


def decoder_layer(x, n_heads, cache, attention, attention_norm, ffn, ffn_norm, eps=1e-5):
    keys, values = (None, None) if cache is None else (list(each.swapaxes(0, 1)) for each in cache)
    keys, values, rows = keys or [], values or [], []
    for row in x:  # one token after another
        h = layer_norm(row[None], attention_norm["weight"], attention_norm["bias"], eps)
        q, k, v = (split_heads(linear(h, **attention[name]), n_heads) for name in ("query", "key", "value"))
        keys.append(k[:, 0])
        values.append(v[:, 0])
        context = scaled_dot_product_attention(q, np.stack(keys, 1), np.stack(values, 1))
        y = row + linear(combine_heads(context), **attention["output"])
        rows.append((y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), gelu_tanh, **ffn))[0])
    return np.stack(rows), [np.stack(keys, 1), np.stack(values, 1)]


def decoder_step(ids, n_heads, weights, caches=None):
    caches = list(caches) if caches else [None] * len(weights["layers"])
    start = caches[0][0].shape[1] if caches[0] else 0
    e = weights["embeddings"]
    x = embeddings(ids, e["token"]["weight"], e["position"]["weight"], start)
    for i, layer in enumerate(weights["layers"]):
        x, caches[i] = decoder_layer(x, n_heads, caches[i], **layer)
    last = layer_norm(x, weights["norm"]["weight"], weights["norm"]["bias"], 1e-5)[-1]
    return np.dot(weights["head"]["output"]["weight"].T, last), tuple(caches)


def sample(logits, temperature, top_p, u):
    p = [math.exp((each - max(logits)) / temperature) for each in logits.tolist()]
    p = [each / sum(p) for each in p]
    kept, total = set(), 0.0
    for i in sorted(range(len(p)), key=lambda i: -p[i]):
        if total >= top_p:
            break
        kept.add(i)
        total += p[i]
    below = 0.0
    for i, each in enumerate(p):
        below += each / total if i in kept else 0.0
        if below > u:
            return i
    return max(kept)
