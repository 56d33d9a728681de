"""SmolLM3: Llama with layers that do not rotate (NoPE). Bakouch et al., 2025, SmolLM3; Yang et al., 2025, RNoPE.

SmolLM3 differs from Llama in its angles and its mask. `rotations` has the frequencies and the magnitude of rotary
positions for each layer. In every fourth layer, frequencies and angles are 0, so only the mask shows the order of
tokens to the layer. `reaches` has an entry for each layer: the number of earlier tokens that a token attends to,
sliding_window - 1, or `math.inf` for all.
"""

from npformer.plain.formulas import causal_window_mask, embedding, rms_norm, rotary_angles
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next
from npformer.plain.llama import llama_layer
from npformer.plain.mistral import all_positions


def smollm3(ids, positions, past, heads, rotations, reaches, activation, eps, embeddings, layers, norm):
    """The normalized hidden states of the last layer, (..., L, D), and the next `past`.

    ids (..., L) and positions (L,) of the new tokens. past and heads: as in `llama`.
    """
    x = embedding(ids, **embeddings["token"])
    key_positions = all_positions(positions, past)  # (P + L,)
    past = list(past)  # a copy, because the caller's list must not change
    for i, (layer, rotation, reach) in enumerate(zip(layers, rotations, reaches)):
        angles = rotary_angles(positions, *rotation)
        mask = causal_window_mask(positions, key_positions, reach)
        x, past[i] = llama_layer(x, past[i], mask, heads, angles, activation, eps, **layer)
    return rms_norm(x, **norm, eps=eps), past


MODEL = smollm3
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
