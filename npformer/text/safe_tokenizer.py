"""`SafeTokenizer`: a wrapper around a `tokenizers.Tokenizer` from an untrusted file.

A file is checked before the library reads it (`tokenizer_checks.py`), and the tokenizer is tried on a few texts. Later
failures of the library become NpformerErrors, including Rust panics, which are not Exceptions. Rust also prints a panic
to stderr, which Python cannot prevent. Most panics occur while a model is loaded.

This module does not limit time. A regular expression in a file can take time quadratic in the length of some texts, and
neither a check of the file nor a trial reveals these texts. Read untrusted files in a process with a time limit, such
as `timeout 60 npformer classify -m FOLDER`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import read_bytes
from npformer.common.limits import LIMITS, Limits, how_to_allow_more
from npformer.common.other_libraries import TOKENIZER, missing
from npformer.config import MOST
from npformer.text.tokenizer_checks import NORMAL_FORMS, check_marks, check_rows, read_parts

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

#: Texts for trials of a tokenizer: an empty text, and words, combining accents, scripts, symbols, control characters
#: and spaces.
TRIED = (
    "",
    "a",
    "Hello, world's 1st e\u0301 \u00e9\u00df\u0130 \u4f60\u597d \uac01 \u0627 \U0001f600 \0\x7f\u200b\ufffd \t\n  z"
    + "x" * 120,
)
#: Texts that are repeated to test tokenizers with regular expressions.
REPEATED = ("a", " ", "1", "\n", ".", "ab ", TRIED[-1])
CONTINUED = re.compile(rb'"##[^"]')  # a piece that continues a word in WordPiece
LONGER = 8  # maximum length of a normalized text, in multiples of the limit `characters`
BLOCK = 1024  # characters that are normalized at once to measure their length
AT_ONCE = 16_384  # characters that are tokenized in a few milliseconds
LONGEST = 4096  # length in characters of the longest trial text
SECONDS = 0.1  # maximum CPU time of a trial; the usual time is 0.005 s
TRIES = 3  # trials that must all exceed SECONDS, because a paused virtual machine may count its pause as CPU time


class Uncalled:
    """A base class for tokenizers that are not callable. In Transformers, tokenizers are callable."""

    def __call__(self, *texts: Any, **options: Any) -> Any:
        """Raises NpformerError with the calls to use instead."""
        raise NpformerError(
            "tokenizer: expected tokenizer.encode(text), got a call of the tokenizer itself; "
            "npformer.pipeline(model=model)(text) takes a text directly"
        )


class SafeTokenizer(Uncalled):
    """A wrapper around a `tokenizers.Tokenizer`, with methods that raise NpformerErrors that begin with `where`.

    growth: as in `check_growth`, which rejects texts that would become too long. side: the side from which
    tokenizer.json truncates. rows: rows of the embedding table; a text with a token that has no row is rejected.
    """

    truncation_side: str

    def __init__(
        self,
        tokenizer: Tokenizer,
        where: str,
        growth: int = 1,
        limits: Limits = LIMITS,
        side: str = "right",
        rows: int = MOST,
    ) -> None:
        own = {"_tokenizer": tokenizer, "_where": where, "_growth": growth, "_limits": limits, "truncation_side": side}
        self.__dict__.update(own, _rows=rows, _added={}, _names={})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look up such names before __init__ runs
            raise AttributeError(name)
        if not hasattr(self._tokenizer, name):
            raise missing(self, name, TOKENIZER)
        value = getattr(self._tokenizer, name)
        if not callable(value):
            return value
        self._forget(name)
        return partial(self._encode if name.startswith("encode") else self._call, value)

    def __setattr__(self, name: str, value: Any) -> None:
        self._forget(name)
        setattr(self._tokenizer, name, value)

    def _forget(self, name: str) -> None:
        """Forgets the names of tokens if a use of the attribute `name`, such as `add_tokens`, may change them."""
        if name == "model" or name.startswith(("add_", "train")):
            self._added.clear()
            self._names.clear()

    def encode(self, sequence: Any, pair: Any = None, **options: Any) -> Any:
        """Encodes a text or a pair. Long texts go through encode_batch, which releases the GIL."""
        if sum(map(len, strings([sequence, pair]))) <= AT_ONCE:
            return self._encode(self._tokenizer.encode, sequence, pair, **options)
        return self.encode_batch([sequence if pair is None else (sequence, pair)], **options)[0]

    def _encode(self, function: Callable[..., Any], *texts: Any, **options: Any) -> Any:
        made_of = partial(self._call, self._made_of)
        check_growth(self._where, strings([*texts, *options.values()]), self._growth, self._limits, made_of)
        found = self._call(function, *texts, **options)
        if self._rows < MOST:
            for each in found if isinstance(found, list) else [found]:
                self._check_rows(each.ids)
        return found

    def _check_rows(self, ids: Sequence[int]) -> None:
        """Raises NpformerError for tokens without a row in the embedding table."""
        if (highest := max(ids, default=0)) >= self._rows:
            raise NpformerError(
                f"{self._where}: the text has the token {shown(self.id_to_token(highest))} with the id {highest}, but "
                f"the embedding table of the model has {self._rows} rows; remove the token from the text"
            )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Converts ids to a text.

        The id determines whether a token is special. tokenizers 0.23 uses the normalized text of the token instead,
        which misses special tokens in Llama's folders of 2023.
        """
        with safely(f"{self._where}: the tokenizer failed"):
            added = self._added_tokens()
            kept = [i for i in ids if not (skip_special_tokens and i in added and added[i].special)]
            names = [name for name in map(self.id_to_token, kept) if name is not None]
            decoder = self._tokenizer.decoder
            return " ".join(names) if decoder is None else str(decoder.decode(names))

    def decode_batch(self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Converts lists of ids to texts."""
        return [self.decode(each, skip_special_tokens) for each in sequences]

    def id_to_token(self, id: int) -> str | None:
        """The token with an id, or None. tokenizers 0.23 may return the normalized text of an added token."""
        if id not in self._names:
            added = self._added_tokens().get(id)
            self._names[id] = self._call(self._tokenizer.id_to_token, id) if added is None else added.content
        name: str | None = self._names[id]
        return name

    def _added_tokens(self) -> dict[int, AddedToken]:
        if not self._added:
            self._added.update(self._tokenizer.get_added_tokens_decoder())
        added: dict[int, AddedToken] = self._added
        return added

    def _made_of(self, text: str) -> int:
        """The number of characters of a text after normalization and pre-tokenization."""
        normalizer, splits = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        made = text if normalizer is None else normalizer.normalize_str(text)
        return len(made) if splits is None else sum(len(piece) for piece, _ in splits.pre_tokenize_str(made))

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with safely(f"{self._where}: the tokenizer failed"):
            return function(*args, **kwargs)


def strings(texts: Any) -> Iterator[str]:
    """Yields all strings in an argument to the tokenizers library: a text, a pair, or a nested list of words."""
    if isinstance(texts, str):
        yield texts
    elif isinstance(texts, list | tuple):
        for each in texts:
            yield from strings(each)


def check_growth(where: str, texts: Iterable[str], growth: int, limits: Limits, made_of: Callable[[str], int]) -> None:
    """Raises NpformerError for texts that normalization would make so long that they exhaust memory.

    Only texts that could become too long are measured, block by block. A match that spans two blocks is missed. growth:
    maximum ratio of new to old length, without Unicode normal forms. made_of: function that returns the length of a
    block after normalization.
    """
    made, most = 0, LONGER * limits.characters
    for text in texts:
        for start in range(0, len(text) if len(text) * growth * NORMAL_FORMS > most else 0, BLOCK):
            made += made_of(text[start : start + BLOCK])
            if made > most:
                raise NpformerError(
                    f"{where}: a text of {len(text)} characters becomes longer than {most}, {LONGER} times the limit "
                    f"`characters`; {how_to_allow_more('characters')}"
                )


@contextmanager
def safely(where: str) -> Iterator[None]:
    """Converts any error of the tokenizers library, even a Rust panic, to an NpformerError."""
    try:
        yield
    except (NpformerError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise NpformerError(f"{where}: {error!s:.200}") from None


class Read(NamedTuple):
    """A tokenizer with properties from its file."""

    tokenizer: Tokenizer
    has_regex: bool = False
    growth: int = 1  # maximum factor by which the tokenizer can lengthen a text
    truncation_side: str = "right"
    highest: int = 0  # highest id of a piece in tokenizer.json


def read_tokenizer(
    path: Path, rows: int, limits: Limits, content: bytes | None = None, unknown_piece: str = ""
) -> Read:
    """Reads a tokenizer.json for an embedding table of `rows` rows, without its padding and truncation.

    content: an equivalent tokenizer.json if `path` is a legacy file. unknown_piece: the unknown token of a unigram
    model, if the file does not state it. Raises NpformerError for a file that is unreadable, does not match the table
    or exceeds the limits.
    """
    from tokenizers import Tokenizer, models

    content = read_bytes(path, "json", limits) if content is None else content
    parts = read_parts(str(path), content, rows, limits)
    with safely(f"{path}: not a readable tokenizer"):
        tokenizer = Tokenizer.from_buffer(content)
    truncation = tokenizer.truncation
    tokenizer.no_truncation()
    tokenizer.no_padding()
    check_rows(str(path), tokenizer.get_vocab_size(False), rows)
    model = tokenizer.model
    unknown = getattr(model, "unk_token", None)
    if unknown is not None and model.token_to_id(unknown) is None:
        raise NpformerError(f"{path}: the unknown token {shown(unknown)} is not in the vocabulary")
    if isinstance(model, models.WordPiece) and not CONTINUED.search(content):  # get_vocab is slow
        check_marks(str(path), tokenizer.get_vocab())
    if isinstance(model, models.Unigram):
        if parts["model"].get("unk_id") is None and parts["model"].get("byte_fallback") is not True:
            index = model.token_to_id(unknown_piece)
            if index is None:
                raise NpformerError(f"{path}: unk_id: missing, but needed for text that is not in the vocabulary")
            pieces = [(piece, score) for piece, score in json.loads(content)["model"]["vocab"]]
            tokenizer.model = models.Unigram(pieces, index, False)
        limits.check("piece", max(map(len, tokenizer.get_vocab())), f"{path}: characters of a piece")
    side = truncation["direction"] if truncation else "right"
    return Read(tokenizer, parts["has_regex"], parts["growth"], side, parts["highest"])


def tried(read: Read, path: Path, rows: int, limits: Limits) -> SafeTokenizer:
    """Tries a tokenizer on a few texts and wraps it. Raises NpformerError if the tokenizer fails on a text."""
    tokenizer, has_regex, growth, side, highest = read
    highest = max(highest, tokenizer.get_vocab_size() - 1, *tokenizer.get_added_tokens_decoder())
    result = SafeTokenizer(tokenizer, str(path))
    for text in TRIED:
        for ids in (result.encode(text).ids, result.encode(text, text).ids):
            if not text and max(ids, default=0) >= rows:
                raise NpformerError(
                    f"{path}: a special token has the id {max(ids)}, but the model's embedding table has {rows} rows"
                )
            result.decode(ids, skip_special_tokens=False)
    for text in REPEATED if has_regex else ():
        length = 8
        while length <= LONGEST:  # doubling the length finds slow patterns while texts are short
            given = (text * length)[:length] + "!"  # the last character makes a match fail only at the end
            if all(_seconds(result, given) > SECONDS for _ in range(TRIES)):
                raise NpformerError(f"{path}: its regular expressions take too long on {length} characters")
            length *= 2
    return SafeTokenizer(tokenizer, str(path), growth, limits, side, rows if highest >= rows else MOST)


def _seconds(tokenizer: SafeTokenizer, text: str) -> float:
    began = time.thread_time()
    tokenizer.encode(text)
    return time.thread_time() - began
