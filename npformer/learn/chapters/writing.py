"""Chapter 6: writing, with GPT-2's layer and a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.learn.chapters.words import tables
from npformer.learn.contents import right
from npformer.learn.exercise import Exercise, array, drawn, layer_weights, linear_weights, norm_weights

Array = np.ndarray
gelu_tanh, relu = right("gelu_tanh"), right("relu")

GELU_TANH = Exercise(
    "gelu_tanh",
    lambda: [(array([-2, -1, 0, 1, 2]),), (drawn(1, 3, 4) * 2,), (array([[-30, 30, 5, -5]]),)],
    (
        "np.tanh takes arrays.",
        "Use math.sqrt(2 / math.pi), because np.sqrt of a number returns a float64, which widens float32 arrays.",
        "inner = sqrt(2 / pi) * (x + 0.044715 * x**3), and y = x / 2 * (1 + tanh(inner)).",
    ),
    """
    exact form: This is the exact form of GELU. GPT-2 was trained with the tanh approximation.
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2 -> gelu(x)
    quick GELU: This is x sigmoid(1.702 x), a rougher approximation.
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2 -> x / (1 + np.exp(-1.702 * x))
    cubic term left out: The term 0.044715 x^3 is missing.
        (x + 0.044715 * x**3) -> x
    square instead of cube: The term is 0.044715 x^2. It should be 0.044715 x^3.
        x**3 -> x**2
    cubic term subtracted: The term 0.044715 x^3 is subtracted. It should be added.
        x + 0.044715 -> x - 0.044715
    0.044715 left out: The term is x^3. It should be 0.044715 x^3.
        0.044715 * x**3 -> x**3
    sqrt(2 / pi) left out: The argument of tanh is not multiplied by sqrt(2 / pi).
        math.sqrt(2 / math.pi) * (x -> (x
    2 / pi instead of sqrt(2 / pi): The argument of tanh is multiplied by 2 / pi. The factor should be sqrt(2 / pi).
        math.sqrt(2 / math.pi) -> 2 / math.pi
    sqrt(2) / pi instead of sqrt(2 / pi): The argument of tanh is multiplied by sqrt(2) / pi. The factor should be
        sqrt(2 / pi).
        math.sqrt(2 / math.pi) -> math.sqrt(2) / math.pi
    sqrt(pi / 2) instead of sqrt(2 / pi): The argument of tanh is multiplied by sqrt(pi / 2). The factor should be
        sqrt(2 / pi).
        math.sqrt(2 / math.pi) -> math.sqrt(math.pi / 2)
    sqrt(2 / pi) in the first term only: sqrt(2 / pi) multiplies x only. It should multiply the sum of x and
        0.044715 x^3.
        math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) -> math.sqrt(2 / math.pi) * x + 0.044715 * x**3
    not halved: The result is not divided by 2.
        x**3))) / 2 -> x**3)))
    1 left out: The 1 in 1 + tanh is missing.
        1 + np.tanh -> np.tanh
    sqrt(2 / pi) outside of tanh: sqrt(2 / pi) multiplies tanh. It should multiply the argument of tanh.
        np.tanh(math.sqrt(2 / math.pi) * (x -> math.sqrt(2 / math.pi) * np.tanh((x
    not multiplied by x: The result is not multiplied by x.
        x * (1 + -> (1 +
    brackets: Only tanh is halved. Halve 1 + tanh: put it in brackets.
        x**3))) / 2 -> x**3)) / 2)
    brackets: tanh is added to x / 2. Add it to 1 first, then multiply by x / 2: put 1 + tanh in brackets.
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2 -> x / 2 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    relu: This is relu.
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2 -> relu(x)
    silu: This is SiLU, x sigmoid(x).
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2 -> x / (1 + np.exp(-x))
    wrong factor of x^3 [0.04 -0.04]: The factor of x^3 is {number}. It should be 0.044715.
        0.044715 -> number
    wrong factor in tanh: The argument of tanh is multiplied by {number}. The factor should be sqrt(2 / pi).
        math.sqrt(2 / math.pi) -> number
    """,
)


# --- attention with a cache -------------------------------------------------------------------------------------------


def drawn_past(seed: int, heads: int, earlier: int, width: int) -> tuple[Array, Array]:
    """Returns keys and values of earlier tokens."""
    return drawn(seed, heads, earlier, width), drawn(seed + 1, heads, earlier, width)


def _attention_cases() -> list[tuple[Any, ...]]:
    small, wide = layer_weights(1, 2, 3)["attention"].values(), layer_weights(10, 6, 7)["attention"].values()
    return [
        (array([[1, 0], [0, 2]]), drawn_past(1, 1, 0, 2), 1, *small),
        (drawn(1, 1, 6), drawn_past(2, 2, 5, 3), 2, *wide),
        (drawn(3, 4, 6), drawn_past(4, 2, 7, 3), 2, *wide),
        (drawn(6, 4, 6), drawn_past(7, 3, 0, 2), 3, *wide),
    ]


CACHED_ATTENTION = Exercise(
    "cached_attention",
    _attention_cases,
    (
        "The steps are those of multi_head_attention with source x, except that the keys and values begin with past.",
        "Put the keys and values of past before the new ones with np.concatenate, along axis -2, the axis of tokens.",
        "causal_mask(number of queries, number of keys) has the right shape. Return the output, and the pair of all keys "
        "and values.",
    ),
    r"""
    cache one step late: The new tokens attend to the keys of past only, not to their own keys. Add the new keys and
        values first, then attend.
        context = scaled_dot_product_attention(q, keys, values, causal_mask(q.shape[-2], keys.shape[-2])) -> old = past if past[0].size else (keys, values)\n    context = scaled_dot_product_attention(q, *old, causal_mask(q.shape[-2], keys.shape[-2]) if not past[0].size else True)
    new past without the new tokens: The returned keys and values lack the new tokens. They should cover all
        tokens.
        , (keys, values) -> , past
    new past with the new tokens only: The returned keys and values cover the new tokens only. They should cover all
        tokens.
        , (keys, values) -> , (k, v)
    past ignored: past is not used: the new tokens attend to each other only.
        (np.concatenate([old, new], axis=-2) for old, new in zip(past, (k, v))) -> k, v
    past ignored in attention: The new tokens attend to each other only. They should attend to the keys of past too.
        attention(q, keys, values, causal_mask(q.shape[-2], keys.shape[-2])) -> attention(q, k, v, causal_mask(q.shape[-2], k.shape[-2]))
    past after the new tokens: The new keys and values come first. They should follow the keys and values of past, which
        belong to earlier tokens.
        [old, new] -> [new, old]
    keys of past instead of its values: past[0], the keys, is used as the values. The values should be past[1].
        zip(past, -> zip((past[0], past[0]),
    values of past instead of its keys: past[1], the values, is used as the keys. The keys should be past[0].
        zip(past, -> zip((past[1], past[1]),
    keys and values exchanged when read: past[0] is used as the values and past[1] as the keys. past is the pair
        (keys, values).
        zip(past, -> zip(past[::-1],
    past along the wrong axis: The old and the new keys are joined along the wrong axis. The arrays are (H, P, K) and
        (H, L, K), so join them along axis -2, the tokens.
        np.concatenate([old, new], axis=-2) -> (np.concatenate([old, new]) if old.size else new)
    keys and values exchanged in the new past: The returned pair is (values, keys). It should be (keys, values).
        , (keys, values) -> , (values, keys)
    causal mask left out: The tokens also attend to later tokens. Use causal_mask.
        causal_mask(q.shape[-2], keys.shape[-2]) -> True
    mask treats the queries as the first tokens: The mask treats the queries as the first tokens of the text. They are
        its last tokens.
        causal_mask(q.shape[-2], keys.shape[-2]) -> np.tri(q.shape[-2], keys.shape[-2], dtype=bool)
    mask of the new tokens alone: The mask is causal_mask(L, L), without the keys of past. It should be
        causal_mask(L, P + L).
        causal_mask(q.shape[-2], keys.shape[-2]) -> causal_mask(q.shape[-2], q.shape[-2])
    mask hides a token from itself: A token does not attend to itself. The mask should show the token's own key and all
        earlier keys.
        causal_mask(q.shape[-2], keys.shape[-2]) -> np.tri(q.shape[-2], keys.shape[-2], keys.shape[-2] - q.shape[-2] - 1, dtype=bool)
    W_O left out: The combined heads do not pass through the output layer.
        linear(combine_heads(context), **output) -> combine_heads(context)
    query and key exchanged: The query and key layers are exchanged.
        (query, key, value) -> (key, query, value)
    key and value exchanged: The key and value layers are exchanged.
        (query, key, value) -> (query, value, key)
    """,
    values=("rows", "past"),
    optional="past",
)


# --- layer ------------------------------------------------------------------------------------------------------------


def _layer_cases() -> list[tuple[Any, ...]]:
    small, wide = layer_weights(1, 2, 3).values(), layer_weights(10, 6, 7).values()
    return [
        (array([[1, 0], [0, 2]]), drawn_past(1, 1, 0, 2), 1, np.tanh, 0.25, *small),
        (drawn(1, 1, 6), drawn_past(2, 2, 5, 3), 2, gelu_tanh, 1e-12, *wide),
        (drawn(3, 4, 6), drawn_past(4, 2, 7, 3), 2, gelu_tanh, 1e-12, *wide),
        (drawn(7, 4, 6) / 300, drawn_past(6, 2, 0, 3), 2, gelu_tanh, 1e-12, *wide),  # eps matters
    ]


CACHED_LAYER = Exercise(
    "cached_gpt2_layer",
    _layer_cases,
    (
        "The norms come first: attention reads layer_norm(x), and its result is added to x itself.",
        "cached_attention(normed, past, n_heads, **attention) returns the attended rows and the new past.",
        "y = x + attended. Return y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), activation, **ffn), and the new "
        "past.",
    ),
    """
    post-norm: The norms are applied after the sums. In this layer they should be applied before attention and before
        the feed-forward network.
        cached_attention(layer_norm(x, **attention_norm, eps=eps), past -> cached_attention(x, past
        y = x + attended -> y = layer_norm(x + attended, **attention_norm, eps=eps)
        y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), activation, **ffn), past -> layer_norm(y + feed_forward(y, activation, **ffn), **ffn_norm, eps=eps), past
    first norm left out: attention_norm is not applied.
        layer_norm(x, **attention_norm, eps=eps) -> x
    second norm left out: ffn_norm is not applied.
        layer_norm(y, **ffn_norm, eps=eps) -> y
    both norms left out: attention_norm and ffn_norm are not applied.
        layer_norm(x, **attention_norm, eps=eps) -> x
        layer_norm(y, **ffn_norm, eps=eps) -> y
    norms exchanged: attention_norm and ffn_norm are exchanged.
        **attention_norm -> **ffn_norm
        **ffn_norm -> **attention_norm
    residuals from the norms: The normalized rows are added to the outputs of the blocks. X and Y themselves should be
        added.
        y = x + attended -> y = layer_norm(x, **attention_norm, eps=eps) + attended
        y + feed_forward -> layer_norm(y, **ffn_norm, eps=eps) + feed_forward
    feed-forward network reads X: The feed-forward network reads Normalize(X). It should read Normalize(Y).
        layer_norm(y, -> layer_norm(x,
    second residual is X: X is added to the output of the feed-forward network. Y should be added.
        y + feed_forward -> x + feed_forward
    first residual is Normalize(X): Normalize(X) is added to the output of attention. X itself should be added.
        y = x + attended -> y = layer_norm(x, **attention_norm, eps=eps) + attended
    first residual left out: X is not added to the output of attention.
        y = x + attended -> y = attended
    second residual left out: Y is not added to the output of the feed-forward network.
        y + feed_forward -> feed_forward
    old past returned: The old past is returned. Return the past from cached_attention.
        attended, past = -> attended, _ =
    eps not passed on: eps is not passed to layer_norm, whose default is 1e-5. Write eps=eps.
        **attention_norm, eps=eps -> **attention_norm
        **ffn_norm, eps=eps -> **ffn_norm
    eps is 1e-12: eps of the norms is 1e-12, regardless of the argument. Write eps=eps.
        **attention_norm, eps=eps -> **attention_norm, eps=1e-12
        **ffn_norm, eps=eps -> **ffn_norm, eps=1e-12
    gelu instead of the activation: The activation is always gelu. It should be the argument activation.
        activation, **ffn -> gelu, **ffn
    gelu_tanh instead of the activation: The activation is always gelu_tanh. It should be the argument activation.
        activation, **ffn -> gelu_tanh, **ffn
    relu instead of the activation: The activation is always relu. It should be the argument activation.
        activation, **ffn -> relu, **ffn
    activation left out: The feed-forward network has no activation.
        activation, **ffn -> lambda h: h, **ffn
    wrong eps [1e-6 1e-2]: eps of the norms is {number}, regardless of the argument. Write eps=eps.
        **attention_norm, eps=eps -> **attention_norm, eps=number
        **ffn_norm, eps=eps -> **ffn_norm, eps=number
    """,
    values=("z", "past"),
    optional="past",
)


# --- step -------------------------------------------------------------------------------------------------------------


def tiny_decoder(shrunk: float = 1.0) -> dict[str, Any]:
    """Returns a model with 2 layers, width 6, weights structured like GPT-2's, and embeddings divided by `shrunk`."""
    return {
        "embeddings": {
            name: {"weight": (each["weight"] / shrunk).astype(np.float32)} for name, each in tables(1, 6, 9, 6).items()
        },
        "layers": [layer_weights(10, 6, 7), layer_weights(30, 6, 7)],
        "norm": norm_weights(50, 6),
        "head": {"output": {"weight": linear_weights(60, 6, 6)["weight"]}},
    }


def _faint(weights: Any) -> Any:
    """Returns the model with rows so small that the eps of the last norm matters."""
    layers = []
    for layer in weights["layers"]:
        blocks = {
            block: {name: {key: array * 0 for key, array in each.items()} for name, each in layer[block].items()}
            for block in ("attention", "ffn")
        }
        layers.append({**layer, **blocks})
    return {**weights, "embeddings": tiny_decoder(300.0)["embeddings"], "layers": layers}


def _step_cases() -> list[tuple[Any, ...]]:
    past = [drawn_past(seed, 3, 5, 2) for seed in (70, 80)]  # 5 tokens, 3 heads, 2 layers: all sizes differ
    start = [drawn_past(1, 3, 0, 2)] * 2
    return [
        (np.array([5, 1, 0]), start, 3, gelu_tanh, 1e-5, *tiny_decoder().values()),
        (np.array([2]), past, 3, gelu_tanh, 1e-5, *tiny_decoder().values()),
        (np.array([4, 4, 3]), past, 3, relu, 0.25, *tiny_decoder().values()),
        (np.array([0, 1]), start, 3, gelu_tanh, 1e-12, *_faint(tiny_decoder()).values()),
    ]


GPT2_STEP = Exercise(
    "gpt2_step",
    _step_cases,
    (
        "The number of earlier tokens is shape[-2] of the keys of a layer, past[0][0]. The positions of ids begin there.",
        "zip(layers, past) pairs layers and their keys and values. Collect the new pair of each layer in a list.",
        "Add the rows of the two tables, apply each cached_gpt2_layer with its pair, and layer_norm with **norm and "
        'eps=eps. Apply linear with **head["output"] to the last row.',
    ),
    """
    positions start at 0: The positions of the new tokens begin at 0. They should continue after the earlier tokens.
        np.arange(n_earlier, n_earlier + len(ids)) -> np.arange(len(ids))
    number of heads instead of earlier tokens: The first position is H, from the shape (H, P, K) of the keys. It should
        be P.
        past[0][0].shape[-2] -> past[0][0].shape[-3] * (past[0][0].size > 0)
    number of layers instead of earlier tokens: The first position is the number of layers, len(past). It should be P,
        from the shape (H, P, K) of the keys.
        past[0][0].shape[-2] -> len(past) * (past[0][0].size > 0)
    number of layers instead of earlier tokens: The first position is always the number of layers, len(past). It should
        be P, from the shape (H, P, K) of the keys.
        past[0][0].shape[-2] -> len(past)
    number of heads instead of earlier tokens: The first position is always H, from the shape (H, P, K) of the keys. It
        should be P.
        past[0][0].shape[-2] -> past[0][0].shape[-3]
    positions from 1: The first token of a text has position 1 here. It should have position 0.
        past[0][0].shape[-2] -> past[0][0].shape[-2] + 1
    positions one too high after a cache: After P earlier tokens, the next position here is P + 1. It should be P,
        because positions are counted from 0.
        past[0][0].shape[-2] -> past[0][0].shape[-2] + (past[0][0].size > 0)
    positions one too low after a cache: After P earlier tokens, the next position here is P - 1. It should be P.
        past[0][0].shape[-2] -> max(0, past[0][0].shape[-2] - 1)
    positions left out: Only the rows of the tokens are summed. Add the rows of their positions.
        + embedding(positions, **embeddings["position"]) -> + 0
    first row: The logits are computed from the first row. Compute them from the last row.
        layer_norm(x[-1], -> layer_norm(x[0],
    every row: The logits of every row are returned. Return only the logits of the last row.
        layer_norm(x[-1], -> layer_norm(x,
    token table instead of the head: The logits are computed with the token table. Use head["output"].
        **head["output"]) -> embeddings["token"]["weight"].T)
    last norm left out: The last norm is not applied.
        layer_norm(x[-1], **norm, eps=eps) -> x[-1]
    eps not passed on: eps is not passed to the last norm, whose default is 1e-5. Write eps=eps.
        **norm, eps=eps -> **norm
    eps is 1e-12: eps of the last norm is 1e-12, regardless of the argument. Write eps=eps.
        **norm, eps=eps -> **norm, eps=1e-12
    past not passed on: past is not passed to the layers.
        layer(x, before, -> layer(x, (before[0][:, :0], before[1][:, :0]),
    first layer's past for all layers: Every layer is given the keys and values of the first layer. Pass each layer its
        own.
        layer(x, before, -> layer(x, past[0],
    past in reverse order: The keys and values are passed to the layers in reverse order.
        zip(layers, past) -> zip(layers, past[::-1])
    old past returned: The old past is returned. Return the list with the new tokens.
        return logits, now -> return logits, past
    layers reversed: The layers are applied from the last to the first.
        zip(layers, past) -> zip(layers[::-1], past)
    probabilities instead of logits: softmax is applied to the result. Return the logits.
        return logits, -> return softmax(logits),
    word instead of logits: The most likely word is returned. Return the logits.
        return logits, -> return np.argmax(logits),
    gelu_tanh instead of the activation: The activation is always gelu_tanh. It should be the argument activation.
        activation, eps, **layer -> gelu_tanh, eps, **layer
    wrong eps [1e-6 1e-3]: eps of the last norm is {number}, regardless of the argument. Write eps=eps.
        **norm, eps=eps -> **norm, eps=number
    """,
    values=("logits", "past"),
    optional="past",
)


# --- top-p ------------------------------------------------------------------------------------------------------------


def _top_p_cases() -> list[tuple[Any, ...]]:
    """Returns cases without equal probabilities, and without a sum of probabilities that equals p up to rounding."""
    logits, wide = np.log(array([0.1, 0.5, 0.15, 0.25])), [_distinct(seed) for seed in (1, 2)]
    return [*((logits, p) for p in (0.7, 0.6, 0.95, 0.3)), *((each, p) for each in wide for p in (0.35, 0.8, 0.99))]


def _distinct(seed: int) -> Array:
    return (np.random.default_rng(seed).permutation(7) / 2.5).astype(np.float32)


TOP_P = Exercise(
    "top_p",
    _top_p_cases,
    (
        "Apply softmax, and sort the probabilities in descending order: np.argsort(-probabilities).",
        "A token belongs to the set if the sum of all more probable tokens is still below p.",
        "With the sorted probabilities q, np.cumsum(q) - q is that sum for each token. Set the probabilities of the "
        "other tokens to 0, at their own ids, and divide by the sum.",
    ),
    """
    top_p ignored: All tokens keep their probability. Keep only the most probable tokens that together have at least p.
        * (before < p) -> * (before < 2)
    last token of the set left out: The token with which the sum reaches p is left out. It belongs to the set.
        (before < p) -> (before + probabilities[order] < p)
    last token of the set left out: The token with which the sum reaches p is left out, unless it is the only one. It
        belongs to the set.
        (before < p) -> ((before + probabilities[order] < p) | (before == 0))
    one token more: The set contains one more token than it needs to reach p.
        (before < p) -> (before - np.append(0, probabilities[order][:-1]) < p)
    p compared with each token's probability: The set contains the tokens with a probability of at least p times the
        largest. It should contain the most probable tokens that together have at least p.
        (before < p) -> (probabilities[order] >= p * probabilities.max())
    not divided by the sum: The probabilities of the set do not add up to 1. Divide them by their sum.
        kept / kept.sum() -> kept
    in order of probability: The probabilities are in descending order. They should be in the order of the ids.
        kept / kept.sum() -> kept[order] / kept.sum()
    set by rank, not by id: The set is computed for the sorted probabilities, but applied to the unsorted probabilities.
        The token with id order[i] has rank i.
        kept[order] = probabilities[order] * (before < p) -> kept = probabilities * (before < p)
    least probable tokens: The set contains the least probable tokens, because the probabilities are sorted in ascending
        order.
        argsort(-probabilities -> argsort(probabilities
    """,
)
