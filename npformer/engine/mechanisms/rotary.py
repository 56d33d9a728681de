"""Rotary embeddings: queries and keys are rotated by their positions, so that scores depend on distances only.

Su et al., 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.common.halves import HALVES, half
from npformer.engine.descriptions.mistake import Mistake, Rules, Ways
from npformer.engine.descriptions.stage import Stage
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.mechanisms.rotary_scaling import (
    Changed,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Scaling,
    Yarn,
    exchanged,
    rotary_frequencies,
)
from npformer.engine.runtime.packing import Batch
from npformer.engine.runtime.threads import all_gather
from npformer.engine.tape import Stages
from npformer.engine.taps import tap

Formula = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # rows (T, D), cosines, sines -> rows (T, D)


@dataclass(frozen=True)
class Rotary(Mechanism):
    """q_i' = R(i) q_i and k_j' = R(j) k_j, so that q_i' . k_j' = q_i . R(j - i) k_j. Su et al., 2021, section 3.2.2.

    Parameters
    ----------
    theta : float, base of the frequencies
    d_head : int, K, even
    scaling : Scaling of the frequencies to longer texts, optional
    angles : cosines and sines of `rotary_angles` for a batch, (T, K / 2) each
    """

    theta: float
    d_head: int = 0
    scaling: Scaling | None = None
    angles: tuple[np.ndarray, ...] = field(default=(), compare=False, repr=False)

    cached = True

    def check(self, config: Any) -> None:
        checks.positive("rotary.theta", self.theta)
        if config.d_head % 2:
            raise NpformerError(f"d_head: expected an even number for rotary embeddings, got {config.d_head}")
        if self.scaling is not None:
            self.scaling.check(config, config.d_head)

    def for_model(self, config: Any) -> Rotary:
        return replace(self, d_head=config.d_head)

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> Rotary:
        dtype = weights["embeddings"]["token"]["weight"].dtype
        if self.same_until(1) is None:
            return replace(self, angles=self.angles_at(batch.positions, dtype))
        lengths, groups = _lengths(batch), dict[int | None, list[int]]()
        for length in np.unique(lengths).tolist():
            groups.setdefault(self.same_until(length), []).append(length)
        angles = tuple(np.empty((len(lengths), self.rotated_columns // 2), dtype) for _ in range(2))
        for some in groups.values():
            rows = np.isin(lengths, some)
            for table, own in zip(angles, self.angles_at(batch.positions[rows], dtype, some[-1]), strict=True):
                table[rows] = own
        return replace(self, angles=angles)

    def same_until(self, length: int) -> int | None:
        return None if self.scaling is None else self.scaling.same_until(length)

    @property
    def rotated_columns(self) -> int:
        """The number of rotated columns in each head."""
        return self.d_head

    def angles_at(
        self, positions: np.ndarray, dtype: np.dtype | type, length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`rotary_angles` at positions (T,)."""
        return rotary_angles(positions, self.rotated_columns, self.theta, dtype, self.scaling, length)

    def turn(self, q: np.ndarray, k: np.ndarray, attending: Any) -> tuple[np.ndarray, np.ndarray]:
        cos, sin = self.angles
        q = tap("query_rotated", self.rotated(q, cos[attending], sin[attending]))
        return q, tap("key_rotated", self.rotated(k, cos, sin))

    def turn_backward(
        self, dq: np.ndarray, dk: np.ndarray, attending: Any, stages: Stages
    ) -> tuple[np.ndarray, np.ndarray, Sums]:
        cos, sin = self.angles
        dq = self.rotated(stages.through_edit("query_rotated", dq), cos[attending], sin[attending], rotate_backward)
        return dq, self.rotated(stages.through_edit("key_rotated", dk), cos, sin, rotate_backward), {}

    def rotated(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, formula: Formula | None = None) -> np.ndarray:
        """Applies `formula`, by default `rotate`, to the rotated columns of x (T, D)."""
        return (formula or rotate)(x, cos, sin)

    @property
    def turned(self) -> tuple[Stage, ...]:
        rows, function = "each head rotated by its position", "mechanisms.rotary.rotate"
        return tuple(
            Stage(f"{name}_rotated", "(T, D)", f"{letter}, {rows}", function, kept=False)
            for name, letter in (("query", "Q"), ("key", "K"))
        )


