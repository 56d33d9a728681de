"""Gradients: the backward function of each formula of an encoder, and the gradients of DistilBERT's classifier.

The backward of a function takes grad, the gradient of the loss with respect to the function's result, followed by the
function's arguments. It returns the gradients of the arrays (x; q, k and v; x and source), and the gradients of the
weights, nested like the weights. It recomputes intermediate values. Rumelhart et al., 1986; Baydin et al., 2018,
section 3.2.
Exceptions:

- `softmax_backward` takes the result y instead of x, and `rotate_backward` (llama_gradients.py) takes no array.
- `embed_backward` also takes the sum of the rows of the tables, and `stack_backward` the stored input of each layer.
- Functions that read ids return only the gradients of weights.
- For a linear layer without a bias, the result includes the gradient of a bias of 0.

dy is the gradient of y, and N is the number of rows in all texts of a batch.
"""

import math

import numpy as np

from npformer.plain.formulas import (
    combine_heads,
    embedding,
    encoder_layer,
    erf,
    feed_forward,
    layer_norm,
    linear,
    masked_softmax,
    multi_head_attention,
    relu,
    scaled_dot_product_attention,
    split_heads,
)


def flat(x):
    """All rows of x, (..., D) -> (N, D)."""
    return x.reshape(-1, x.shape[-1])


def linear_backward(grad, x, weight, bias=0.0):
    """dx = grad W^T, dW = x^T grad, db = sum of grad, for y = x W + b. grad (..., out), x (..., in) -> (..., in).

    >>> linear_backward(np.array([[1.0, 2.0]]), np.array([[3.0]]), np.array([[4.0, 5.0]]))
    (array([[14.]]), {'weight': array([[3., 6.]]), 'bias': array([1., 2.])})
    """
    return grad @ weight.T, {"weight": flat(x).T @ flat(grad), "bias": flat(grad).sum(axis=0)}


def embedding_backward(grad, ids, weight):
    """{"weight": dE}: row i of dE (V, D) is the sum of grad (..., L, D) over the tokens with id i, or zeros."""
    d_weight = np.zeros_like(weight)
    np.add.at(d_weight, np.broadcast_to(ids, grad.shape[:-1]), grad)
    return {"weight": d_weight}


def layer_norm_backward(grad, x, weight=1.0, bias=0.0, eps=1e-5):
    """dx = (g - mean(g) - n mean(g n)) / s, where n = (x - mean) / s, s = sqrt(variance + eps) and g = grad weight.

    grad and x (..., D) -> (..., D), and the gradients of weight and bias, (D,), sums over all N rows.
    """
    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n, g = layer_norm(x, eps=eps), grad * weight
    dx = (g - g.mean(axis=-1, keepdims=True) - n * (g * n).mean(axis=-1, keepdims=True)) / s
    return dx, {"weight": flat(grad * n).sum(axis=0), "bias": flat(grad).sum(axis=0)}


def relu_backward(grad, x):
    """dx = grad where x > 0, else 0."""
    return grad * (x > 0)


def silu_backward(grad, x):
    """dx = grad s (1 + x (1 - s)), where s = 1 / (1 + exp(-x))."""
    s = (1 + np.tanh(x / 2)) / 2  # equivalent, without overflow
    return grad * s * (1 + x * (1 - s))


def gelu_backward(grad, x):
    """dx = grad (Phi(x) + x phi(x)), where phi is the standard normal density."""
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return (grad * ((1 + erf(x / math.sqrt(2))) / 2 + x * density)).astype(x.dtype)


