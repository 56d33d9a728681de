"""Finds the arguments of the functions on pages, by the names of parameters, from the config of a model.

An argument that depends on the text, such as a mask, is an expression: a `Call` of a function of a page or of NumPy.
Its arguments include names of values of the text. `bind` computes the expression for a text, and `source.py` writes it
to a file.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npformer.plain import formulas, rotary
from npformer.plain.decoding import no_past
from npformer.plain.roberta import padded_positions
from npformer.plain.transformer import shifted


class Name(NamedTuple):
    """A value of a text: ids (L,), target_ids, or length, the number of its positions."""

    name: str


class Call(NamedTuple):
    """A call of a function, with arguments that may be expressions."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


IDS, TARGET_IDS, LENGTH = Name("ids"), Name("target_ids"), Name("length")

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": formulas.gelu,
    "gelu_tanh": formulas.gelu_tanh,
    "relu": formulas.relu,
    "silu": formulas.silu,
    "tanh": np.tanh,
}


def bind(function: Callable[..., Any], config: Any, weights: Mapping[str, Any], text: Any) -> Callable[..., Any]:
    """Binds the arguments of a page's function that a config, weights and a text determine. Others stay unbound."""
    parameters = inspect.signature(function).parameters
    known = _values(config, text)
    sizes = {
        name: known[name] if name in known else computed(SIZES[name](config), known)
        for name in parameters
        if name in SIZES
    }
    functions = {name: chosen(name, function, config) for name in parameters if name in OPTIONS}
    groups = {name: weights.get(name, {}) for name in parameters if name in weights or name in OPTIONAL}
    return partial(function, **sizes, **functions, **groups)


def computed(expression: Any, known: Mapping[str, Any]) -> Any:
    """The value of an expression, given the values of a text by name."""
    if isinstance(expression, Name):
        return known[expression.name]
    if isinstance(expression, Call):
        return expression.function(*(computed(each, known) for each in expression.arguments))
    return [computed(each, known) for each in expression] if isinstance(expression, list) else expression


def _values(config: Any, text: Any) -> dict[str, Any]:
    """The values of a text by name: its ids, and values that it sets explicitly, such as positions."""
    source, target = text if isinstance(text, tuple) else (text, None)
    given = {
        "ids": source.ids,
        "positions": None if source.positions is None else config.positions.first + source.positions,
        "token_type_ids": source.token_type_ids,
        "text_positions": source.places,
        "target_ids": target.ids if target else None,
        "target_text_positions": target.places if target else None,
    }
    known = {name: each for name, each in given.items() if each is not None}
    positions = known.get("positions", computed(SIZES["positions"](config), known))
    return known | {"length": int(positions.max()) + 1}


def chosen(name: str, function: Callable[..., Any], config: Any) -> Any:
    """The function that a config selects for a parameter, from CHOICES on the page of `function`."""
    return function.__globals__["CHOICES"][name][OPTIONS[name](config)]


def _positions(config: Any) -> Any:
    """The row of the position table for each token, or the position for rotating its query and key."""
    if config.uncounted is not None:
        return Call(padded_positions, (IDS, config.uncounted))
    return _from(config.positions.first, IDS)


def _from(first: int, ids: Any) -> Call:
    """first, first + 1, ... for each of the ids."""
    places = Call(np.arange, (Call(len, (ids,)),))
    return Call(np.add, (first, places)) if first else places


def _target(config: Any) -> Any:
    """The ids that the decoder reads: the ids of the target, or the ids of the text shifted right."""
    return TARGET_IDS if config.head == "translation" else Call(shifted, (IDS, config.decoder.start_id))


def of_layer(config: Any, layer: int, field: str) -> Any:
    """The mechanism in a layer that has this field; None if there is no such mechanism."""
    return next((each for each in config.mechanisms_of(layer) if hasattr(each, field)), None)


def _reaches(config: Any) -> list[float]:
    """The largest distance between a query and a key in each layer."""
    found = [of_layer(config, layer, "reach") for layer in range(config.n_layers)]
    return [each.reach if each else math.inf for each in found]


