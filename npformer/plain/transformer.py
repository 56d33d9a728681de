"""The Transformer of 2017, an encoder and a decoder for translation. Vaswani et al., 2017, Attention Is All You Need.

The decoder reads the target shifted right, which is a start token and the tokens so far, and predicts the next token.
`source` is the result of the encoder, which torch calls memory. The mask of cross-attention is True, because sources
have no padding here.
"""

import numpy as np

from npformer.plain.formulas import causal_mask, embedding, encoder, feed_forward, layer_norm, multi_head_attention
from npformer.plain.heads import translate


def sinusoidal_positions(length, width):
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)), (length, D). Section 3.5.

    >>> sinusoidal_positions(2, 4).round(4).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.01, 1.0]]
    """
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # (length, D / 2)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


def shifted(ids, start_id):
    """The start token and all ids except the last: the decoder's input for predicting ids, (L,) -> (L,). Section 3.1.

    >>> shifted(np.array([7, 8, 9]), start_id=0).tolist()
    [0, 7, 8]
    """
    return np.concatenate([[start_id], ids[:-1]])


def embed(ids, positions, scale, token, position):
    """scale E[ids] + P[positions], where scale is sqrt(D), (..., L) -> (..., L, D). Section 3.4."""
    tokens = scale * embedding(ids, **token)
    total = tokens + embedding(positions, **position)
    return total


def decoder_layer(
    x, source, mask, n_heads, activation, eps,
    attention, attention_norm, cross_attention, cross_attention_norm, ffn, ffn_norm,
):  # fmt: skip
    """Y = LayerNorm(X + SelfAttention(X)); Z = LayerNorm(Y + CrossAttention(Y, source)); LayerNorm(Z + FFN(Z)).

    x (..., L, D), source (..., S, D) -> (..., L, D). mask (L, L) is for self-attention. Section 3.1. The sums in
    the brackets are attention_residual, cross_attention_residual and ffn_residual.
    """
    attention_residual = x + multi_head_attention(x, x, mask, n_heads, **attention)
    y = layer_norm(attention_residual, **attention_norm, eps=eps)
    cross_attention_residual = y + multi_head_attention(y, source, True, n_heads, **cross_attention)
    z = layer_norm(cross_attention_residual, **cross_attention_norm, eps=eps)
    ffn_residual = z + feed_forward(z, activation, **ffn)
    return layer_norm(ffn_residual, **ffn_norm, eps=eps)


def decoder(x, source, mask, n_heads, activation, eps, layers):
    """Applies the layers in order, x (..., L, D), source (..., S, D) -> (..., L, D). Section 3.1, "Decoder"."""
    for layer in layers:
        x = decoder_layer(x, source, mask, n_heads, activation, eps, **layer)
    return x


def encode(ids, positions, n_heads, activation, eps, scale, embeddings, layers):
    """The hidden states of the encoder's last layer, (..., S, D). Section 3.1, "Encoder"."""
    x = embed(ids, positions, scale, **embeddings)
    return encoder(x, True, n_heads, activation, eps, layers)


def decode(ids, positions, source, n_heads, activation, eps, scale, embeddings, layers):
    """The hidden states of the decoder's last layer, (..., L, D), for source (..., S, D). Section 3.1, "Decoder"."""
    x = embed(ids, positions, scale, **embeddings)
    mask = causal_mask(ids.shape[-1])
    return decoder(x, source, mask, n_heads, activation, eps, layers)


def transformer(
    ids, positions, target_ids, target_positions, n_heads, n_target_heads, activation, eps, scale, encoder, decoder
):
    """The hidden states of the last layer of the decoder, (..., L, D), and of the encoder, (..., S, D). Figure 1."""
    source = encode(ids, positions, n_heads, activation, eps, scale, **encoder)
    x = decode(target_ids, target_positions, source, n_target_heads, activation, eps, scale, **decoder)
    return x, source


MODEL = transformer
HEADS = {"translation": translate}
