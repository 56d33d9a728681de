"""Batches without padding: texts as packed rows, cut into shards that the cores take one after another.

A shard of about a thousand tokens makes products large enough to be fast, and leaves enough shards to share out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from npformer.errors import NpformerError

SHARD = 1024  # tokens
LONG = 96  # tokens on each core from which cores rather share one text's rows than its products
SMALL_SHARD = 32  # tokens: fewer than this on each core, and the cores rather share the products of one shard


@dataclass(frozen=True)
class Text:
    """One text's tokens: ids (L,), and where the model has them, segments and positions that are not 0 ... L - 1."""

    ids: np.ndarray
    segments: np.ndarray | None = None
    positions: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("ids", "segments", "positions"):
            array = getattr(self, name)
            if array is None and name != "ids":
                continue
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 1:
                got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
                raise NpformerError(f"Text: {name}: expected an array of whole numbers, (L,), got {got}")
            if len(array) != len(self):
                raise NpformerError(f"Text: {name}: expected {len(self)} of them, one for each id, got {len(array)}")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """Texts one after another: ids, positions and segments (T,), lengths (B,)."""

    ids: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    lengths: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """The row of each text's first token, (B,)."""
        return np.cumsum(self.lengths) - self.lengths

    def pieces(self, count: int) -> list[Batch]:
        """One text's rows in `count` pieces, for as many cores to work on side by side."""
        edges = [len(self.ids) * index // count for index in range(count + 1)]
        cuts = [slice(*edge) for edge in pairwise(edges)]
        return [
            Batch(self.ids[cut], self.positions[cut], self.segments[cut], lengths=np.array([cut.stop - cut.start]))
            for cut in cuts
        ]

    def filled(self, count: int) -> Batch:
        """The same texts, and behind them rows of no text up to `count`, so that no product need fill up its own."""
        more = count - len(self.ids)
        ids, positions, segments = (np.pad(each, (0, more)) for each in (self.ids, self.positions, self.segments))
        return Batch(ids, positions, segments, self.lengths)

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Packed rows (T, ...) as one array (L, ...) a text."""
        return np.split(rows, self.first[1:])


def pack(texts: Sequence[Text]) -> Batch:
    """The texts in their order, one after another."""
    return Batch(
        ids=np.concatenate([text.ids for text in texts]),
        positions=np.concatenate([np.arange(len(t)) if t.positions is None else t.positions for t in texts]),
        segments=np.concatenate([np.zeros(len(t), np.int64) if t.segments is None else t.segments for t in texts]),
        lengths=np.array([len(text) for text in texts]),
    )


def shards(lengths: Sequence[int], threads: int) -> list[list[int]]:
    """The texts' indices in groups of about SHARD tokens, the longest texts first, equal lengths side by side.

    As many groups as keep every thread at work: a multiple of `threads`, unless they would be very small.
    """
    total = sum(lengths)
    count = math.ceil(total / SHARD / threads) * threads
    return alike([(length,) for length in lengths], 1 if total < SMALL_SHARD * threads else count)


def alike(lengths: Sequence[tuple[int, ...]], count: int) -> list[list[int]]:
    """Indices of examples, each of texts of some lengths, in at most `count` groups of about as many tokens.

    The longest stand first and equal lengths side by side, as attention takes those together.
    """
    total, taken = sum(map(sum, lengths)), 0
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if not groups or taken * count >= total * len(groups):
            groups.append([])
        groups[-1].append(index)
        taken += sum(lengths[index])
    return groups


# --- what a caller hands a model -------------------------------------------------------------------------------------


def as_padded(input_ids: Any, attention_mask: Any, token_type_ids: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, boolean mask and segments of one shape, (B, L) or (B, N, L); one sequence becomes a batch of one.

    A ragged list of sequences is padded on the right, its mask made from the lengths.
    """
    if _is_ragged(input_ids):
        if attention_mask is not None:
            raise NpformerError("attention_mask: a ragged list of input_ids needs none; its sequences are whole")
        lengths = [len(sequence) for sequence in input_ids]
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        ids = _filled("input_ids", input_ids, mask)
        segments = np.zeros_like(ids) if token_type_ids is None else _filled("token_type_ids", token_type_ids, mask)
        return ids, mask, segments
    ids = _integers("input_ids", input_ids)
    mask = np.ones(ids.shape, bool) if attention_mask is None else _mask(attention_mask, ids.shape)
    segments = np.zeros_like(ids) if token_type_ids is None else _integers("token_type_ids", token_type_ids)
    if segments.shape != ids.shape:
        raise NpformerError(f"token_type_ids: expected the shape of input_ids, {ids.shape}, got {segments.shape}")
    if ids.ndim == 0:
        raise NpformerError("input_ids: expected a sequence of token ids, got one number, of shape ()")
    if not mask.any(axis=-1).all():
        row = int(np.flatnonzero(~mask.any(axis=-1))[0])
        raise NpformerError(f"attention_mask: row {row} is all zeros; a text has at least one token")
    return (ids[None], mask[None], segments[None]) if ids.ndim == 1 else (ids, mask, segments)


def _is_ragged(input_ids: Any) -> bool:
    if not isinstance(input_ids, list | tuple) or not input_ids:
        return False
    if not all(isinstance(each, list | tuple | np.ndarray) and np.ndim(each[:1]) == 1 for each in input_ids):
        return False
    return len({len(each) for each in input_ids}) > 1


def _integers(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise NpformerError(f"{name}: expected whole numbers, one sequence or a list of them") from None
    if array.size == 0:
        raise NpformerError(f"{name}: expected at least one token, got shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise NpformerError(f"{name}: expected whole numbers, got {array.dtype}")
    return array


def _filled(name: str, sequences: Sequence[Any], mask: np.ndarray) -> np.ndarray:
    if not isinstance(sequences, list | tuple) or len(sequences) != len(mask):
        raise NpformerError(f"{name}: expected a list of {len(mask)} sequences, one for each of input_ids")
    padded = np.zeros(mask.shape, np.int64)
    for row, (sequence, kept) in enumerate(zip(sequences, mask, strict=True)):
        values = _integers(f"{name}[{row}]", sequence)
        if values.shape != (kept.sum(),):
            raise NpformerError(f"{name}[{row}]: expected {kept.sum()} tokens, got shape {values.shape}")
        padded[row, kept] = values
    return padded


def _mask(attention_mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        mask = np.asarray(attention_mask)
    except ValueError:
        raise NpformerError(f"attention_mask: expected the shape of input_ids, {shape}, got a ragged list") from None
    if mask.shape != shape:
        raise NpformerError(f"attention_mask: expected the shape of input_ids, {shape}, got {mask.shape}")
    if not np.isin(mask, (0, 1)).all():
        raise NpformerError("attention_mask: expected zeros and ones")
    return mask.astype(bool)
