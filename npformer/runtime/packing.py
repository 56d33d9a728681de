"""Batches without padding: texts as packed rows, in shards that are distributed to the cores.

A shard of about a thousand tokens makes products large enough to be fast, and gives every core enough shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter

import numpy as np

from npformer.common.arraylike import as_numbers
from npformer.common.errors import NpformerError

SHARD = 1024  # tokens
LONG = 96  # tokens per core from which the first guess splits a single text by rows, not each of its products
PIECE = 16  # tokens per core from which a single text gets that trial
SMALL_SHARD = 32  # tokens per core below which a batch is one shard whose products the cores share


@dataclass(frozen=True)
class Text:
    """The tokens of one text.

    Parameters
    ----------
    ids : (L,) integer array, or a list
    token_type_ids : (L,) integer array, token types if the model has them; default zeros
    positions : (L,) integer array, rows of the position table; default 0 ... L - 1
    places : (L,) integer array, token indices from which relative positions are computed; default 0 ... L - 1

    Raises
    ------
    NpformerError
        An array does not have whole numbers or the shape (L,).

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

    farthest is the largest distance between two tokens of a text, even if the batch has only a part of that text. read
    (B,) is the row of each text that a head on texts reads; a part without that row has no entry.
    """

    ids: np.ndarray
    positions: np.ndarray
    token_type_ids: np.ndarray
    lengths: np.ndarray
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # empty for a decoder's batch
    farthest: int = 0
    read: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def first(self) -> np.ndarray:
        """The row of each text's first token, (B,)."""
        return np.cumsum(self.lengths) - self.lengths

    def pieces(self, count: int) -> list[Batch]:
        """Splits one text's rows into `count` parts, one for each core."""
        edges = [len(self.ids) * index // count for index in range(count + 1)]
        return [
            self._with(itemgetter(slice(a, b)), np.array([b - a]), _within(self.read, a, b)) for a, b in pairwise(edges)
        ]

    def after(self, count: int) -> Batch:
        """The rows of one text after the first `count`."""
        rows = slice(count, None)
        return self._with(itemgetter(rows), self.lengths - count, self.read - count)

    def shifted(self, start: int) -> Batch:
        """The texts shifted right: [start, *ids] without the last id of each."""
        ids = np.roll(self.ids, 1)
        ids[self.first] = start
        return replace(self, ids=ids)

    def last_of(self, token: int) -> np.ndarray:
        """The row of each text's last `token`, (B,). Raises NpformerError for a text without that token."""
        rows = np.flatnonzero(self.ids == token)
        last = np.searchsorted(rows, np.cumsum(self.lengths)) - 1
        if not rows.size or ((last < 0) | (rows[last] < self.first)).any():
            raise NpformerError(
                f"input_ids: a text has no token {token}; the head reads its row, so it must end each text"
            )
        return rows[last]

    def filled(self, count: int) -> Batch:
        """The texts followed by zeros, `count` rows in all, so that products need no padding of their own."""
        more = count - len(self.ids)
        if not more:
            return self
        return self._with(lambda rows: np.concatenate([rows, np.zeros(more, rows.dtype)]), self.lengths, self.read)

    def _with(self, change: Callable[[np.ndarray], np.ndarray], lengths: np.ndarray, read: np.ndarray) -> Batch:
        """The batch with a function applied to all arrays of rows."""
        ids, positions, token_type_ids = change(self.ids), change(self.positions), change(self.token_type_ids)
        return Batch(ids, positions, token_type_ids, lengths, change(self.places), self.farthest, read)

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Packed rows (T, ...) as one array (L, ...) for each text."""
        return split_rows(rows, self.lengths)


def _within(rows: np.ndarray, first: int, end: int) -> np.ndarray:
    """The rows in first ... end - 1, relative to first."""
    return rows[(rows >= first) & (rows < end)] - first


def split_rows(rows: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Splits packed rows (T, ...) into an array (L, ...) for each length; np.split takes ten times as long."""
    return [rows[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


def pack(texts: Sequence[Text], uncounted: int | None = None, last: bool = False, padding: int | None = None) -> Batch:
    """Concatenates texts.

    uncounted: a token that gets position -1 and is skipped in counting. last: read each text's last token that is not
    padding, instead of its first token.
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
    """The index of the last token that is not padding; 0 in a text of only padding, as in Transformers."""
    return int(np.flatnonzero(ids != padding)[-1:].sum())


def positions(ids: np.ndarray, uncounted: int | None) -> np.ndarray:
    """The index of each token (..., L) in its text, from 0; -1 for tokens that are not counted."""
    counted = ids != uncounted
    return np.where(counted, np.cumsum(counted, axis=-1) - 1, -1)


def places_of(lengths: np.ndarray) -> np.ndarray:
    """The index of each row in its text, for texts of these lengths, (T,)."""
    return np.concatenate([np.arange(length) for length in lengths])


def shards(lengths: Sequence[int], threads: int) -> list[list[int]]:
    """Indices of texts in groups of about SHARD tokens, longest first, with equal lengths adjacent.

    The number of groups is a multiple of `threads`, unless the groups would be very small.
    """
    total = sum(lengths)
    count = math.ceil(total / SHARD / threads) * threads
    return group_by_length([(length,) for length in lengths], 1 if total < SMALL_SHARD * threads else count)


def group_by_length(lengths: Sequence[tuple[int, ...]], count: int) -> list[list[int]]:
    """Indices of examples, given the lengths of their texts, in at most `count` groups with similar token counts.

    The longest come first, with equal lengths adjacent, because attention processes equal lengths together.
    """
    total, taken = sum(map(sum, lengths)), 0
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if not groups or taken * count >= total * len(groups):
            groups.append([])
        groups[-1].append(index)
        taken += sum(lengths[index])
    return groups


def equal_runs(lengths: np.ndarray, source_lengths: np.ndarray) -> Iterator[tuple[slice, slice, int]]:
    """Groups adjacent texts of equal length; yields their rows, their source rows and their number."""
    pairs = list(zip(lengths.tolist(), source_lengths.tolist(), strict=True))
    first = row = source_row = 0
    for i in range(1, len(pairs) + 1):
        if i == len(pairs) or pairs[i] != pairs[first]:
            count, (length, source_length) = i - first, pairs[first]
            yield slice(row, row + count * length), slice(source_row, source_row + count * source_length), count
            first, row, source_row = i, row + count * length, source_row + count * source_length
