"""`PackedTexts`: information about packed texts that blocks need, such as their lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from npformer.engine.blocks.attention_with_mechanisms import OwnCache
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.runtime.packing import Batch


class SourceCache(Protocol):
    """A cache of the sources' keys and values, which do not change between the steps of a decoder."""

    @property
    def complete(self) -> bool:
        """Whether the keys and values are stored."""

    def keep_source(self, k: np.ndarray, v: np.ndarray, n_heads: int) -> None:
        """Stores k and v (S, D) in the first step."""

    def attend(self, q: np.ndarray, n_heads: int, scale: float) -> np.ndarray:
        """Attention of each row of q to the source of its text, (T, D) -> (T, D)."""


class Caches(NamedTuple):
    """The caches of a layer: `own` for self-attention and `source` for cross-attention."""

    own: OwnCache
    source: SourceCache | None = None


class Source(NamedTuple):
    """The rows (S, D) that cross-attention reads, and the number of these rows in each text, (B,)."""

    rows: np.ndarray
    lengths: np.ndarray


class PackedTexts(NamedTuple):
    """The data that blocks need about texts with tokens packed as rows (T, D).

    Parameters
    ----------
    lengths : (B,) integer array, number of tokens of each text
    batch : Batch, the argument of `Mechanism.begin`
    attending : integer array, the rows that attention computes, the same number for each text; by default all rows
    source : Source of cross-attention
    embedded : (T, D) array, the input of the stack
    mechanisms : for each mechanism of the stack, the mechanism that `begin` returned
    places : (T,) and (S,) integer arrays, the places of the rows, and of the rows that they may attend to
    caches : Caches of each layer of the stack, optional
    cache : Caches of the current layer, optional
    """

    lengths: np.ndarray
    batch: Batch | None = None
    attending: np.ndarray | None = None
    source: Source | None = None
    embedded: np.ndarray | None = None
    mechanisms: Mapping[Mechanism, Mechanism] = MappingProxyType({})
    places: tuple[np.ndarray, np.ndarray] | None = None
    caches: Sequence[Caches] | None = None
    cache: Caches | None = None

    def attend(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The attending rows of x (T, D), and their number in each text."""
        if self.attending is None:
            return x, self.lengths
        return x[self.attending], np.full_like(self.lengths, len(self.attending) // len(self.lengths))

    @property
    def whole(self) -> PackedTexts:
        """The same data, but with all rows attending."""
        return self if self.attending is None else self._replace(attending=None)
