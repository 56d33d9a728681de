"""Qwen2: Llama with biases for query, key and value, and with a window in some layers.

Yang et al., 2024, Qwen2 Technical Report, section 2.2. The code differs from Llama only in the mask, because `linear`
adds a bias if the layer has one. `reaches` has an entry for each layer: the number of earlier tokens that a token
attends to, sliding_window - 1, or `math.inf` for all.
"""

from npformer.plain.formulas import causal_window_mask, embedding, rms_norm, rotary_angles
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next
from npformer.plain.llama import llama_layer
from npformer.plain.mistral import all_positions


def qwen2(ids, positions, past, heads, frequencies, magnitude, reaches, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past, heads, frequencies, magnitude: as in `llama`.
    """
    x = embedding(ids, **embeddings["token"])
    angles = rotary_angles(positions, frequencies, magnitude)
    key_positions = all_positions(positions, past)  # (P + L,)
    past = list(past)  # a copy, because the caller's list must not change
    for i, (layer, reach) in enumerate(zip(layers, reaches)):
        mask = causal_window_mask(positions, key_positions, reach)
        x, past[i] = llama_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = qwen2
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
