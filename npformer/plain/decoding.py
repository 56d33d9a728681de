"""Decoding: texts word by word from a causal model, greedily, by sampling with top-p, and by beam search.

`step(ids, past)` returns the logits of the next token, (V,), and the keys and values of all tokens so far, which are
the next step's `past`: a step computes the rows of its new tokens only. `gpt2_step` is one, with its sizes and weights
given. For weights of a Llama:

    rows, past = llama(ids, positions, past, ...)
    return linear(rows[-1], **head["output"]), past
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


def no_past(n_layers, n_kv_heads, d_head):
    """The keys and values before the first token: two empty arrays (G, 0, K) for each layer."""
    none = np.zeros((n_kv_heads, 0, d_head), np.float16)  # of the lowest precision, so that rows keep theirs
    return [(none, none)] * n_layers


def cached_attention(x, past, n_heads, query, key, value, output):
    """Causal multi-head self-attention of new rows x (L, D), which also attend to the S tokens before them.

    past: the keys and values of the earlier tokens, two (H, S, K). Returns (L, D), and two (H, S + L, K) of all tokens.
    """
    q, k, v = (split_heads(linear(x, **each), n_heads) for each in (query, key, value))  # (H, L, K)
    keys, values = (np.concatenate([old, new], axis=-2) for old, new in zip(past, (k, v)))  # (H, S + L, K)
    context = scaled_dot_product_attention(q, keys, values, causal_mask(q.shape[-2], keys.shape[-2]))
    return linear(combine_heads(context), **output), (keys, values)


def cached_gpt2_layer(x, past, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    """`gpt2_layer` for new rows x (L, D). Returns Z, and the keys and values of all tokens, as `cached_attention`.

    Y = X + Attention(Normalize(X)); Z = Y + FFN(Normalize(Y)). Radford et al., 2019, section 2.3.
    """
    attended, past = cached_attention(layer_norm(x, **attention_norm, eps=eps), past, n_heads, **attention)
    y = x + attended
    return y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), activation, **ffn), past


def gpt2_step(ids, past, n_heads, activation, eps, embeddings, layers, norm, head):
    """Logits of the token after a text, (V,), from the last row, and the next `past`: a pair for each layer.

    ids (L,): the tokens after the S earlier ones, at positions S ... S + L - 1. A row is the sum of two tables' rows,
    then come the layers, each with its pair of past, the last norm, and the head's output layer.
    """
    n_earlier = past[0][0].shape[-2]
    positions = np.arange(n_earlier, n_earlier + len(ids))
    x, now = embedding(ids, **embeddings["token"]) + embedding(positions, **embeddings["position"]), []
    for layer, before in zip(layers, past):
        x, after = cached_gpt2_layer(x, before, n_heads, activation, eps, **layer)
        now.append(after)
    logits = linear(layer_norm(x[-1], **norm, eps=eps), **head["output"])
    return logits, now


def greedy(step, ids, past, end_id, max_new_tokens):
    """The most probable token at each step, until end_id. ids (L,): the prompt. Returns a list of new tokens."""
    found = []
    while len(found) < max_new_tokens and found[-1:] != [end_id]:
        logits, past = step(ids, past)
        found.append(int(logits.argmax()))
        ids = np.array(found[-1:])  # the step that follows reads one token
    return found


def top_p(logits, p):
    """The probabilities of the fewest tokens that together have at least p, (V,) -> (V,).

    Holtzman et al., 2020, The Curious Case of Neural Text Degeneration, section 3.1.
    >>> top_p(np.log([0.5, 0.3, 0.2]), 0.6).round(4).tolist()
    [0.625, 0.375, 0.0]
    """
    probabilities = softmax(logits)
    order = np.argsort(-probabilities, kind="stable")
    before = probabilities[order].cumsum() - probabilities[order]  # the sum of all that are more probable
    kept = np.zeros_like(probabilities)
    kept[order] = probabilities[order] * (before < p)
    return kept / kept.sum()


def sample(step, ids, past, end_id, max_new_tokens, temperature, p, random):
    """A token drawn at each step from `top_p` of logits / temperature, until end_id. random: a NumPy Generator."""
    found = []
    while len(found) < max_new_tokens and found[-1:] != [end_id]:
        logits, past = step(ids, past)
        found.append(int(random.choice(len(logits), p=top_p(logits / temperature, p))))
        ids = np.array(found[-1:])
    return found


def beam_search(step, ids, past, end_id, max_new_tokens, n_beams):
    """The texts of n_beams with the greatest mean log probability of a token, best first: pairs of score and tokens.

    Each step extends all running texts by all tokens and keeps the n_beams best. Wu et al., 2016, section 7.
    """
    running, ended = [(0.0, [], ids, past)], []
    for _ in range(max_new_tokens):
        longer = []
        for total, found, new, before in running:
            logits, after = step(new, before)
            of_tokens = total + np.log(softmax(logits))
            best = np.argsort(-of_tokens, kind="stable")[: 2 * n_beams].tolist()
            longer += [(float(of_tokens[token]), [*found, token], np.array([token]), after) for token in best]
        longer = sorted(longer, key=lambda each: -each[0])[: 2 * n_beams]
        ended += [(total / len(found), found) for total, found, *_ in longer[:n_beams] if found[-1] == end_id]
        running = [each for each in longer if each[1][-1] != end_id][:n_beams]
    ended += [(total / len(found), found) for total, found, *_ in longer[:n_beams] if found[-1] != end_id]
    return sorted(ended, key=lambda each: -each[0])[:n_beams]
