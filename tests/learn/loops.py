"""A learner's file with unusual but correct solutions: plain loops, einsum, other reshapes, and float64 inside."""

import math

import numpy as np

from npformer.plain.decoding import no_past, sample  # noqa: F401
from npformer.plain.gradients import feed_forward_backward
from npformer.plain.training import train  # noqa: F401


def as_given(answer, x):
    return np.asarray(answer).astype(x.dtype)


def linear(x, weight, bias=0.0):
    return np.einsum("...i,io->...o", x, weight) + bias


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):
    wide = x.astype(np.float64)
    mean = np.einsum("...d->...", wide) / x.shape[-1]
    variance = np.einsum("...d,...d->...", wide, wide) / x.shape[-1] - mean**2
    return as_given((wide - mean[..., None]) * (variance[..., None] + eps) ** -0.5 * weight + bias, x)


def gelu(x):
    flat = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.ravel().tolist()]
    return as_given(flat, x).reshape(x.shape)


def embed(ids, positions, eps, token, position, norm):
    if ids.ndim > 1:
        return np.stack([embed(each, positions, eps, token, position, norm) for each in ids])
    rows = []
    for word, place in zip(ids, positions, strict=True):
        pairs = zip(token["weight"][word], position["weight"][place], strict=True)
        rows.append([float(a) + float(b) for a, b in pairs])
    return layer_norm(as_given(rows, token["weight"]), norm["weight"], norm["bias"], eps)


def softmax(x, axis=-1):
    def of_row(row):
        top, total = max(row), 0.0
        for value in row:
            total += math.exp(value - top)
        return np.array([math.exp(value - top) / total for value in row], x.dtype)

    return np.apply_along_axis(of_row, axis, x)


def split_heads(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=-1), axis=-3)


def combine_heads(x):
    *lead, n_heads, length, width = x.shape
    return np.einsum("...hlk->...lhk", x).reshape(*lead, length, n_heads * width)


def causal_mask(n_queries, n_keys=0):
    n_keys = n_keys or n_queries
    return np.array([[j <= n_keys - n_queries + i for j in range(n_keys)] for i in range(n_queries)])


def masked_softmax(scores, mask):
    allowed = np.broadcast_to(mask, scores.shape)
    top = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-1e30)
    weights = np.exp(np.where(allowed, scores - top, 0).astype(np.float64)) * allowed
    total = weights.sum(axis=-1, keepdims=True)
    return as_given(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0), scores)


def scaled_dot_product_attention(q, k, v, mask=True):
    q64, k64, v64 = (each.astype(np.float64) for each in (q, k, v))
    weights = np.exp(np.einsum("...ik,...jk->...ij", q64, k64) / np.sqrt(q.shape[-1])) * mask
    return as_given(np.einsum("...ij,...jk->...ik", weights, v64) / weights.sum(-1)[..., None], q)


def multi_head_attention(x, source, mask, n_heads, query, key, value, output):
    width = x.shape[-1] // n_heads
    total = np.zeros_like(x) + output["bias"]
    for h in range(n_heads):
        columns = slice(h * width, (h + 1) * width)
        layers = ((x, query), (source, key), (source, value))
        q, k, v = ((rows @ w["weight"][:, columns] + w["bias"][columns])[..., None, :, :] for rows, w in layers)
        total = total + scaled_dot_product_attention(q, k, v, mask)[..., 0, :, :] @ output["weight"][columns]
    return total


def feed_forward(x, activation, hidden, output):
    if x.ndim > 1:
        return np.stack([feed_forward(row, activation, hidden, output) for row in x])
    return linear(activation(linear(x, **hidden)), **output)


def block(x, norm, eps, of):
    return layer_norm(of(x) + x, norm["weight"], norm["bias"], eps)


def encoder_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    y = block(x, attention_norm, eps, lambda x: multi_head_attention(x, x, mask, n_heads, **attention))
    return block(y, ffn_norm, eps, lambda y: feed_forward(y, activation, **ffn))


def encoder(x, mask, n_heads, activation, eps, layers):
    if not layers:
        return x
    first, *rest = layers
    return encoder(encoder_layer(x, mask, n_heads, activation, eps, **first), mask, n_heads, activation, eps, rest)


