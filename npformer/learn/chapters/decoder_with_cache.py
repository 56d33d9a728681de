"""Chapter 6, the decoder's layer with a cache, and a step of the decoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.activations import relu
from npformer.functions import softmax
from npformer.learn import right
from npformer.learn.exercise import Exercise, Slip, array, drawn, layer_weights, norm_weights
from npformer.learn.right import (
    causal_mask,
    combine_heads,
    feed_forward,
    gelu,
    gelu_tanh,
    layer_norm,
    linear,
    split_heads,
)

Array = np.ndarray


# --- decoder_layer ----------------------------------------------------------------------------------------------------


def _cache(seed: int, heads: int, earlier: int, width: int) -> tuple[Array, Array]:
    return drawn(seed, heads, earlier, width), drawn(seed + 1, heads, earlier, width)


def _layer_cases() -> list[tuple[Any, ...]]:
    small, wide = layer_weights(1, 2, 3).values(), layer_weights(10, 4, 6).values()
    return [
        (array([[1, 0], [0, 2]]), 1, None, *small),
        (drawn(1, 1, 4), 2, _cache(2, 2, 5, 2), *wide),
        (drawn(3, 3, 4), 2, _cache(4, 2, 7, 2), *wide),
        (drawn(6, 3, 4) / 300, 2, None, *wide, 0.25),
        (drawn(7, 3, 4) / 300, 2, None, *wide),
    ]


def _appended(cache: Any, k: Array, v: Array) -> tuple[Array, Array]:
    return (k, v) if cache is None else (np.concatenate([cache[0], k], 1), np.concatenate([cache[1], v], 1))


def _prepended(cache: Any, k: Array, v: Array) -> tuple[Array, Array]:
    return (k, v) if cache is None else (np.concatenate([k, cache[0]], 1), np.concatenate([v, cache[1]], 1))


def _late(cache: Any, k: Array, v: Array) -> tuple[Array, Array]:
    return (k, v) if cache is None else cache


def _same(x: Array) -> Array:
    return x


def _layer(
    x: Array,
    h: int,
    cache: Any,
    attention: Any,
    attention_norm: Any,
    ffn: Any,
    ffn_norm: Any,
    eps: float = 1e-5,
    *,
    always: float | None = None,
    append: Any = _appended,
    keep: Any = None,
    mask: Any = causal_mask,
    first: bool = True,
    second: bool = True,
    act: Any = gelu_tanh,
    from_normed: bool = False,
    residuals: tuple[float, float] = (1.0, 1.0),
    project: bool = True,
    queries_normed: bool = True,
) -> tuple[Array, Any]:
    """`right.decoder_layer` with one of its steps exchanged."""
    eps = eps if always is None else always
    n = layer_norm(x, **attention_norm, eps=eps) if first else x
    q = split_heads(linear(n if queries_normed else x, **attention["query"]), h)
    k, v = (split_heads(linear(n, **attention[name]), h) for name in ("key", "value"))
    keys, values = append(cache, k, v)
    allowed = None if mask is None else mask(q.shape[1], keys.shape[1])
    heads = combine_heads(right.scaled_dot_product_attention(q, keys, values, allowed))
    y = residuals[0] * (n if from_normed else x) + (linear(heads, **attention["output"]) if project else heads)
    m = layer_norm(y, **ffn_norm, eps=eps) if second else y
    z = residuals[1] * (m if from_normed else y) + feed_forward(m, act, **ffn)
    return z, (keys, values) if keep is None else keep(cache, k, v, keys, values)


def _post_norm(x: Array, h: int, cache: Any, a: Any, an: Any, f: Any, fn: Any, eps: float = 1e-5) -> tuple[Array, Any]:
    q, k, v = (split_heads(linear(x, **a[name]), h) for name in ("query", "key", "value"))
    k, v = _appended(cache, k, v)
    heads = combine_heads(right.scaled_dot_product_attention(q, k, v, causal_mask(q.shape[1], k.shape[1])))
    y = layer_norm(x + linear(heads, **a["output"]), **an, eps=eps)
    return layer_norm(y + feed_forward(y, gelu_tanh, **f), **fn, eps=eps), (k, v)


def _exchanged(x: Array, h: int, cache: Any, a: Any, an: Any, f: Any, fn: Any, eps: float = 1e-5) -> Any:
    return _layer(x, h, cache, a, fn, f, an, eps)


def _swapped(x: Array, h: int, cache: Any, a: Any, an: Any, f: Any, fn: Any, eps: float = 1e-5) -> Any:
    return _layer(x, h, cache, {**a, "query": a["key"], "key": a["query"]}, an, f, fn, eps)


def _another_default(x: Array, h: int, cache: Any, a: Any, an: Any, f: Any, fn: Any, eps: float = 1e-12) -> Any:
    return _layer(x, h, cache, a, an, f, fn, eps)


def _first_tokens(n_queries: int, n_keys: int) -> Array:
    return np.tri(n_queries, n_keys, dtype=bool)


def _strict(n_queries: int, n_keys: int) -> Array:
    return np.tri(n_queries, n_keys, n_keys - n_queries - 1, dtype=bool) | (np.arange(n_keys) == 0)


def _ignored(cache: Any, k: Array, v: Array) -> tuple[Array, Array]:
    return k, v


DECODER_LAYER = Exercise(
    "decoder_layer",
    right.decoder_layer,
    _layer_cases,
    (
        "The norms come first: y = x + attention of layer_norm(x). multi_head_attention knows no cache, so write "
        "its steps here.",
        "Make and split q, k and v of the new rows. With a cache, put its keys before k and its values before v, "
        "with np.concatenate along the axis of tokens, 1.",
        "causal_mask(number of queries, number of keys) has the right shape. Return z, and the pair of all keys "
        "and values.",
    ),
    (
        "npformer.learn.right:decoder_layer",
        "npformer.layers:Layer.__call__",
        "npformer.generation.kv_cache:SelfAttentionCache.attend",
    ),
    (
        Slip(
            "cache one step late",
            "The new tokens attend to the cached keys only, not to their own. Add the new keys and values first, "
            "then attend.",
            lambda *a: _layer(*a, append=_late, mask=None, keep=lambda c, k, v, ks, vs: _appended(c, k, v)),
        ),
        Slip(
            "new cache without the new tokens",
            "The cache that is returned lacks the new tokens. It should have the keys and values of all tokens.",
            lambda *a: _layer(*a, keep=lambda c, k, v, ks, vs: c),
        ),
        Slip(
            "new cache with the new tokens only",
            "The cache that is returned has the new tokens only. It should have the keys and values of all tokens.",
            lambda *a: _layer(*a, keep=lambda c, k, v, ks, vs: (k, v)),
        ),
        Slip(
            "cache ignored",
            "The cache is not used: the new tokens attend to each other only.",
            lambda *a: _layer(*a, append=_ignored),
        ),
        Slip(
            "cache ignored in attention",
            "The new tokens attend to each other only. They should attend to the cached keys too.",
            lambda *a: _layer(*a, append=_ignored, keep=lambda c, k, v, ks, vs: _appended(c, k, v)),
        ),
        Slip(
            "cache after the new tokens",
            "The cached keys and values stand behind the new ones. They should stand in front, because they are "
            "earlier.",
            lambda *a: _layer(*a, append=_prepended),
        ),
        Slip(
            "keys and values exchanged in the cache",
            "The pair that is returned is (values, keys). It should be (keys, values).",
            lambda *a: _layer(*a, keep=lambda c, k, v, ks, vs: (vs, ks)),
        ),
        Slip(
            "causal mask left out",
            "The tokens also attend to later ones. Use causal_mask.",
            lambda *a: _layer(*a, mask=None),
        ),
        Slip(
            "mask takes the queries for the first tokens",
            "The mask takes the queries for the first tokens of the text. They are its last tokens.",
            lambda *a: _layer(*a, mask=_first_tokens),
        ),
        Slip(
            "mask hides the own token",
            "A token does not attend to itself. The mask shows it its own key and all earlier ones.",
            lambda *a: _layer(*a, mask=_strict),
        ),
        Slip(
            "post-norm",
            "The norms are applied after the sums. In this layer they are applied before attention and before "
            "the feed-forward network.",
            _post_norm,
        ),
        Slip("first norm left out", "attention_norm is not applied.", lambda *a: _layer(*a, first=False)),
        Slip("second norm left out", "ffn_norm is not applied.", lambda *a: _layer(*a, second=False)),
        Slip(
            "both norms left out",
            "attention_norm and ffn_norm are not applied.",
            lambda *a: _layer(*a, first=False, second=False),
        ),
        Slip("norms exchanged", "attention_norm and ffn_norm are exchanged.", _exchanged),
        Slip(
            "residuals from the norms",
            "The normalised rows are added to the outputs of the blocks. X and Y should be added, before the norms.",
            lambda *a: _layer(*a, from_normed=True),
        ),
        Slip(
            "queries from rows without the norm",
            "The queries are made from X. They should be made from Normalize(X), like keys and values.",
            lambda *a: _layer(*a, queries_normed=False),
        ),
        Slip(
            "first residual left out",
            "X is not added to the output of attention.",
            lambda *a: _layer(*a, residuals=(0.0, 1.0)),
        ),
        Slip(
            "second residual left out",
            "Y is not added to the output of the feed-forward network.",
            lambda *a: _layer(*a, residuals=(1.0, 0.0)),
        ),
        Slip(
            "W_O left out",
            "The combined heads do not pass through the layer output.",
            lambda *a: _layer(*a, project=False),
        ),
        Slip("query and key exchanged", "The layers query and key are exchanged.", _swapped),
        Slip(
            "eps is always 1e-12",
            "eps is 1e-12, whatever the argument is. Use the argument, which is 1e-5 by default.",
            lambda *a: _layer(*a, always=1e-12),
        ),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, whatever the argument is. Use the argument.",
            lambda *a: _layer(*a, always=1e-5),
        ),
        Slip("another default of eps", "eps is 1e-12 by default. The default is 1e-5, as in GPT-2.", _another_default),
        Slip(
            "exact GELU", "The activation is the exact GELU. It should be gelu_tanh.", lambda *a: _layer(*a, act=gelu)
        ),
        Slip("relu for gelu_tanh", "The activation is relu. It should be gelu_tanh.", lambda *a: _layer(*a, act=relu)),
        Slip("activation left out", "The feed-forward network has no activation.", lambda *a: _layer(*a, act=_same)),
    ),
)


# --- decoder_step -----------------------------------------------------------------------------------------------------


def tiny_decoder(narrow: float = 1.0) -> dict[str, Any]:
    """A model of 2 layers with a width of 4, in the structure of GPT-2's weights. narrow divides its embeddings."""
    return {
        "embeddings": {
            "token": {"weight": (drawn(1, 6, 4) / narrow).astype(np.float32)},
            "position": {"weight": (drawn(2, 9, 4) / narrow).astype(np.float32)},
        },
        "layers": [layer_weights(10, 4, 6), layer_weights(30, 4, 6)],
        "norm": norm_weights(50, 4),
        "head": {"output": {"weight": drawn(60, 4, 6)}},
    }


