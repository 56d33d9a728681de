"""`Rows`: the texts of packed rows, which blocks read besides the rows themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from npformer.mechanisms.mechanism import Mechanism
from npformer.runtime.packing import Batch


class OwnCache(Protocol):
    """Keys and values of the texts' earlier rows, which a decoder keeps; `generation/kv_cache.py` has two kinds."""

    def attend(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, n_heads: int, mechanisms: Sequence[Mechanism], scale: float
    ) -> np.ndarray | None:
        """Keeps k and v, then lets each row of q attend to the kept keys of its text, (T, H K) -> (T, H K).

        mechanisms may hide keys and add to scores. scale: the factor of q k^T. None if the rows attend
        as without a cache, to `keys` and `values`.
        """

    @property
    def keys(self) -> np.ndarray: ...

    @property
    def values(self) -> np.ndarray: ...


class SourceCache(Protocol):
    """Keys and values of the sources, the same in all steps of a decoder."""

    @property
    def complete(self) -> bool:
        """Whether they are kept."""

    def keep_source(self, k: np.ndarray, v: np.ndarray, n_heads: int) -> None:
        """Keeps k and v (S, D), in the first step."""

    def attend(self, q: np.ndarray, n_heads: int, scale: float) -> np.ndarray:
        """Lets each row of q attend to its text's source, (T, D) -> (T, D)."""


class Caches(NamedTuple):
    """The keys and values that a layer's attentions keep from earlier calls: to the texts, and to their sources."""

    own: OwnCache
    source: SourceCache | None = None


class Rows(NamedTuple):
    """The texts of packed rows, (T, D), one after another.

    Parameters
    ----------
    lengths : (B,) integer array, tokens of each text
    batch : Batch, from which mechanisms begin
    attending : integer array, the rows that attention computes, equally many of each text; all unless given
    source, source_lengths : (S, D) and (B,) arrays, the rows that cross-attention reads
    embedded : (T, D) array, the rows that the stack reads
    mechanisms : each mechanism of the stack -> itself after `begin`
    places : (T,) and (S,) integer arrays, the place in its text of each row, and of each row that it may attend to
    caches : Caches of each layer of the stack, optional
    cache : Caches of the layer that is computed, optional
    """

    lengths: np.ndarray
    batch: Batch | None = None
    attending: np.ndarray | None = None
    source: np.ndarray | None = None
    source_lengths: np.ndarray | None = None
    embedded: np.ndarray | None = None
    mechanisms: Mapping[Mechanism, Mechanism] = MappingProxyType({})
    places: tuple[np.ndarray, np.ndarray] | None = None
    caches: Sequence[Caches] | None = None
    cache: Caches | None = None

    def attend(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of x (T, D) that attend, and their number in each text."""
        if self.attending is None:
            return x, self.lengths
        return x[self.attending], np.full_like(self.lengths, len(self.attending) // len(self.lengths))

    @property
    def whole(self) -> Rows:
        """The same texts, all rows of which attend."""
        return self if self.attending is None else self._replace(attending=None)