def distilbert(ids, positions, mask, n_heads, activation, eps, embeddings, layers):
    x = embed(ids, positions, eps, embeddings["token"], embeddings["position"], embeddings["norm"])
    return encoder(x, mask, n_heads, activation, eps, layers)


def classify(x, pooler, head):
    first = np.take(x, 0, axis=-2)
    y = first @ pooler["weight"] + pooler["bias"]
    weight, bias = head["output"]["weight"], head["output"]["bias"]
    logits = np.stack([(y * (y > 0)) @ column for column in weight.T], axis=-1) + bias
    return {"logits": as_given(logits, x)}


def cross_entropy(logits, targets):
    rows, wanted = logits.reshape(-1, logits.shape[-1]).astype(np.float64), targets.ravel()
    return float(sum(np.logaddexp.reduce(row) - row[i] for row, i in zip(rows, wanted, strict=True)) / len(rows))


def cross_entropy_backward(logits, targets):
    grad = softmax(logits)
    for place, target in np.ndenumerate(targets):
        grad[place][target] -= 1
    return grad / targets.size


def linear_backward(grad, x, weight, bias=0.0):
    dweight = np.zeros_like(weight)
    rows = grad.reshape(-1, grad.shape[-1])
    for row, g in zip(x.reshape(len(rows), -1), rows, strict=True):
        dweight += np.outer(row, g)
    return np.einsum("...o,io->...i", grad, weight), {"bias": np.ones(len(rows), grad.dtype) @ rows, "weight": dweight}


def embedding_backward(grad, ids, weight):
    chosen = np.eye(len(weight), dtype=weight.dtype)[np.broadcast_to(ids, grad.shape[:-1])]
    return {"weight": chosen.reshape(-1, len(weight)).T @ grad.reshape(-1, grad.shape[-1])}


def layer_norm_backward(grad, x, weight=1.0, bias=0.0, eps=1e-5):
    width = x.shape[-1]
    g64, x64 = (each.reshape(-1, width).astype(np.float64) for each in (grad, x))
    dx, dweight = np.empty_like(x64), np.zeros(width)
    for i in range(len(x64)):
        centred = x64[i] - x64[i].mean()
        root = np.sqrt(centred @ centred / width + eps)
        jacobian = (np.eye(width) - 1 / width) / root - np.outer(centred, centred) / (width * root**3)
        dx[i] = jacobian @ (g64[i] * weight)
        dweight += g64[i] * centred / root
    return as_given(dx, x).reshape(x.shape), {"weight": as_given(dweight, x), "bias": as_given(g64.sum(0), x)}


def softmax_backward(grad, y):
    flat, grads = y.reshape(-1, y.shape[-1]), grad.reshape(-1, y.shape[-1])
    return np.stack([(np.diag(p) - np.outer(p, p)) @ g for p, g in zip(flat, grads, strict=True)]).reshape(y.shape)


def scaled_dot_product_attention_backward(grad, q, k, v, mask):
    """softmax_backward needs the row sums of dW * W, which equal the row sums of grad * context."""
    scale = 1 / math.sqrt(q.shape[-1])
    weights = masked_softmax(np.einsum("...ik,...jk->...ij", q, k) * scale, mask)
    total = np.einsum("...ik,...ik->...i", grad, weights @ v)[..., None]
    dscores = weights * (np.einsum("...ik,...jk->...ij", grad, v) - total) * scale
    return [
        np.einsum("...ij,...jk->...ik", dscores, k),
        np.einsum("...ij,...ik->...jk", dscores, q),
        np.einsum("...ij,...ik->...jk", weights, grad),
    ]


def multi_head_attention_backward(grad, x, source, mask, n_heads, query, key, value, output):
    layers = {"query": query, "key": key, "value": value}
    read = {"query": x, "key": source, "value": source}
    heads = [split_heads(linear(read[name], **layer), n_heads) for name, layer in layers.items()]
    combined = combine_heads(scaled_dot_product_attention(*heads, mask))
    below, d_output = linear_backward(grad, combined, output["weight"])
    dheads = scaled_dot_product_attention_backward(split_heads(below, n_heads), *heads, mask)
    dx, grads = {}, {}
    for name, dhead in zip(layers, dheads, strict=True):
        dx[name], grads[name] = linear_backward(combine_heads(dhead), read[name], layers[name]["weight"])
    return dx["query"], dx["value"] + dx["key"], {**grads, "output": d_output}