def _rotation(config: Any, layer: int = 0) -> list[Any]:
    """Frequencies and magnitude of the rotary positions of a layer. Without rotation, every angle is 0."""
    rotation = of_layer(config, layer, "theta")
    if rotation is None:
        return [np.zeros(config.d_head // 2, np.float32), 1.0]
    d_head, scaling = getattr(rotation, "columns", config.d_head), rotation.scaling
    if scaling is None:
        return [rotary.rotary_frequencies(d_head, rotation.theta), 1.0]
    kind = type(scaling).__name__
    return [SCALINGS[kind](rotation.theta, d_head, scaling), MAGNITUDES.get(kind, lambda scaling: 1.0)(scaling)]


def _yarn(theta: float, d_head: int, scaling: Any) -> np.ndarray:
    """Frequencies scaled by YaRN. With `truncate`, the ramp begins and ends at a whole pair."""
    first, last = (rotary.yarn_pair(turns, d_head, theta, scaling.original) for turns in (scaling.fast, scaling.slow))
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    ramp = rotary.yarn_ramp(first, last, d_head)
    return rotary.yarn_scaling(rotary.rotary_frequencies(d_head, theta), scaling.factor, ramp)


def _longrope(theta: float, d_head: int, scaling: Any) -> Call:
    """Frequencies that depend on whether the text is long."""
    divisors = Call(rotary.longrope_divisors, (LENGTH, scaling.original, list(scaling.short), list(scaling.long)))
    return Call(rotary.longrope_frequencies, (d_head, theta, divisors))


#: Maps the class of a scaling to a function from theta and the number of rotated columns to the frequencies, or to an
#: expression for them.
SCALINGS: Mapping[str, Callable[[float, int, Any], Any]] = {
    "Linear": lambda theta, d_head, s: rotary.linear_scaling(rotary.rotary_frequencies(d_head, theta), s.factor),
    "Dynamic": lambda theta, d_head, s: Call(rotary.dynamic_frequencies, (d_head, theta, s.factor, s.original, LENGTH)),
    "Llama3": lambda theta, d_head, s: rotary.llama3_scaling(
        rotary.rotary_frequencies(d_head, theta), s.factor, s.low, s.high, s.original
    ),
    "Yarn": _yarn,
    "LongRope": _longrope,
}
#: Maps the class of a scaling to the factor of cosines and sines. In scalings without an entry, the factor is 1.
MAGNITUDES: Mapping[str, Callable[[Any], float]] = {
    "Yarn": lambda s: s.attention or rotary.yarn_magnitude(s.factor),
    "LongRope": lambda s: s.attention or rotary.longrope_magnitude(s.factor, s.original),
}

#: The soft cap for models without a cap. It is so high that no score changes, and a power of 2, so no score is rounded.
NO_CAP = 2.0**64

#: Maps the name of a parameter to a function that returns a key of CHOICES on the page, for the parameter's value.
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
    "position_rows": lambda config: "no table" if config.positions.table == "none" else "table",
    "src_layer": lambda config: "norms before blocks" if config.norm_first else "norms after blocks",
    "tgt_layer": lambda config: "norms before blocks" if config.norm_first else "norms after blocks",
}
#: Groups of weights that only some models of a family have. For a missing group, a function receives an empty dict.
OPTIONAL = ("norm", "project", "distances_norm")

#: Maps the name of a parameter to a function from a config to its value, or to an expression for its value.
SIZES: Mapping[str, Callable[[Any], Any]] = {
    "ids": lambda config: IDS,
    "positions": lambda config: _positions(config),
    "target_ids": lambda config: _target(config),
    "target_positions": lambda config: _from(config.positions.first, _target(config)),
    "token_type_ids": lambda config: Call(np.zeros_like, (IDS,)),
    "mask": lambda config: Call(formulas.causal_mask, (Call(len, (IDS,)),)) if config.causal else True,
    "past": lambda config: Call(no_past, (config.n_layers, config.kv_heads, config.d_head)),
    "text_positions": lambda config: _from(0, IDS),
    "target_text_positions": lambda config: _from(0, _target(config)),
    "n_heads": lambda config: config.n_heads,
    "n_target_heads": lambda config: config.decoder.n_heads,
    "heads": lambda config: [config.n_heads, config.kv_heads],
    "eps": lambda config: config.eps,
    "activation": lambda config: ACTIVATIONS[config.activation],
    "head_activation": lambda config: ACTIVATIONS[config.below_head],
    "pooler_activation": lambda config: ACTIVATIONS[config.pooler],
    "scale": lambda config: config.token_scale,
    "scale_output": lambda config: config.d_model**-0.5 if config.scale_output else 1.0,
    "ffn_function": lambda config: formulas.gated_feed_forward if config.gated else formulas.feed_forward,
    "max_distance": lambda config: config.mechanisms[0].max_distance,
    "end_id": lambda config: config.decoder.end_ids[0],
    "forms": lambda config: [{"key": "c2p", "query": "p2c"}[each] for each in config.mechanisms[0].forms],
    "convolution_activation": lambda config: ACTIVATIONS[config.convolution.activation],
    "pad_id": lambda config: config.pad_id,
    "frequencies": lambda config: _rotation(config)[0],
    "magnitude": lambda config: _rotation(config)[1],
    "rotations": lambda config: [_rotation(config, layer) for layer in range(config.n_layers)],
    "reach": lambda config: _reaches(config)[0],
    "reaches": lambda config: _reaches(config),
    "score_scale": lambda config: config.score_scale or config.d_head**-0.5,
    "scale_and_cap": lambda config: [
        config.score_scale or config.d_head**-0.5,
        getattr(of_layer(config, 0, "cap"), "cap", NO_CAP),
    ],
    "logit_cap": lambda config: config.logit_cap,
}
