"""Converts texts to token ids that fit a model, for tasks, traces, golden files, training and views.

`Encoder` converts a text or a `Pair` (`inputs.py`) to an `Encoded`. A text that is too long is truncated, split into
windows, or rejected. Truncation gives the same ids as in Transformers. Every warning about truncation begins with the
text of `was_cut`. `SourceEncoder` encodes the source of an encoder-decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.checks import shown, unknown
from npformer.common.errors import NpformerError, warn
from npformer.engine.runtime.packing import Text
from npformer.text.borders import BLOCK, Borders
from npformer.text.inputs import Pair, as_text_or_pair
from npformer.text.tokenizer import gives_token_types, longest_text, truncation_side
from npformer.text.translation_tokenizer import LANGUAGE
from npformer.text.windows import Tokens, kept_lengths, moving_text, tokens_of_blocks, windows, with_special_tokens

if TYPE_CHECKING:
    from tokenizers import Encoding

IDS = np.ndarray | list | Text  # accepted forms of token ids
TokenRow = tuple[int, str, bool, int | None, int | None]  # id, token, whether it is special, first character, and end
LEAST_STEP = 8  # each window of a pair advances by at least 1 / LEAST_STEP of its width


def was_cut(where: str, n_tokens: int, limit: int) -> str:
    """Returns the beginning of a warning about a truncated text."""
    return f"{where}: {n_tokens} tokens, cut to {limit}"


def warn_of_cuts(cut: Mapping[str, int], count: int, limit: int) -> None:
    """Issues one warning for all truncated texts.

    cut: the number of tokens of each truncated text, by its location. count: total number of texts.
    """
    if cut:
        total = f"; {len(cut)} of {count} texts were cut" if count > 1 else ""
        warn(f"{was_cut(*next(iter(cut.items())), limit)}{total}")


@dataclass
class Encoded:
    """An encoded text or pair: one piece, or several overlapping pieces."""

    texts: list[Text]  # input of the model for each piece
    n_tokens: int  # tokens of the whole text, including special tokens
    truncated: bool = False
    pieces: list[Encoding | Tokens] = field(default_factory=list)  # tokens of each piece; [] for ids or a source
    starts: list[int] = field(default_factory=lambda: [0])  # index of each piece's first token in the whole text

    def rows(self) -> list[slice]:
        """The rows to use from each piece, which together cover the text once. Overlaps are split in the middle.

        Each token therefore comes from the piece in which it has more context. [CLS] comes from the first piece, and
        [SEP] from the last piece.
        """
        before = self.pieces[0].special_tokens_mask.index(0) if len(self.pieces) > 1 else 0
        after = len(self.pieces[0]) - before - sum(1 - each for each in self.pieces[0].special_tokens_mask)
        edges = [0]
        for (start, piece), (next_start, _) in pairwise(zip(self.starts, self.pieces, strict=True)):
            end = start + len(piece) - before - after
            edges.append((next_start + end) // 2 + before)
        edges.append(self.starts[-1] + len(self.pieces[-1]))
        return [slice(a - start, b - start) for start, (a, b) in zip(self.starts, pairwise(edges), strict=True)]


class Encoder:
    """Encodes texts with the tokenizer of a model, up to the model's maximum length."""

    def __init__(self, model: BaseModel, limit: int | None = None) -> None:
        self.tokenizer = model.tokenizer
        self.threads = model.threads
        self.limits = model.limits
        self.has_token_types = gives_token_types(model.folder, model.config)
        self.limit = min(longest_text(model.folder, model.config), limit or model.config.max_length)
        self.keeps_end = truncation_side(model.folder, self.tokenizer) == "left"
        self._frames: dict[int, Tokens] = {}  # results of `_frame` by number of texts

    @cached_property
    def borders(self) -> Borders:
        return Borders(self.tokenizer)

    def read(
        self,
        given: Sequence[str | Pair],
        long: str = "truncate",
        cut: str = "longest",
        limit: int | None = None,
        stride: int | None = None,
    ) -> list[Encoded]:
        """Encodes each text as pieces that fit the model.

        long: how to handle a text that is too long, one of LONG. cut: the text of a pair to truncate, "first", "second"
        or "longest". limit: maximum tokens of a piece, in addition to the model's own maximum. stride: tokens that
        neighbouring windows share, by default a quarter of a window. Raises NpformerError for a text that does not fit
        or exceeds the limit `characters`. With long="truncate", a text above that limit may be truncated instead, and
        n_tokens then counts only the beginning of the text.
        """
        encoded = self.attempt(given, long, cut, limit, stride)
        for each in encoded:
            if isinstance(each, NpformerError):
                raise each
        return [each for each in encoded if isinstance(each, Encoded)]

    def attempt(
        self, given: Sequence[str | Pair], long: str, cut: str, limit: int | None, stride: int | None
    ) -> list[Encoded | NpformerError]:
        """Does the same as `read`, but returns the error for each text that does not fit instead of raising it."""
        encoded: list[Encoded | NpformerError | None] = [
            self._try(self._in_blocks, each, long, cut, limit, stride) for each in given
        ]
        rest = [i for i, each in enumerate(encoded) if each is None]
        for i, whole in zip(rest, self._wholes([given[i] for i in rest]), strict=True):
            bad = isinstance(whole, NpformerError)
            encoded[i] = whole if bad else self._try(self._fit, given[i], whole, long, cut, limit, stride)
        return [each for each in encoded if each is not None]

    def ids(self, text: str) -> np.ndarray:
        """The ids (L,) of all tokens of a text, with special tokens and without truncation."""
        return self.tokens(text).numbers

    def tokens(self, text: str, special: bool = True, most: int | None = None) -> Tokens:
        """All tokens of a text without truncation. special: include special tokens.

        A long text is tokenized in blocks if the tokenizer has safe split points (see `Borders`). Raises NpformerError
        if the number of tokens exceeds `most` by more than a few tokens.
        """
        if special and len(text) <= BLOCK:
            return Tokens.of(self._whole(text, special=True))
        tokens = tokens_of_blocks(self._read_blocks(text), most)
        if not special:
            return replace(tokens, sources=np.zeros(len(tokens), np.int32))
        if not len(tokens):
            return Tokens.of(self._whole("", special=True))
        return with_special_tokens(self._frame([text]), [tokens])

    def described(self, text: str, special: bool, most: int) -> list[TokenRow]:
        """The result of `tokens` as rows, one for each token."""
        found = self.tokens(text, special, most)
        rows = zip(found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True)
        return [(i, piece, bool(mask), *((None, None) if mask else at)) for i, piece, mask, at in rows]

    def _try(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function. Returns the result, or the NpformerError that the function raises."""
        try:
            return function(*args)
        except NpformerError as error:
            return error

    def _wholes(self, given: Sequence[str | Pair]) -> list[Any]:
        """Tokenizes each text in full, with special tokens. Returns an error for each text that fails."""
        if len(given) > 1 and self.threads > 1 and not any(map(self._check_length, given)):
            together = self._try(self.tokenizer.encode_batch, given)
            if not isinstance(together, NpformerError):
                return list(together)
        return [self._try(self._whole, each, True) for each in given]

    def _in_blocks(
        self, given: str | Pair, long: str, cut: str, limit: int | None, stride: int | None
    ) -> Encoded | None:
        """Encodes a text of more than BLOCK characters in blocks. Returns None if the text cannot be split."""
        if max(map(len, _texts(given))) <= BLOCK or not self.borders.at_spaces or long == "error":
            return None
        return self._begun(given, cut, limit) if long == "truncate" else self._in_windows(given, cut, limit, stride)

    def _begun(self, given: str | Pair, cut: str, limit: int | None) -> Encoded | None:
        """Encodes the part of a long text that truncation keeps. Returns None for a text that is short enough.

        Counts all tokens block by block, except tokens beyond the limit `characters`. The memory is constant if
        truncation removes the end.
        """
        if self.keeps_end and self._check_length(given):
            return None  # the error is reported when the whole text is tokenized
        texts = [self._within(text) for text in _texts(given)]
        if all(next(self.borders.blocks(text), (0, 0))[1] == len(text) for text in texts):
            return None  # each text is a single block
        limit = min(limit or self.limit, self.limit)
        room = limit - self.tokenizer.num_special_tokens_to_add(len(texts) == 2)
        begun = [self._kept(text, room) for text in texts]
        if sum(count for _, count in begun) <= room or not all(texts):
            return None
        counts = [count for _, count in begun]
        piece = self._cut(texts, [first for first, _ in begun], kept_lengths(counts, room, cut))
        return self._encoded([piece], sum(counts) + limit - room, truncated=True)

    def _within(self, text: str) -> str:
        """Truncates a text to the limit `characters`, at the last safe split point (see `Borders`).

        Returns "" if that point is in the first half of the limit.
        """
        most = self.limits.characters
        return text if len(text) <= most else text[: self.borders.before(text, most, most // 2)]

    def _kept(self, text: str, count: int) -> tuple[Tokens, int]:
        """At least the first `count` tokens of a text, or the last `count` tokens, and the total number of tokens."""
        if self.keeps_end:
            tokens = tokens_of_blocks(self._read_blocks(text))
            return tokens[max(len(tokens) - count, 0) :], len(tokens)
        enough = total = 0
        for first, end in self.borders.blocks(text):
            if total < count:
                enough = end
            total += len(self._whole(text[first:end], special=False))
        return Tokens.of(self._whole(text[:enough], special=False)), total

    def _check_length(self, given: str | Pair) -> NpformerError | None:
        """The error for a text above the limit `characters`, or None."""
        for text in _texts(given):
            if len(text) > self.limits.characters:
                return self._try(self.limits.check, "characters", len(text), "characters of a text")
        return None

    def shortened(self, given: str | Pair) -> str | Pair:
        """Truncates a text or a pair to the limit of the model, between words if possible, with a warning."""
        (encoded,) = self.read([given])
        if not encoded.truncated:
            return given
        warn_of_cuts({"input 0": encoded.n_tokens}, 1, self.limit)
        kept = []
        for number, text in enumerate(_texts(given)):
            whole = self._whole(self._within(text), special=False)
            count = encoded.pieces[0].sequence_ids.count(number)
            if not count:
                kept.append("")
                continue
            words = whole.word_ids
            cut = len(words) - count if self.keeps_end else count
            at = cut
            while 0 < at < len(words) and words[at] == words[at - 1]:
                at += 1 if self.keeps_end else -1
            at = at if 0 < at < len(words) else cut  # a word may have more tokens than the limit
            kept.append(text[whole.offsets[at][0] :] if self.keeps_end else text[: whole.offsets[at - 1][1]])
        return kept[0] if isinstance(given, str) else Pair(*kept)

    def _fit(
        self, given: str | Pair, whole: Encoding, long: str, cut: str, limit: int | None, stride: int | None
    ) -> Encoded:
        limit, n_tokens = min(limit or self.limit, self.limit), len(whole)
        if n_tokens <= limit:
            return self._encoded([whole], n_tokens)
        if long == "error":
            part = "last" if self.keeps_end else "first"
            raise NpformerError(
                f"expected at most {limit} tokens, got {n_tokens}; long='truncate' reads the {part} {limit}, "
                "long='window' reads all"
            )
        if long == "window":
            return self._in_windows(given, cut, limit, stride)
        texts = _texts(given)
        tokens = [Tokens.of(self._whole(each, special=False)) for each in texts]
        lengths = kept_lengths([len(each) for each in tokens], self._room(limit, len(texts)), cut)
        return self._encoded([self._cut(texts, tokens, lengths)], n_tokens, truncated=True)

    def _cut(self, texts: Sequence[str], tokens: Sequence[Tokens], lengths: Sequence[int]) -> Tokens:
        """The first or last tokens of each text, with special tokens."""
        kept = [
            each[len(each) - length :] if self.keeps_end else each[:length]
            for each, length in zip(tokens, lengths, strict=True)
        ]
        return with_special_tokens(self._frame(texts), kept)

    def _in_windows(self, given: str | Pair, cut: str, limit: int | None, stride: int | None) -> Encoded:
        """Splits a text into windows that share `stride` tokens. In a pair, only one text is split.

        The windows of a pair share fewer tokens if each window would otherwise advance by very few tokens. Long texts
        are tokenized in blocks if the tokenizer has safe split points.
        """
        if too_long := self._check_length(given):
            raise too_long
        limit, texts = min(limit or self.limit, self.limit), _texts(given)
        tokens = [tokens_of_blocks(self._read_blocks(text)) for text in texts]
        room = self._room(limit, len(texts))
        lengths = [len(each) for each in tokens]
        n_tokens = sum(lengths) + limit - room
        if n_tokens <= limit:
            return self._encoded([self._whole(given, special=True)], n_tokens)
        moving = moving_text(lengths, cut)
        others = sum(lengths) - lengths[moving]
        width = room - others
        if width < 1:
            raise NpformerError(f"one text of the pair has {others} tokens, which leave no room for the other text")
        stride = width // 4 if stride is None else stride
        if not 0 <= stride < room:
            raise NpformerError(f"stride: expected 0 to {room - 1} for windows of {room} tokens, got {stride}")
        if others:  # if the other text is long, windows are narrow, and each token would be in many windows
            stride = min(stride, width - -(-width // LEAST_STEP))
        count = 1 + -(-(lengths[moving] - width) // (width - stride))
        self.limits.check("windows", count * limit, "tokens in the windows of a text")
        frame = self._frame(texts)
        pieces, starts = [], []
        for start, window in windows(tokens[moving], width, stride):
            pieces.append(with_special_tokens(frame, [*tokens[:moving], window, *tokens[moving + 1 :]]))
            starts.append(start)
        return self._encoded(pieces, n_tokens, starts=starts)

    def _read_blocks(self, text: str) -> Iterator[tuple[int, int, Encoding]]:
        """Yields, for each block of a text, the start of the tokenized part, the first character, and the tokens.

        Tokenization starts one character before the block, because a tokenizer may treat a leading space differently.
        """
        for first, end in self.borders.blocks(text) if len(text) > BLOCK else [(0, len(text))]:
            start = max(first - 1, 0)
            yield start, first, self._whole(text[start:end], special=False)

    def _frame(self, texts: Sequence[str]) -> Tokens:
        """One token of each text, with special tokens: a template for the positions of special tokens.

        A template is needed, because the tokenizers library shifts offsets again when it adds special tokens to
        truncated tokens.
        """
        if len(texts) not in self._frames:
            some = [self._first_token(text) for text in texts]
            if not all(map(len, some)):
                return Tokens.of(self._whole(texts[0] if len(texts) == 1 else Pair(*texts), special=True))
            self._frames[len(texts)] = Tokens.of(self.tokenizer.post_process(*some))
        return self._frames[len(texts)]

    def _first_token(self, text: str) -> Encoding:
        """The first token of a text, or an empty Encoding for a text without tokens.

        The token comes from a truncated Encoding, because an Encoding without overflow has no sequence id. The library
        adds special tokens to the whole overflow. To keep the overflow short, only the text of the first token is
        encoded, repeated once.
        """
        for start, _, block in self._read_blocks(text):
            if end := next((end for _, end in block.offsets if end), 0):
                beginning = text[start : start + end]
                first: Encoding = self.tokenizer.encode(f"{beginning} {beginning}", add_special_tokens=False)
                first.truncate(1)
                return first
        return self._whole("", special=False)

    def _room(self, limit: int, n_texts: int) -> int:
        """The maximum number of tokens in a piece, not counting special tokens."""
        room = limit - self.tokenizer.num_special_tokens_to_add(n_texts == 2)
        if room < 1:
            raise NpformerError(f"limit: {limit} tokens leave no room for text in addition to special tokens")
        return int(room)

    def _whole(self, given: str | Pair, special: bool) -> Encoding:
        if too_long := self._check_length(given):
            raise too_long
        return self.tokenizer.encode(*_texts(given), add_special_tokens=special)

    def _encoded(self, pieces: Sequence[Encoding | Tokens], n_tokens: int, **more: Any) -> Encoded:
        return Encoded([self._text(piece) for piece in pieces], n_tokens, pieces=list(pieces), **more)

    def _text(self, piece: Encoding | Tokens) -> Text:
        """The input of the model for a piece."""
        token_types = np.array(piece.type_ids, np.int64) if self.has_token_types else None
        return Text(np.array(piece.ids, np.int64), token_types)


def _texts(given: str | Pair) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def read_texts(model: BaseModel, given: Sequence[Any]) -> list[Encoded]:
    """Encodes texts, Pairs or token ids, each as one piece. Long texts, but not ids, are truncated with a warning."""
    written = {i: as_text_or_pair(each) for i, each in enumerate(given) if not isinstance(each, IDS)}
    if not written:  # ids need no tokenizer
        return [_of_ids(each) for each in given]
    encoder = Encoder(model)
    encoded = dict(zip(written, encoder.read(list(written.values())), strict=True))
    cut = {f"input {i}": each.n_tokens for i, each in encoded.items() if each.truncated}
    warn_of_cuts(cut, len(given), encoder.limit)
    return [encoded[i] if i in encoded else _of_ids(each) for i, each in enumerate(given)]


def _of_ids(ids: Any) -> Encoded:
    if not isinstance(ids, Text):
        array = np.asarray(ids)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            came = "an empty list" if isinstance(ids, list) and not ids else shown(ids)
            raise NpformerError(f"expected a text, a pair of texts, or token ids, got {came}")
        ids = Text(array)
    return Encoded([ids], len(ids))


class SourceEncoder:
    """Encodes sources with the tokenizer of a translation model, up to the maximum length of a source."""

    def __init__(self, model: BaseModel) -> None:
        self.tokenizer = model.tokenizer
        self.end_ids = model.config.decoder.end_ids
        self.limits = model.limits
        self.limit = longest_text(model.folder, model.config)
        self.keeps_end = truncation_side(model.folder, self.tokenizer) == "left"

    def read(self, text: str, long: str = "", to: str | None = None, prefix: str = "") -> Encoded:
        """Encodes a source as one piece. Raises an error for a source that is too long, unless long is "truncate".

        to: the target language, used if the text does not begin with a language code. prefix: text to prepend. Raises
        NpformerError for an empty text and for an unknown language code at its beginning.
        """
        self.limits.check("characters", len(text), "characters of a text")
        code = LANGUAGE.match(text)
        if not text[code.end() if code else 0 :].strip():
            raise NpformerError("the text is empty")
        if code:
            self.check_language(code[0])
        elif to is not None:
            text = f">>{to.strip('<>')}<< {text}"
        ids = np.array(self.tokenizer.encode(prefix + text), np.int64)
        if len(ids) <= self.limit:
            return Encoded([Text(ids)], len(ids))
        if long != "truncate":
            or_cut = ", or use long='truncate' to read its beginning" if long else ""
            raise NpformerError(f"expected at most {self.limit} tokens, got {len(ids)}; split the text{or_cut}")
        return Encoded([Text(self._cut(ids))], len(ids), truncated=True)

    def _cut(self, ids: np.ndarray) -> np.ndarray:
        """The first or last ids, with the special tokens around a text."""
        if not self.keeps_end:
            return np.append(ids[: self.limit - 1], ids[-1])
        before = len(self.tokenizer.encode("")) - 1  # excludes the end token after each source
        return np.append(ids[:before], ids[len(ids) - self.limit + before :])

    def described(self, text: str, special: bool, most: int) -> list[TokenRow]:
        """The tokens of a source as rows, without character spans. Raises NpformerError for more than `most` tokens."""
        self.limits.check("characters", len(text), "characters of a text")
        ids = self.tokenizer.encode(text)
        if len(ids) > most + 1:  # not counting the end token
            raise NpformerError(f"expected at most {most} tokens, got more")
        pieces = self.tokenizer.tokens(ids, of_source=True)
        ends = self.end_ids
        rows = [(i, piece, i in ends, None, None) for i, piece in zip(ids, pieces, strict=True)]
        return [each for each in rows if special or not each[2]]

    def check_language(self, code: str, others: Collection[str] = ()) -> None:
        """Raises NpformerError for a language code, such as >>fra<<, that the model does not know."""
        known = (*self.tokenizer.languages, *others)
        if code not in known:
            raise unknown("language", code, known, "" if known else "This model has one target language and no codes.")