def _step_cases() -> list[tuple[Any, ...]]:
    caches = [_cache(seed, 2, 5, 2) for seed in (70, 80)]  # 5 tokens: no other size has that value, or one near it
    return [
        (np.array([5, 1, 0]), 2, tiny_decoder()),
        (np.array([2]), 2, tiny_decoder(), caches),
        (np.array([4, 4, 3]), 2, tiny_decoder(), caches),
        (np.array([0, 1]), 2, _faint(tiny_decoder())),
    ]


def _faint(weights: Any) -> Any:
    """The model with last rows so small that eps of the last norm shows."""
    layers = []
    for layer in weights["layers"]:
        faint = {name: {key: array * 0 for key, array in each.items()} for name, each in layer["attention"].items()}
        ffn = {name: {key: array * 0 for key, array in each.items()} for name, each in layer["ffn"].items()}
        layers.append({**layer, "attention": faint, "ffn": ffn})
    return {**weights, "embeddings": tiny_decoder(300.0)["embeddings"], "layers": layers}


def _step(
    ids: Array,
    h: int,
    w: Any,
    caches: Any = None,
    *,
    start: Any = lambda earlier, n: earlier,
    row: Any = -1,
    norm: bool = True,
    eps: float = 1e-5,
    of_layer: Any = lambda caches, i: caches[i],
    order: int = 1,
    after: Any = lambda logits: logits,
    keep: Any = lambda new, caches: new,
) -> tuple[Any, Any]:
    """`right.decoder_step` with one of its steps exchanged."""
    earlier = 0 if caches is None else caches[0][0].shape[1]
    tables, new = w["embeddings"], []
    x = right.embeddings(ids, tables["token"]["weight"], tables["position"]["weight"], start(earlier, len(ids)))
    for i, layer in enumerate(w["layers"][::order]):
        x, cache = right.decoder_layer(x, h, None if caches is None else of_layer(caches, i), **layer)
        new.append(cache)
    x = layer_norm(x, **w["norm"], eps=eps) if norm else x
    return after(x[row] @ w["head"]["output"]["weight"]), keep(new, caches)


