"""BART: the Transformer of 2017 with learned positions and a norm of the embeddings. Lewis et al., 2020, section 2.1.

Positions begin at row 2 of their table. `source` is the result of the encoder. A classifier gives each text to both
stacks: to the encoder, and shifted right to the decoder. A decoder without attention to a source is a causal language
model.
"""

from npformer.plain.formulas import causal_mask, embedding, encoder, layer_norm
from npformer.plain.heads import classify_end, find_answer, predict_next, translate
from npformer.plain.transformer import decoder


def embed(ids, positions, scale, eps, token, position, norm):
    """LayerNorm(scale E[ids] + P[positions]), (..., L) -> (..., L, D)."""
    tokens = scale * embedding(ids, **token)
    total = tokens + embedding(positions, **position)
    return layer_norm(total, **norm, eps=eps)


def encode(ids, positions, mask, n_heads, activation, eps, scale, embeddings, layers):
    """The hidden states of the last layer, (..., S, D). With a causal mask, this is the decoder without a source."""
    x = embed(ids, positions, scale, eps, **embeddings)
    return encoder(x, mask, n_heads, activation, eps, layers)


def decode(ids, positions, source, n_heads, activation, eps, scale, embeddings, layers):
    """The hidden states of the decoder's last layer, (..., L, D), for source (..., S, D)."""
    x = embed(ids, positions, scale, eps, **embeddings)
    mask = causal_mask(ids.shape[-1])
    return decoder(x, source, mask, n_heads, activation, eps, layers)


def bart(
    ids, positions, target_ids, target_positions, n_heads, n_target_heads, activation, eps, scale, encoder, decoder
):
    """The hidden states of the last layer of the decoder, (..., L, D), and of the encoder, (..., S, D)."""
    source = encode(ids, positions, True, n_heads, activation, eps, scale, **encoder)
    x = decode(target_ids, target_positions, source, n_target_heads, activation, eps, scale, **decoder)
    return x, source


MODEL = bart
ALONE = encode
HEADS = {
    "translation": translate,
    "sequence-classification": classify_end,
    "question-answering": find_answer,
    "causal-lm": predict_next,
}
