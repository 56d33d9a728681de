"""Mistral: Llama with a sliding window. Jiang et al., 2023, Mistral 7B, section 2.

Mistral differs from Llama in its mask: a token attends to itself and to the `reach` tokens before it. The paper's W,
sliding_window in config.json, counts the token itself, so reach = W - 1. After k layers, information has moved forward
by up to k * reach tokens.
"""

import numpy as np

from npformer.plain.formulas import causal_window_mask, embedding, rms_norm, rotary_angles
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next
from npformer.plain.llama import llama_layer


def all_positions(positions, past):
    """The positions of P earlier tokens, 0 ... P - 1, then the positions of the new tokens, (L,) -> (P + L,)."""
    n_past = past[0][0].shape[-2]
    return np.concatenate([np.arange(n_past), positions])


def mistral(ids, positions, past, heads, frequencies, magnitude, reach, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    key_positions = all_positions(positions, past)  # (P + L,)
    mask = causal_window_mask(positions, key_positions, reach)
    past = list(past)  # a copy, because the caller's list must not change
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
