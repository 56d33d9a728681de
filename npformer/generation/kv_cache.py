"""The key-value cache of a decoder: the keys and values of earlier rows and of sources.

A step gives the same bits as a pass over the whole target. `attention.masked_attention` explains why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from npformer.engine.attention import kv_heads, masked_attention, queries_of, split_heads
from npformer.engine.blocks.attention_with_mechanisms import AttentionWithMechanisms
from npformer.engine.blocks.packed_texts import Caches
from npformer.engine.blocks.terms import Terms, adding, terms_of
from npformer.engine.mechanisms import Causal, Mechanism
from npformer.engine.replay.passes import Arrays, InPlace, Pass
from npformer.engine.replay.replays import Replays
from npformer.engine.runtime.products import kernel
from npformer.engine.runtime.same_bits import VECTOR
from npformer.engine.runtime.sums import TERMS
from npformer.engine.runtime.threads import parallel_for
from npformer.engine.taps import listening, tap

REPLAYED = 1 << 18  # maximum size of a layer's keys for replayed attention; beyond it, products dominate the time
NO_WEIGHTS: dict[str, Any] = {}
_replays = Replays()  # shared by all models, because attention has no weights

STEPS = 32  # number of steps in the first allocation; each later allocation is 1.5 times as large


class BeamAncestry:
    """The cached rows that belong to each beam: rows of its prompt, its own rows, and rows of its ancestors.

    `mask` (B, 1, beams, room) is True where a row belongs to a beam; `room` is the number of allocated columns. The
    rows of the beams of a text are interleaved. When beams are reordered, only the mask changes, and rows do not move.
    A column contains a row of one beam from one step. Free columns are at the end.

    The rows of a prompt come first. Whole groups of TERMS rows are stored once, in the first `front` columns. The
    remaining rows are stored once per beam, like the rows that steps add. The rows of a beam therefore form the same
    groups as in a pass over its whole text.
    """

    def __init__(self, n_beams: int, prompts: np.ndarray) -> None:
        """prompts: number of rows in the prompt of each text, (B,)."""
        self.n_beams = n_beams
        self.whole = prompts // TERMS * TERMS  # number of rows of each prompt that are in whole groups
        self.front = int(self.whole.max(initial=0))
        self.ends = prompts - self.whole  # for each text, the number of prompt rows after whole groups
        self.mask = np.zeros((len(prompts), 1, n_beams, self.front + STEPS * n_beams), bool)
        self.mask[..., : self.front] = (np.arange(self.front) < self.whole[:, None])[:, None, None]
        of_beam = np.repeat(np.arange(TERMS), n_beams) < self.ends[:, None]
        own = np.tile(np.eye(n_beams, dtype=bool), TERMS)
        self.mask[..., self.front : self.front + TERMS * n_beams] = of_beam[:, None, None] & own
        self.newest: list[tuple[Any, slice]] = []  # result of `_newest` in the current step
        self._hidden: dict[tuple[int, tuple[Mechanism, ...]], np.ndarray] = {}  # results of `admitted` in this step
        self._added: dict[tuple[int, tuple[Mechanism, ...]], Terms] = {}

    @property
    def room(self) -> int:
        return self.mask.shape[-1]

    @property
    def length(self) -> int:
        """The number of columns in use."""
        return self.front + int(self.ends.max(initial=0)) * self.n_beams

    def _newest(self) -> list[tuple[Any, slice]]:
        """The columns of the newest row of each beam, as (texts, columns) for texts with the same columns."""
        found = []
        for end in set(self.ends.tolist()):
            texts = np.flatnonzero(self.ends == end)
            last = self.front + end * self.n_beams
            found.append((slice(None) if len(texts) == len(self.ends) else texts, slice(last - self.n_beams, last)))
        return found

    @property
    def width(self) -> int:
        """The number of columns to compute: the columns in use, or without a listener the next multiple of VECTOR."""
        return self.length if listening() else min(self.length + -self.length % VECTOR, self.room)

    def admitted(self, width: int, mechanisms: Sequence[Mechanism]) -> np.ndarray:
        """The first columns of `mask`, (B, 1, beams, width), without rows that mechanisms hide from the newest row.

        The causal mask is skipped, because it hides no earlier row.
        """
        hiding = tuple(
            each for each in mechanisms if type(each).mask is not Mechanism.mask and not isinstance(each, Causal)
        )
        if not hiding:
            return self.mask[..., :width]
        if (width, hiding) not in self._hidden:
            places = self._places(width)
            masks = [mask for each in hiding if (mask := each.mask(*places)) is not None]
            self._hidden[width, hiding] = reduce(np.logical_and, masks, self.mask[..., :width])
        return self._hidden[width, hiding]

    def added(self, width: int, mechanisms: Sequence[Mechanism], n_heads: int) -> Terms:
        """The terms (B, H, 1, width) that mechanisms add to the scores of the newest row, for the first columns."""
        some = tuple(each for each in mechanisms if type(each).add is not Mechanism.add)
        if some and (width, some) not in self._added:
            self._added[width, some] = terms_of(some, *self._places(width), n_heads)
        return self._added[width, some] if some else ()

    def _places(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """The places of the newest row of each text, (B, 1), and of the rows in the first columns, (B, width)."""
        columns, first = np.arange(width), self.whole[:, None]
        after = first + (columns - self.front) // self.n_beams
        return first + self.ends[:, None] - 1, np.where(columns < self.front, columns, after)

    def step(self, parents: np.ndarray | None = None) -> None:
        """Begins a step, in which beam i of each text continues beam parents[:, i] of the previous step."""
        self._forget()
        kept = slice(self.front, self.length)
        if parents is not None:
            self.mask[..., kept] = np.take_along_axis(self.mask[..., kept], parents[:, None, :, None], axis=2)
        self.ends = self.ends + 1
        if self.length > self.room:
            more = np.zeros((*self.mask.shape[:-1], self.front + _grown(self.length - self.front, self.n_beams)), bool)
            more[..., : self.room] = self.mask
            self.mask = more
        self.newest = self._newest()
        for texts, columns in self.newest:
            self.mask[texts, ..., columns] = np.eye(self.n_beams, dtype=bool)

    def keep(self, texts: np.ndarray) -> None:
        self.mask, self.ends, self.whole = self.mask[texts], self.ends[texts], self.whole[texts]
        self._forget()

    def _forget(self) -> None:
        self._hidden.clear()
        self._added.clear()


def _grown(length: int, n_beams: int) -> int:
    """1.5 times the number of columns, rounded up to a multiple of VECTOR columns for each beam."""
    return -(-(length + length // 2) // (VECTOR * n_beams)) * VECTOR * n_beams


@dataclass
class SelfAttentionCache:
    """A cache of keys (B, G, K, room) and values (B, G, room, K) of the rows of texts, with interleaved beams.

    room: number of allocated columns. reach: the largest distance between a row and a key that it reads; None without a
    window. With a window, the first `skipped` columns, which are rows of prompts, are not stored. The skipped columns
    are whole groups of TERMS, so the results have the same bits without these columns.
    """

    ancestry: BeamAncestry
    reach: int | None = None
    skipped: int = 0
    keys: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    _in_place: InPlace = field(default_factory=InPlace, init=False)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, attention: AttentionWithMechanisms) -> np.ndarray:
        """Stores a new row of each beam, (T, G K). Returns the row's attention to the rows of the beam, (T, H K)."""
        line, n_heads, mechanisms = self.ancestry, attention.n_heads, attention.mechanisms
        new_keys, new_values = (_heads(x, kv_heads(q, k, n_heads), line.n_beams) for x in (k, v))
        if self.values.shape[-2] < line.room - self.skipped:
            self._make_room(new_values)

        def keep(heads: slice) -> None:
            for texts, columns in line.newest:
                own = slice(columns.start - self.skipped, columns.stop - self.skipped)
                self.keys[texts, heads, :, own] = new_keys[texts, heads].mT
                self.values[texts, heads, own] = new_values[texts, heads]

        width = line.width
        mask, terms = line.admitted(width, mechanisms), line.added(width, mechanisms, n_heads)
        if self.skipped:
            mask = mask[..., self.skipped :]
            terms = [(each, {name: x[..., self.skipped :] for name, x in arrays.items()}) for each, arrays in terms]
        own = width - self.skipped
        block = slice(None), self.keys[..., :own], self.values[:, :, :own], mask
        scale = attention.scale_of(q.shape[-1] // n_heads)
        if block[1].size <= REPLAYED and not terms and not listening():
            keep(slice(None))
            return self._replayed(q, mask, n_heads, scale, own)
        return _attend(q, [block], n_heads, line.n_beams, scale, keep, line.front - self.skipped, terms)

    def _replayed(self, q: np.ndarray, mask: np.ndarray, n_heads: int, scale: float, width: int) -> np.ndarray:
        """`_attend` to the first `width` columns, replayed if steps of this shape recur."""
        n_beams, front = self.ancestry.n_beams, self.ancestry.front - self.skipped

        def work(weights: Any, inputs: Sequence[np.ndarray], caches: Sequence[np.ndarray]) -> Arrays:
            (q, mask), (keys, values) = inputs, caches
            block = slice(None), keys[..., :width], values[:, :, :width], mask
            return {"combined": _attend(q, [block], n_heads, n_beams, scale, None, front)}

        if not self._in_place.arrays or self._in_place.arrays[0] is not self.keys:
            self._in_place = InPlace(self.keys, self.values)
        shape = q.shape, q.dtype.char, self.keys.shape, mask.shape, n_heads, n_beams, front, scale

        def others(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            return inputs[0] + 1, mask

        return _replays.run(Pass(shape, work, NO_WEIGHTS, (q, mask), others, self._in_place))["combined"]

    def begin(self, prompts: Sequence[tuple[np.ndarray, np.ndarray]], n_kv_heads: int) -> None:
        """Stores the keys and values of the prompt of each text, (P, G K) each, in the columns of the ancestry."""
        line = self.ancestry
        if self.reach is not None and not listening():
            shortest = int((line.whole + line.ends).min())
            self.skipped = max(0, shortest - self.reach) // TERMS * TERMS
        for text, pair in enumerate(prompts):
            keys, values = (_heads(rows, n_kv_heads, len(rows)) for rows in pair)
            if not text:
                self._make_room(
                    np.broadcast_to(values[:, :, :1], (len(prompts), *values.shape[1:2], 1, values.shape[3]))
                )
            whole, front = line.whole[text], line.front - self.skipped
            rest = slice(front, front + line.ends[text] * line.n_beams)
            self.keys[text, ..., : whole - self.skipped] = keys[0, :, self.skipped : whole].mT
            self.values[text, :, : whole - self.skipped] = values[0, :, self.skipped : whole]
            self.keys[text, ..., rest] = np.repeat(keys[0, :, whole:].mT, line.n_beams, axis=-1)
            self.values[text, :, rest] = np.repeat(values[0, :, whole:], line.n_beams, axis=-2)

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies the first keys and values of a single text with one beam, (count, G K) each; 0 for skipped rows."""
        own = count - self.skipped
        found = np.zeros((2, count, *self.keys.shape[1:3]), self.keys.dtype)
        found[0, self.skipped :] = self.keys[0, :, :, :own].transpose(2, 0, 1)
        found[1, self.skipped :] = self.values[0, :, :own].swapaxes(0, 1)
        keys, values = found.reshape(2, count, -1)
        return keys, values

    def has_rows(self, count: int) -> bool:
        """Whether the cache has all rows that a continuation after the first `count` rows needs."""
        return self.reach is None or not self.skipped or count - self.reach >= self.skipped

    def _make_room(self, like: np.ndarray) -> None:
        """Enlarges the arrays with zeros. Masked values are multiplied by 0, so they must be finite."""
        count, n_kv_heads, _, width = like.shape
        room = self.ancestry.room - self.skipped
        values = np.zeros((count, n_kv_heads, room, width), like.dtype)
        keys = np.zeros((count, n_kv_heads, width, room), like.dtype)
        used = self.values.shape[-2]
        if used:
            values[:, :, :used] = self.values
            keys[..., :used] = self.keys
        self.keys, self.values = keys, values

    def keep(self, texts: np.ndarray) -> None:
        self.keys, self.values = self.keys[texts], self.values[texts]


@dataclass
class CrossAttentionCache:
    """A cache of keys (B, H, K, S) and values (B, H, S, K) of the source of each text, shared by the text's beams.

    Adjacent texts share a block if their sources fill the same number of vectors, which keeps padding small.
    """

    n_beams: int
    lengths: np.ndarray
    complete: bool = False
    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def attend(self, q: np.ndarray, n_heads: int, scale: float) -> np.ndarray:
        """The attention of q to the source of its text, (T, D) -> (T, D)."""
        blocks, first = [], 0
        for keys, values in zip(self.keys, self.values, strict=True):
            lengths = self.lengths[first : first + len(keys)]
            width = lengths.max() if listening() else keys.shape[-1]
            mask = (np.arange(width) < lengths[:, None])[:, None, None, :]
            rows = slice(first * self.n_beams, (first + len(keys)) * self.n_beams)
            blocks.append((rows, keys[..., :width], values[:, :, :width], mask))
            first += len(keys)
        return _attend(q, blocks, n_heads, self.n_beams, scale)

    def keep_source(self, k: np.ndarray, v: np.ndarray, n_heads: int) -> None:
        """Fills the blocks from the rows of all sources (S, D), with zeros after each source."""
        k, v = (_heads(rows, n_heads, len(rows))[0] for rows in (k, v))
        width = k.shape[-1]
        ends = np.cumsum(self.lengths)
        room = self.lengths + -self.lengths % VECTOR
        edges = [0, *(np.flatnonzero(np.diff(room)) + 1).tolist(), len(room)]
        for first, last in pairwise(edges):
            keys = np.zeros((last - first, n_heads, width, room[first]), k.dtype)
            values = np.zeros((last - first, n_heads, room[first], width), v.dtype)
            for i in range(first, last):
                own = slice(ends[i] - self.lengths[i], ends[i])
                keys[i - first, :, :, : self.lengths[i]] = k[:, own].mT
                values[i - first, :, : self.lengths[i]] = v[:, own]
            self.keys.append(keys)
            self.values.append(values)
        self.complete = True

    def keep(self, texts: np.ndarray) -> None:
        firsts = np.cumsum([0, *(len(keys) for keys in self.keys)])
        kept = [texts[(texts >= a) & (texts < b)] - a for a, b in pairwise(firsts)]
        self.keys = [keys[some] for keys, some in zip(self.keys, kept, strict=True) if len(some)]
        self.values = [values[some] for values, some in zip(self.values, kept, strict=True) if len(some)]
        self.lengths = self.lengths[texts]


class PromptRows:
    """A cache that collects the keys and values of whole prompts in a layer, (T, G K) each, in one or several passes.

    Attention is the same as without a cache. Several passes are possible only for a single prompt.
    """

    def __init__(self, total: int) -> None:
        """total: number of rows after all passes."""
        self.total, self.used = total, 0
        self._keys = self._values = np.zeros((0, 0))

    @property
    def keys(self) -> np.ndarray:
        return self._keys[: self.used]

    @property
    def values(self) -> np.ndarray:
        return self._values[: self.used]

    def store(self, k: np.ndarray, v: np.ndarray) -> None:
        """Stores k and v (T, G K) after the rows of earlier passes."""
        if len(k) == self.total:
            self._keys, self._values = k, v
        else:
            if not self.used:
                self._keys, self._values = (np.empty((self.total, each.shape[1]), each.dtype) for each in (k, v))
            self._keys[self.used : self.used + len(k)] = k
            self._values[self.used : self.used + len(k)] = v
        self.used += len(k)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, attention: AttentionWithMechanisms) -> np.ndarray:
        """Stores k and v, and returns the attention of q to all rows so far, (T, H K)."""
        earlier = self.used
        self.store(k, v)
        return attention.attend(q, self.keys, self.values, earlier)


class KVCache:
    """The caches of all decoder layers. lengths: number of source rows of each text. n_beams: targets per text."""

    def __init__(self, n_layers: int, lengths: np.ndarray, n_beams: int = 1) -> None:
        self.ancestry = BeamAncestry(n_beams, np.zeros_like(lengths))
        self.own = [SelfAttentionCache(self.ancestry) for _ in range(n_layers)]
        self.of_source = [CrossAttentionCache(n_beams, lengths) for _ in range(n_layers)]
        self.layers = list(map(Caches, self.own, self.of_source))

    def step(self, parents: np.ndarray | None = None) -> None:
        self.ancestry.step(parents)

    def keep(self, texts: np.ndarray) -> None:
        """Keeps only the texts with these indices (B',). The other texts are finished."""
        self.ancestry.keep(texts)
        for own, of_source in zip(self.own, self.of_source, strict=True):
            own.keep(texts)
            of_source.keep(texts)


def _heads(rows: np.ndarray, n_heads: int, count: int) -> np.ndarray:
    """The heads (B, H, count, K) of rows (B * count, D) or (B, count, D)."""
    return split_heads(rows if rows.ndim == 3 else rows.reshape(-1, count, rows.shape[-1]), n_heads)


def _attend(
    q: np.ndarray,
    blocks: Sequence[tuple[slice, np.ndarray, np.ndarray, np.ndarray]],
    n_heads: int,
    n_beams: int,
    scale: float,
    keep: Callable[[slice], None] | None = None,
    front: int = 0,
    terms: Terms = (),
) -> np.ndarray:
    """Attention of the beams of each text to its keys and values, (B * beams, H K) -> (B * beams, H K).

    blocks: rows of q with the keys (B, G, K, S), values (B, G, S, K) and mask of their texts. keep(heads) stores new
    keys and values of some heads. It is called by the thread that reads these keys and values next, so that they are in
    the cache of its core. front: number of leading columns that all beams of a text read. terms: terms that mechanisms
    add to the scores.
    """
    if keep is not None and listening():
        keep(slice(None))
    combined = np.empty_like(q)
    work, size = [], 0
    for rows, keys, values, mask in blocks:
        heads = tap("query_heads", _heads(q[rows], n_heads, n_beams))
        keys, values = tap("key_heads", keys.mT), tap("value_heads", values)
        work.append((heads, keys, values, mask, _heads(combined[rows], n_heads, n_beams)))
        size += heads.size * values.shape[-2]

    n_kv_heads = blocks[0][1].shape[1]

    def attend(some: slice) -> None:
        if keep is not None:
            keep(some)
        own = queries_of(some, n_heads // n_kv_heads)
        for heads, keys, values, mask, context in work:
            beams, q_k_v = mask.shape[2], (heads[:, own] * scale, keys[:, some], values[:, some])
            if TERMS * beams <= kernel(q.dtype).k_block_size:
                context[:, own] = masked_attention(
                    *q_k_v, mask, TERMS * beams, front, adding(terms, (slice(None), own), *q_k_v[:2], scale)
                )
            else:  # BLAS would split sums of this length into several blocks
                _attend_apart(*q_k_v, mask, context[:, own], terms, own)

    parallel_for(attend, n_kv_heads, nanoseconds=0.4 * size)
    return combined


def _attend_apart(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    context: np.ndarray,
    terms: Terms,
    heads: slice,
) -> None:
    """Writes the context (B, H, beams, K) of each beam, computed from copies of the keys and values of that beam."""
    for beam in range(q.shape[2]):
        own = np.argsort(~mask[:, :, beam], axis=-1, kind="stable")[..., : mask[:, 0, beam].sum(axis=-1).max()]
        admitted = np.take_along_axis(mask[:, :, beam], own, axis=-1)[:, :, None]
        k, v = (np.take_along_axis(array, own[..., None], axis=2) for array in (keys, values))
        one = q[:, :, beam : beam + 1]
        of_beam = [(each, {name: _columns(array, own) for name, array in arrays.items()}) for each, arrays in terms]
        add = adding(of_beam, (slice(None), heads), one, k, 1.0)
        context[:, :, beam : beam + 1] = masked_attention(one, k, v, admitted, add=add)


def _columns(array: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The terms (B or 1, H or 1, 1, width) of each text for some columns (B, 1, n)."""
    of_texts = np.broadcast_to(array, (len(columns), *array.shape[1:]))
    return np.take_along_axis(of_texts, columns[:, :, None], axis=-1)
