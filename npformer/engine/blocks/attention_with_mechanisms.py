"""The attention of every head with mechanisms: rotated queries and keys, terms added to scores, masks, and a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np

from npformer.engine.attention import AddBackward, scaled_dot_product_attention
from npformer.engine.blocks.terms import adding, part, terms_of
from npformer.engine.functions import Linear
from npformer.engine.mechanisms.mechanism import Mechanism, Sums, add_up
from npformer.engine.packed_attention import Formula, PackedAttention
from npformer.engine.runtime.packing import Run
from npformer.engine.runtime.tiles import Tile
from npformer.engine.tape import Stages


class OwnCache(Protocol):
    """A cache of keys and values from earlier rows of the texts. `generation/kv_cache.py` has two implementations."""

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, attention: AttentionWithMechanisms) -> np.ndarray:
        """Stores k and v, then computes attention of each row of q to the cached keys of its text, (T, H K)."""


@dataclass
class AttentionWithMechanisms(PackedAttention):
    """`PackedAttention` with all steps of a layer's mechanisms, such as rotation and masks.

    Parameters
    ----------
    n_heads, lengths, source_lengths : as in `PackedAttention`
    scale : float, factor of q k^T; 1 / sqrt(n K) if None, where n is the largest `products` of a mechanism
    mechanisms : the mechanisms that `Mechanism.in_layer` returned
    attending : slice or integer array, the rows that attend
    places : (T,) and (S,) integer arrays, the places of the queries and of the keys; None if there is no batch
    cache : OwnCache with keys and values of earlier rows, optional
    sums : gradients of the mechanisms' arrays; the backward pass adds to these gradients
    """

    mechanisms: tuple[Mechanism, ...]
    attending: Any
    places: tuple[np.ndarray, np.ndarray] | None
    cache: OwnCache | None
    sums: dict[Mechanism, Sums] = field(default_factory=dict)

    def __call__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        for each in self.mechanisms:
            q, k = each.turn(q, k, self.attending)
        return self.attend(q, k, v) if self.cache is None else self.cache.attend(q, k, v, self)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, earlier: int = 0) -> np.ndarray:
        """Attention of queries and keys that `turn` returned.

        earlier: number of a single text's keys before this pass.
        """
        if not earlier:
            return super().__call__(q, k, v)
        places = self.places and (self.places[0], np.arange(len(k)))
        return PackedAttention.__call__(replace(self, source_lengths=np.array([len(k)]), places=places), q, k, v)

    def backward(self, grad: np.ndarray, stages: Stages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        dq, dk, dv = super().backward(grad, stages)
        for each in reversed(self.mechanisms):
            dq, dk, own = each.turn_backward(dq, dk, self.attending, stages)
            if own:
                add_up(self.sums.setdefault(each, {}), own)
        return dq, dk, dv

    def in_layer_backward(self, weights: Mapping[str, Linear], grads: dict[str, Any]) -> dict[Any, Sums]:
        """Adds the gradients of attention's weights to `grads`. Returns the gradients of arrays that layers share."""
        found = [each for each in self.mechanisms if each in self.sums]
        return {each: each.in_layer_backward(self.sums[each], weights, grads) for each in found}

    def scale_of(self, d_head: int) -> float:
        return super().scale_of(d_head * max([each.products for each in self.mechanisms], default=1))

    def formula(self, run: Run, scale: float) -> Formula:
        places = self._places_of(run)
        added = terms_of(self.mechanisms, *places, self.n_heads)
        masks = [mask for each in self.mechanisms if (mask := each.mask(*places)) is not None]
        in_order = any(each.in_order for each in self.mechanisms)
        mask = reduce(np.logical_and, masks) if masks else None

        def formula(tile: Tile, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            admitted = None if mask is None else part(mask, tile)
            return scaled_dot_product_attention(q, k, v, scale, admitted, adding(added, tile, q, k, scale), in_order)

        return formula

    def add_backward(self, run: Run, stages: Stages, q: np.ndarray, k: np.ndarray) -> AddBackward | None:
        """Backward of `add` for all mechanisms, which also adds the gradients of the mechanisms' arrays to `sums`."""
        if all(type(each).add is Mechanism.add for each in self.mechanisms):
            return None
        scale, places = self.scale_of(q.shape[-1]), self._places_of(run)

        def backward(grad: np.ndarray) -> tuple[np.ndarray, np.ndarray | float, np.ndarray | float]:
            dq: np.ndarray | float = 0.0
            dk: np.ndarray | float = 0.0
            for each in reversed(self.mechanisms):
                grad, more_q, more_k, own = each.add_backward(grad, q, k, scale, *places, stages)
                dq, dk = dq + more_q, dk + more_k
                add_up(self.sums.setdefault(each, {}), own)  # even an unused table needs an entry: its gradient is 0
            return grad, dq, dk

        return backward

    def _places_of(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """For a run of texts, the places of their queries (N, L) and keys (N, S)."""
        if self.places is None:
            return np.empty((run.n_texts, 0)), np.empty((run.n_texts, 0))
        queries, keys = self.places
        return queries[run.queries].reshape(run.n_texts, -1), keys[run.keys].reshape(run.n_texts, -1)
