"""ModernBERT: an encoder with rotary positions, local layers and gated networks. Warner et al., 2024, section 2.1.

ModernBERT differs from BERT in its layers, which have no biases: norms come before the blocks, attention rotates
queries and keys, most layers attend to a window, and the feed-forward network is GeGLU. Of every three layers, the
first is global, with 160,000 as the base of its rotary frequencies. The others attend to 64 tokens on each side, with a
base of 10,000. mask is (..., 1, 1, L), True for tokens and False for padding, or True without padding. `positions` (L,)
are for the rotation, and `text_positions` (L,) are the positions in the text, for the windows. Both are 0 ... L - 1.
"""

import numpy as np

from npformer.plain.formulas import (
    embedding,
    gated_feed_forward,
    layer_norm,
    linear,
    rotary_angles,
    rotary_attention,
    window_mask,
)
from npformer.plain.heads import classify_tokens, find_answer, hidden_states, predict_words


def embed(ids, eps, token, norm):
    """LayerNorm(token): (..., L) -> (..., L, D). There is no position table."""
    return layer_norm(embedding(ids, **token), **norm, eps=eps)


def first_layer(x, mask, n_heads, angles, activation, eps, attention, ffn, ffn_norm):
    """Y = X + SelfAttention(X); Z = Y + FFN(LayerNorm(Y)). The embeddings, X, are normalized already. Section 2.1.1.

    Y and Z, here and in later layers: attention_residual and ffn_residual.
    """
    attention_residual = x + rotary_attention(x, mask, n_heads, angles, **attention)
    normed = layer_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual


def later_layer(x, mask, n_heads, angles, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(LayerNorm(X)); Z = Y + FFN(LayerNorm(Y)). (..., L, D) -> (..., L, D)."""
    normed = layer_norm(x, **attention_norm, eps=eps)
    attention_residual = x + rotary_attention(normed, mask, n_heads, angles, **attention)
    normed = layer_norm(attention_residual, **ffn_norm, eps=eps)
    ffn_residual = attention_residual + gated_feed_forward(normed, activation, **ffn)
    return ffn_residual


def modernbert(
    ids, positions, text_positions, mask, n_heads, rotations, reaches, activation, eps, embeddings, layers, norm
):
    """The normalized hidden states of the last layer, (..., L, D).

    rotations and reaches have an entry for each layer: rotary frequencies and magnitude, and the number of tokens that
    a token attends to on each side, `math.inf` in global layers. Section 2.1.2.
    """
    x = embed(ids, eps, **embeddings)
    layer_functions = [first_layer] + [later_layer] * (len(layers) - 1)
    for layer_function, layer, rotation, reach in zip(layer_functions, layers, rotations, reaches):
        angles = rotary_angles(positions, *rotation)
        near = window_mask(text_positions, text_positions, reach)  # (L, L)
        x = layer_function(x, mask & near, n_heads, angles, activation, eps, **layer)
    return layer_norm(x, **norm, eps=eps)


def first_row(x, mask):
    """The first row of each text, (..., L, D) -> (..., D)."""
    return x[..., 0, :]


def mean_row(x, mask):
    """The mean of the rows of each text, without padding, (..., L, D) -> (..., D)."""
    kept = np.broadcast_to(mask, (*x.shape[:-2], 1, 1, x.shape[-2]))  # mask may be True
    kept = kept[..., 0, 0, :, None]  # (..., L, 1)
    return x.mean(axis=-2, where=kept)


def transform(x, head_activation, eps, head):
    """LayerNorm(act(x W)), (..., D) -> (..., D): the layer before the last layer of every head."""
    activated = head_activation(linear(x, **head["hidden"]))
    return layer_norm(activated, **head["norm"], eps=eps)


def classify_row(x, mask, pooling, head_activation, eps, head):
    """Logits of a text's labels from one row of each text, (..., C). pooling: `first_row` or `mean_row`."""
    pooled = pooling(x, mask)
    logits = linear(transform(pooled, head_activation, eps, head), **head["output"])
    return {"logits": logits}


def transform_and_classify_tokens(x, head_activation, eps, head):
    """Logits of the labels of every token, (..., L, C)."""
    return classify_tokens(transform(x, head_activation, eps, head), head)


def transform_and_find_answer(x, head_activation, eps, head):
    """Logits of every token as the start and as the end of an answer, (..., L)."""
    return find_answer(transform(x, head_activation, eps, head), head)


MODEL = modernbert
CHOICES = {"pooling": {"first": first_row, "mean": mean_row}}
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify_row,
    "multiple-choice": classify_row,
    "token-classification": transform_and_classify_tokens,
    "question-answering": transform_and_find_answer,
    "masked-lm": predict_words,
}
