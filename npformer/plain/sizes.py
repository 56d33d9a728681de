"""The arguments of pages, from a model's config and a text, under the names of the pages' parameters."""

from __future__ import annotations

import inspect
import math
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
    functions = {name: chosen(name, function, config) for name in names if name in OPTIONS}
    groups = {name: weights.get(name, {}) for name in names if name in weights or name in OPTIONAL}
    return partial(function, **sizes, **functions, **groups)


def chosen(name: str, function: Callable[..., Any], config: Any) -> Any:
    """The function that a config chooses for a parameter, from CHOICES of the page of `function`."""
    return function.__globals__["CHOICES"][name][OPTIONS[name](config)]


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


def of_layer(config: Any, layer: int, field: str) -> Any:
    """The mechanism of a layer that has this field; None if there is no such mechanism."""
    return next((each for each in config.mechanisms_of(layer) if hasattr(each, field)), None)


def _reaches(config: Any) -> list[float]:
    """The greatest distance of a key in each layer."""
    found = [of_layer(config, layer, "reach") for layer in range(config.n_layers)]
    return [each.reach if each else math.inf for each in found]


def _rotation(config: Any, text: Any, layer: int = 0) -> tuple[np.ndarray, float]:
    """Frequencies and magnitude of the rotary positions of a layer. Without rotation, every angle is 0."""
    rotation = of_layer(config, layer, "theta")
    if rotation is None:
        return np.zeros(config.d_head // 2, np.float32), 1.0
    d_head, scaling = getattr(rotation, "columns", config.d_head), rotation.scaling
    if scaling is None:
        return rotary.rotary_frequencies(d_head, rotation.theta), 1.0
    kind, length = type(scaling).__name__, int(_positions(config, text).max()) + 1
    return SCALINGS[kind](rotation.theta, d_head, scaling, length), MAGNITUDES.get(kind, lambda scaling: 1.0)(scaling)


def _yarn(theta: float, d_head: int, scaling: Any, length: int) -> np.ndarray:
    """Frequencies scaled by YaRN. With `truncate`, the ends of the ramp are whole pairs."""
    first, last = (rotary.yarn_pair(turns, d_head, theta, scaling.original) for turns in (scaling.fast, scaling.slow))
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    ramp = rotary.yarn_ramp(first, last, d_head)
    return rotary.yarn_scaling(rotary.rotary_frequencies(d_head, theta), scaling.factor, ramp)


#: Class of a scaling in a config -> the frequencies of a text of some length, from theta and the rotated columns.
SCALINGS: Mapping[str, Callable[[float, int, Any, int], np.ndarray]] = {
    "Linear": lambda theta, d_head, s, length: rotary.linear_scaling(
        rotary.rotary_frequencies(d_head, theta), s.factor
    ),
    "Dynamic": lambda theta, d_head, s, length: rotary.dynamic_frequencies(d_head, theta, s.factor, s.original, length),
    "Llama3": lambda theta, d_head, s, length: rotary.llama3_scaling(
        rotary.rotary_frequencies(d_head, theta), s.factor, s.low, s.high, s.original
    ),
    "Yarn": _yarn,
    "LongRope": lambda theta, d_head, s, length: rotary.longrope_frequencies(
        d_head, theta, s.short if length <= s.original else s.long
    ),
}
#: Class of a scaling -> the factor of cosines and sines, unless it is 1.
MAGNITUDES: Mapping[str, Callable[[Any], float]] = {
    "Yarn": lambda s: s.attention or rotary.yarn_magnitude(s.factor),
    "LongRope": lambda s: s.attention or rotary.longrope_magnitude(s.factor, s.original),
}

#: The soft cap of a model without one: so high that it changes no number, a power of 2, so that nothing is rounded.
NO_CAP = 2.0**64

#: Name of a parameter -> key of its function in the CHOICES of the page.
OPTIONS: Mapping[str, Callable[[Any], str]] = {
    "neox_layer": lambda config: "parallel" if config.parallel else "sequential",
    "buckets": lambda config: "log" if config.mechanisms[0].max_distance else "own",
    "distance_norm": lambda config: "norm" if config.mechanisms[0].norm else "no norm",
    "pooling": lambda config: config.pooling,
    "embed_tokens": lambda config: "narrow" if config.d_embedding else "wide",
    "opt_layer": lambda config: "norms before blocks" if config.norm_first else "norms after blocks",
    "last_norm": lambda config: "norm" if config.final_norm else "no norm",
    "last_projection": lambda config: "narrow" if config.d_embedding else "wide",
    "visible": lambda config: "causal" if config.causal else "bidirectional",
}
#: Groups of weights that only some models of a family have. Without them, the function that reads them takes none.
OPTIONAL = ("norm", "project", "distances_norm")

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
    "places": lambda config, weights, text: _places(_source(text)),
    "target_places": lambda config, weights, text: _places(text[1] if isinstance(text, tuple) else text),
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
    "pad_id": lambda config, weights, text: config.pad_id,
    "frequencies": lambda config, weights, text: _rotation(config, text)[0],
    "magnitude": lambda config, weights, text: _rotation(config, text)[1],
    "rotations": lambda config, weights, text: [_rotation(config, text, layer) for layer in range(config.n_layers)],
    "reach": lambda config, weights, text: _reaches(config)[0],
    "reaches": lambda config, weights, text: _reaches(config),
    "score_scale": lambda config, weights, text: config.score_scale or config.d_head**-0.5,
    "scale_and_cap": lambda config, weights, text: (
        config.score_scale or config.d_head**-0.5,
        getattr(of_layer(config, 0, "cap"), "cap", NO_CAP),
    ),
    "logit_cap": lambda config, weights, text: config.logit_cap or NO_CAP,
}
