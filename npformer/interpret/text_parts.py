"""`TextParts` splits stages of packed rows by text."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np

INPUTS = ("ids", "lengths", "read")  # inputs of a forward pass, which are tapped but are not stages
#: Stages that fire once per run of texts of equal length.
RUNS = ("query_heads", "key_heads", "value_heads", "distance_scores", "uncapped_scores", "scores", "weights", "context")
OF_SOURCE = ("cross_attention.key", "cross_attention.value")  # a decoder's stages with a row for each source token
PER_TEXT = ("pooler", "pooled")  # stages with one row per text, like the logits computed from them
#: Stages with one row per text in some models, and one row per token in others.
OF_EITHER = ("logits", "probabilities", "head.hidden", "head.activation", "head.norm")

Cut = Callable[[np.ndarray], list[np.ndarray]]
Join = Callable[[list[np.ndarray]], np.ndarray]


def is_input(name: str) -> bool:
    return name.rpartition(".")[2] in INPUTS


def has_source_rows(name: str) -> bool:
    """Returns whether a stage has a row per source token: a stage of the encoder, or cross-attention's key or value."""
    return name.startswith("encoder.") or name.removesuffix("_heads").endswith(OF_SOURCE)


class TextParts:
    """Finds the part of a stage that belongs to each text, from the taps of the forward passes that run.

    A tap named `lengths` starts a forward pass. In an encoder-decoder, one forward pass starts in the scope of the
    encoder and one in the scope of the decoder. Texts are numbered from 0 over all forward passes in a scope.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[slice]] = {}  # scope -> the rows of each of its texts
        self._scope: dict[str, str] = {}  # stage -> the innermost scope with a forward pass
        self._first: dict[str, int] = {}  # scope -> number of texts in earlier forward passes
        self._covered: dict[str, int] = {}  # stage -> number of texts that the stage has fired for
        self._pooled = False

    def hear(self, name: str, array: np.ndarray) -> None:
        """Records the lengths of the texts in a forward pass, and whether its head pools each text to one row."""
        scope, _, last = name.rpartition(".")
        if last == "lengths":
            self._first[scope] = self._first.get(scope, 0) + len(self._rows.get(scope, ()))
            if scope not in self._rows:
                self._scope.clear()
            self._rows[scope] = [slice(*ends) for ends in pairwise([0, *np.cumsum(array).tolist()])]
            self._pooled = False
        self._pooled |= name in PER_TEXT or last == "read"

    def split(self, name: str, array: np.ndarray) -> tuple[int, Cut, Join]:
        """Returns the index of the first text in `array`, a function that splits the array by text, and its inverse.

        An array stays whole if it does not consist of texts or fires outside any forward pass.
        """
        own = self._scope_of(name)
        first = max(self._covered.get(name, 0), self._first.get(own, 0))
        cut: Cut = _alone
        join: Join = _only
        count = 1
        if (rows := self._rows.get(own)) is not None:
            of_runs, of_source, of_either = _kinds(name)
            if (of_runs and array.ndim == 4) or name in PER_TEXT or (self._pooled and of_either):
                cut, join, count = list, np.stack, len(array)
            elif (rows := self._fitting(rows, len(array), of_source)) is not None:
                cut, join, count = _by_rows(rows), np.concatenate, len(rows)
            elif of_either and len(array) == len(self._rows[own]):  # the logits of a head without a pooler
                cut, join, count = list, np.stack, len(array)
        self._covered[name] = first + count
        return first, cut, join

    def _scope_of(self, name: str) -> str:
        if name not in self._scope:
            self._scope[name] = max((each for each in self._rows if name.startswith(each)), key=len, default="")
        return self._scope[name]

    def _fitting(self, own: list[slice], count: int, of_source: bool) -> list[slice] | None:
        """Returns the rows of each text in an array of `count` rows; None if the texts have another number of rows.

        The rows are the rows of the sources, if `of_source` is true and they fit the array, or else `own`.
        """
        either = [*(rows for rows in self._rows.values() if rows is not own), own] if of_source else [own]
        return next((rows for rows in either if rows and rows[-1].stop == count), None)


@lru_cache(maxsize=1 << 12)
def _kinds(name: str) -> tuple[bool, bool, bool]:
    """Returns three flags: the name ends in one of `RUNS`, it ends in one of `OF_SOURCE`, it is in `OF_EITHER`."""
    return name.rpartition(".")[2] in RUNS, name.endswith(OF_SOURCE), name in OF_EITHER


def _by_rows(rows: list[slice]) -> Cut:
    return lambda array: [array[each] for each in rows]


def _alone(array: np.ndarray) -> list[np.ndarray]:
    return [array]


def _only(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0]
