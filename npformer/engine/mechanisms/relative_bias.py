"""Relative biases: each head adds to a score a learned number that depends on the bucket of the distance.

Raffel et al., 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.engine.descriptions.mistake import Mistake, Rules, Ways
from npformer.engine.descriptions.weight_group import Group, table
from npformer.engine.functions import SparseRows, embedding, embedding_backward
from npformer.engine.mechanisms.distances import at_distances, at_distances_backward
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.runtime.packing import Batch
from npformer.engine.tape import Stages

MAX_DISTANCE = 128  # this distance and all greater distances share a bucket


@dataclass(frozen=True)
class RelativeBias(Mechanism):
    """score_ij = q_i . k_j * scale + b_h[bucket(j - i)], with one table b for all layers. Raffel et al., 2020, 2.1.

    Parameters
    ----------
    n_buckets, n_heads : int, rows and columns of the table
    max_distance : int, this distance and all greater distances share a bucket
    bidirectional : bool, keys after the query have separate buckets; if False, as in T5's decoder, they share bucket 0
    bias : (H, 2 M - 1) array, the bias for distance d in column M - 1 + d
    """

    n_buckets: int
    n_heads: int = 0
    max_distance: int = MAX_DISTANCE
    bidirectional: bool = True
    bias: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)), compare=False, repr=False)

    cached = True

    def check(self, config: Any) -> None:
        checks.whole("relative_bias.n_buckets", self.n_buckets, 4 if self.bidirectional else 2)
        exact = self.n_buckets // (4 if self.bidirectional else 2)
        checks.whole("relative_bias.max_distance", self.max_distance, exact + 1)

    def for_model(self, config: Any) -> RelativeBias:
        return replace(self, n_heads=config.n_heads)

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"relative_bias": table(self.n_buckets, self.n_heads)}

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> RelativeBias:
        return replace(self, bias=relative_bias(**weights["relative_bias"], farthest=batch.farthest, **self._buckets))

    def end_backward(self, sums: Sums, weights: Mapping[str, Any]) -> dict[str, Any]:
        return {"relative_bias": relative_bias_backward(sums["bias"], **weights["relative_bias"], **self._buckets)}

    @property
    def _buckets(self) -> dict[str, Any]:
        return {"max_distance": self.max_distance, "bidirectional": self.bidirectional}

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray]:
        if len(self.bias) != n_heads:
            raise NpformerError(f"relative_bias: expected {n_heads} columns, one per head, got {len(self.bias)}")
        return {"bias": at_distances(self.bias, queries, keys)}

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        scores += terms["bias"]
        return scores

    def add_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        scale: float,
        queries: np.ndarray,
        keys: np.ndarray,
        stages: Stages,
    ) -> tuple[np.ndarray, float, float, Sums]:
        return grad, 0.0, 0.0, {"bias": at_distances_backward(grad, queries, keys, self.bias.shape[-1])}

    def formula(self, scores: str) -> str:
        return f"{scores} + b_h[bucket(j - i)]"


def relative_buckets(
    distances: np.ndarray, n_buckets: int, max_distance: int = MAX_DISTANCE, bidirectional: bool = True
) -> np.ndarray:
    """The bucket of each distance d = key - query.

    Each direction has B = n_buckets / 2 buckets. A distance |d| < E = B / 2 has the bucket |d|. A greater distance has
    the bucket E + (B - E) log(|d| / E) / log(max_distance / E), rounded down, but at most B - 1. If the key is after
    the query, B is added.

    If not bidirectional, B = n_buckets, and keys after the query have bucket 0.

    Parameters
    ----------
    distances : integer array
    n_buckets : int
    max_distance : int, this distance and all greater distances share a bucket
    bidirectional : bool, keys after the query have separate buckets

    Returns
    -------
    integer array like distances

    References
    ----------
    Raffel et al., 2020, section 2.1, and the published code.

    Examples
    --------
    >>> relative_buckets(np.array([-200, -9, -1, 0, 1, 9, 200]), 32)
    array([15,  8,  1,  0, 17, 24, 31])
    >>> relative_buckets(np.array([-200, -20, -9, -1, 0, 1, 9]), 32, bidirectional=False)
    array([31, 17,  9,  1,  0,  0,  0])
    """
    if not bidirectional:
        return _away(np.maximum(-distances, 0), n_buckets, max_distance)
    half = n_buckets // 2
    return _away(np.abs(distances), half, max_distance) + half * (distances > 0)


def _away(away: np.ndarray, count: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance in one direction with `count` buckets."""
    exact = count // 2
    steps = np.log(np.maximum(away, 1) / exact) / math.log(max_distance / exact) * (count - exact)
    # 1e-6 keeps distances at the boundary of a bucket, such as 16 = 8 * 2, from being rounded into the bucket below.
    far = np.minimum(exact + np.floor(steps + 1e-6).astype(np.int64), count - 1)
    return np.where(away < exact, away, far)


