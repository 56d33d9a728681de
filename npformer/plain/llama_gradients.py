"""The gradients of Llama's next-token loss, and backward functions of its formulas.

`gradients.py` has the other backward functions and explains the arguments. These functions read a text as a whole,
without a cache.
"""

import numpy as np

from npformer.plain.decoding import no_past
from npformer.plain.formulas import (
    causal_mask,
    combine_heads,
    embedding,
    linear,
    rms_norm,
    rotary_angles,
    rotate,
    rotate_first,
    scaled_dot_product_attention,
    split_heads,
)
from npformer.plain.gradients import (
    BACKWARDS,
    embedding_backward,
    flat,
    linear_backward,
    scaled_dot_product_attention_backward,
    stack_backward,
)
from npformer.plain.llama import grouped_query_attention, llama_layer


def rms_norm_backward(grad, x, weight=1.0, eps=1e-6):
    """dx = (g - n mean(g n)) / s, where n = x / s, s = sqrt(mean(x^2) + eps) and g = grad weight."""
    s = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    n, g = rms_norm(x, eps=eps), grad * weight
    dx = (g - n * (g * n).mean(axis=-1, keepdims=True)) / s
    return dx, {"weight": flat(grad * n).sum(axis=0)}


def rotate_backward(grad, cos, sin):
    """dx, the gradient rotated back by the same angles. It does not depend on x."""
    return rotate(grad, cos, -sin)


def rotate_first_backward(grad, cos, sin):
    """dx, with the first columns of each head rotated back, for `rotate_first`."""
    return rotate_first(grad, cos, -sin)


def gated_feed_forward_backward(grad, x, activation, gate, up, output):
    """dx and the gradients of the three linear layers. For y = a u, da = grad u and du = grad a."""
    g, u = linear(x, **gate), linear(x, **up)
    d_gated, d_output = linear_backward(grad, activation(g) * u, **output)
    from_gate, d_gate = linear_backward(BACKWARDS[activation.__name__](d_gated * u, g), x, **gate)
    from_up, d_up = linear_backward(d_gated * activation(g), x, **up)
    return from_gate + from_up, {"gate": d_gate, "up": d_up, "output": d_output}


def sum_groups(grad, n_kv_heads):
    """The gradient of a shared head: the sum over the H / G heads that share it, (..., H, L, K) -> (..., G, L, K).

    >>> sum_groups(np.array([[[1]], [[2]], [[3]], [[4]]]), n_kv_heads=2).tolist()
    [[[3]], [[7]]]
    """
    return grad.reshape(*grad.shape[:-3], n_kv_heads, -1, *grad.shape[-2:]).sum(axis=-3)


def grouped_query_attention_backward(grad, x, mask, heads, angles, query, key, value, output):
    """dx and the gradients of the four linear layers, for `grouped_query_attention` without earlier tokens."""
    n_heads, n_kv_heads = heads
    q = rotate(split_heads(linear(x, **query), n_heads), *angles)  # (..., H, L, K)
    k = rotate(split_heads(linear(x, **key), n_kv_heads), *angles)  # (..., G, L, K)
    v = split_heads(linear(x, **value), n_kv_heads)
    k, v = (each.repeat(n_heads // n_kv_heads, axis=-3) for each in (k, v))
    combined = combine_heads(scaled_dot_product_attention(q, k, v, mask))
    d_combined, d_output = linear_backward(grad, combined, **output)
    dq, dk, dv = scaled_dot_product_attention_backward(split_heads(d_combined, n_heads), q, k, v, mask)
    dk, dv = sum_groups(dk, n_kv_heads), sum_groups(dv, n_kv_heads)
    from_query, d_query = linear_backward(combine_heads(rotate_backward(dq, *angles)), x, **query)
    from_key, d_key = linear_backward(combine_heads(rotate_backward(dk, *angles)), x, **key)
    from_value, d_value = linear_backward(combine_heads(dv), x, **value)
    grads = {"query": d_query, "key": d_key, "value": d_value, "output": d_output}
    return from_query + from_key + from_value, grads


def rotary_attention_backward(grad, x, mask, n_heads, angles, query, key, value, output):
    """dx and the gradients of the four linear layers. With groups of one, each head has its own keys and values."""
    return grouped_query_attention_backward(grad, x, mask, (n_heads, n_heads), angles, query, key, value, output)


def llama_layer_backward(grad, x, mask, heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """dx and the gradients of the layer, for `llama_layer` without earlier tokens."""
    [past] = no_past(1, heads[1], 2 * angles[0].shape[-1], x.shape[:-2])
    normed = rms_norm(x, **attention_norm, eps=eps)
    attended, _ = grouped_query_attention(normed, past, mask, heads, angles, **attention)
    y = x + attended
    d_normed, d_ffn = gated_feed_forward_backward(grad, rms_norm(y, **ffn_norm, eps=eps), activation, **ffn)
    through_ffn, d_ffn_norm = rms_norm_backward(d_normed, y, **ffn_norm, eps=eps)
    dy = grad + through_ffn
    d_normed, d_attention = grouped_query_attention_backward(dy, normed, mask, heads, angles, **attention)
    through_attention, d_attention_norm = rms_norm_backward(d_normed, x, **attention_norm, eps=eps)
    grads = {"attention": d_attention, "attention_norm": d_attention_norm, "ffn": d_ffn, "ffn_norm": d_ffn_norm}
    return dy + through_attention, grads


def llama_backward(
    grad, ids, positions, heads, frequencies, magnitude, activation, eps, embeddings, layers, norm, head
):
    """The gradients of Llama's weights, nested like the weights, given the gradient of the logits (..., L, V)."""
    angles = rotary_angles(positions, frequencies, magnitude)
    sizes = (causal_mask(ids.shape[-1]), heads, angles, activation, eps)
    xs = [embedding(ids, **embeddings["token"])]
    for layer, past in zip(layers, no_past(len(layers), heads[1], 2 * angles[0].shape[-1], ids.shape[:-1])):
        x, _ = llama_layer(xs[-1], past, *sizes, **layer)
        xs.append(x)
    d_normed, d_head = linear_backward(grad, rms_norm(xs[-1], **norm, eps=eps), **head["output"])
    dx, d_norm = rms_norm_backward(d_normed, xs[-1], **norm, eps=eps)
    dx, d_layers = stack_backward(dx, xs, layers, llama_layer_backward, *sizes)
    d_token = embedding_backward(dx, ids, **embeddings["token"])
    return {"embeddings": {"token": d_token}, "layers": d_layers, "norm": d_norm, "head": {"output": d_head}}
