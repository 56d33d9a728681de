"""The gradients of the translator of 2017, an encoder and a decoder.

`gradients.py` has the other backward functions and explains the arguments. A decoder layer also returns the gradient of
its source, the encoder's result. All layers of the decoder read the source, so these gradients are added.
"""

import numpy as np

from npformer.plain.formulas import causal_mask, encoder_layer, feed_forward, layer_norm, multi_head_attention
from npformer.plain.gradients import (
    embedding_backward,
    encoder_layer_backward,
    feed_forward_backward,
    layer_norm_backward,
    linear_backward,
    multi_head_attention_backward,
    stack_backward,
)
from npformer.plain.transformer import decode, decoder_layer, embed, encode


def normed_attention_backward(grad, x, source, mask, n_heads, eps, attention, norm):
    """dx, dsource and the gradients of both groups of weights, for LayerNorm(x + Attention(x, source))."""
    total = x + multi_head_attention(x, source, mask, n_heads, **attention)
    d_total, d_norm = layer_norm_backward(grad, total, **norm, eps=eps)
    as_query, dsource, d_attention = multi_head_attention_backward(d_total, x, source, mask, n_heads, **attention)
    return d_total + as_query, dsource, d_attention, d_norm


def normed_feed_forward_backward(grad, x, activation, eps, ffn, norm):
    """dx and the gradients of both groups of weights, for LayerNorm(x + FFN(x))."""
    total = x + feed_forward(x, activation, **ffn)
    d_total, d_norm = layer_norm_backward(grad, total, **norm, eps=eps)
    through_ffn, d_ffn = feed_forward_backward(d_total, x, activation, **ffn)
    return d_total + through_ffn, d_ffn, d_norm


def decoder_layer_backward(
    grad, x, source, mask, n_heads, activation, eps,
    attention, attention_norm, cross_attention, cross_attention_norm, ffn, ffn_norm,
):  # fmt: skip
    """dx, dsource and the gradients of the layer, for `decoder_layer`."""
    y = layer_norm(x + multi_head_attention(x, x, mask, n_heads, **attention), **attention_norm, eps=eps)
    total = y + multi_head_attention(y, source, True, n_heads, **cross_attention)
    z = layer_norm(total, **cross_attention_norm, eps=eps)
    dz, *d_ffn = normed_feed_forward_backward(grad, z, activation, eps, ffn, ffn_norm)
    cross = (cross_attention, cross_attention_norm)
    dy, dsource, *d_cross = normed_attention_backward(dz, y, source, True, n_heads, eps, *cross)
    as_query, as_source, *d_own = normed_attention_backward(dy, x, x, mask, n_heads, eps, attention, attention_norm)
    names = ("attention", "attention_norm", "cross_attention", "cross_attention_norm", "ffn", "ffn_norm")
    return as_query + as_source, dsource, dict(zip(names, [*d_own, *d_cross, *d_ffn]))


def embed_backward(grad, ids, positions, scale, token, position):
    """The gradients of the tables, for scale token + position."""
    return {
        "token": embedding_backward(scale * grad, ids, **token),
        "position": embedding_backward(grad, positions, **position),
    }


def decode_backward(grad, ids, positions, source, n_heads, activation, eps, scale, embeddings, layers):
    """dsource and the gradients of the decoder, from the last layer to the embeddings."""
    mask = causal_mask(ids.shape[-1])
    xs = [embed(ids, positions, scale, **embeddings)]
    for layer in layers:
        xs.append(decoder_layer(xs[-1], source, mask, n_heads, activation, eps, **layer))
    dsource = np.zeros_like(source)
    grads = [{}] * len(layers)
    for i in reversed(range(len(layers))):
        grad, more, grads[i] = decoder_layer_backward(grad, xs[i], source, mask, n_heads, activation, eps, **layers[i])
        dsource = dsource + more
    return dsource, {"embeddings": embed_backward(grad, ids, positions, scale, **embeddings), "layers": grads}


def encode_backward(grad, ids, positions, n_heads, activation, eps, scale, embeddings, layers):
    """The gradients of the encoder, given the gradient of its result."""
    xs = [embed(ids, positions, scale, **embeddings)]
    for layer in layers:
        xs.append(encoder_layer(xs[-1], True, n_heads, activation, eps, **layer))
    grad, grads = stack_backward(grad, xs, layers, encoder_layer_backward, True, n_heads, activation, eps)
    return {"embeddings": embed_backward(grad, ids, positions, scale, **embeddings), "layers": grads}


def transformer_backward(
    grad, ids, positions, target_ids, target_positions, n_heads, n_target_heads, activation, eps, scale,
    encoder, decoder, head,
):  # fmt: skip
    """The gradients of the translator, nested like the weights, given the gradient of the logits (..., L, V)."""
    sizes = (activation, eps, scale)
    source = encode(ids, positions, n_heads, *sizes, **encoder)
    x = decode(target_ids, target_positions, source, n_target_heads, *sizes, **decoder)
    dx, d_head = linear_backward(grad, x, **head["output"])
    dsource, d_decoder = decode_backward(dx, target_ids, target_positions, source, n_target_heads, *sizes, **decoder)
    d_encoder = encode_backward(dsource, ids, positions, n_heads, *sizes, **encoder)
    return {"encoder": d_encoder, "decoder": d_decoder, "head": {"output": d_head}}
