"""Nomic BERT: BERT with rotary positions and gated feed-forward networks. Nussbaum et al., 2024, Nomic Embed.

Nomic BERT differs from BERT in its attention, which rotates queries and keys by their positions instead of adding a
table of positions to the embeddings (Su et al., 2021), and in its feed-forward network, SwiGLU (Shazeer, 2020). Layers
have no biases. mask is (..., 1, 1, L), True for tokens and False for padding, or True without padding.
"""

from npformer.plain.formulas import embedding, gated_feed_forward, layer_norm, rotary_angles, rotary_attention
from npformer.plain.heads import classify_first, classify_tokens, hidden_states, predict_words


def embed(ids, token_type_ids, eps, token, segment, norm):
    """LayerNorm(token + segment): (..., L) twice -> (..., L, D)."""
    total = embedding(ids, **token) + embedding(token_type_ids, **segment)
    return layer_norm(total, **norm, eps=eps)


def nomic_layer(x, mask, n_heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = LayerNorm(X + SelfAttention(X)); Z = LayerNorm(Y + SwiGLU(Y)). (..., L, D) -> (..., L, D)."""
    attention_residual = x + rotary_attention(x, mask, n_heads, angles, **attention)
    y = layer_norm(attention_residual, **attention_norm, eps=eps)
    ffn_residual = y + gated_feed_forward(y, activation, **ffn)
    return layer_norm(ffn_residual, **ffn_norm, eps=eps)


def nomic_bert(ids, positions, token_type_ids, mask, n_heads, frequencies, activation, eps, embeddings, layers):
    """The hidden states of the last layer, (..., L, D)."""
    x = embed(ids, token_type_ids, eps, **embeddings)
    angles = rotary_angles(positions, frequencies)
    for layer in layers:
        x = nomic_layer(x, mask, n_heads, angles, activation, eps, **layer)
    return x


MODEL = nomic_bert
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify_first,
    "token-classification": classify_tokens,
    "masked-lm": predict_words,
}
