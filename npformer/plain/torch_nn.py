"""torch's nn.TransformerEncoder and nn.Transformer: the Transformer of 2017 with the options of these modules.

Norms come after the blocks, as in 2017, or before them if `norm_first` is true (Xiong et al., 2020, On Layer
Normalization in the Transformer Architecture, figure 1), and a stack may end with a norm. torch has no embeddings or
heads. Here, the embeddings are the same as in 2017, and an encoder without a decoder may classify texts or tokens.

`ids` are torch's src, `target_ids` are torch's tgt, and `memory` is the result of the encoder. The decoder's mask is
always causal, whereas torch uses no mask unless tgt_mask is given. torch's in_proj_weight (3 D, D) is split into the
weights (D, D) of query, key and value, transposed. CHOICES has the possible functions for arguments that are functions.
"""

from npformer.plain.formulas import (
    causal_mask,
    embedding,
    encoder_layer,
    feed_forward,
    layer_norm,
    linear,
    multi_head_attention,
)
from npformer.plain.gpt2 import gpt2_layer
from npformer.plain.heads import classify_tokens, hidden_states, translate
from npformer.plain.transformer import decoder_layer

NO_WEIGHTS = {}  # weights of a missing table or norm
norm_first_encoder_layer = gpt2_layer  # the same computation


def no_rows(ids):
    """0, for models without a table of positions."""
    return 0.0


def unchanged(x, eps):
    """x itself, for stacks that do not end with a norm."""
    return x


def embed(ids, positions, scale, position_rows, token, position=NO_WEIGHTS):
    """scale E[ids] [+ P[positions]], (..., L) -> (..., L, D). scale: sqrt(D) or 1."""
    tokens = scale * embedding(ids, **token)
    total = tokens + position_rows(positions, **position)
    return total


def norm_first_decoder_layer(
    x, memory, mask, n_heads, activation, eps,
    attention, attention_norm, cross_attention, cross_attention_norm, ffn, ffn_norm,
):  # fmt: skip
    """Y = X + SelfAttention(LayerNorm(X)); Z = Y + CrossAttention(LayerNorm(Y), memory); Z + FFN(LayerNorm(Z)).

    x (..., L, D), memory (..., S, D) -> (..., L, D). mask (L, L) is for self-attention. Y, Z and the result:
    attention_residual, cross_attention_residual and ffn_residual.
    """
    normed = layer_norm(x, **attention_norm, eps=eps)
    attention_residual = x + multi_head_attention(normed, normed, mask, n_heads, **attention)
    normed = layer_norm(attention_residual, **cross_attention_norm, eps=eps)
    crossed = multi_head_attention(normed, memory, True, n_heads, **cross_attention)
    cross_attention_residual = attention_residual + crossed
    normed = layer_norm(cross_attention_residual, **ffn_norm, eps=eps)
    ffn_residual = cross_attention_residual + feed_forward(normed, activation, **ffn)
    return ffn_residual


def encode(
    ids, positions, mask, n_heads, activation, eps, scale, position_rows, src_layer, last_norm,
    embeddings, layers, norm=NO_WEIGHTS,
):  # fmt: skip
    """The hidden states after the encoder's last layer, (..., S, D)."""
    x = embed(ids, positions, scale, position_rows, **embeddings)
    for layer in layers:
        x = src_layer(x, mask, n_heads, activation, eps, **layer)
    return last_norm(x, **norm, eps=eps)


def decode(
    ids, positions, memory, n_heads, activation, eps, scale, position_rows, tgt_layer, last_norm,
    embeddings, layers, norm=NO_WEIGHTS,
):  # fmt: skip
    """The hidden states after the decoder's last layer, (..., L, D), for memory (..., S, D)."""
    x = embed(ids, positions, scale, position_rows, **embeddings)
    mask = causal_mask(ids.shape[-1])
    for layer in layers:
        x = tgt_layer(x, memory, mask, n_heads, activation, eps, **layer)
    return last_norm(x, **norm, eps=eps)


def torch_transformer(
    ids, positions, target_ids, target_positions, n_heads, n_target_heads, activation, eps, scale,
    position_rows, src_layer, tgt_layer, last_norm, encoder, decoder,
):  # fmt: skip
    """The hidden states after the last layer of the decoder, (..., L, D), and of the encoder, (..., S, D)."""
    sizes = (activation, eps, scale, position_rows)
    memory = encode(ids, positions, True, n_heads, *sizes, src_layer, last_norm, **encoder)
    x = decode(target_ids, target_positions, memory, n_target_heads, *sizes, tgt_layer, last_norm, **decoder)
    return x, memory


def classify(x, head):
    """Logits of a text's labels from the hidden state of its first token, (..., C)."""
    logits = linear(x[..., 0, :], **head["output"])
    return {"logits": logits}


MODEL = torch_transformer
ALONE = encode
CHOICES = {
    "position_rows": {"table": embedding, "no table": no_rows},
    "src_layer": {"norms before blocks": norm_first_encoder_layer, "norms after blocks": encoder_layer},
    "tgt_layer": {"norms before blocks": norm_first_decoder_layer, "norms after blocks": decoder_layer},
    "last_norm": {"norm": layer_norm, "no norm": unchanged},
}
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify,
    "token-classification": classify_tokens,
    "translation": translate,
}
