"""ALBERT: BERT with narrow tables, and layers that share their weights. Lan et al., 2020, ALBERT, section 3.1.

ALBERT differs from BERT in one line: a linear layer widens the embeddings from E columns to D. `layers` has an entry
for each layer to compute. Layers that share weights have the same entry.
"""

from npformer.plain.formulas import embedding, encoder_layer, layer_norm, linear
from npformer.plain.heads import classify_first, classify_tokens, find_answer, pooled_states, predict_words


def factorized_embed(ids, positions, token_type_ids, eps, token, position, segment, norm, project):
    """LayerNorm(token + position + segment) W + b, from tables of E columns: (..., L) three times -> (..., L, D)."""
    total = embedding(ids, **token) + embedding(positions, **position) + embedding(token_type_ids, **segment)
    normed = layer_norm(total, **norm, eps=eps)  # (..., L, E)
    return linear(normed, **project)


def albert(ids, positions, token_type_ids, mask, n_heads, activation, eps, embeddings, layers):
    """The hidden states of the last layer, (..., L, D). mask: as in BERT, (..., 1, 1, L), or True without padding."""
    x = factorized_embed(ids, positions, token_type_ids, eps, **embeddings)
    for layer in layers:
        x = encoder_layer(x, mask, n_heads, activation, eps, **layer)
    return x


MODEL = albert
HEADS = {
    "base": pooled_states,
    "sequence-classification": classify_first,
    "next-sentence": classify_first,
    "multiple-choice": classify_first,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
}
