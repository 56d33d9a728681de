"""The terms that mechanisms add to scores, for whole texts and for the steps of a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npformer.engine.attention import Add
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.runtime.tiles import Tile

#: Mechanisms that add to scores, each with the keyword arguments of its `add`.
Terms = Sequence[tuple[Mechanism, Mapping[str, np.ndarray]]]


def terms_of(mechanisms: Sequence[Mechanism], queries: np.ndarray, keys: np.ndarray, n_heads: int) -> Terms:
    """The terms of all mechanisms that add to scores, for queries at places (N, L) and keys at places (N, S)."""
    adding = [each for each in mechanisms if type(each).add is not Mechanism.add]
    found = [(each, each.terms(queries, keys, n_heads)) for each in adding]
    return [(each, terms) for each, terms in found if terms is not None]


def adding(terms: Terms, tile: Tile, q: np.ndarray, k: np.ndarray, scale: float) -> Add | None:
    """The function that adds terms to the scores of a tile, or None without terms."""
    own = [(each, {name: part(array, tile) for name, array in arrays.items()}) for each, arrays in terms]

    def add(scores: np.ndarray) -> np.ndarray:
        for each, arrays in own:
            scores = each.add(scores, q, k, scale, **arrays)
        return scores

    return add if own else None


def part(array: np.ndarray, tile: Tile) -> np.ndarray:
    """The part of an array (N or 1, H or 1, ...) that belongs to a tile."""
    texts, heads = tile
    return array[texts if len(array) > 1 else slice(None), heads if array.shape[1] > 1 else slice(None)]
