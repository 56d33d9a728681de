"""The arguments of pages, from a model's config and a text, under the names of the pages' parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from npformer.plain import formulas, rotary
from npformer.plain.roberta import padded_positions

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": formulas.gelu,
    "gelu_tanh": formulas.gelu_tanh,
    "relu": formulas.relu,
    "silu": formulas.silu,
    "tanh": np.tanh,
}


def bind(function: Callable[..., Any], config: Any, weights: Mapping[str, Any], text: Any) -> Callable[..., Any]:
    """The function of a page with the arguments that a config, weights and a text give. Other arguments stay open."""
    names = inspect.signature(function).parameters
    sizes = {name: SIZES[name](config, weights, text) for name in names if name in SIZES}
    chosen = {name: function.__globals__["CHOICES"][name][OPTIONS[name](config)] for name in names if name in OPTIONS}
    groups = {name: weights.get(name, {}) for name in names if name in weights or name in OPTIONAL}
    return partial(function, **sizes, **chosen, **groups)


def _source(text: Any) -> Any:
    """The text, or the source of a pair of source and target."""
    return text[0] if isinstance(text, tuple) else text


def _target(config: Any, text: Any) -> np.ndarray:
    """The ids that the decoder reads: those of the target, or the text's own, shifted right."""
    start = config.decoder.start_id
    ids: np.ndarray = text[1].ids if isinstance(text, tuple) else np.concatenate([[start], text.ids[:-1]])
    return ids


def _positions(config: Any, text: Any) -> np.ndarray:
    """The row of the position table for each token, or the position by which its queries and keys are rotated."""
    if text.positions is None and config.uncounted is not None:
        return padded_positions(text.ids, config.uncounted)
    return config.positions.first + (np.arange(len(text.ids)) if text.positions is None else text.positions)


def _places(text: Any) -> np.ndarray:
    """The index of each token in its text, from which distances are computed."""
    places: np.ndarray = np.arange(len(text)) if text.places is None else text.places
    return places


def _no_past(config: Any, weights: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """No keys and no values, for each layer."""
    none = np.zeros((config.kv_heads, 0, config.d_head), weights["embeddings"]["token"]["weight"].dtype)
    return [(none, none)] * config.n_layers


def _rotary(config: Any, layer: int = 0) -> Any:
    return next((each for each in config.mechanisms_of(layer) if hasattr(each, "theta")), None)


def _reach(config: Any, layer: int) -> float:
    """The greatest distance of a key in a layer, infinite without a window."""
    return next((each.reach for each in config.mechanisms_of(layer) if hasattr(each, "reach")), np.inf)


def _frequencies(rotation: Any, config: Any, length: int) -> np.ndarray:
    if rotation is None:
        return np.zeros(config.d_head // 2, np.float32)  # angles of 0 rotate nothing
    frequencies = rotary.rotary_frequencies(getattr(rotation, "columns", 0) or config.d_head, rotation.theta)
    scaling = rotation.scaling
    return frequencies if scaling is None else SCALINGS[type(scaling).__name__](frequencies, scaling, length)


#: Class of a scaling in a config -> the frequencies of a text of some length.
SCALINGS: Mapping[str, Callable[[np.ndarray, Any, int], np.ndarray]] = {
    "Linear": lambda f, s, length: rotary.linear_scaling(f, s.factor),
    "Llama3": lambda f, s, length: rotary.llama3_scaling(f, s.factor, s.low, s.high, s.original),
}

#: Name of a parameter -> key of its function in the CHOICES of the page.
OPTIONS: Mapping[str, Callable[[Any], str]] = {
    "embed_tokens": lambda config: "narrow" if config.d_embedding else "wide",
    "buckets": lambda config: "log" if config.mechanisms[0].max_distance else "own",
    "distance_norm": lambda config: "norm" if config.mechanisms[0].norm else "no norm",
    "pooling": lambda config: config.pooling,
}
#: Groups of weights that only some models of a family have. Without them, the function that reads them takes none.
OPTIONAL = ("distances_norm",)

#: Name of a parameter -> its value for one text.
SIZES: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "ids": lambda config, weights, text: _source(text).ids,
    "positions": lambda config, weights, text: _positions(config, _source(text)),
    "target_ids": lambda config, weights, text: _target(config, text),
    "target_positions": lambda config, weights, text: config.positions.first + np.arange(len(_target(config, text))),
    "token_type_ids": lambda config, weights, text: (
        np.zeros_like(text.ids) if text.token_type_ids is None else text.token_type_ids
    ),
    "mask": lambda config, weights, text: formulas.causal_mask(len(text), len(text)) if config.causal else True,
    "past": lambda config, weights, text: _no_past(config, weights),
    "places": lambda config, weights, text: _places(text),
    "n_heads": lambda config, weights, text: config.n_heads,
    "n_target_heads": lambda config, weights, text: config.decoder.n_heads,
    "heads": lambda config, weights, text: (config.n_heads, config.kv_heads),
    "eps": lambda config, weights, text: config.eps,
    "activation": lambda config, weights, text: ACTIVATIONS[config.activation],
    "head_activation": lambda config, weights, text: ACTIVATIONS[config.below_head],
    "pooler_activation": lambda config, weights, text: ACTIVATIONS[config.pooler],
    "scale": lambda config, weights, text: config.token_scale,
    "scale_output": lambda config, weights, text: config.d_model**-0.5 if config.scale_output else 1.0,
    "ffn_function": lambda config, weights, text: (
        formulas.gated_feed_forward if config.gated else formulas.feed_forward
    ),
    "max_distance": lambda config, weights, text: config.mechanisms[0].max_distance,
    "end_id": lambda config, weights, text: config.decoder.end_ids[0],
    "forms": lambda config, weights, text: [
        {"key": "c2p", "query": "p2c"}[each] for each in config.mechanisms[0].forms
    ],
    "convolution_activation": lambda config, weights, text: ACTIVATIONS[config.convolution.activation],
    "layer_frequencies": lambda config, weights, text: [
        _frequencies(_rotary(config, layer), config, len(text)) for layer in range(config.n_layers)
    ],
    "layer_reaches": lambda config, weights, text: [_reach(config, layer) for layer in range(config.n_layers)],
    "pad_id": lambda config, weights, text: config.pad_id,
    "frequencies": lambda config, weights, text: _frequencies(_rotary(config), config, len(text)),
    "magnitude": lambda config, weights, text: 1.0 if (s := _rotary(config).scaling) is None else s.magnitude,
}
