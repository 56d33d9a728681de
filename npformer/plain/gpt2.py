"""GPT-2: causal pre-norm layers with learned positions. Radford et al., 2019, section 2.3.

GPT-2 differs from the encoder of 2017 in its norms, which come before the blocks, in its mask, and in its activation,
the tanh form of GELU.
"""

from npformer.plain.formulas import causal_mask, embedding, feed_forward, layer_norm, multi_head_attention
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next


def gpt2_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(LayerNorm(X)); Z = Y + FFN(LayerNorm(Y)). (..., L, D) -> (..., L, D).

    Y and Z: attention_residual and ffn_residual.
    """
    normed = layer_norm(x, **attention_norm, eps=eps)
    attention_residual = x + multi_head_attention(normed, normed, mask, n_heads, **attention)
    normed = layer_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + feed_forward(normed, activation, **ffn)
    return ffn_residual


def gpt2(ids, positions, n_heads, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, ids (..., L), positions (L,) -> (..., L, D)."""
    total = embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"])
    x = total
    mask = causal_mask(ids.shape[-1])  # (L, L)
    for layer in layers:
        x = gpt2_layer(x, mask, n_heads, activation, eps, **layer)
    return layer_norm(x, **norm, eps=eps)


MODEL = gpt2
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "multiple-choice": classify_last,
}
