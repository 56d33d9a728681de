"""SmolLM3: Llama with layers that do not rotate (NoPE). Bakouch et al., 2025, SmolLM3; Yang et al., 2025, RNoPE.

It differs from Llama in its angles and its masks, which a list gives for each layer. `rotations` are frequencies and
magnitude of rotary positions: every fourth layer has frequencies of 0, and so an angle of 0 at every position. Its
order of tokens comes from the causal mask alone. `reaches`: how many earlier tokens a token sees, `math.inf` for all.
"""

from npformer.plain.formulas import causal_mask, embedding, rms_norm, rotary_angles, window_mask
from npformer.plain.heads import classify_last, classify_tokens, find_answer, hidden_states, predict_next
from npformer.plain.llama import all_positions, llama_layer


def smollm3(ids, positions, past, heads, rotations, reaches, activation, eps, embeddings, layers, norm):
    """The normalized rows of the last layer, (..., L, D), and the next `past`. ids (..., L), positions (L,)."""
    x = embedding(ids, **embeddings["token"])
    key_positions = all_positions(positions, past)  # (S + L,)
    now = []
    for layer, before, rotation, reach in zip(layers, past, rotations, reaches):
        angles = rotary_angles(positions, *rotation)
        mask = causal_mask(len(positions), len(key_positions)) & window_mask(positions, key_positions, reach)
        x, after = llama_layer(x, before, mask, heads, angles, activation, eps, **layer)
        now.append(after)
    return rms_norm(x, **norm, eps=eps), now


MODEL = smollm3
HEADS = {
    "base": hidden_states,
    "causal-lm": predict_next,
    "sequence-classification": classify_last,
    "token-classification": classify_tokens,
    "question-answering": find_answer,
}
