"""BERT: the encoder of 2017 with learned positions and token types. Devlin et al., 2019, BERT.

mask is (..., 1, 1, L), True for tokens and False for padding, or True without padding; with `is_decoder`, mask is
`causal_mask`. BERT differs from the encoder of 2017 in its embeddings and in its activation, GELU.
"""

from npformer.plain.formulas import embedding, encoder_layer, layer_norm
from npformer.plain.heads import classify_first, classify_tokens, find_answer, pooled_states, predict_words


def embed(ids, positions, token_type_ids, eps, token, position, segment, norm):
    """LayerNorm(token + position + segment): (..., L) three times -> (..., L, D). Figure 2."""
    total = embedding(ids, **token) + embedding(positions, **position) + embedding(token_type_ids, **segment)
    return layer_norm(total, **norm, eps=eps)


def bert(ids, positions, token_type_ids, mask, n_heads, activation, eps, embeddings, layers):
    """The hidden states of the last layer, (..., L, D). Section 3."""
    x = embed(ids, positions, token_type_ids, eps, **embeddings)
    for layer in layers:
        x = encoder_layer(x, mask, n_heads, activation, eps, **layer)
    return x


MODEL = bert
HEADS = {
    "base": pooled_states,
    "sequence-classification": classify_first,
    "next-sentence": classify_first,
    "multiple-choice": classify_first,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
    "causal-lm": predict_words,
}