def relative_bias(
    weight: np.ndarray, farthest: int, max_distance: int = MAX_DISTANCE, bidirectional: bool = True
) -> np.ndarray:
    """b[h, M - 1 + d] = weight[bucket(d), h] for each distance d, from a table (B, H) -> (H, 2 M - 1).

    M - 1 is max_distance or the greatest distance in the batch, whichever is greater. Raffel et al., 2020, section 2.1;
    Song et al., 2020, for MPNet.
    """
    last = max(farthest, max_distance)
    buckets = relative_buckets(np.arange(-last, last + 1), len(weight), max_distance, bidirectional)
    return np.ascontiguousarray(embedding(buckets, weight).T)


def relative_bias_backward(
    grad: np.ndarray, weight: np.ndarray, max_distance: int = MAX_DISTANCE, bidirectional: bool = True
) -> dict[str, SparseRows]:
    """Backward of `relative_bias`: dweight from db (H, 2 M - 1), as `SparseRows`."""
    last = grad.shape[-1] // 2
    buckets = relative_buckets(np.arange(-last, last + 1), len(weight), max_distance, bidirectional)
    return {"weight": embedding_backward(grad.T, buckets)}


# --- mistakes --------------------------------------------------------------------------------------------------------

SCORES = "*.attention.scores"


def bias_of(at: Any, scores: np.ndarray, name: str = "relative_bias", **choices: Any) -> np.ndarray | float:
    """The biases of scores (H, L, S), or 0 in a stack without biases. choices: fields of `RelativeBias` to replace."""
    own = next((each for each in at.mechanisms if isinstance(each, RelativeBias)), None)
    if own is None:
        return 0.0
    _, length, width = scores.shape
    own = replace(own, **choices)
    values = relative_bias(at.weight(name), max(length, width), own.max_distance, own.bidirectional)
    bias: np.ndarray = at_distances(values, np.arange(length)[None], np.arange(width)[None])[0]
    return bias


def _changed(change: Callable[[Any, Any], Any]) -> Rules:
    """Rules that add change(bias, at) to the scores instead of the bias (H, T, T)."""

    def rule(scores: np.ndarray, at: Any) -> np.ndarray:
        if at.crosses:
            return scores
        bias = at.bias(scores)
        changed: np.ndarray = scores + (change(bias, at) - bias)  # an unchanged bias leaves the bits as they are
        return changed

    return {SCORES: rule}


def _other_buckets(port: Any) -> Ways:
    """Buckets for one direction instead of two, or for two instead of one, or with a wrong max_distance."""

    def with_other(**choices: Any) -> Rules:
        return _changed(lambda bias, at: bias_of(at, bias, **choices))

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
    """Rules that use different buckets. far: rounds the buckets of far distances. exact: as in EXACT."""

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
        found: np.ndarray = table[bucket].transpose(2, 0, 1)
        return found

    return _changed(lambda own, at: bias(own, at) if np.ndim(own) else own)


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


RelativeBias.mistakes = (
    Mistake(
        "relative bias with the wrong sign",
        "the bucket depends on key position - query position; keys after the query have the upper half of the buckets",
        {"": _changed(lambda bias, at: bias.swapaxes(-1, -2))},
    ),
    Mistake(
        "relative bias left out", "every layer adds the bias to its scores", {"": _changed(lambda bias, at: 0 * bias)}
    ),
    Mistake(
        "relative bias scaled",
        "scores are divided by sqrt(d_head) before the bias is added",
        {"": _changed(lambda bias, at: bias * at.d_head**-0.5)},
    ),
    Mistake(
        "relative bias only in the first layer",
        "all layers of a stack add biases from the same table",
        {"": _changed(lambda bias, at: bias if at.layer == 0 else 0 * bias)},
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
            "the first query's row for all": _changed(lambda bias, at: 0 * bias + bias[:, :1]),
            "the last query's row for all": _changed(lambda bias, at: 0 * bias + bias[:, -1:]),
        },
    ),
    Mistake("relative bias in attention to the source", "attention to the source has no biases", _crossed),
    Mistake("relative bias of the other stack", "encoder and decoder each have a table", _other_stack),
)
