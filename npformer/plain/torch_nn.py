"""torch's nn.TransformerEncoder and nn.Transformer: the Transformer of 2017 with the choices of these modules.

Norms come after the blocks, as in 2017, or before them if `norm_first` is true (Xiong et al., 2020, On Layer
Normalization in the Transformer Architecture, figure 1), and a stack may end with a norm. torch leaves embeddings and
heads to its users: here, embeddings are those of 2017, and an encoder alone may classify texts or tokens. The functions
that CHOICES lists differ between checkpoints.
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

NO_WEIGHTS = {}  # of a table or a norm that a model does not have


def no_rows(ids):
    """0, in models without a table of positions."""
    return 0.0


def unchanged(x, eps):
    """x itself, in stacks that do not end with a norm."""
    return x


def embed(ids, positions, scale, position_rows, token, position=NO_WEIGHTS):
    """scale E[ids] [+ P[positions]], (..., L) -> (..., L, D). scale: sqrt(D) or 1."""
    tokens = scale * embedding(ids, **token)
    total = tokens + position_rows(positions, **position)
    return total


def norm_first_decoder_layer(
    x, source, mask, n_heads, activation, eps,
    attention, attention_norm, cross_attention, cross_attention_norm, ffn, ffn_norm,
):  # fmt: skip
    """Y = X + Attention(Normalize(X)); Z = Y + Attention(Normalize(Y), source); Z + FFN(Normalize(Z)).

    x (..., L, D), source (..., S, D) -> (..., L, D). mask: True where a row of x may attend to a row of x.
    """
    normed = layer_norm(x, **attention_norm, eps=eps)
    attention_residual = x + multi_head_attention(normed, normed, mask, n_heads, **attention)
    normed = layer_norm(attention_residual, **cross_attention_norm, eps=eps)
    crossed = multi_head_attention(normed, source, True, n_heads, **cross_attention)
    cross_attention_residual = attention_residual + crossed
    normed = layer_norm(cross_attention_residual, **ffn_norm, eps=eps)
    ffn_residual = cross_attention_residual + feed_forward(normed, activation, **ffn)
    return ffn_residual


def encode(
    ids, positions, mask, n_heads, activation, eps, scale, position_rows, source_layer, last_norm,
    embeddings, layers, norm=NO_WEIGHTS,
):  # fmt: skip
    """The rows after the encoder's last layer, (..., S, D)."""
    x = embed(ids, positions, scale, position_rows, **embeddings)
    for layer in layers:
        x = source_layer(x, mask, n_heads, activation, eps, **layer)
    return last_norm(x, **norm, eps=eps)


def decode(
    ids, positions, source, n_heads, activation, eps, scale, position_rows, target_layer, last_norm,
    embeddings, layers, norm=NO_WEIGHTS,
):  # fmt: skip
    """The rows after the decoder's last layer, (..., L, D), for source (..., S, D)."""
    x, mask = embed(ids, positions, scale, position_rows, **embeddings), causal_mask(ids.shape[-1])
    for layer in layers:
        x = target_layer(x, source, mask, n_heads, activation, eps, **layer)
    return last_norm(x, **norm, eps=eps)


def torch_transformer(
    ids, positions, target_ids, target_positions, n_heads, n_target_heads, activation, eps, scale,
    position_rows, source_layer, target_layer, last_norm, encoder, decoder,
):  # fmt: skip
    """The rows after the decoder's last layer, (..., L, D), and after the encoder's, (..., S, D)."""
    sizes = (activation, eps, scale, position_rows)
    source = encode(ids, positions, True, n_heads, *sizes, source_layer, last_norm, **encoder)
    x = decode(target_ids, target_positions, source, n_target_heads, *sizes, target_layer, last_norm, **decoder)
    return x, source


def classify(x, head):
    """Logits of a text's labels from its first row, (..., C)."""
    logits = linear(x[..., 0, :], **head["output"])
    return {"logits": logits}


MODEL = torch_transformer
ALONE = encode
CHOICES = {
    "position_rows": {"table": embedding, "no table": no_rows},
    "source_layer": {"norms before blocks": gpt2_layer, "norms after blocks": encoder_layer},
    "target_layer": {"norms before blocks": norm_first_decoder_layer, "norms after blocks": decoder_layer},
    "last_norm": {"norm": layer_norm, "no norm": unchanged},
}
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify,
    "token-classification": classify_tokens,
    "translation": translate,
}
