"""Functions that edits call, for a text that a program reads in several chunks: masks, cached keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.plain.formulas import masked_softmax, softmax, split_heads

Reading = Callable[[int], np.ndarray]  # number of rows -> the number of each row's chunk


def chunks_of(size: int) -> Reading:
    """A text read in chunks of `size` tokens."""
    return lambda length: np.arange(length) // size


def steps_after(prompt: int) -> Reading:
    """A text whose first tokens are a prompt, and whose later tokens are read one at a time."""
    return lambda length: np.maximum(np.arange(length) - prompt + 1, 0)


def own_chunk(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a query and a key are in one chunk, for scores (..., L, L) -> (L, L)."""
    of: np.ndarray = reading(scores.shape[-1])
    return of[:, None] == of


def own_later_chunk(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a query and a key are in one chunk after the first, (L, L)."""
    return own_chunk(scores, reading) & (reading(scores.shape[-1]) > 0)


def _firsts(length: int, reading: Reading) -> np.ndarray:
    """The first row of the chunk of each row."""
    of = reading(length)
    return np.searchsorted(of, of)


def _lasts(length: int, reading: Reading) -> np.ndarray:
    """The last row of the chunk of each row."""
    of = reading(length)
    return np.searchsorted(of, of, side="right") - 1


def before_chunk(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a key is the last one before the query's chunk, (L, L)."""
    return np.arange(scores.shape[-1]) == _firsts(scores.shape[-1], reading)[:, None] - 1


def from_corner(scores: np.ndarray, reading: Reading) -> np.ndarray:
    """True where query i of a chunk sees keys 0 ... i of the text, (L, L)."""
    rows = np.arange(scores.shape[-1])
    return rows <= (rows - _firsts(len(rows), reading))[:, None]


def with_first_keys(mask: np.ndarray, count: int) -> np.ndarray:
    """A window's mask (L, L) in which the first keys stay visible, as attention sinks."""
    rows = np.arange(mask.shape[-1])
    return mask | ((rows < count) & (rows <= rows[:, None]))


def in_ring(mask: np.ndarray, reading: Reading) -> np.ndarray:
    """True where a key is among the last W keys of the query's chunk, if W is the window of the mask, (L, L)."""
    rows, last = np.arange(mask.shape[-1]), _lasts(mask.shape[-1], reading)
    return np.asarray(rows > (last - mask.sum(-1).max())[:, None])


def overwritten(x: np.ndarray, reading: Reading) -> np.ndarray:
    """Rows (..., L, K) whose last one in the first chunk is the first one of the second chunk."""
    made, border = x.copy(), int((reading(x.shape[-2]) == 0).sum())
    if border < x.shape[-2]:
        made[..., border - 1, :] = x[..., border, :]
    return made


def from_cache(own: np.ndarray, cached: np.ndarray, reading: Reading) -> np.ndarray:
    """Scores (..., L, L) whose keys before the query's chunk are from `cached`."""
    return np.where(own_chunk(own, reading), own, cached)


def mixed_from_cache(weights: np.ndarray, own: np.ndarray, cached: np.ndarray, reading: Reading) -> np.ndarray:
    """weights @ values, in which the values before the query's chunk are from `cached`."""
    alike = own_chunk(weights, reading)
    made: np.ndarray = (weights * alike) @ own + (weights * ~alike) @ cached
    return made


def written_early(x: np.ndarray, own: np.ndarray, reading: Reading, product: bool = False) -> np.ndarray:
    """Products with a cache in which each chunk after the first is written one row too early, over the last row.

    x @ own, attention weights and values, or with `product` the scores x @ own^T. The last row of the cache is 0.
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
    """Rounds the rows of each chunk together, x (..., L, K)."""
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
    """Attention weights of a cache with `slots` keys, at least those of the text, of which the last ones are 0.

    Chunks after the first attend to them, with a score of 0.
    """
    later = (reading(scores.shape[-1]) > 0)[:, None]
    more = np.zeros((*scores.shape[:-1], max(slots - scores.shape[-1], 0)))
    wide = softmax(np.concatenate([np.where(mask, scores, 0.0), more], axis=-1))[..., : scores.shape[-1]]
    return np.where(later, wide, masked_softmax(scores, mask))


def heads_like(rows: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Splits rows (L, G K) of another layer, or its heads (G, L, K), into as many heads as `like` (H, L, K) has."""
    heads = rows if rows.ndim > 2 else split_heads(rows, rows.shape[-1] // like.shape[-1])
    return heads.repeat(like.shape[-3] // heads.shape[-3], axis=-3)


def after_prefix(other: np.ndarray, own: np.ndarray, size: int) -> np.ndarray:
    """Heads (H, L, K) whose first rows are those of another text, as rows (L, G K) or heads."""
    n = min(size, other.shape[-2], own.shape[-2])
    return np.concatenate([heads_like(other, own)[..., :n, :], own[..., n:, :]], axis=-2)


def restarted(positions: np.ndarray, reading: Reading) -> np.ndarray:
    """Positions that begin again in each chunk."""
    return np.asarray(positions - positions[_firsts(len(positions), reading)] + positions[0])


def of_first(positions: np.ndarray, reading: Reading) -> np.ndarray:
    """The position of the first token of each chunk."""
    return np.asarray(positions[_firsts(len(positions), reading)])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        chunks_of, steps_after, own_chunk, own_later_chunk, before_chunk, from_corner, with_first_keys, in_ring,
        from_cache, overwritten, mixed_from_cache, by_chunk, with_unwritten_keys, heads_like, after_prefix, restarted,
        of_first, written_early, with_scale_of_prompt, in_prompt, unscaled,
    )
}  # fmt: skip
