"""`Rows`: the texts of packed rows, which blocks read besides the rows themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from npformer.mechanisms.mechanism import Mechanism
from npformer.mechanisms.placed import Placed
from npformer.multi_head import AttentionCache
from npformer.runtime.packing import Batch


class Caches(NamedTuple):
    """The keys and values that a layer's attentions keep from earlier calls: to the texts, and to their sources."""

    own: AttentionCache
    source: AttentionCache | None = None


class Rows(NamedTuple):
    """The texts of packed rows, (T, D), one after another.

    Parameters
    ----------
    lengths : (B,) integer array, tokens of each text
    batch : Batch, for mechanisms, which read positions and places from it
    attending : integer array, the rows that attention computes, equally many of each text; all unless given
    source, source_lengths : (S, D) and (B,) arrays, the rows that cross-attention reads
    embedded : (T, D) array, the rows that the stack reads
    mechanisms : each mechanism of the stack -> itself after `begin`
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
    caches: Sequence[Caches] | None = None
    cache: Caches | None = None

    def placed(self, mechanisms: Sequence[Mechanism]) -> Placed | None:
        """The mechanisms of a block with the places of these rows; None without any."""
        if not mechanisms:
            return None
        assert self.batch is not None
        return Placed(
            self.batch.places, tuple([self.mechanisms.get(each, each) for each in mechanisms]), self.attending
        )

    @property
    def whole(self) -> Rows:
        """The same texts, all rows of which attend."""
        return self if self.attending is None else self._replace(attending=None)
