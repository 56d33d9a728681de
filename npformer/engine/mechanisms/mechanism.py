"""`Mechanism`: the base class of mechanisms, which make attention depend on the places of tokens.

The place of a token is its index in the text. The position of a token selects its row of a table, or multiplies its
angles. A distance is the difference between two places. A mechanism may rotate queries and keys, add to scores, or
hide keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.functions import Linear
from npformer.engine.runtime.packing import Batch
from npformer.engine.tape import Stages

Sums = dict[str, np.ndarray]  # gradients by name, summed over the texts and layers that share an array


class Mechanism:
    """A mechanism that changes nothing. Subclasses override some steps. Each backward is directly below its step.

    Subclasses are frozen dataclasses with the options of a model as fields. A `Config` lists the mechanisms.
    `for_model` fills in the sizes of the model. `begin` fills in the fields with `compare=False` for a batch, and
    `in_layer` fills in the fields for a layer.
    """

    cached: ClassVar[bool] = False  # whether the mechanism works with keys and values from a cache
    in_order: ClassVar[bool] = False  # whether sums over keys need a fixed order, so that a cache does not change bits
    read: ClassVar[tuple[str, ...]] = ()  # stages of attention that the mechanism's backward reads

    @property
    def products(self) -> int:
        """The number of products that are summed in a score. The sum is divided by sqrt(products * K)."""
        return 1

    # --- config ---

    def check(self, config: Any) -> None:
        """Raises NpformerError for an invalid field, or for a field that contradicts the `Config`."""

    def for_model(self, config: Any) -> Self:
        """Returns the mechanism with sizes from the `Config` of a model."""
        return self

    def same_until(self, length: int) -> int | None:
        """The greatest length to which a text can grow from `length` while its cached keys stay valid, or None."""
        return None

    def farthest(self) -> int | None:
        """The largest distance at which a token may attend to an earlier token; None if there is no limit."""
        return None

    # --- weights ---

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights that all layers of the stack share."""
        return {}

    def projections(self, d_model: int) -> dict[str, Group]:
        """The groups of weights in the attention of each layer."""
        return {}

    # --- once per forward pass, and once per layer ---

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> Self:
        """Returns the mechanism with its tables and angles for a batch. weights: the weights of the stack."""
        return self

    def end_backward(self, sums: Sums, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Backward of `begin`: the gradients of the weights in `groups`. sums: gradients of the arrays of `begin`."""
        return {}

    def in_layer(self, projections: Mapping[str, Linear]) -> Self:
        """Returns the mechanism with arrays computed from the projections of a layer."""
        return self

    def in_layer_backward(self, sums: Sums, projections: Mapping[str, Linear], grads: dict[str, Any]) -> Sums:
        """Backward of `in_layer`: adds gradients of projections to `grads`.

        Returns the gradients of `begin`'s arrays.
        """
        return sums

    # --- queries and keys ---

    def turn(self, q: np.ndarray, k: np.ndarray, attending: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns queries (T, D) and keys (S, D), changed by position. attending: the rows of k that belong to q."""
        return q, k

    def turn_backward(
        self, dq: np.ndarray, dk: np.ndarray, attending: Any, stages: Stages
    ) -> tuple[np.ndarray, np.ndarray, Sums]:
        """Backward of `turn`: dq, dk, and the gradients of the mechanism's own arrays."""
        return dq, dk, {}

    @property
    def turned(self) -> tuple[Stage, ...]:
        """The two stages of `turn`, for queries and keys. Their parents are the stages of the previous mechanism."""
        return ()

    # --- scores ---

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray] | None:
        """The arguments of `add` for queries at places (N, L) and keys at places (N, S), or None to add nothing.

        Each argument is an array with N or 1 as its first axis, and H or 1 as its second axis.
        """
        return None

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        """Adds terms to the scores (N, H, L, S), possibly in place. Several heads of q may share one head of k."""
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
        """Backward of `add`: the gradient of the old scores, and terms to add to dq and dk.

        Also returns the gradients of the mechanism's own arrays.
        """
        return grad, 0.0, 0.0, {}

    def formula(self, scores: str) -> str:
        """The formula of the scores after `add`, given the formula of the scores before `add`."""
        return scores

    @property
    def added(self) -> tuple[Stage, ...]:
        """The stages of `add`, which become parents of the scores. Their parents are "query_heads" and "key_heads"."""
        return ()

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray | None:
        """True where a query may attend to a key, (N or 1, 1, L, S); None if queries may attend to every key."""
        return None


def add_up(sums: Sums, more: Mapping[str, np.ndarray]) -> None:
    """Adds gradients to the sums with the same names, in place."""
    for name, array in more.items():
        sums[name] = sums[name] + array if name in sums else array
