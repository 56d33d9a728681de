"""Decoding: generates texts token by token with a causal model, greedily, by sampling with top-p, or by beam search.

`step(ids, past)` reads the new tokens ids (L,) and the KV cache `past`, the keys and values of all earlier tokens. It
returns the logits of the next token, (V,), and the cache with the new tokens. `gpt2_step`, with sizes and weights, is
such a function. For a Llama:

    def step(ids, past):
        n_past = past[0][0].shape[-2]
        positions = n_past + np.arange(len(ids))
        x, past = llama(ids, positions, past, ...)
        return linear(x[-1], **head["output"]), past
"""

import numpy as np

from npformer.plain.formulas import (
    causal_mask,
    combine_heads,
    embedding,
    feed_forward,
    layer_norm,
    linear,
    scaled_dot_product_attention,
    softmax,
    split_heads,
)


def no_past(n_layers, n_kv_heads, d_head, batch=()):
    """The cache before the first token: a pair of empty arrays (*batch, G, 0, K) for each layer.

    The arrays are float16, so a concatenation with other floats has the dtype of the other floats.
    """
    empty = np.zeros((*batch, n_kv_heads, 0, d_head), np.float16)
    return [(empty, empty)] * n_layers


def cached_attention(x, past, n_heads, query, key, value, output):
    """Causal multi-head self-attention of the new rows x (L, D), which also attend to P earlier tokens.

    past: the keys and values of the earlier tokens, two (H, P, K). Returns (L, D), and two (H, P + L, K) of all tokens.
    """
    q, k, v = (split_heads(linear(x, **each), n_heads) for each in (query, key, value))  # (H, L, K)
    keys, values = (np.concatenate([old, new], axis=-2) for old, new in zip(past, (k, v)))  # (H, P + L, K)
    context = scaled_dot_product_attention(q, keys, values, causal_mask(q.shape[-2], keys.shape[-2]))
    return linear(combine_heads(context), **output), (keys, values)


def cached_gpt2_layer(x, past, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """Y = X + SelfAttention(LayerNorm(X)); Z = Y + FFN(LayerNorm(Y)), for new rows x (L, D). Returns Z and the cache.

    Radford et al., 2019, section 2.3. `gpt2.py` has the layer without a cache.
    """
    attended, past = cached_attention(layer_norm(x, **attention_norm, eps=eps), past, n_heads, **attention)
    y = x + attended
    return y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), activation, **ffn), past


def gpt2_step(ids, past, n_heads, activation, eps, embeddings, layers, norm, head):
    """Logits of the token after a text, (V,), from its last hidden state, and the next `past`: a pair for each layer.

    ids (L,): the new tokens, at positions P ... P + L - 1. Adds the rows of two tables, then applies the layers (each
    with its pair in past), the last norm, and the output layer.
    """
    n_earlier = past[0][0].shape[-2]
    positions = np.arange(n_earlier, n_earlier + len(ids))
    x = embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"])
    now = []
    for layer, before in zip(layers, past):
        x, after = cached_gpt2_layer(x, before, n_heads, activation, eps, **layer)
        now.append(after)
    logits = linear(layer_norm(x[-1], **norm, eps=eps), **head["output"])
    return logits, now


def greedy(step, ids, past, end_id, max_new_tokens):
    """Picks the most probable token at each step, until end_id. ids (L,): the prompt. Returns the new tokens."""
    found = []
    while len(found) < max_new_tokens and found[-1:] != [end_id]:
        logits, past = step(ids, past)
        found.append(int(logits.argmax()))
        ids = np.array(found[-1:])  # the next step reads one token
    return found


def top_p(logits, p):
    """The probabilities of the fewest tokens with a total of at least p, scaled to sum to 1; 0 for other tokens. (V,).

    Holtzman et al., 2020, The Curious Case of Neural Text Degeneration, section 3.1.
    >>> top_p(np.log([0.5, 0.3, 0.2]), 0.6).round(4).tolist()
    [0.625, 0.375, 0.0]
    """
    probabilities = softmax(logits)
    order = np.argsort(-probabilities, kind="stable")
    before = probabilities[order].cumsum() - probabilities[order]  # the sum over more probable tokens
    kept = np.zeros_like(probabilities)
    kept[order] = probabilities[order] * (before < p)
    return kept / kept.sum()


def sample(step, ids, past, end_id, max_new_tokens, temperature, p, random):
    """Draws a token at each step from `top_p` of logits / temperature, until end_id. random: a NumPy Generator."""
    found = []
    while len(found) < max_new_tokens and found[-1:] != [end_id]:
        logits, past = step(ids, past)
        found.append(int(random.choice(len(logits), p=top_p(logits / temperature, p))))
        ids = np.array(found[-1:])
    return found


def beam_search(step, ids, past, end_id, max_new_tokens, n_beams):
    """Returns the n_beams best continuations, best first: pairs of (sum of log p) / length and the new tokens.

    Each step selects the 2 n_beams best extensions of all beams. An extension that ends with end_id is finished if it
    is among the n_beams best. The n_beams best other extensions continue. The search never stops early. At the last
    step, every extension counts as ended, so the n_beams best are finished. Wu et al., 2016, section 7, divide by ((5 +
    length) / 6)^alpha.
    """
    beams, longer, finished = [(0.0, [], ids, past)], [], []  # score, tokens, the ids to read next, and the cache
    for _ in range(max_new_tokens):
        longer = []
        for score, tokens, ids, past in beams:
            logits, new_past = step(ids, past)
            scores = score + np.log(softmax(logits))  # (V,)
            best = np.argsort(-scores, kind="stable")[: 2 * n_beams].tolist()
            longer += [(float(scores[token]), [*tokens, token], np.array([token]), new_past) for token in best]
        longer = sorted(longer, key=lambda beam: -beam[0])[: 2 * n_beams]  # by score
        finished += [(score / len(tokens), tokens) for score, tokens, *_ in longer[:n_beams] if tokens[-1] == end_id]
        beams = [(score, tokens, *rest) for score, tokens, *rest in longer if tokens[-1] != end_id][:n_beams]
    finished += [(score / len(tokens), tokens) for score, tokens, *_ in longer[:n_beams] if tokens[-1] != end_id]
    return sorted(finished, key=lambda text: -text[0])[:n_beams]