def encoder_layer_backward(grad, x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    first = x + multi_head_attention(x, x, mask, n_heads, **attention)
    y = layer_norm(first, **attention_norm, eps=eps)
    grads = {}
    grad, grads["ffn_norm"] = layer_norm_backward(grad, y + feed_forward(y, activation, **ffn), **ffn_norm, eps=eps)
    back, grads["ffn"] = feed_forward_backward(grad, y, activation, **ffn)
    grad, grads["attention_norm"] = layer_norm_backward(grad + back, first, **attention_norm, eps=eps)
    back, of_source, grads["attention"] = multi_head_attention_backward(grad, x, x, mask, n_heads, **attention)
    return grad + back + of_source, grads


def distilbert_backward(grad, ids, positions, mask, n_heads, activation, eps, embeddings, layers, pooler, head):
    def back(x, layers):
        """Returns the gradients of x and of the layers' weights. Calls itself once for each layer."""
        if not layers:
            dense = x[..., 0, :] @ pooler["weight"] + pooler["bias"]
            d_pooled, found["head"] = linear_backward(grad, np.maximum(dense, 0), **head["output"])
            d_first, found["pooler"] = linear_backward(d_pooled * (dense > 0), x[..., 0, :], **pooler)
            return np.concatenate([d_first[..., None, :], np.zeros_like(x[..., 1:, :])], axis=-2), []
        y = encoder_layer(x, mask, n_heads, activation, eps, **layers[0])
        dy, above = back(y, layers[1:])
        dx, own = encoder_layer_backward(dy, x, mask, n_heads, activation, eps, **layers[0])
        return dx, [own, *above]

    found = {}
    total = embeddings["token"]["weight"][ids] + embeddings["position"]["weight"][positions]
    dx, d_layers = back(layer_norm(total, **embeddings["norm"], eps=eps), layers)
    d_total, d_norm = layer_norm_backward(dx, total, **embeddings["norm"], eps=eps)
    tables = {name: embedding_backward(d_total, at, **embeddings[name]) for name, at in (("token", ids), ("position", positions))}  # fmt: skip
    return {
        "embeddings": {**tables, "norm": d_norm},
        "layers": d_layers,
        "pooler": found["pooler"],
        "head": {"output": found["head"]},
    }


def gelu_tanh(x):
    inner = math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)
    return x / (1 + np.exp(-2 * inner.astype(np.float64))).astype(x.dtype)


def cached_attention(x, past, n_heads, query, key, value, output):
    keys, values = (list(each.swapaxes(0, 1)) for each in past)
    rows = []
    for row in x:  # one token after another
        q, k, v = (split_heads(linear(row[None], **layer), n_heads) for layer in (query, key, value))
        keys.append(k[:, 0])
        values.append(v[:, 0])
        context = scaled_dot_product_attention(q, np.stack(keys, 1), np.stack(values, 1))
        rows.append(linear(combine_heads(context), **output)[0])
    return np.stack(rows), [np.stack(keys, 1), np.stack(values, 1)]


def cached_gpt2_layer(x, past, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    normed = layer_norm(x, attention_norm["weight"], attention_norm["bias"], eps)
    y, past = cached_attention(normed, past, n_heads, **attention)
    y = y + x
    return feed_forward(layer_norm(y, eps=eps, **ffn_norm), activation, **ffn) + y, past


def gpt2_step(ids, past, n_heads, activation, eps, embeddings, layers, norm, head):
    past, start = list(past), past[0][0].shape[1]
    x = embeddings["token"]["weight"][list(ids)] + embeddings["position"]["weight"][start : start + len(ids)]
    for i, layer in enumerate(layers):
        x, past[i] = cached_gpt2_layer(x, past[i], n_heads, activation, eps, **layer)
    last = layer_norm(x, norm["weight"], norm["bias"], eps)[-1]
    return np.dot(head["output"]["weight"].T, last), tuple(past)


def top_p(logits, p):
    exact = [math.exp(each - max(logits)) for each in logits.tolist()]
    exact = [each / sum(exact) for each in exact]
    kept, total = set(), 0.0
    for i in sorted(range(len(exact)), key=lambda i: -exact[i]):
        if total >= p:
            break
        kept.add(i)
        total += exact[i]
    return as_given([each / total if i in kept else 0.0 for i, each in enumerate(exact)], logits)
