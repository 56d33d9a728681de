"""Batches without padding: texts as packed rows, in shards that are distributed to cores.

A shard has about a thousand tokens: enough for fast products, and few enough that all cores have shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from npformer.common.arraylike import as_numbers
from npformer.common.errors import NpformerError

SHARD = 1024  # tokens
PIECE = 16  # minimum tokens per core at which a trial may find that sharing the rows of a single text is faster
LONG = 96  # minimum tokens per core at which the first guess is that sharing rows is faster
SMALL_SHARD = 32  # below this number of tokens per core, a batch is one shard, and cores share its products


@dataclass(frozen=True)
class Text:
    """The tokens of one text.

    Parameters
    ----------
    ids : (L,) integer array, or a list
    token_type_ids : (L,) integer array, token types, for models that have them; by default zeros
    positions : (L,) integer array, absolute positions; by default 0 ... L - 1
    places : (L,) integer array, indices from which distances are computed; by default 0 ... L - 1

    Raises
    ------
    NpformerError
        An array is not an integer array of shape (L,).

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> [answer] = model.run([npformer.Text(np.array([101, 1045, 2293, 3256, 6949, 102]))])
    >>> answer["logits"].shape
    (2,)
    """

    ids: np.ndarray
    token_type_ids: np.ndarray | None = None
    positions: np.ndarray | None = None
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("ids", "token_type_ids", "positions", "places"):
            array = getattr(self, name)
            if array is None and name != "ids":
                continue
            if not isinstance(array, np.ndarray):
                array = as_numbers(f"Text: {name}", array, keeps=True)
                object.__setattr__(self, name, array)
            if array.dtype.kind not in "iu" or array.ndim != 1:
                got = f"{array.dtype} {array.shape}"
                raise NpformerError(f"Text: {name}: expected an array (L,) of whole numbers, got {got}")
            if len(array) != len(self):
                raise NpformerError(f"Text: {name}: expected {len(self)} values, one for each id, got {len(array)}")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """Packed texts: ids, positions, token_type_ids and places (T,), lengths (B,).

    farthest is the largest distance between two tokens of a text, even if the batch contains only part of that text.
    read (B,) is, for each text, the index of the row that a head with one answer per text reads. A text has no entry in
    read if the batch contains only part of the text, without that row.
    """

    ids: np.ndarray
    positions: np.ndarray
    token_type_ids: np.ndarray
    lengths: np.ndarray
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # empty in the batch of a decoder
    farthest: int = 0
    read: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def first(self) -> np.ndarray:
        """The row of the first token of each text, (B,)."""
        return np.cumsum(self.lengths) - self.lengths

    def pieces(self, count: int) -> list[Batch]:
        """Splits the rows of a single text into `count` parts, one for each core."""
        edges = [len(self.ids) * index // count for index in range(count + 1)]
        return [
            self._with(itemgetter(slice(a, b)), np.array([b - a]), _within(self.read, a, b)) for a, b in pairwise(edges)
        ]

    def between(self, first: int, end: int) -> Batch:
        """The rows from first to end - 1 of a single text. A head reads the last of these rows."""
        return self._with(itemgetter(slice(first, end)), np.array([end - first]), np.array([end - first - 1]))

    def shifted(self, start: int) -> Batch:
        """Each text shifted right: [start, *ids] without its last id."""
        ids = np.roll(self.ids, 1)
        ids[self.first] = start
        return replace(self, ids=ids)

    def last_of(self, token: int) -> np.ndarray:
        """The row of the last occurrence of a token in each text, (B,). Raises NpformerError for a text without it."""
        found = np.where(self.ids == token, np.arange(len(self.ids)), -1)
        last = np.maximum.accumulate(found)[np.cumsum(self.lengths) - 1]
        if (last < self.first).any():
            raise NpformerError(
                f"input_ids: expected token {token} at the end of each text, because the head reads this token's row; "
                "a text has no such token"
            )
        return last

    def filled(self, count: int) -> Batch:
        """Adds rows of zeros after the texts, up to `count` rows in total, so that products need not add rows."""
        more = count - len(self.ids)
        if not more:
            return self
        return self._with(lambda rows: np.concatenate([rows, np.zeros(more, rows.dtype)]), self.lengths, self.read)

    def _with(self, change: Callable[[np.ndarray], np.ndarray], lengths: np.ndarray, read: np.ndarray) -> Batch:
        """The batch with a function applied to every array of rows."""
        ids, positions, token_type_ids = change(self.ids), change(self.positions), change(self.token_type_ids)
        return Batch(ids, positions, token_type_ids, lengths, change(self.places), self.farthest, read)

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Splits packed rows (T, ...) into one array (L, ...) for each text."""
        return split_rows(rows, self.lengths)


