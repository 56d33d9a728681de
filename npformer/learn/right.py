"""The right answer of every exercise, computed by npformer's own functions.

The names and arguments are those of the learner's file. Each function works in the dtype of its arguments, because the
checker computes in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npformer import activations, attention, functions, masks
from npformer.activations import gelu_tanh as gelu_tanh
from npformer.attention import combine_heads as combine_heads
from npformer.attention import split_heads as split_heads
from npformer.generation.processors import narrow
from npformer.generation.settings import Settings
from npformer.tape import Recording, Stages
from npformer.taps import listen

Array = np.ndarray
Linear = Mapping[str, np.ndarray]
Cache = tuple[np.ndarray, np.ndarray]


# --- chapter 1 --------------------------------------------------------------------------------------------------------


def embeddings(ids: Array, token_table: Array, position_table: Array, start: int = 0) -> Array:
    positions = start + np.arange(len(ids))
    return functions.embedding(ids, token_table) + functions.embedding(positions, position_table)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-12) -> Array:
    return functions.layer_norm(x, weight, bias, float(eps))


def gelu(x: Array) -> Array:
    return activations.gelu(x)


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return functions.linear(x, weight, bias)


# --- chapter 2 --------------------------------------------------------------------------------------------------------


def softmax(x: Array, axis: int = -1) -> Array:
    return functions.softmax(x, axis)


def scaled_dot_product_attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    return attention.scaled_dot_product_attention(q, k, v, mask)


def causal_mask(n_queries: int, n_keys: int) -> Array:
    return masks.causal_mask(n_queries, n_keys)


# --- chapter 3 --------------------------------------------------------------------------------------------------------


def multi_head_attention(
    x: Array, n_heads: int, query: Linear, key: Linear, value: Linear, output: Linear, mask: Array | None = None
) -> Array:
    q, k, v = (split_heads(linear(x, **layer), n_heads) for layer in (query, key, value))
    return linear(combine_heads(scaled_dot_product_attention(q, k, v, mask)), **output)


def feed_forward(x: Array, activation: Callable[[Array], Array], hidden: Linear, output: Linear) -> Array:
    return linear(activation(linear(x, **hidden)), **output)


def encoder_layer(
    x: Array,
    n_heads: int,
    attention: Mapping[str, Any],
    attention_norm: Mapping[str, Any],
    ffn: Mapping[str, Any],
    ffn_norm: Mapping[str, Any],
) -> Array:
    y = layer_norm(x + multi_head_attention(x, n_heads, **attention), **attention_norm)
    return layer_norm(y + feed_forward(y, gelu, **ffn), **ffn_norm)


def encoder(x: Array, n_heads: int, layers: Sequence[Mapping[str, Any]]) -> Array:
    for layer in layers:
        x = encoder_layer(x, n_heads, **layer)
    return x


# --- chapter 4 --------------------------------------------------------------------------------------------------------


def pool(x: Array, weight: Array, bias: Array) -> Array:
    return activations.relu(linear(x[0], weight, bias))


def classify(ids: Array, n_heads: int, weights: Mapping[str, Any]) -> Array:
    tables = weights["embeddings"]
    x = layer_norm(embeddings(ids, tables["token"]["weight"], tables["position"]["weight"]), **tables["norm"])
    z = encoder(x, n_heads, weights["layers"])
    return linear(pool(z, **weights["pooler"]), **weights["head"]["output"])


# --- chapter 5 --------------------------------------------------------------------------------------------------------


def cross_entropy(logits: Array, target: int) -> Any:
    return functions.cross_entropy(logits, np.array(target))


def linear_backward(grad: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    dx, grads = functions.linear_backward(grad, x, weight, bias=weight[0])
    return dx, grads["weight"], grads["bias"]


def softmax_backward(grad: Array, y: Array) -> Array:
    return functions.softmax_backward(grad, y)


def layer_norm_backward(grad: Array, x: Array, weight: Array, eps: float = 1e-12) -> tuple[Array, Array, Array]:
    dx, grads = functions.layer_norm_backward(grad, x, weight, bias=weight, eps=float(eps))
    return dx, grads["weight"], grads["bias"]


def attention_backward(grad: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return attention.scaled_dot_product_attention_backward(grad, _recorded(q, k, v), q, k, v)


def _recorded(q: Array, k: Array, v: Array) -> Stages:
    recording = Recording()
    with listen(recording):
        attention.scaled_dot_product_attention(q, k, v)
    return recording.stages


def loss_and_gradients(ids: Array, target: int, n_heads: int, weights: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    x = embeddings(ids, weights["token"]["weight"], weights["position"]["weight"])
    q, k, v = (split_heads(linear(x, **weights[name]), n_heads) for name in ("query", "key", "value"))
    total = x + combine_heads(scaled_dot_product_attention(q, k, v))
    y = layer_norm(total, **weights["norm"])
    logits = linear(y, **weights["output"])

    grads: dict[str, Any] = {}
    grad = np.zeros_like(logits)
    grad[0] = functions.cross_entropy_backward(1.0, logits[0], np.array(target))
    grad, *grads["output"] = linear_backward(grad, y, weights["output"]["weight"])
    grad, *grads["norm"] = layer_norm_backward(grad, total, weights["norm"]["weight"])
    dx = grad
    of_heads = attention_backward(split_heads(grad, n_heads), q, k, v)
    for name, dhead in zip(("query", "key", "value"), of_heads, strict=True):
        more, *grads[name] = linear_backward(combine_heads(dhead), x, weights[name]["weight"])
        dx = dx + more
    tables = {
        "token": np.zeros_like(weights["token"]["weight"]),
        "position": np.zeros_like(weights["position"]["weight"]),
    }
    np.add.at(tables["token"], ids, dx)
    tables["position"][: len(ids)] = dx
    named = {name: dict(zip(("weight", "bias"), arrays, strict=True)) for name, arrays in grads.items()}
    loss = cross_entropy(logits[0], target)
    return loss, {name: {"weight": tables[name]} if name in tables else named[name] for name in weights}


# --- chapter 6 --------------------------------------------------------------------------------------------------------


def decoder_layer(
    x: Array,
    n_heads: int,
    cache: Cache | None,
    attention: Mapping[str, Linear],
    attention_norm: Linear,
    ffn: Mapping[str, Linear],
    ffn_norm: Linear,
    eps: float = 1e-5,
) -> tuple[Array, Cache]:
    h = layer_norm(x, **attention_norm, eps=eps)
    q, k, v = (split_heads(linear(h, **attention[name]), n_heads) for name in ("query", "key", "value"))
    if cache is not None:
        k, v = np.concatenate([cache[0], k], axis=1), np.concatenate([cache[1], v], axis=1)
    heads = scaled_dot_product_attention(q, k, v, causal_mask(q.shape[1], k.shape[1]))
    y = x + linear(combine_heads(heads), **attention["output"])
    return y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), gelu_tanh, **ffn), (k, v)


def decoder_step(
    ids: Array, n_heads: int, weights: Mapping[str, Any], caches: Sequence[Cache] | None = None
) -> tuple[Array, list[Cache]]:
    start = 0 if caches is None else caches[0][0].shape[1]
    tables, new = weights["embeddings"], []
    x = embeddings(ids, tables["token"]["weight"], tables["position"]["weight"], start)
    for i, layer in enumerate(weights["layers"]):
        x, cache = decoder_layer(x, n_heads, None if caches is None else caches[i], **layer)
        new.append(cache)
    return layer_norm(x[-1], **weights["norm"], eps=1e-5) @ weights["head"]["output"]["weight"], new


def sample(logits: Array, temperature: float, top_p: float, u: float) -> int:
    scores = logits.astype(np.float64)[None]
    narrow(scores, Settings(None, temperature=temperature, top_p=top_p, top_k=0))
    mass = functions.softmax(scores)[0].cumsum()
    return int(np.searchsorted(mass, u * mass[-1], side="right"))
