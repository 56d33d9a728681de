"""Mistakes that ports make in rotary embeddings: in angles, positions, scalings and rotated columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from npformer.common.halves import HALVES, half
from npformer.engine.mechanisms.rotary import Formula, Rotary, rotate, rotate_backward
from npformer.engine.mechanisms.rotary_scaling import (
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Scaling,
    Yarn,
    rotary_frequencies,
)
from npformer.golden.mistake import Mistake, Rules, Ways


@dataclass(frozen=True)
class Changed(Scaling):
    """A scaling with frequencies change(scaled, unscaled, theta), where `scaling` gives the scaled frequencies."""

    scaling: Scaling | None
    change: Callable[[np.ndarray, np.ndarray, float], np.ndarray]

    @property
    def magnitude(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.magnitude

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        own = frequencies if self.scaling is None else self.scaling.scaled(frequencies, theta, length)
        return self.change(own, frequencies, theta)


def exchanged(scaling: Llama3 | Yarn, ends: bool) -> Scaling:
    """Exchanges the weights of scaled and unscaled frequencies in the blend. ends: also outside the blend."""

    def change(own: np.ndarray, frequencies: np.ndarray, theta: float) -> np.ndarray:
        low = frequencies / np.float32(scaling.factor)
        blended = ~np.isclose(own, low, rtol=1e-6) & ~np.isclose(own, frequencies, rtol=1e-6)
        return np.where(blended | ends, frequencies + low - own, own)

    return Changed(scaling, change)


ROTATED = ("*.attention.query_rotated", "*.attention.key_rotated")


def rotary_in(at: Any) -> Rotary:
    """The `Rotary` in the attention of a layer."""
    found: Rotary = next(each for each in at.config.mechanisms_of(at.layer) if isinstance(each, Rotary))
    return found.for_model(at.config)


def rotated_in(
    x: np.ndarray,
    at: Any,
    formula: Formula | None = None,
    positions: np.ndarray | None = None,
    change: Callable[[Rotary], Rotary] = lambda rotary: rotary,
) -> np.ndarray:
    """Rows rotated as in their layer, but with a different formula, different positions, or changed frequencies."""
    rotary = rotary_in(at)
    angles = change(rotary).angles_at(np.arange(len(x)) if positions is None else positions, x.dtype)
    return rotary.rotated(x, *angles, formula)


def _rotated(formula: Formula | None = None, **choices: Any) -> Rules:
    """Rules that rotate queries and keys as `rotated_in` does with these arguments."""
    return dict.fromkeys(ROTATED, lambda y, at: rotated_in(at.source, at, formula, **choices))


def _with_power(power: Callable[[Any], float]) -> Rules:
    """Rules that rotate with frequencies theta^(-2 i power(at) / K)."""

    def rule(y: np.ndarray, at: Any) -> np.ndarray:
        return rotated_in(at.source, at, change=lambda rotary: replace(rotary, theta=rotary.theta ** power(at)))

    return dict.fromkeys(ROTATED, rule)


def _turned(port: Any) -> Ways:
    yield "left out", _rotated(lambda x, cos, sin: x)
    yield "in the opposite direction", _rotated(rotate_backward)
    yield "d_model instead of d_head in the frequencies", _with_power(lambda at: at.config.d_head / at.config.d_model)
    yield "without the 2 in the frequencies' exponents, theta^(-i / d_head)", _with_power(lambda at: 0.5)
    yield "of the whole row, not of each head", dict.fromkeys(ROTATED, _whole_row)
    yield "twice", _rotated(lambda x, cos, sin: rotate(rotate(x, cos, sin), cos, sin))
    yield "of only the first half of each head, with a whole head's frequencies", _rotated(_half_of(slice(None)))
    yield "of only the first half of each head, with the half's frequencies", _rotated(_half_of(slice(None, None, 2)))
    values: Rules = {"*.attention.value": _rotated_if_queries_are}
    yield "of the values too", port.rereading(values, "*.attention.value_heads")
    yield "of the values too", values
    yield "the sines added in both halves", _rotated(_added)
    yield "cosines and sines exchanged", _rotated(lambda x, cos, sin: rotate(x, sin, cos))


def _rotated_if_queries_are(y: np.ndarray, at: Any) -> np.ndarray:
    return rotated_in(y, at) if any(isinstance(each, Rotary) for each in at.config.mechanisms_of(at.layer)) else y


def _whole_row(y: np.ndarray, at: Any) -> np.ndarray:
    width = at.source.shape[-1]
    return rotated_in(at.source, at, rotate, change=lambda rotary: replace(rotary, d_head=width))


def _half_of(columns: slice) -> Formula:
    """Rotates the first half of each head. columns: which of a whole head's angles to use."""

    def formula(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        half = cos.shape[-1]
        if half == 1:  # half of two columns is one column, which is not a pair
            return x
        heads = x.reshape(len(x), -1, 2 * half).copy()
        cos, sin = (each[:, columns][:, : half // 2] for each in (cos, sin))
        first = heads[..., : 2 * cos.shape[-1]]
        first[...] = rotate(first.reshape(len(x), -1), cos, sin).reshape(first.shape)
        return heads.reshape(x.shape)

    return formula


MOST_AHEAD = 16  # restarting the positions at 0 is tried only for prompts up to this length


def _other_positions(port: Any) -> Ways:
    """Wrong ways to count positions: from 1, including the padding before a text, or again from 0 after a prompt."""

    def at_positions(positions: Callable[[np.ndarray, int], np.ndarray]) -> Rules:
        def rule(y: np.ndarray, at: Any) -> np.ndarray:
            return rotated_in(at.source, at, positions=positions(np.arange(len(y)), at.text))

        return dict.fromkeys(ROTATED, rule)

    yield "from 1", at_positions(lambda rows, text: rows + 1)
    if port.has_padding:
        yield (
            "padding before a text counted",
            at_positions(lambda rows, text: rows + port.widths[text] - port.lengths[text]),
        )
    for n in range(1, min(max(port.lengths), MOST_AHEAD + 1)):

        def restarted(rows: np.ndarray, text: int, n: int = n) -> np.ndarray:
            return np.where(rows < n, rows, rows - n)

        yield f"from 0 again at token {n}, as in steps after a prompt", at_positions(restarted)


#: Steps that a port computes in 16 bits -> for (positions, frequencies, angles, cosines and sines), True if included.
IN_HALF = {
    "positions": (True, False, False, False),
    "angles": (False, False, True, False),
    "positions, frequencies and angles": (True, True, True, False),
    "positions, frequencies, angles, cosines and sines": (True, True, True, True),
}


def _in_half(kind: str, steps: tuple[bool, ...]) -> Rules:
    """Rules that rotate with some steps rounded to 16 bits."""
    positions, frequencies, angles, tables = (partial(half, kind) if step else np.asarray for step in steps)

    def rule(y: np.ndarray, at: Any) -> np.ndarray:
        x, rotary = at.source, rotary_in(at)
        own = rotary_frequencies(rotary.rotated_columns, rotary.theta, rotary.scaling, len(x)).astype(np.float64)
        angle = angles(positions(np.arange(len(x), dtype=np.float64))[:, None] * frequencies(own))
        magnitude = 1.0 if rotary.scaling is None else rotary.scaling.magnitude
        cos, sin = (tables(table * magnitude).astype(x.dtype) for table in (np.cos(angle), np.sin(angle)))
        return rotary.rotated(x, cos, sin)

    return dict.fromkeys(ROTATED, rule)


def _rounded(port: Any) -> Ways:
    """Rounds some steps of the rotation to 16 bits."""
    for kind in HALVES:
        for said, steps in IN_HALF.items():
            yield f"{said} in {kind}", _in_half(kind, steps)

        def tables(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, kind: str = kind) -> np.ndarray:
            return rotate(x, half(kind, cos), half(kind, sin))

        def narrow(rotary: Rotary, kind: str = kind) -> Rotary:
            return replace(rotary, scaling=Changed(rotary.scaling, lambda own, *_: half(kind, own)))

        yield f"cosines and sines in {kind}", _rotated(tables)
        yield f"frequencies in {kind}", _rotated(change=narrow)


def _added(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """(a cos + b sin, b cos + a sin), without the minus sign."""
    a, b = np.split(x.reshape(len(x), -1, 2 * cos.shape[-1]), 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([a * cos + b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def _pairs(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotates neighbouring columns, 2 i and 2 i + 1, as in the paper."""
    pairs = x.reshape(len(x), -1, cos.shape[-1], 2)
    cos, sin = cos[:, None], sin[:, None]
    first, second = pairs[..., 0], pairs[..., 1]
    return np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(x.shape)


def _permuted(to_pairs: bool) -> Rules:
    """Rules that permute the columns of each head of queries and keys between the layouts in halves and in pairs."""

    def rule(y: np.ndarray, at: Any) -> np.ndarray:
        if at.d_head % 2:
            return y
        shape = (2, at.d_head // 2) if to_pairs else (at.d_head // 2, 2)
        return y.reshape(len(y), -1, *shape).swapaxes(-1, -2).reshape(y.shape)

    return dict.fromkeys(("*.attention.query", "*.attention.key"), rule)


def _other_thetas(port: Any) -> Ways:
    """Ways to use a wrong base: the base of a different kind of layer, or a common value."""

    def based(wide: float, near: float) -> Any:
        everywhere = port.with_mechanism(Rotary, *ROTATED, theta=wide)
        return everywhere.with_mechanism(Rotary, *ROTATED, local=True, theta=near)

    thetas = [each.theta for of_layers in port.config.layer_kinds for each in of_layers if isinstance(each, Rotary)]
    wide, near = thetas[0], thetas[-1]
    if len(thetas) > 1:
        yield "the bases of global and local layers exchanged", based(near, wide)
        yield "the global layers' base in all layers", based(wide, wide)
        yield "the local layers' base in all layers", based(near, near)
    for theta in (10_000.0, 500_000.0, 1_000_000.0):
        if wide != theta:
            yield f"{theta:.0f}", based(theta, theta)


def _other_scaling(port: Any) -> Ways:
    """Wrong scalings, if the model has a scaling: no scaling, a different kind, or the same kind with wrong numbers."""
    scaling = next((each.scaling for each in port.config.mechanisms if isinstance(each, Rotary)), None)
    if scaling is None:
        return
    others: dict[str, Scaling | None] = {"left out": None}
    if isinstance(scaling, Llama3):
        others["linear"] = Linear(scaling.factor)
        low, high, step = scaling.low, scaling.high, 1 + 1e-6
        others["low and high exchanged"] = replace(scaling, low=high, high=low)
        others["not blended, cut at the low boundary"] = replace(scaling, high=low * step)
        others["not blended, cut at the high boundary"] = replace(scaling, low=high, high=high * step)
        for one, two in ((1.0, 2.0), (1.0, 4.0), (1.0, 8.0), (2.0, 4.0), (1.0, 32.0)):
            others[f"boundaries {one:g} and {two:g}"] = replace(scaling, low=one, high=two)
    if isinstance(scaling, Llama3 | Yarn):
        others["scaled and unscaled frequencies exchanged in the blend"] = exchanged(scaling, ends=False)
        others["scaled and unscaled frequencies exchanged"] = exchanged(scaling, ends=True)
        others["max_length as the original length"] = replace(scaling, original=port.config.max_length)
        for length in (4096, 8192):
            others[f"original length {length} instead of {scaling.original}"] = replace(scaling, original=length)
    if isinstance(scaling, Yarn | LongRope):
        others["cosines and sines without their factor"] = replace(scaling, attention=1.0)
    if isinstance(scaling, LongRope):
        others["short_factor for texts of any length"] = replace(scaling, long=scaling.short)
        others["long_factor for texts of any length"] = replace(scaling, short=scaling.long)
        others["short_factor and long_factor exchanged"] = replace(scaling, short=scaling.long, long=scaling.short)
    if isinstance(scaling, Dynamic):
        others["linear"] = Linear(scaling.factor)
        others["the scaling for the longest text for texts of any length"] = Changed(
            scaling, lambda own, frequencies, theta: scaling.scaled(frequencies, theta, scaling.longest)
        )
    for way, other in others.items():
        if other != scaling:
            yield way, port.with_mechanism(Rotary, *ROTATED, scaling=other)
    if isinstance(scaling, Linear | Llama3):
        factor = 0.1 * math.log(scaling.factor) + 1
        multiplied = _rotated(lambda x, cos, sin: rotate(x, factor * cos, factor * sin))
        yield "cosines and sines times 0.1 ln(factor) + 1, as in YaRN", multiplied


MISTAKES = (
    Mistake(
        "rotation of pairs instead of halves",
        "checkpoints rotate column i of a head with column i + d_head / 2, not with its neighbour",
        {
            "": _rotated(_pairs),
            "the columns of W_q and W_k permuted from halves to pairs": _permuted(True),
            "the columns of W_q and W_k permuted from pairs to halves": _permuted(False),
        },
    ),
    Mistake(
        "rotation left out or wrong",
        "queries and keys are rotated by their positions, both in the same direction",
        _turned,
    ),
    Mistake(
        "rotation at wrong positions",
        "a token is rotated by its place in its text, from 0, without padding",
        _other_positions,
    ),
    Mistake(
        "rotation with the wrong base",
        "theta is in config.json, as rope_theta; layers with a window may have their own",
        _other_thetas,
    ),
    Mistake("rotation scaled differently", "frequencies are scaled by rope_parameters in config.json", _other_scaling),
    Mistake(
        "rotation rounded",
        "angles, cosines and sines are computed in float32, even if the weights have 16 bits",
        _rounded,
    ),
)


def _whole_heads(y: np.ndarray, at: Any) -> np.ndarray:
    rotary = rotary_in(at)
    if isinstance(rotary.scaling, LongRope):  # the scaling has divisors for the rotated columns only
        return y
    whole = Rotary(rotary.theta, rotary.d_head, rotary.scaling)
    return whole.rotated(at.source, *whole.angles_at(np.arange(len(y)), y.dtype))


def _last_columns(y: np.ndarray, at: Any) -> np.ndarray:
    """Rotates the last columns of each head, not the first."""
    rotary, heads = rotary_in(at), at.source.reshape(len(y), -1, at.d_head)
    count = rotary.columns  # type: ignore[attr-defined]
    last_first = np.roll(heads, count, axis=-1).reshape(y.shape)
    made = rotary.rotated(last_first, *rotary.angles_at(np.arange(len(y)), y.dtype))
    return np.roll(made.reshape(heads.shape), -count, axis=-1).reshape(y.shape)


def _other_frequencies(y: np.ndarray, at: Any) -> np.ndarray:
    rotary = rotary_in(at)
    slower = replace(rotary, theta=rotary.theta ** (rotary.columns / rotary.d_head))  # type: ignore[attr-defined]
    return rotary.rotated(at.source, *slower.angles_at(np.arange(len(y)), y.dtype))


PARTIAL = (
    Mistake(
        "rotation of the wrong columns",
        "the first columns of each head are rotated, and the frequencies depend on the number of rotated columns",
        {
            "whole heads": dict.fromkeys(ROTATED, _whole_heads),
            "the last columns instead of the first": dict.fromkeys(ROTATED, _last_columns),
            "with d_head in the frequencies": dict.fromkeys(ROTATED, _other_frequencies),
        },
    ),
    *MISTAKES,
)
