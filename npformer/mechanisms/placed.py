"""`Placed`: the mechanisms of one layer, applied to rows at their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from npformer.mechanisms.mechanism import Linear, Mechanism, Sums
from npformer.tape import Stages

Add = Callable[[np.ndarray], np.ndarray]  # from scores to scores


class Placed(NamedTuple):
    """Where the rows of a layer's attention stand, and the mechanisms that depend on it.

    Parameters
    ----------
    places : (T,) integer array, each row's place in its text
    mechanisms : the layer's mechanisms, after `Mechanism.begin`
    row_indices : integer array, the rows that attend; all unless given
    """

    places: np.ndarray
    mechanisms: tuple[Mechanism, ...] = ()
    row_indices: np.ndarray | None = None

    @property
    def attending(self) -> Any:
        """The index of the rows that attend."""
        return slice(None) if self.row_indices is None else self.row_indices

    @property
    def products(self) -> int:
        """Products that a score is the sum of."""
        return max((each.products for each in self.mechanisms), default=1)

    @property
    def in_order(self) -> bool:
        return any(each.in_order for each in self.mechanisms)

    @property
    def adds(self) -> bool:
        """Whether a mechanism adds to the scores."""
        return any(type(each).add is not Mechanism.add for each in self.mechanisms)

    def in_layer(self, projections: Mapping[str, Linear]) -> Placed:
        return self._replace(mechanisms=tuple([each.in_layer(projections) for each in self.mechanisms]))

    def turn(self, q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for each in self.mechanisms:
            q, k = each.turn(q, k, self.attending)
        return q, k

    def turn_backward(self, dq: np.ndarray, dk: np.ndarray, stages: Stages) -> tuple[np.ndarray, np.ndarray]:
        for each in reversed(self.mechanisms):
            dq, dk = each.turn_backward(dq, dk, self.attending, stages)
        return dq, dk

    def in_run(self, rows: slice, keys: np.ndarray, count: int, n_heads: int) -> InRun:
        """The mechanisms for `count` texts of equal lengths.

        rows: the texts' rows among those that attend; keys: the places of the texts' keys.
        """
        queries, keys = self.places[self.attending][rows].reshape(count, -1), keys.reshape(count, -1)
        added = [(each, each.terms(queries, keys, n_heads)) for each in self.mechanisms]
        masks = [mask for each in self.mechanisms if (mask := each.mask(queries, keys)) is not None]
        return InRun(
            [(each.add, terms) for each, terms in added if terms is not None],
            reduce(np.logical_and, masks) if masks else None,
        )

    def add_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        scale: float,
        rows: slice,
        source_rows: slice,
        stages: Stages,
        sums: dict[Mechanism, Sums],
    ) -> tuple[np.ndarray | float, np.ndarray | float]:
        """Backward of `InRun.add`, from the gradient of the scores (N, H, L, S): adds to sums; returns dq and dk."""
        queries = self.places[self.attending][rows].reshape(len(grad), -1)
        keys = self.places[source_rows].reshape(len(grad), -1)
        dq: np.ndarray | float = 0.0
        dk: np.ndarray | float = 0.0
        for each in reversed(self.mechanisms):
            more_q, more_k, own = each.add_backward(grad, q, k, scale, queries, keys, stages)
            dq, dk = dq + more_q, dk + more_k
            add_up(sums.setdefault(each, {}), own)
        return dq, dk

    def in_layer_backward(
        self, sums: dict[Mechanism, Sums], projections: Mapping[str, Linear], grads: dict[str, Any]
    ) -> dict[Mechanism, Sums]:
        return {
            each: each.in_layer_backward(sums[each], projections, grads) for each in self.mechanisms if each in sums
        }


@dataclass(frozen=True)
class InRun:
    """The mechanisms' work on the scores of texts of equal lengths: terms to add, and a mask."""

    added: list[tuple[Callable[..., np.ndarray], dict[str, np.ndarray]]]
    mask: np.ndarray | None

    def of(
        self, some: tuple[slice, slice], q: np.ndarray, k: np.ndarray, scale: float
    ) -> tuple[Add | None, np.ndarray | None]:
        """The function that adds to the scores of some texts and heads, with these queries and keys, and their mask."""
        mask = None if self.mask is None else _part(self.mask, some)
        if not self.added:
            return None, mask
        parts = [(add, {name: _part(each, some) for name, each in terms.items()}) for add, terms in self.added]

        def add_all(scores: np.ndarray) -> np.ndarray:
            for add, terms in parts:
                scores = add(scores, q, k, scale, **terms)
            return scores

        return add_all, mask


def _part(array: np.ndarray, some: tuple[slice, slice]) -> np.ndarray:
    """The part of (N or 1, H or 1, ...) for some of the texts and heads."""
    texts, heads = some
    return array[texts if len(array) > 1 else slice(None), heads if array.shape[1] > 1 else slice(None)]


def add_up(sums: Sums, more: Mapping[str, np.ndarray]) -> None:
    """Adds gradients to sums, by name."""
    for name, array in more.items():
        sums[name] = sums[name] + array if name in sums else array
