"""Truncates texts and splits them into windows. `Tokens` take a fifth of the memory of `tokenizers.Encoding`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from npformer.common.errors import NpformerError

if TYPE_CHECKING:
    from tokenizers import Encoding

AGAIN = 8  # maximum tokens of the one character that a block repeats from the previous block


@dataclass
class Tokens:
    """Tokens of a text, or of a window with its special tokens. The properties work as in `tokenizers.Encoding`."""

    numbers: np.ndarray  # (L,): token ids
    names: np.ndarray  # (L,): tokens as str; equal tokens are the same object
    places: np.ndarray  # (L, 2): the first character of each token, and the character after its last character
    words: np.ndarray  # (L,): index of the word of each token; -1 for special tokens
    sources: np.ndarray  # (L,): index of the text in a pair, 0 or 1; -1 for special tokens
    kinds: np.ndarray  # (L,): token types

    def __post_init__(self) -> None:
        self._spans: dict[tuple[int, int], tuple[int, int]] | None = None

    @classmethod
    def of(cls, encoding: Encoding, known: dict[str, str] | None = None) -> Tokens:
        """Copies a `tokenizers.Encoding`. known: strings to reuse for equal tokens."""
        known = {} if known is None else known
        names = np.empty(len(encoding), object)
        names[:] = [known.setdefault(each, each) for each in encoding.tokens]
        words, sources = (
            np.array([-1 if each is None else each for each in found], np.int32)
            for found in (encoding.word_ids, encoding.sequence_ids)
        )
        places = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        ids, kinds = (np.array(each, np.int64) for each in (encoding.ids, encoding.type_ids))
        return cls(ids, names, places, words, sources, kinds)

    @classmethod
    def joined(cls, parts: Sequence[Tokens]) -> Tokens:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def __getitem__(self, rows: slice) -> Tokens:
        return Tokens(*(getattr(self, each.name)[rows] for each in fields(self)))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def ids(self) -> list[int]:
        return list(self.numbers.tolist())

    @property
    def tokens(self) -> list[str]:
        return list(self.names)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return [(first, end) for first, end in self.places.tolist()]

    @property
    def type_ids(self) -> list[int]:
        return list(self.kinds.tolist())

    @property
    def sequence_ids(self) -> list[int | None]:
        return [None if each < 0 else each for each in self.sources.tolist()]

    @property
    def word_ids(self) -> list[int | None]:
        return [None if each < 0 else each for each in self.words.tolist()]

    @property
    def special_tokens_mask(self) -> list[int]:
        return [int(each < 0) for each in self.sources.tolist()]

    def token_to_word(self, token: int) -> int | None:
        return None if self.words[token] < 0 else int(self.words[token])

    def word_to_chars(self, word: int, sequence_index: int = 0) -> tuple[int, int] | None:
        if self._spans is None:
            spans: dict[tuple[int, int], tuple[int, int]] = {}
            for source, number, (first, end) in zip(
                self.sources.tolist(), self.words.tolist(), self.places.tolist(), strict=True
            ):
                start, _ = spans.get((source, number), (first, end))
                spans[source, number] = start, end
            self._spans = spans  # assigned only when complete, because other threads may read it
        return self._spans.get((sequence_index, word)) if word >= 0 else None


def tokens_of_blocks(blocks: Iterable[tuple[int, int, Encoding]], most: int | None = None) -> Tokens:
    """Joins the tokens of the blocks of a text. A block is `(start, first, tokens)`, tokenized from `start` on.

    Tokens before character `first` belong to the previous block and are dropped. Raises NpformerError for more than
    `most` + AGAIN tokens, before it copies the block that exceeds this number.
    """
    known: dict[str, str] = {}
    parts: list[Tokens] = []
    word = 0
    for start, first, encoding in blocks:
        if most is not None and sum(map(len, parts)) + len(encoding) > most + AGAIN:
            raise NpformerError(f"expected at most {most} tokens, got more")
        part = Tokens.of(encoding, known)
        part.places += start
        part.words[part.words >= 0] += word
        word = int(part.words.max(initial=word - 1)) + 1
        parts.append(part[int((part.places[:, 0] < first).sum()) :])
    return Tokens.joined(parts)


def moving_text(lengths: Sequence[int], cut: str) -> int:
    """The index of the text to truncate. With "longest", the longer text, or the second text if lengths are equal."""
    last = len(lengths) - 1
    return {"first": 0, "second": last}.get(cut, last - int(np.argmax(lengths[::-1])))


def kept_lengths(lengths: Sequence[int], room: int, cut: str) -> list[int]:
    """The number of tokens to keep from each text, computed as in the tokenizers library.

    Usually only one text is truncated. With "longest", both texts are truncated if the shorter text has more than
    `room` / 2 tokens. If `room` is odd, the longer text keeps one more token.
    """
    kept = list(lengths)
    moving = moving_text(lengths, cut)
    others = sum(lengths) - lengths[moving]
    if cut == "longest" and len(lengths) == 2:
        others = kept[1 - moving] = min(others, room // 2)
    kept[moving] = room - others
    if kept[moving] < 0:
        raise NpformerError(f"expected at most {room} tokens in the text that is not truncated, got {others}")
    return kept


def windows(whole: Tokens, width: int, stride: int) -> Iterator[tuple[int, Tokens]]:
    """Yields windows of `width` tokens, each with the index of its first token. Neighbours share `stride` tokens.

    The last window ends at the end of the text and may be shorter.
    """
    for first in range(0, max(len(whole) - stride, 1), width - stride):
        yield first, whole[first : first + width]


def with_special_tokens(frame: Tokens, texts: Sequence[Tokens]) -> Tokens:
    """Adds special tokens to the tokens of a text or a pair, at the same places as in `frame`.

    frame: another text or pair encoded by the same tokenizer, with special tokens. A text that has tokens must also
    have tokens in the frame.
    """
    parts: list[Tokens] = []
    end = 0
    for source, rows in groupby(frame.sources.tolist()):
        first, end = end, end + len(list(rows))
        if source < 0:
            parts.append(frame[first:end])
        else:
            sources, kinds = (np.full(len(texts[source]), each) for each in (source, frame.kinds[first]))
            parts.append(replace(texts[source], sources=sources, kinds=kinds))
    return Tokens.joined(parts)
