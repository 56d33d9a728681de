"""Norms of heads: each head of queries and keys is normalized before it is rotated, as in Qwen3 and Gemma 3.

Henry et al., 2020, Query-Key Normalization for Transformers; Dehghani et al., 2023, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from npformer.descriptions.mistake import Mistake, Rules, Steps, Ways, exchanged
from npformer.descriptions.stage import Stage
from npformer.descriptions.weight_group import Group
from npformer.mechanisms.mechanism import Linear, Mechanism, Sums
from npformer.mechanisms.rotary import ROTATED, rotated_in
from npformer.norms.root_mean_square import RMSNorm
from npformer.norms.zero_centred import ZeroCentredRMSNorm
from npformer.tape import Stages
from npformer.taps import tap

NAMES = ("query", "key")


@dataclass(frozen=True)
class HeadNorm(Mechanism):
    """q_h = Normalize(q_h) and k_h = Normalize(k_h), each with a weight (K,) that the heads of a layer share.

    Parameters
    ----------
    eps : float
    d_head : int, K
    weights : dict with the weights of the two norms, by "query" and "key"
    """

    eps: float = 1e-6
    d_head: int = 0
    weights: Mapping[str, Linear] = field(default_factory=dict, compare=False, repr=False)

    cached = True
    read = NAMES

    def for_model(self, config: Any) -> HeadNorm:
        return replace(self, eps=config.eps, d_head=config.d_head)

    @property
    def norm(self) -> RMSNorm:
        return RMSNorm(self.eps)

    def projections(self, d_model: int) -> dict[str, Group]:
        return {f"{name}_norm": self.norm.group(self.d_head) for name in NAMES}

    def in_layer(self, projections: Mapping[str, Linear]) -> HeadNorm:
        return replace(self, weights={name: projections[f"{name}_norm"] for name in NAMES})

    def in_layer_backward(self, sums: Sums, projections: Mapping[str, Linear], grads: dict[str, Any]) -> Sums:
        for name in NAMES:
            grads[f"{name}_norm"] = {"weight": sums[name]}
        return {}

    def turn(self, q: np.ndarray, k: np.ndarray, attending: Any) -> tuple[np.ndarray, np.ndarray]:
        return tap("query_normed", self._normed("query", q)), tap("key_normed", self._normed("key", k))

    def turn_backward(
        self, dq: np.ndarray, dk: np.ndarray, attending: Any, stages: Stages
    ) -> tuple[np.ndarray, np.ndarray, Sums]:
        found, sums = [], Sums()
        for name, grad in zip(NAMES, (dq, dk), strict=True):
            grad = self._heads(stages.through_edit(f"{name}_normed", grad))
            dx, own = self.norm.backward(grad, self._heads(stages[name]), **self.weights[name])
            found.append(dx.reshape(stages[name].shape))
            sums[name] = own["weight"]
        return found[0], found[1], sums

    def _normed(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.norm(self._heads(x), **self.weights[name]).reshape(x.shape)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        """The heads of all rows, (T, H K) -> (T, H, K)."""
        return x.reshape(len(x), x.shape[-1] // self.d_head, self.d_head)

    @property
    def turned(self) -> tuple[Stage, ...]:
        return tuple(
            Stage(f"{name}_normed", "(T, D)", f"each head of {letter}, normalized", self.norm.function, kept=False)
            for name, letter in zip(NAMES, ("Q", "K"), strict=True)
        )


class ZeroCentredHeadNorm(HeadNorm):
    """`HeadNorm` with factors 1 + weight, as in Gemma 3."""

    @property
    def norm(self) -> RMSNorm:
        return ZeroCentredRMSNorm(self.eps)


# --- mistakes --------------------------------------------------------------------------------------------------------

NORMED = tuple(f"*.attention.{name}_normed" for name in NAMES)


def _normed(x: np.ndarray, at: Any) -> np.ndarray:
    """Rows x with normalized heads. The norm uses the weight for queries or for keys, depending on the stage."""
    norms = next(each for each in at.config.mechanisms_of(at.layer) if isinstance(each, HeadNorm)).for_model(at.config)
    name = at.name.rpartition(".")[2].partition("_")[0]
    return norms.norm(norms._heads(x), weight=at.weight(f"attention.{name}_norm")).reshape(x.shape)


def _of_rows(x: np.ndarray, at: Any) -> np.ndarray:
    """Rows x, normalized over all heads instead of within each head."""
    return _normed(x, at) * (_root(x.reshape(len(x), -1, at.d_head)) / _root(x)[..., None]).repeat(
        at.d_head, axis=-1
    ).reshape(x.shape)


def _root(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(x).mean(-1, keepdims=True))


def _projected(name: str, at: Any) -> np.ndarray:
    rows: np.ndarray = at(f"attention.{name}")
    return rows


def _after_rotation(port: Any) -> Ways:
    pairs = (
        Steps(normed, rotated, partial(_projected, name), _normed, rotated_in)
        for name, normed, rotated in zip(NAMES, NORMED, ROTATED, strict=True)
    )
    yield from exchanged(port, ("*.attention.*_heads",), *pairs)


def _exchanged(port: Any) -> Ways:
    pairs = [(f"{layer}attention.query_norm", f"{layer}attention.key_norm") for layer in port.layers]
    yield "", port.regrouping(dict([*pairs, *(pair[::-1] for pair in pairs)]))
    yield "the query's weight for both", port.regrouping(dict(pair[::-1] for pair in pairs))
    yield "the key's weight for both", port.regrouping(dict(pairs))


def _both(formula: Any) -> Rules:
    return dict.fromkeys(NORMED, lambda y, at: formula(at.source, at))


HeadNorm.mistakes = (
    Mistake(
        "norms of heads left out",
        "each head of queries and keys is normalized",
        {
            "of queries and keys": _both(lambda x, at: x),
            **{f"of {name}": {pattern: lambda y, at: at.source} for name, pattern in zip(NAMES, NORMED, strict=True)},
        },
    ),
    Mistake(
        "norms of heads after the rotation",
        "heads are normalized first and then rotated",
        _after_rotation,
    ),
    Mistake("norms of rows instead of norms of heads", "each head is normalized separately", {"": _both(_of_rows)}),
    Mistake(
        "norms of queries and keys exchanged",
        "query_norm has the weight of q_norm, key_norm the weight of k_norm",
        _exchanged,
    ),
)