DECODER_STEP = Exercise(
    "decoder_step",
    right.decoder_step,
    _step_cases,
    (
        "The number of earlier tokens is the second size of a cached array of keys; without caches it is 0. "
        "It is the argument start of embeddings.",
        "zip(weights['layers'], caches) pairs layers and caches. Collect the new cache of each layer in a list.",
        "embeddings, every decoder_layer with its cache, layer_norm with weights['norm'] and eps 1e-5, then the "
        "last row @ "
        "the head's weight.",
    ),
    ("npformer.learn.right:decoder_step", "npformer.generation.state:PromptState.step"),
    (
        Slip(
            "positions start at 0",
            "The positions of the new tokens begin at 0. They should continue after the cached tokens.",
            lambda *a: _step(*a, start=lambda earlier, n: 0),
        ),
        Slip(
            "positions from 1",
            "The first token of a text has position 1. Positions are counted from 0.",
            lambda *a: _step(*a, start=lambda earlier, n: earlier + 1),
        ),
        Slip(
            "positions one late after a cache",
            "After a cache of S tokens the next position is S + 1 here. It should be S, because positions are "
            "counted from 0.",
            lambda *a: _step(*a, start=lambda earlier, n: earlier + (earlier > 0)),
        ),
        Slip(
            "positions one early",
            "After a cache of S tokens the next position is S - 1 here. It should be S.",
            lambda *a: _step(*a, start=lambda earlier, n: max(0, earlier - 1)),
        ),
        Slip(
            "first row",
            "The logits are those of the first row. They should be those of the last.",
            lambda *a: _step(*a, row=0),
        ),
        Slip(
            "every row",
            "The logits of every row are returned. Return those of the last row.",
            lambda *a: _step(*a, row=slice(None)),
        ),
        Slip("last norm left out", "The last norm is not applied.", lambda *a: _step(*a, norm=False)),
        Slip("eps is 1e-12", "eps of the last norm is 1e-12. It should be 1e-5.", lambda *a: _step(*a, eps=1e-12)),
        Slip(
            "caches not passed on",
            "The layers do not get the caches.",
            lambda *a: _step(*a, of_layer=lambda caches, i: None),
        ),
        Slip(
            "first layer's cache for all",
            "Every layer gets the cache of the first. Each has its own.",
            lambda *a: _step(*a, of_layer=lambda caches, i: caches[0]),
        ),
        Slip(
            "caches in reverse order",
            "The caches are given to the layers in reverse order.",
            lambda *a: _step(*a, of_layer=lambda caches, i: caches[-1 - i]),
        ),
        Slip(
            "old caches returned",
            "The caches that were given are returned. Return those with the new tokens.",
            lambda *a: _step(*a, keep=lambda new, caches: caches),
        ),
        Slip("layers reversed", "The layers are applied from the last to the first.", lambda *a: _step(*a, order=-1)),
        Slip(
            "probabilities for logits",
            "The result went through softmax. Return the logits.",
            lambda *a: _step(*a, after=softmax),
        ),
        Slip(
            "word for logits",
            "The most likely word is returned. Return the logits.",
            lambda *a: _step(*a, after=np.argmax),
        ),
    ),
)
