"""Mistakes that ports make in norms of queries and keys, by head or by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.engine.mechanisms.head_norm import NAMES, HeadNorm, grouped
from npformer.golden.mistake import Mistake, Rules, Steps, Ways, exchanged
from npformer.golden.mistakes.parts.rotary import ROTATED, rotated_in

NORMED = tuple(f"*.attention.{name}_normed" for name in NAMES)


def _name(at: Any) -> str:
    """ "query" or "key", depending on the stage."""
    return str(at.name).rpartition(".")[2].partition("_")[0]


def _normed(x: np.ndarray, at: Any) -> np.ndarray:
    """Rows x, normalized with the weight for queries or for keys."""
    norms = next(each for each in at.config.mechanisms_of(at.layer) if isinstance(each, HeadNorm)).for_model(at.config)
    weight = at.weight(f"attention.{_name(at)}_norm")
    return norms.norm(grouped(x, weight), weight=weight).reshape(x.shape)


def in_groups_of(width: int, x: np.ndarray, at: Any) -> np.ndarray:
    """Rows x, normalized within groups of `width` columns, regardless of the correct size of a group."""
    correct = len(at.weight(f"attention.{_name(at)}_norm"))
    return _normed(x, at) * _root(x, correct, at.config.eps) / _root(x, width, at.config.eps)


def _root(x: np.ndarray, width: int, eps: float) -> np.ndarray:
    """sqrt(E[x^2] + eps) of the group of `width` columns to which each number belongs."""
    squares = np.square(x).reshape(len(x), -1, width)
    return np.sqrt(squares.mean(-1, keepdims=True) + eps).repeat(width, axis=-1).reshape(x.shape)


def _after_rotation(port: Any) -> Ways:
    pairs = (
        Steps(normed, rotated, lambda at, name=name: at(f"attention.{name}"), _normed, rotated_in)
        for name, normed, rotated in zip(NAMES, NORMED, ROTATED, strict=True)
    )
    yield from exchanged(port, ("*.attention.*_heads",), *pairs)


def _exchanged(port: Any) -> Ways:
    pairs = [(f"{layer}attention.query_norm", f"{layer}attention.key_norm") for layer in port.layers]
    yield "", port.exchanging(*pairs)
    yield "the query's weight for both", port.regrouping(dict(pair[::-1] for pair in pairs))
    yield "the key's weight for both", port.regrouping(dict(pairs))


def both(formula: Any) -> Rules:
    """Rules for the norms of queries and keys, from a function of the rows that they read and an `At`."""
    return dict.fromkeys(NORMED, lambda y, at: formula(at.source, at))


OF_ANY_GROUPS = (
    Mistake(
        "norms of queries and keys left out",
        "queries and keys are normalized before they are rotated",
        {
            "of queries and keys": both(lambda x, at: x),
            **{f"of {name}": {pattern: lambda y, at: at.source} for name, pattern in zip(NAMES, NORMED, strict=True)},
        },
    ),
    Mistake(
        "norms of queries and keys after the rotation",
        "queries and keys are normalized first and then rotated",
        _after_rotation,
    ),
    Mistake(
        "norms of queries and keys exchanged",
        "query_norm has the weight of q_norm, key_norm the weight of k_norm",
        _exchanged,
    ),
)
OF_HEADS = (
    *OF_ANY_GROUPS,
    Mistake(
        "norms of rows instead of norms of heads",
        "each head is normalized separately",
        {"": both(lambda x, at: in_groups_of(x.shape[-1], x, at))},
    ),
)


OF_ROWS = (
    *OF_ANY_GROUPS,
    Mistake(
        "norms of heads instead of norms of rows",
        "queries and keys are normalized over all heads at once",
        {"": both(lambda x, at: in_groups_of(at.d_head, x, at))},
    ),
)