def rotary_angles(
    positions: np.ndarray,
    d_head: int,
    theta: float,
    dtype: np.dtype | type = np.float32,
    scaling: Scaling | None = None,
    length: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * theta^(-2 i / K) for i = 0 ... K / 2 - 1, positions (T,) -> (T, K / 2) each.

    The frequencies are rounded to float32 for every dtype, as in the training of the checkpoints. The angles are not
    rounded. `scaling` changes the frequencies and multiplies cosines and sines by its `magnitude`. length: number of
    positions in the text; by default the largest position plus 1.

    References
    ----------
    Su et al., 2021, RoFormer, section 3.2.2.

    Examples
    --------
    >>> rotary_angles(np.array([0, 1]), 4, 100.0)[1].round(4)
    array([[0.    , 0.    ],
           [0.8415, 0.0998]], dtype=float32)
    """
    length = int(positions.max(initial=0)) + 1 if length is None else length
    angles = positions[:, None] * rotary_frequencies(d_head, theta, scaling, length).astype(np.float64)
    magnitude = 1.0 if scaling is None else scaling.magnitude
    return (np.cos(angles) * magnitude).astype(dtype), (np.sin(angles) * magnitude).astype(dtype)


def _lengths(batch: Batch) -> np.ndarray:
    """The number of positions in the text of each row, (T,)."""
    [whole] = all_gather(batch.positions)
    if len(whole) != len(batch.positions):  # each thread has some rows of a single text
        return np.full(len(batch.positions), whole.max() + 1)
    text = np.searchsorted(np.cumsum(batch.lengths), np.arange(len(whole)), side="right")
    longest: np.ndarray = np.maximum.reduceat(whole, batch.first) + 1
    return longest[np.minimum(text, len(longest) - 1)]  # a batch may end with rows that belong to no text


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """y_1 = x_1 cos - x_2 sin; y_2 = x_2 cos + x_1 sin, where x_1 and x_2 are the halves of the columns of each head.

    x (T, D), cos and sin (T, K / 2) -> (T, D). The product of a rotated query and a rotated key depends only on the
    distance between their positions. The paper pairs neighbouring columns; checkpoints pair the two halves.

    References
    ----------
    Su et al., 2021, RoFormer, section 3.2.2 and equation 34.

    Examples
    --------
    >>> rotate(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
    array([[-3.,  2.,  1.,  4.]])
    """
    if x.shape[-1] % (2 * cos.shape[-1]):
        raise NpformerError(f"rotate: expected heads of {2 * cos.shape[-1]} columns, got rows of {x.shape[-1]}")
    halves = x.reshape(len(x), x.shape[-1] // (2 * cos.shape[-1]), 2, cos.shape[-1])  # (T, H, 2, K / 2)
    cos, sin, y = cos[:, None], sin[:, None], np.empty_like(halves)
    first, second = halves[:, :, 0], halves[:, :, 1]
    y[:, :, 0] = first * cos - second * sin
    y[:, :, 1] = second * cos + first * sin
    return y.reshape(x.shape)


def rotate_backward(grad: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Backward of `rotate`: dx is grad rotated by the opposite angles, because the matrix of `rotate` is orthogonal."""
    return rotate(grad, cos, -sin)


# --- mistakes --------------------------------------------------------------------------------------------------------

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


MOST_AHEAD = 16  # the longest prompt after which a restart of the positions at 0 is tried


def _other_positions(port: Any) -> Ways:
    """Wrong ways to count positions: from 1, including the padding before a text, or again from 0 after a prompt."""

    def at_positions(positions: Callable[[np.ndarray, int], np.ndarray]) -> Rules:
        def rule(y: np.ndarray, at: Any) -> np.ndarray:
            return rotated_in(at.source, at, positions=positions(np.arange(len(y)), at.text))

        return dict.fromkeys(ROTATED, rule)

    yield "from 1", at_positions(lambda rows, text: rows + 1)
    if port.has_padding:
        yield "padding before a text counted", at_positions(lambda rows, text: rows + port.width - port.lengths[text])
    for n in range(1, min(max(port.lengths), MOST_AHEAD + 1)):

        def restarted(rows: np.ndarray, text: int, n: int = n) -> np.ndarray:
            return np.where(rows < n, rows, rows - n)

        yield f"from 0 again at token {n}, as in steps after a prompt", at_positions(restarted)


#: Steps that a port computes in 16 bits -> whether these are positions, frequencies, angles, and cosines and sines.
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


Rotary.mistakes = (
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
    Mistake("rotation with the wrong base", "theta is rope_theta in config.json for this kind of layer", _other_thetas),
    Mistake("rotation scaled differently", "frequencies are scaled by rope_parameters in config.json", _other_scaling),
    Mistake(
        "rotation rounded",
        "angles, cosines and sines are computed in float32, even if the weights have 16 bits",
        _rounded,
    ),
)
