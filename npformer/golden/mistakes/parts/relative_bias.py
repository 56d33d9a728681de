"""Mistakes that ports make in relative biases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.engine.mechanisms.relative_bias import RelativeBias
from npformer.golden.mistake import Mistake, Rules, Ways
from npformer.golden.recomputed import bias_of

SCORES = "*.attention.scores"


def biased(change: Callable[[Any, Any], Any]) -> Rules:
    """Rules that add change(bias, at) to the scores instead of the bias (H, T, T)."""

    def rule(scores: np.ndarray, at: Any) -> np.ndarray:
        if at.crosses:
            return scores
        bias = at.bias(scores)
        return np.add(scores, change(bias, at) - bias)  # if the bias is unchanged, so are the scores, bit by bit

    return {SCORES: rule}


def _other_buckets(port: Any) -> Ways:
    """Buckets for one direction instead of two, or for two instead of one, or with a wrong max_distance."""

    def with_other(**choices: Any) -> Rules:
        return biased(lambda bias, at: bias_of(at, bias, **choices))

    yield "of both directions", with_other(bidirectional=True)
    yield "of one direction", with_other(bidirectional=False)
    for most in (32, 64, 128, 256, 512):
        yield f"max_distance {most}", with_other(max_distance=most)


#: Number of buckets -> a wrong number of exact buckets, which hold one distance each.
EXACT: dict[str, Callable[[int], int]] = {
    "all buckets": lambda count: count - 1,
    "half the buckets plus one": lambda count: count // 2 + 1,
    "half the buckets minus one": lambda count: count // 2 - 1,
    "a quarter of the buckets": lambda count: count // 4,
}
#: Wrong roundings of the buckets of far distances, which share buckets.
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"to the nearest": np.rint, "up": np.ceil}


def _with_buckets(far: Callable[[np.ndarray], np.ndarray], exact: Callable[[int], int]) -> Rules:
    """Rules that use different buckets. far: rounds the buckets of far distances. exact: a function as in EXACT."""

    def bias(own: Any, at: Any) -> np.ndarray:
        mechanism = next(each for each in at.mechanisms if isinstance(each, RelativeBias))
        table, both = at.weight("relative_bias"), mechanism.bidirectional
        count = len(table) // 2 if both else len(table)
        border = max(exact(count), 1)
        distance = np.arange(own.shape[-1]) - np.arange(own.shape[-2])[:, None]
        away = np.abs(distance) if both else np.maximum(-distance, 0)
        steps = np.log(np.maximum(away, 1) / border) / math.log(mechanism.max_distance / border) * (count - border)
        beyond = np.minimum(border + far(steps).astype(np.int64), count - 1)
        bucket = np.where(away < border, away, beyond) + (count * (distance > 0) if both else 0)
        return np.transpose(table[bucket], (2, 0, 1))

    return biased(lambda own, at: bias(own, at) if np.ndim(own) else own)


def _rounded_otherwise(port: Any) -> Ways:
    """Ways to round the buckets of far distances up or to the nearest, or to use a wrong number of exact buckets."""
    for way, far in ROUNDINGS.items():
        yield f"far distances rounded {way}", _with_buckets(far, lambda count: count // 2)
    for way, exact in EXACT.items():
        yield f"one distance in each of {way}", _with_buckets(lambda steps: np.floor(steps + 1e-6), exact)


def _crossed(port: Any) -> Ways:
    """Adds the biases of the decoder, or of the encoder, to the scores of attention to the source."""
    for said, name in (("", "relative_bias"), (", the encoder's", "encoder.relative_bias")):
        for way, both in (("of one direction", False), ("of both directions", True)):

            def rule(scores: np.ndarray, at: Any, both: bool = both, name: str = name) -> Any:
                return scores + bias_of(at, scores, name, bidirectional=both) if at.crosses else scores

            yield way + said, {SCORES: rule}


def _other_stack(port: Any) -> Ways:
    tables = {stack: f"{stack}.relative_bias.weight" for stack in ("encoder", "decoder")}
    if all(each in port.weights for each in tables.values()):
        yield "the encoder's table in both", port.weighing({tables["decoder"]: port.weights[tables["encoder"]]})
        yield "the decoder's table in both", port.weighing({tables["encoder"]: port.weights[tables["decoder"]]})


MISTAKES = (
    Mistake(
        "relative bias with the wrong sign",
        "the bucket depends on key position - query position; keys after the query have the upper half of the buckets",
        {"": biased(lambda bias, at: bias.swapaxes(-1, -2))},
    ),
    Mistake(
        "relative bias left out", "every layer adds the bias to its scores", {"": biased(lambda bias, at: 0 * bias)}
    ),
    Mistake(
        "relative bias scaled",
        "the bias is added as it is; only q k^T may be divided by sqrt(d_head)",
        {"": biased(lambda bias, at: bias * at.d_head**-0.5)},
    ),
    Mistake(
        "relative bias only in the first layer",
        "all layers of a stack add biases from the same table",
        {"": biased(lambda bias, at: bias if at.layer == 0 else 0 * bias)},
    ),
    Mistake(
        "relative bias with wrong buckets",
        "an encoder has buckets for both directions, the decoder of T5 for one; max_distance is in config.json",
        _other_buckets,
    ),
    Mistake(
        "relative bias with wrong bucket boundaries",
        "half of a direction's buckets hold one distance each; for the other buckets the logarithm is rounded down",
        _rounded_otherwise,
    ),
    Mistake(
        "relative bias of the wrong row",
        "each query has its own row of biases; a step with a cache uses the row of the query's position",
        {
            "the first query's row for all": biased(lambda bias, at: 0 * bias + bias[:, :1]),
            "the last query's row for all": biased(lambda bias, at: 0 * bias + bias[:, -1:]),
        },
    ),
    Mistake("relative bias in attention to the source", "attention to the source has no biases", _crossed),
    Mistake("relative bias of the other stack", "encoder and decoder each have a table", _other_stack),
)
