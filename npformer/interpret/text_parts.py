"""`TextParts` splits stages of packed rows by text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from npformer.runtime.packing import split_rows

INPUTS = ("ids", "lengths", "read")  # inputs of a forward, tapped but not stages
# these fire once per run of texts of equal length
RUNS = ("query_heads", "key_heads", "value_heads", "distance_scores", "uncapped_scores", "scores", "weights", "context")
OF_SOURCE = ("cross_attention.key", "cross_attention.value")  # rows of the source, in a decoder
PER_TEXT = ("pooler", "pooled")  # one row per text, as in the logits that follow
#: One row per text or one per token.
OF_EITHER = ("logits", "probabilities", "head.hidden", "head.activation", "head.norm")

Cut = Callable[[np.ndarray], list[np.ndarray]]
Join = Callable[[list[np.ndarray]], np.ndarray]


def is_input(name: str) -> bool:
    return name.rpartition(".")[2] in INPUTS


class TextParts:
    """Finds the part of a stage that belongs to each text, from the taps of the running forwards.

    A tap named `lengths` starts a forward. In an encoder-decoder, one forward starts in the encoder's scope and one in
    the decoder's. Texts are numbered from 0 over all forwards in a scope.
    """

    def __init__(self) -> None:
        self._lengths: dict[str, np.ndarray] = {}  # scope -> lengths of its texts
        self._first: dict[str, int] = {}  # scope -> number of texts in earlier forwards
        self._covered: dict[str, int] = {}  # stage -> number of texts it has fired for
        self._pooled = False

    def hear(self, name: str, array: np.ndarray) -> None:
        """Records the lengths of a forward's texts, and whether its head pools each text to one row."""
        scope, _, last = name.rpartition(".")
        if last == "lengths":
            self._first[scope] = self._first.get(scope, 0) + len(self._lengths.get(scope, ()))
            self._lengths[scope] = array
            self._pooled = False
        self._pooled |= name in PER_TEXT or last == "read"

    def split(self, name: str, array: np.ndarray) -> tuple[int, Cut, Join]:
        """Returns the index of the first text in `array`, a function that splits the array by text, and its inverse.

        An array stays whole if it does not consist of texts or fires outside any forward.
        """
        own = max((each for each in self._lengths if name.startswith(each)), key=len, default="")
        first = max(self._covered.get(name, 0), self._first.get(own, 0))
        cut: Cut = _alone
        join: Join = _only
        count = 1
        if own in self._lengths:
            others = [lengths for scope, lengths in self._lengths.items() if scope != own]
            either = [*others, self._lengths[own]] if name.endswith(OF_SOURCE) else [self._lengths[own]]
            lengths = next((each for each in either if each.sum() == len(array)), None)
            if self._is_per_text(name) or (name.rpartition(".")[2] in RUNS and array.ndim == 4):
                cut, join, count = list, np.stack, len(array)
            elif lengths is not None:
                cut, join, count = partial(split_rows, lengths=lengths), np.concatenate, len(lengths)
            elif name in OF_EITHER and len(array) == len(self._lengths[own]):  # a head without a pooler
                cut, join, count = list, np.stack, len(array)
        self._covered[name] = first + count
        return first, cut, join

    def _is_per_text(self, name: str) -> bool:
        return name in PER_TEXT or (self._pooled and name in OF_EITHER)


def _alone(array: np.ndarray) -> list[np.ndarray]:
    return [array]


def _only(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0]