def _within(indices: np.ndarray, first: int, end: int) -> np.ndarray:
    """The row indices from first to end - 1, relative to first."""
    return indices[(indices >= first) & (indices < end)] - first


def split_rows(rows: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Splits packed rows (T, ...) into one array (L, ...) per text. np.split takes ten times as long."""
    return [rows[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


def pack(texts: Sequence[Text], uncounted: int | None = None, last: bool = False, padding: int | None = None) -> Batch:
    """Concatenates texts into a batch.

    uncounted: a token id that positions do not count; its own position is -1. last: whether a head with one answer per
    text reads the last token that is not `padding`, instead of the first token.
    """
    lengths = np.array([len(text) for text in texts])
    places = [_last(text.ids, padding) if last else 0 for text in texts]
    return Batch(
        ids=np.concatenate([text.ids for text in texts]),
        positions=np.concatenate(
            [positions(text.ids, uncounted) if text.positions is None else text.positions for text in texts]
        ),
        token_type_ids=np.concatenate(
            [np.zeros(len(t), np.int64) if t.token_type_ids is None else t.token_type_ids for t in texts]
        ),
        places=np.concatenate([np.arange(len(text)) if text.places is None else text.places for text in texts]),
        lengths=lengths,
        read=np.cumsum(lengths) - lengths + places,
        farthest=max(len(text) - 1 if text.places is None else int(np.ptp(text.places)) for text in texts),
    )


def _last(ids: np.ndarray, padding: int | None) -> int:
    """The index of the last token that is not padding; 0 if all tokens are padding, as in Transformers."""
    return int(np.flatnonzero(ids != padding)[-1:].sum())


def positions(ids: np.ndarray, uncounted: int | None) -> np.ndarray:
    """The position of each token (..., L), counted from 0. Tokens that are not counted have position -1."""
    counted = ids != uncounted
    return np.where(counted, np.cumsum(counted, axis=-1) - 1, -1)


def shards(lengths: Sequence[int], threads: int) -> list[list[int]]:
    """Splits the indices of texts into groups of about SHARD tokens or fewer, as in `group_by_length`.

    The number of groups is a multiple of `threads`, unless there are too few texts or tokens.
    """
    total = sum(lengths)
    count = math.ceil(total / SHARD / threads) * threads
    return group_by_length([(length,) for length in lengths], 1 if total < SMALL_SHARD * threads else count)


def group_by_length(lengths: Sequence[tuple[int, ...]], count: int) -> list[list[int]]:
    """Splits the indices of examples into at most `count` groups with similar numbers of tokens.

    lengths: the lengths of the texts of each example. The longest examples come first, with equal lengths adjacent,
    because attention processes equal lengths together.
    """
    total, taken = sum(map(sum, lengths)), 0
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if not groups or taken * count >= total * len(groups):
            groups.append([])
        groups[-1].append(index)
        taken += sum(lengths[index])
    return groups


class Run(NamedTuple):
    """Adjacent texts of equal lengths: the slices of their queries and of their keys, and the number of texts."""

    queries: slice
    keys: slice
    n_texts: int


def equal_runs(lengths: np.ndarray, source_lengths: np.ndarray) -> list[Run]:
    """Groups adjacent texts with equal numbers of queries and of keys."""
    runs, query, key = list[Run](), 0, 0
    for (length, source_length), same in groupby(zip(lengths.tolist(), source_lengths.tolist(), strict=True)):
        n_texts = len(list(same))
        queries, keys = slice(query, query + n_texts * length), slice(key, key + n_texts * source_length)
        runs.append(Run(queries, keys, n_texts))
        query, key = queries.stop, keys.stop
    return runs
