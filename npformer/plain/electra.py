"""ELECTRA: BERT with a head that finds replaced tokens. Clark et al., 2020, ELECTRA.

The generator predicts masked words, and the discriminator finds the tokens that the generator replaced. Apart from that
head, ELECTRA differs from BERT in its poolers: the base model has no pooler, and the pooler of a classifier has GELU
instead of tanh. Models with narrow tables have ALBERT's embeddings instead of BERT's.
"""

from npformer.plain.albert import factorized_embed
from npformer.plain.bert import embed
from npformer.plain.formulas import encoder_layer, linear
from npformer.plain.heads import classify_first, classify_tokens, find_answer, hidden_states, predict_words


def electra(ids, positions, token_type_ids, mask, n_heads, embed_tokens, activation, eps, embeddings, layers):
    """The hidden states of the last layer, (..., L, D). mask: as in BERT, (..., 1, 1, L), or True without padding."""
    x = embed_tokens(ids, positions, token_type_ids, eps, **embeddings)
    for layer in layers:
        x = encoder_layer(x, mask, n_heads, activation, eps, **layer)
    return x


def find_replaced(x, activation, head):
    """The logit of each token being a replacement: act(x W + b) w + c, (..., L). Section 2."""
    activated = activation(linear(x, **head["hidden"]))
    logits = linear(activated, **head["output"])[..., 0]
    return {"logits": logits}


MODEL = electra
CHOICES = {"embed_tokens": {"wide": embed, "narrow": factorized_embed}}
HEADS = {
    "base": hidden_states,
    "sequence-classification": classify_first,
    "multiple-choice": classify_first,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
    "masked-lm": predict_words,
    "causal-lm": predict_words,
    "replaced-token": find_replaced,
}
