"""Functions for edits that read a text in several chunks: masks, positions, and keys and values from a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.plain.formulas import masked_softmax, softmax, split_heads

Reading = Callable[[int], np.ndarray]  # number of rows -> for each row, the number of its chunk


def chunks_of(size: int) -> Reading:
    """The reading of a text in chunks of `size` tokens."""
    return lambda length: np.arange(length) // size


def steps_after(prompt: int) -> Reading:
    """The reading of a text's first `prompt` tokens at once, and of all later tokens one at a time."""
    return lambda length: np.maximum(np.arange(length) - prompt + 1, 0)


def rest_after(prompt: int) -> Reading:
    """The reading of a text's first `prompt` tokens at once, and of all later tokens at once."""
    return lambda length: (np.arange(length) >= prompt).astype(int)


def own_chunk(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a query and a key are in the same chunk, for scores (..., L, L) -> (L, L)."""
    of: np.ndarray = reading(scores.shape[-1])
    return of[:, None] == of


def own_later_chunk(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a query and a key are in the same chunk and it is not the first one, (L, L)."""
    return own_chunk(scores, reading) & (reading(scores.shape[-1]) > 0)


def _firsts(length: int, reading: Reading) -> np.ndarray:
    """For each row, the first row of its chunk."""
    of = reading(length)
    return np.searchsorted(of, of)


def _lasts(length: int, reading: Reading) -> np.ndarray:
    """For each row, the last row of its chunk."""
    of = reading(length)
    return np.searchsorted(of, of, side="right") - 1


def before_chunk(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a key is the last one before the query's chunk, (L, L)."""
    return np.arange(scores.shape[-1]) == _firsts(scores.shape[-1], reading)[:, None] - 1


def from_corner(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where query i of a chunk would see the text's keys 0 to i, (L, L): a mask aligned to the top left."""
    rows = np.arange(scores.shape[-1])
    return rows <= (rows - _firsts(len(rows), reading))[:, None]


def with_first_keys(mask: np.ndarray, count: int) -> np.ndarray:
    """The mask (L, L) of a window, in which the first `count` keys stay visible as attention sinks."""
    rows = np.arange(mask.shape[-1])
    return mask | ((rows < count) & (rows <= rows[:, None]))


def in_ring(mask: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a key is among the last W keys at the end of the query's chunk, (L, L). W: the width of the window."""
    rows, last = np.arange(mask.shape[-1]), _lasts(mask.shape[-1], reading)
    return np.asarray(rows > (last - mask.sum(-1).max())[:, None])


def overwritten(x: np.ndarray, reading: Reading) -> np.ndarray:
    """Rows (..., L, K) in which the first row of the second chunk overwrites the last row of the first chunk."""
    made, border = x.copy(), int((reading(x.shape[-2]) == 0).sum())
    if border < x.shape[-2]:
        made[..., border - 1, :] = x[..., border, :]
    return made


def from_cache(own: np.ndarray, cached: np.ndarray, reading: Reading) -> np.ndarray:
    """Scores (..., L, L): those in `cached` for keys before the query's chunk, and those in `own` for all others."""
    return np.where(own_chunk(own, reading), own, cached)


def mixed_from_cache(weights: np.ndarray, own: np.ndarray, cached: np.ndarray, reading: Reading) -> np.ndarray:
    """weights @ values, with the values in `cached` before the query's chunk, and those in `own` from there on."""
    alike = own_chunk(weights, reading)
    made: np.ndarray = (weights * alike) @ own + (weights * ~alike) @ cached
    return made


def written_early(x: np.ndarray, own: np.ndarray, reading: Reading, product: bool = False) -> np.ndarray:
    """Products with a cache into which the chunks after the first are written one row too early.

    x @ own multiplies attention weights by values; with `product`, x @ own^T multiplies queries by keys. The last row
    of the cache stays 0.
    """
    length = own.shape[-2]
    of, early = reading(length), own.copy()
    border = int((of == 0).sum())
    early[..., border - 1 : -1, :] = own[..., border:, :]
    seen = np.arange(length) < _lasts(length, reading)[:, None]  # the last row of the cache is 0
    made, right = ((x @ early.mT) * seen, x @ own.mT) if product else ((x * seen) @ early, x @ own)
    later = (of > 0)[:, None]
    return np.where(later, made, right)


def by_chunk(rounding: Callable[[np.ndarray], np.ndarray], x: np.ndarray, reading: Reading) -> np.ndarray:
    """Rounds x (..., L, K), the rows of each chunk with their own scales."""
    borders = np.flatnonzero(np.diff(reading(x.shape[-2]))) + 1
    return np.concatenate([rounding(each) for each in np.split(x, borders, axis=-2)], axis=-2)


def with_scale_of_prompt(x: np.ndarray, reading: Reading, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Rounds to 8 bits with the scale of the first chunk's rows, and clips larger values of later rows, (..., L, K).

    axis: the axes that share a scale, None for the whole array
    """
    first = x[..., reading(x.shape[-2]) == 0, :]
    step = np.abs(first).max(axis=axis, keepdims=True) / 127
    made: np.ndarray = np.clip(np.rint(x / step), -127, 127) * step
    return made


def in_prompt(other: np.ndarray, own: np.ndarray, reading: Reading) -> np.ndarray:
    """Rows (..., L, K), or positions (L,), of which those of the first chunk are from `other`."""
    first = reading(own.shape[-2] if own.ndim > 1 else len(own)) == 0
    return np.where(first[:, None] if own.ndim > 1 else first, other, own)


def unscaled(frequencies: np.ndarray, base: float = 0.0) -> np.ndarray:
    """Rotary frequencies without scaling for longer texts: base^(-i / (K / 2)), or powers of the first quotient."""
    if base:
        return np.asarray(base ** -(np.arange(len(frequencies)) / len(frequencies)))
    return np.asarray((frequencies[1] / frequencies[0]) ** np.arange(len(frequencies)))


def with_unwritten_keys(scores: np.ndarray, mask: np.ndarray, reading: Reading, slots: int = 0) -> np.ndarray:
    """Attention weights (..., L, L) if the chunks after the first also attend to unwritten slots of a cache.

    Unwritten keys, and so their scores, are 0. slots: the size of the cache, at least the number of tokens
    """
    later = (reading(scores.shape[-1]) > 0)[:, None]
    more = np.zeros((*scores.shape[:-1], max(slots - scores.shape[-1], 0)))
    wide = softmax(np.concatenate([np.where(mask, scores, 0.0), more], axis=-1))[..., : scores.shape[-1]]
    return np.where(later, wide, masked_softmax(scores, mask))


def heads_like(rows: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Rows (L, G K) or heads (G, L, K) as heads (H, L, K), like `like`, with each head repeated H / G times."""
    heads = rows if rows.ndim > 2 else split_heads(rows, rows.shape[-1] // like.shape[-1])
    return heads.repeat(like.shape[-3] // heads.shape[-3], axis=-3)


def after_prefix(other: np.ndarray, own: np.ndarray, size: int) -> np.ndarray:
    """Heads `own` (H, L, K) with the first `size` rows of `other`, which has another text's rows (L, G K) or heads."""
    n = min(size, other.shape[-2], own.shape[-2])
    return np.concatenate([heads_like(other, own)[..., :n, :], own[..., n:, :]], axis=-2)


def restarted(positions: np.ndarray, reading: Reading) -> np.ndarray:
    """Positions that begin again with the first one in each chunk."""
    return np.asarray(positions - positions[_firsts(len(positions), reading)] + positions[0])


def of_first(positions: np.ndarray, reading: Reading) -> np.ndarray:
    """For each token, the position of the first token of its chunk."""
    return np.asarray(positions[_firsts(len(positions), reading)])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        chunks_of, steps_after, rest_after, own_chunk, own_later_chunk, before_chunk, from_corner, with_first_keys,
        in_ring, from_cache, overwritten, mixed_from_cache, by_chunk, with_unwritten_keys, heads_like, after_prefix,
        restarted, of_first, written_early, with_scale_of_prompt, in_prompt, unscaled,
    )
}  # fmt: skip
