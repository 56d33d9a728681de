"""Mistakes in relative positions: biases, rotary embeddings and local windows; and in gated networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.activations import ACTIVATIONS
from npformer.golden.at import At
from npformer.golden.port import Mistake, Port, Rule, Ways
from npformer.mechanisms.distances import at_distances
from npformer.mechanisms.relative_bias import relative_bias
from npformer.mechanisms.rotary import rotary_angles, rotate

SCORES, WEIGHTS = "*.attention.scores", "*.attention.weights"
ROTATED = "*.attention.{}_rotated"


# --- relative biases -------------------------------------------------------------------------------------------------


def bias_changed(change: Callable[[np.ndarray, Port], np.ndarray]) -> Callable[[Port], Ways]:
    """Adds another array to the scores than the bias (H, T, T)."""

    def rule(scores: np.ndarray, at: At, port: Port) -> np.ndarray:
        table, places = at.weight("relative_bias"), np.arange(scores.shape[-1])[None]
        assert table is not None
        bias = at_distances(relative_bias(table, scores.shape[-1]), places, places)[0]
        return scores - bias + change(bias, port)

    def ways(port: Port) -> Ways:
        if port.config.relative_buckets:
            yield "", port.ruling({SCORES: lambda scores, at: rule(scores, at, port)})

    return ways


# --- rotary embeddings -----------------------------------------------------------------------------------------------


def _pairs(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotates neighbouring columns, 2 i and 2 i + 1, as the paper has it."""
    pairs = x.reshape(len(x), -1, cos.shape[-1], 2)
    cos, sin = cos[:, None], sin[:, None]
    first, second = pairs[..., 0], pairs[..., 1]
    return np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(x.shape)


def rotated(**ways_of: Callable[..., np.ndarray]) -> Callable[[Port], Ways]:
    """Rotates queries and keys in other ways, functions of (x, cos, sin)."""

    def ways(port: Port) -> Ways:
        if not port.config.rotary_theta:
            return
        config = port.config

        def rule(formula: Callable[..., np.ndarray], at: At) -> np.ndarray:
            x = at.source
            theta = config.local_theta if config.is_local(at.layer) else config.rotary_theta
            return formula(x, *rotary_angles(np.arange(len(x)), config.d_head, theta, x.dtype))

        for way, formula in ways_of.items():
            rules: dict[str, Rule] = {
                ROTATED.format(name): lambda y, at, formula=formula: rule(formula, at) for name in ("query", "key")
            }
            yield way.replace("_", " "), port.ruling(rules)

    return ways


def other_thetas(port: Port) -> Ways:
    config = port.config
    if not config.rotary_theta:
        return
    touched = [ROTATED.format(name) for name in ("query", "key")]
    if config.local_layers:
        thetas = {"rotary_theta": config.local_theta, "local_theta": config.rotary_theta}
        yield "those of global and local layers exchanged", port.with_config(*touched, **thetas)
        yield "the global layers' in all", port.with_config(*touched, local_theta=config.rotary_theta)
        yield "the local layers' in all", port.with_config(*touched, rotary_theta=config.local_theta)
    if config.rotary_theta != 10_000:
        yield "10000", port.with_config(*touched, rotary_theta=10_000.0, local_theta=10_000.0)


# --- local windows ---------------------------------------------------------------------------------------------------


def other_windows(port: Port) -> Ways:
    config = port.config
    if not config.local_layers:
        return
    windows = {
        "a token more on each side": config.window + 2,
        "a token less on each side": config.window - 2,
        "the whole window on each side": 2 * config.window,
        "none": 2 * config.max_length,
    }
    for way, window in windows.items():
        if window > 1:
            yield way, port.with_config(WEIGHTS, window=window)


# --- gated networks --------------------------------------------------------------------------------------------------


def gate_swapped(port: Port) -> Ways:
    pairs = [(name, name.replace(".ffn.gate.", ".ffn.hidden.")) for name in port.weights if ".ffn.gate." in name]
    if pairs:
        yield "", port.weighing({ours: port.weights[theirs] for pair in pairs for ours, theirs in (pair, pair[::-1])})
        activation = ACTIVATIONS[port.config.activation]
        yield (
            "the gate is activated",
            port.ruling(
                {
                    "*.ffn.activation": lambda y, at: activation(at("ffn.gate")),
                    "*.ffn.gated": lambda y, at: at("ffn.activation") * at("ffn.hidden"),
                }
            ),
        )


def gate_wrong(port: Port) -> Ways:
    if any(".ffn.gate." in name for name in port.weights):
        yield "left out", port.ruling({"*.ffn.gated": lambda y, at: at("ffn.activation")})
        yield "added, not multiplied", port.ruling({"*.ffn.gated": lambda y, at: at("ffn.activation") + at("ffn.gate")})


MISTAKES = (
    Mistake(
        "relative bias with the wrong sign",
        "a bucket is of the key's position less the query's, and keys after the query have the upper half of buckets",
        bias_changed(lambda bias, port: bias.swapaxes(-1, -2)),
    ),
    Mistake(
        "relative bias left out",
        "every layer adds the bias to its scores",
        bias_changed(lambda bias, port: 0 * bias),
    ),
    Mistake(
        "relative bias scaled",
        "scores are divided by sqrt(d_head) before the bias is added",
        bias_changed(lambda bias, port: bias * port.config.d_head**-0.5),
    ),
    Mistake(
        "rotation of pairs for halves",
        "checkpoints rotate column i of a head with column i + d_head / 2, not with its neighbour",
        rotated(**{"": _pairs}),
    ),
    Mistake(
        "rotation left out or turned",
        "queries and keys are rotated by their positions, both in the same direction",
        rotated(left_out=lambda x, cos, sin: x, the_other_way=lambda x, cos, sin: rotate(x, cos, -sin)),
    ),
    Mistake("rotation with another base", "theta is rope_theta of the layer's kind in config.json", other_thetas),
    Mistake(
        "another local window",
        "in a local layer a query sees keys at most local_attention // 2 places away",
        other_windows,
    ),
    Mistake(
        "gate and hidden swapped",
        "the activation is of the first half of a fused layer, or of gate_proj, the gate is the second, or up_proj",
        gate_swapped,
    ),
    Mistake("gate left out", "the activation is multiplied by the gate", gate_wrong),
)