def gelu_tanh_backward(grad, x):
    """dx = grad ((1 + t) + x (1 - t^2) u') / 2, where t = tanh(u) and u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return grad * ((1 + t) + x * (1 - t**2) * slope) / 2


#: The backward function of each activation, by name.
BACKWARDS = {
    "relu": relu_backward, "silu": silu_backward, "gelu": gelu_backward, "gelu_tanh": gelu_tanh_backward,
}  # fmt: skip


def softmax_backward(grad, y):
    """dx = y (grad - sum(grad y)), for the result y = softmax(x), (..., D).

    >>> softmax_backward(np.array([1.0, 0.0]), np.array([0.25, 0.75]))
    array([ 0.1875, -0.1875])
    """
    return y * (grad - (grad * y).sum(axis=-1, keepdims=True))


def scaled_dot_product_attention_backward(grad, q, k, v, mask):
    """dq = dS k / sqrt(K), dk = dS^T q / sqrt(K), dv = P^T grad, for S = q k^T / sqrt(K) and P = softmax(S).

    dP = grad v^T and dS = P (dP - sum(dP P)). Dao et al., 2022, FlashAttention, appendix B.2.
    """
    weights = masked_softmax(q @ k.mT / math.sqrt(q.shape[-1]), mask)
    d_products = softmax_backward(grad @ v.mT, weights) / math.sqrt(q.shape[-1])
    return d_products @ k, d_products.mT @ q, weights.mT @ grad


def multi_head_attention_backward(grad, x, source, mask, n_heads, query, key, value, output):
    """dx, dsource and the gradients of the four linear layers. In self-attention, x gets dx + dsource."""
    q, k, v = linear(x, **query), linear(source, **key), linear(source, **value)
    q, k, v = (split_heads(each, n_heads) for each in (q, k, v))  # (..., H, L or S, K)
    combined = combine_heads(scaled_dot_product_attention(q, k, v, mask))
    d_combined, d_output = linear_backward(grad, combined, **output)
    dq, dk, dv = scaled_dot_product_attention_backward(split_heads(d_combined, n_heads), q, k, v, mask)
    dx, d_query = linear_backward(combine_heads(dq), x, **query)
    from_key, d_key = linear_backward(combine_heads(dk), source, **key)
    from_value, d_value = linear_backward(combine_heads(dv), source, **value)
    return dx, from_key + from_value, {"query": d_query, "key": d_key, "value": d_value, "output": d_output}


def feed_forward_backward(grad, x, activation, hidden, output):
    """dx and the gradients of the two linear layers, for `feed_forward`."""
    h = linear(x, **hidden)
    d_activated, d_output = linear_backward(grad, activation(h), **output)
    dx, d_hidden = linear_backward(BACKWARDS[activation.__name__](d_activated, h), x, **hidden)
    return dx, {"hidden": d_hidden, "output": d_output}


def encoder_layer_backward(grad, x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """dx and the gradients of the layer, for `encoder_layer`.

    A residual y = x + f(x) gives dx = dy + the gradient through f.
    """
    total = x + multi_head_attention(x, x, mask, n_heads, **attention)
    y = layer_norm(total, **attention_norm, eps=eps)
    d_sum, d_ffn_norm = layer_norm_backward(grad, y + feed_forward(y, activation, **ffn), **ffn_norm, eps=eps)
    through_ffn, d_ffn = feed_forward_backward(d_sum, y, activation, **ffn)  # dy = d_sum + through_ffn
    d_total, d_attention_norm = layer_norm_backward(d_sum + through_ffn, total, **attention_norm, eps=eps)
    as_query, as_source, d_attention = multi_head_attention_backward(d_total, x, x, mask, n_heads, **attention)
    grads = {"attention": d_attention, "attention_norm": d_attention_norm, "ffn": d_ffn, "ffn_norm": d_ffn_norm}
    return d_total + as_query + as_source, grads


def stack_backward(grad, xs, layers, layer_backward, *sizes):
    """dx and the gradients of each layer, from the last layer to the first. xs: the input of each layer."""
    grads = [{}] * len(layers)
    for i in reversed(range(len(layers))):
        grad, grads[i] = layer_backward(grad, xs[i], *sizes, **layers[i])
    return grad, grads


def distilbert_backward(grad, ids, positions, mask, n_heads, activation, eps, embeddings, layers, pooler, head):
    """The gradients of the classifier's weights, nested like the weights, given the gradient of the logits (..., C)."""
    total = embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"])
    xs = [layer_norm(total, **embeddings["norm"], eps=eps)]  # the input of each layer, and the result of the last layer
    for layer in layers:
        xs.append(encoder_layer(xs[-1], mask, n_heads, activation, eps, **layer))
    dense = linear(xs[-1][..., 0, :], **pooler)
    d_pooled, d_head = linear_backward(grad, relu(dense), **head["output"])
    d_first, d_pooler = linear_backward(relu_backward(d_pooled, dense), xs[-1][..., 0, :], **pooler)
    dx = np.zeros_like(xs[-1])
    dx[..., 0, :] = d_first
    dx, d_layers = stack_backward(dx, xs, layers, encoder_layer_backward, mask, n_heads, activation, eps)
    d_embeddings = embed_backward(dx, total, ids, positions, eps, **embeddings)
    return {"embeddings": d_embeddings, "layers": d_layers, "pooler": d_pooler, "head": {"output": d_head}}


def embed_backward(grad, total, ids, positions, eps, token, position, norm):
    """The gradients of the tables and of the norm, for LayerNorm(token + position)."""
    d_total, d_norm = layer_norm_backward(grad, total, **norm, eps=eps)
    d_token, d_position = embedding_backward(d_total, ids, **token), embedding_backward(d_total, positions, **position)
    return {"token": d_token, "position": d_position, "norm": d_norm}
