"""`Mechanism`: the base class of the ways in which attention uses places of tokens.

Places are where tokens stand in their texts, positions are rows of a table or multiples of an angle, distances lie
between two places. A mechanism may turn queries and keys, add to their scores, or hide keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from npformer.common.mistake import Mistake
from npformer.runtime.packing import Batch
from npformer.stage import Stage
from npformer.tape import Stages
from npformer.weight_group import Group

Linear = Mapping[str, np.ndarray]
Sums = dict[str, np.ndarray]  # gradients by name, added up over the texts and layers that share an array


class Mechanism:
    """Attention that ignores places. A subclass overrides what it changes; each step has its backward directly below.

    Subclasses are frozen dataclasses, which a `Config` lists: their fields are a model's choices. `for_model` fills in
    sizes of the model; `begin` and `in_layer` fill in the fields with `compare=False` for one batch and layer.
    """

    cached: ClassVar[bool] = False  # it needs no more than the keys and values that a step finds in a cache
    in_order: ClassVar[bool] = False  # sums over keys have a fixed order, so that a step has the bits of a whole pass
    read: ClassVar[tuple[str, ...]] = ()  # stages of attention that its backward reads
    mistakes: ClassVar[tuple[Mistake, ...]] = ()  # that ports make in it

    @property
    def products(self) -> int:
        """Products that a score is the sum of; it is divided by sqrt(products * K)."""
        return 1

    # --- config ---

    def check(self, config: Any) -> None:
        """Raises NpformerError for an invalid choice, or one that a model with this `Config` cannot have."""

    def for_model(self, config: Any) -> Self:
        """The mechanism with the sizes that it takes from a model's `Config`."""
        return self

    # --- weights ---

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights in the stack, which all layers share."""
        return {}

    def projections(self, d_model: int) -> dict[str, Group]:
        """The groups of weights in each layer's attention."""
        return {}

    # --- once a forward, and once a layer ---

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> Self:
        """The mechanism with its tables and angles for a batch. weights: those of the stack."""
        return self

    def end_backward(self, sums: Sums, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Backward of `begin`: the gradients of the stack's groups, from those of all layers."""
        return {}

    def in_layer(self, projections: Mapping[str, Linear]) -> Self:
        """The mechanism with the arrays that a layer's projections make."""
        return self

    def in_layer_backward(self, sums: Sums, projections: Mapping[str, Linear], grads: dict[str, Any]) -> Sums:
        """Backward of `in_layer`: adds to the projections' gradients, and returns those of the arrays of `begin`."""
        return sums

    # --- queries and keys ---

    def turn(self, q: np.ndarray, k: np.ndarray, attending: Any) -> tuple[np.ndarray, np.ndarray]:
        """Queries (T, D) and keys (S, D), changed by their positions. attending: the rows of q among those of k."""
        return q, k

    def turn_backward(
        self, dq: np.ndarray, dk: np.ndarray, attending: Any, stages: Stages
    ) -> tuple[np.ndarray, np.ndarray, Sums]:
        """Backward of `turn`: dq, dk, and the gradients of its own arrays."""
        return dq, dk, {}

    @property
    def turned(self) -> tuple[Stage, ...]:
        """The stages of `turn`, of queries and of keys; their parents are those of the mechanism before it."""
        return ()

    # --- scores ---

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray] | None:
        """The arrays that `add` takes for texts with these places, (N, L) and (N, S); None to add nothing.

        Their first axis is N or 1, their second H or 1.
        """
        return None

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        """Adds to the scores (N, H, L, S), which it may overwrite. Several heads of q may share a head of k."""
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
    ) -> tuple[np.ndarray, np.ndarray | float, np.ndarray | float, Sums]:
        """Backward of `add`: the gradient of the scores before it, its terms of dq and dk, and those of its arrays."""
        return grad, 0.0, 0.0, {}

    def formula(self, scores: str) -> str:
        """The formula of the scores after `add`, from that of the scores before it."""
        return scores

    @property
    def added(self) -> tuple[Stage, ...]:
        """The stages of `add`, from which the scores are computed; their parents are "query_heads" and "key_heads"."""
        return ()

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray | None:
        """True where a query may attend to a key, (N or 1, 1, L, S); None if it may attend to all."""
        return None


def add_up(sums: Sums, more: Mapping[str, np.ndarray]) -> None:
    """Adds gradients to sums, by name."""
    for name, array in more.items():
        sums[name] = sums[name] + array if name in sums else array
