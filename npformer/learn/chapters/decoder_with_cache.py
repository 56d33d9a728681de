"""Chapter 6, the decoder layer with a cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npformer.activations import relu
from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, array, drawn, layer_weights
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


def drawn_cache(seed: int, heads: int, earlier: int, width: int) -> tuple[Array, Array]:
    return drawn(seed, heads, earlier, width), drawn(seed + 1, heads, earlier, width)


def _layer_cases() -> list[tuple[Any, ...]]:
    small, wide = layer_weights(1, 2, 3).values(), layer_weights(10, 6, 7).values()
    return [
        (array([[1, 0], [0, 2]]), 1, None, *small),
        (drawn(1, 1, 6), 2, drawn_cache(2, 2, 5, 3), *wide),
        (drawn(3, 4, 6), 2, drawn_cache(4, 2, 7, 3), *wide),
        (drawn(6, 4, 6) / 300, 2, None, *wide, 0.25),
        (drawn(7, 4, 6) / 300, 2, None, *wide),
    ]


def _appended(cache: Any, k: Array, v: Array, *, keys: int = 0, values: int = 1, axis: int = 1) -> tuple[Array, Array]:
    """The cache with new keys and values appended along axis. keys, values: indices of the cached arrays."""
    if cache is None:
        return k, v
    return np.concatenate([cache[keys], k], axis), np.concatenate([cache[values], v], axis)


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
    eps: float | None = None,
    *,
    default: float = 1e-5,
    always: float | None = None,
    append: Any = _appended,
    keep: Any = None,
    mask: Any = causal_mask,
    first: bool = True,
    second: bool = True,
    act: Any = gelu_tanh,
    from_normed: tuple[bool, bool] = (False, False),
    residuals: tuple[float, float] = (1.0, 1.0),
    project: bool = True,
    from_x: tuple[str, ...] = (),
    second_of: Any = lambda x, y: y,
    added: Any = lambda x, y: y,
) -> tuple[Array, Any]:
    """`right.decoder_layer` with one of its steps replaced."""
    eps = always or eps or default
    n = layer_norm(x, **attention_norm, eps=eps) if first else x
    of_heads = ((name, x if name in from_x else n) for name in ("query", "key", "value"))
    q, k, v = (split_heads(linear(rows, **attention[name]), h) for name, rows in of_heads)
    keys, values = append(cache, k, v)
    allowed = None if mask is None else mask(q.shape[1], keys.shape[1])
    heads = combine_heads(right.scaled_dot_product_attention(q, keys, values, allowed))
    y = residuals[0] * (n if from_normed[0] else x) + (linear(heads, **attention["output"]) if project else heads)
    m = layer_norm(second_of(x, y), **ffn_norm, eps=eps) if second else y
    z = residuals[1] * (m if from_normed[1] else added(x, y)) + feed_forward(m, act, **ffn)
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


def _first_tokens(n_queries: int, n_keys: int) -> Array:
    return np.tri(n_queries, n_keys, dtype=bool)


def _all_earlier(n_queries: int, n_keys: int) -> Array:
    """Returns a causal mask if there is no cache, otherwise a mask that shows every key."""
    return causal_mask(n_queries, n_keys) if n_queries == n_keys else np.ones((n_queries, n_keys), bool)


def _strict(n_queries: int, n_keys: int) -> Array:
    return np.tri(n_queries, n_keys, n_keys - n_queries - 1, dtype=bool) | (np.arange(n_keys) == 0)


def _ignored(cache: Any, k: Array, v: Array) -> tuple[Array, Array]:
    return k, v


DECODER_LAYER = Exercise(
    "decoder_layer",
    right.decoder_layer,
    _layer_cases,
    (
        "The norms come first: y = x + attention(layer_norm(x)). multi_head_attention has no cache, so write "
        "its steps here.",
        "Compute q, k and v of the new rows, and split them into heads. With a cache, put its keys before k and its "
        "values before v: np.concatenate along axis 1, the axis of the tokens.",
        "causal_mask(number of queries, number of keys) has the right shape. Return z, and the pair of all keys "
        "and values.",
    ),
    ("npformer.learn.right:decoder_layer", "npformer.plain.gpt2:gpt2_layer", "npformer.plain.llama:extend"),
    (
        Slip(
            "cache one step late",
            "The new tokens attend to the cached keys only, not to their own keys. Add the new keys and values first, "
            "then attend.",
            partial(_layer, append=_late, mask=_all_earlier, keep=lambda c, k, v, ks, vs: _appended(c, k, v)),
        ),
        Slip(
            "new cache without the new tokens",
            "The returned cache lacks the new tokens. It should have the keys and values of all tokens.",
            partial(_layer, keep=lambda c, k, v, ks, vs: c),
        ),
        Slip(
            "new cache with the new tokens only",
            "The returned cache has the new tokens only. It should have the keys and values of all tokens.",
            partial(_layer, keep=lambda c, k, v, ks, vs: (k, v)),
        ),
        Slip(
            "cache ignored",
            "The cache is not used: the new tokens attend to each other only.",
            partial(_layer, append=_ignored),
        ),
        Slip(
            "cache ignored in attention",
            "The new tokens attend to each other only. They should attend to the cached keys too.",
            partial(_layer, append=_ignored, keep=lambda c, k, v, ks, vs: _appended(c, k, v)),
        ),
        Slip(
            "cache after the new tokens",
            "The new keys and values come first. They should follow the cached ones, whose tokens are earlier.",
            partial(_layer, append=_prepended),
        ),
        Slip(
            "cached keys instead of cached values",
            "cache[0], the keys, is used as the values. The values should be cache[1].",
            partial(_layer, append=partial(_appended, values=0)),
        ),
        Slip(
            "cached values instead of cached keys",
            "cache[1], the values, is used as the keys. The keys should be cache[0].",
            partial(_layer, append=partial(_appended, keys=1)),
        ),
        Slip(
            "keys and values exchanged when read",
            "cache[0] is used as the values and cache[1] as the keys. The cache is the pair (keys, values).",
            partial(_layer, append=partial(_appended, keys=1, values=0)),
        ),
        Slip(
            "cache along the wrong axis",
            "The cached and the new keys are joined along the wrong axis. The arrays are (H, S, K) and (H, L, K), so "
            "join them along axis 1, the tokens.",
            partial(_layer, append=partial(_appended, axis=0)),  # raises: the numbers of tokens differ
        ),
        Slip(
            "keys and values exchanged in the cache",
            "The returned pair is (values, keys). It should be (keys, values).",
            partial(_layer, keep=lambda c, k, v, ks, vs: (vs, ks)),
        ),
        Slip(
            "causal mask left out",
            "The tokens also attend to later tokens. Use causal_mask.",
            partial(_layer, mask=None),
        ),
        Slip(
            "mask treats the queries as the first tokens",
            "The mask treats the queries as the first tokens of the text. They are its last tokens.",
            partial(_layer, mask=_first_tokens),
        ),
        Slip(
            "mask of the new tokens alone",
            "The mask is causal_mask(L, L), without the cached keys. It should be causal_mask(L, S + L).",
            partial(_layer, mask=lambda n_queries, n_keys: causal_mask(n_queries, n_queries)),
        ),
        Slip(
            "mask hides a token from itself",
            "A token does not attend to itself. The mask should show the token's own key and all earlier keys.",
            partial(_layer, mask=_strict),
        ),
        Slip(
            "post-norm",
            "The norms are applied after the sums. In this layer they should be applied before attention and "
            "before the feed-forward network.",
            _post_norm,
        ),
        Slip("first norm left out", "attention_norm is not applied.", partial(_layer, first=False)),
        Slip("second norm left out", "ffn_norm is not applied.", partial(_layer, second=False)),
        Slip(
            "both norms left out",
            "attention_norm and ffn_norm are not applied.",
            partial(_layer, first=False, second=False),
        ),
        Slip("norms exchanged", "attention_norm and ffn_norm are exchanged.", _exchanged),
        Slip(
            "residuals from the norms",
            "The normalized rows are added to the outputs of the blocks. X and Y themselves should be added.",
            lambda *a: _layer(*a, from_normed=(True, True)),
        ),
        Slip(
            "queries from rows without the norm",
            "The queries are computed from X. They should be computed from Normalize(X), like keys and values.",
            partial(_layer, from_x=("query",)),
        ),
        Slip(
            "keys from rows without the norm",
            "The keys are computed from X. They should be computed from Normalize(X), like the queries.",
            partial(_layer, from_x=("key",)),
        ),
        Slip(
            "values from rows without the norm",
            "The values are computed from X. They should be computed from Normalize(X), like the queries.",
            partial(_layer, from_x=("value",)),
        ),
        Slip(
            "keys and values from rows without the norm",
            "Keys and values are computed from X. They should be computed from Normalize(X), like the queries.",
            partial(_layer, from_x=("key", "value")),
        ),
        Slip(
            "feed-forward network reads X",
            "The feed-forward network reads Normalize(X). It should read Normalize(Y).",
            partial(_layer, second_of=lambda x, y: x),
        ),
        Slip(
            "second residual is X",
            "X is added to the output of the feed-forward network. Y should be added.",
            partial(_layer, added=lambda x, y: x),
        ),
        Slip(
            "first residual is Normalize(X)",
            "Normalize(X) is added to the output of attention. X itself should be added.",
            lambda *a: _layer(*a, from_normed=(True, False)),
        ),
        Slip(
            "first residual left out",
            "X is not added to the output of attention.",
            partial(_layer, residuals=(0.0, 1.0)),
        ),
        Slip(
            "second residual left out",
            "Y is not added to the output of the feed-forward network.",
            partial(_layer, residuals=(1.0, 0.0)),
        ),
        Slip(
            "W_O left out",
            "The combined heads do not pass through the output layer.",
            partial(_layer, project=False),
        ),
        Slip("query and key exchanged", "The query and key layers are exchanged.", _swapped),
        Slip(
            "eps is always 1e-12",
            "eps is 1e-12, regardless of the argument. Use the argument, which is 1e-5 by default.",
            partial(_layer, always=1e-12),
        ),
        Slip(
            "eps is always 1e-5",
            "eps is 1e-5, regardless of the argument. Use the argument.",
            partial(_layer, always=1e-5),
        ),
        Slip(
            "wrong default for eps",
            "eps is 1e-12 by default. The default should be 1e-5, as in GPT-2.",
            partial(_layer, default=1e-12),
        ),
        Slip("exact GELU", "The activation is the exact GELU. It should be gelu_tanh.", partial(_layer, act=gelu)),
        Slip("relu instead of gelu_tanh", "The activation is relu. It should be gelu_tanh.", partial(_layer, act=relu)),
        Slip("activation left out", "The feed-forward network has no activation.", partial(_layer, act=_same)),
    ),
    values=("z", "cache"),
    optional="cache",
    constants=(
        Constant(
            "wrong eps",
            "eps is {number}, regardless of the argument. Use the argument, which is 1e-5 by default.",
            lambda number: partial(_layer, always=number),
            (1e-6, 1e-3),
        ),
        Constant(
            "wrong default for eps",
            "eps is {number} by default. The default should be 1e-5, as in GPT-2.",
            lambda number: partial(_layer, default=number),
            (1e-6, 1e-3),
        ),
    ),
)
