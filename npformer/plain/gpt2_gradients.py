"""The gradients of GPT-2's next-token loss.

`gradients.py` has the backward function of each formula and explains the arguments.
"""

from npformer.plain.formulas import causal_mask, embedding, layer_norm, multi_head_attention
from npformer.plain.gpt2 import gpt2_layer
from npformer.plain.gradients import (
    embedding_backward,
    feed_forward_backward,
    layer_norm_backward,
    linear_backward,
    multi_head_attention_backward,
    stack_backward,
)


def gpt2_layer_backward(grad, x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """dx and the gradients of the layer, for `gpt2_layer`, in which norms come before the blocks."""
    normed = layer_norm(x, **attention_norm, eps=eps)
    y = x + multi_head_attention(normed, normed, mask, n_heads, **attention)
    d_normed, d_ffn = feed_forward_backward(grad, layer_norm(y, **ffn_norm, eps=eps), activation, **ffn)
    through_ffn, d_ffn_norm = layer_norm_backward(d_normed, y, **ffn_norm, eps=eps)
    dy = grad + through_ffn
    as_query, as_source, d_attention = multi_head_attention_backward(dy, normed, normed, mask, n_heads, **attention)
    through_attention, d_attention_norm = layer_norm_backward(as_query + as_source, x, **attention_norm, eps=eps)
    grads = {"attention": d_attention, "attention_norm": d_attention_norm, "ffn": d_ffn, "ffn_norm": d_ffn_norm}
    return dy + through_attention, grads


def gpt2_backward(grad, ids, positions, n_heads, activation, eps, embeddings, layers, norm, head):
    """The gradients of GPT-2's weights, nested like the weights, given the gradient of the logits (..., L, V)."""
    mask = causal_mask(ids.shape[-1], ids.shape[-1])
    xs = [embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"])]
    for layer in layers:
        xs.append(gpt2_layer(xs[-1], mask, n_heads, activation, eps, **layer))
    d_normed, d_head = linear_backward(grad, layer_norm(xs[-1], **norm, eps=eps), **head["output"])
    dx, d_norm = layer_norm_backward(d_normed, xs[-1], **norm, eps=eps)
    dx, d_layers = stack_backward(dx, xs, layers, gpt2_layer_backward, mask, n_heads, activation, eps)
    d_token = embedding_backward(dx, ids, **embeddings["token"])
    d_position = embedding_backward(dx, positions, **embeddings["position"])
    d_embeddings = {"token": d_token, "position": d_position}
    return {"embeddings": d_embeddings, "layers": d_layers, "norm": d_norm, "head": {"output": d_head}}
