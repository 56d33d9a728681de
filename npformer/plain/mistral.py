"""Mistral: Llama with a sliding window. Jiang et al., 2023, Mistral 7B, section 2.

It differs from Llama in its mask: a token sees itself and the `reach` tokens before it, W = reach + 1 tokens in the
paper. After k layers, information has moved forward by up to k * reach tokens.
"""

from npformer.plain.formulas import causal_window_mask, embedding, rms_norm, rotary_angles
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next
from npformer.plain.llama import all_positions, llama_layer


def mistral(ids, positions, past, heads, frequencies, magnitude, reach, activation, eps, embeddings, layers, norm):
    """The normalized rows of the last layer, (..., L, D), and the next `past`. ids (..., L), positions (L,)."""
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    key_positions = all_positions(positions, past)  # (S + L,)
    mask = causal_window_mask(positions, key_positions, reach)
    past = list(past)  # the caller's stays as it is
    for i, layer in enumerate(layers):
        x, past[i] = llama_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = mistral
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
