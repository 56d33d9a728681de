"""OPT: GPT-2 with ReLU, and with positions that begin at row 2. Zhang et al., 2022, OPT, section 2.1.

The model with 350M parameters has norms after the blocks, no norm after the last layer, and a token table of E < D
columns. The rows of this table are projected to D columns, and the result back to E columns. Other checkpoints combine
these options.
"""

from npformer.plain.formulas import causal_mask, embedding, encoder_layer, layer_norm, linear
from npformer.plain.gpt2 import gpt2_layer
from npformer.plain.heads import classify_last, find_answer, hidden_states, predict_next


def embed(ids, positions, token, position):
    """token + position, ids (..., L) and positions (L,) -> (..., L, D)."""
    total = embedding(ids, **token) + embedding(positions, **position)
    return total


def embed_narrow(ids, positions, token, project, position):
    """token W + position, where the token table is (V, E) and W is (E, D). (..., L) and (L,) -> (..., L, D)."""
    total = linear(embedding(ids, **token), **project) + embedding(positions, **position)
    return total


def unchanged(x, eps=0.0):
    """x itself, for models without the last norm or without the projection."""
    return x


def opt(
    ids, positions, n_heads, activation, eps, embed_tokens, opt_layer, last_norm, last_projection,
    embeddings, layers, norm, project,
):  # fmt: skip
    """The hidden states after the last layer, (..., L, D), or (..., L, E) for a narrow table.

    ids (..., L), positions (L,): rows 2, 3, ... of the position table. The functions in CHOICES differ between
    checkpoints.
    """
    x = embed_tokens(ids, positions, **embeddings)
    mask = causal_mask(ids.shape[-1])  # (L, L)
    for layer in layers:
        x = opt_layer(x, mask, n_heads, activation, eps, **layer)
    return last_projection(last_norm(x, **norm, eps=eps), **project)


MODEL = opt
CHOICES = {
    "embed_tokens": {"wide": embed, "narrow": embed_narrow},
    "opt_layer": {"norms before blocks": gpt2_layer, "norms after blocks": encoder_layer},
    "last_norm": {"norm": layer_norm, "no norm": unchanged},
    "last_projection": {"wide": unchanged, "narrow": linear},
}
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "question-answering": find_answer,
}
