"""Tokenizers of translation models: two SentencePiece models, as in Marian, or files of the tokenizers library.

The ids are the same as in Transformers, with two exceptions. Punctuation is never normalized, whereas Transformers
normalizes it if sacremoses is installed. A language code ends at the first <<.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from npformer.common.checks import boolean, shown
from npformer.common.errors import NpformerError
from npformer.common.extras import lacks
from npformer.common.files import read_bytes, read_json
from npformer.common.limits import LIMITS, Limits
from npformer.config import Config
from npformer.families import family_of
from npformer.text.safe_tokenizer import TRIED, SafeTokenizer, Uncalled, check_growth, read_tokenizer, safely, tried
from npformer.text.sentencepiece_file import charsmaps
from npformer.text.special_tokens import token_text
from npformer.text.tokenizer import load_tokenizer as of_text
from npformer.text.tokenizer_checks import check_charsmap
from npformer.text.tokenizer_class import FILES, SETTINGS, read_settings
from npformer.text.words import byte_level_text

PIECES = ("source.spm", "target.spm", "vocab.json")
FILE, TARGET_FILE = "tokenizer.json", "target_tokenizer.json"
LANGUAGE = re.compile(r">>[^<>]*<<")


class TranslationTokenizer(Protocol):
    """A tokenizer that encodes source texts and decodes target ids."""

    languages: tuple[str, ...]  # language codes that a source may begin with, such as >>fra<<

    def encode(self, text: str) -> list[int]:
        """The ids of a source, with the end token."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a target, without special tokens."""

    def tokens(self, ids: Sequence[int], of_source: bool) -> list[str]:
        """The token for each id of a source or a target, including special tokens.

        Byte-level tokens are decoded, with ▁ for a leading space.
        """


def load_tokenizer(folder: Path, config: Config, limits: Limits = LIMITS) -> TranslationTokenizer:
    """The tokenizer in the folder of a translation model.

    The files are one of three kinds: source.spm, target.spm and vocab.json, which sentencepiece reads; tokenizer.json,
    with target_tokenizer.json if the target has its own tokenizer; or any other tokenizer file for encoders (FILES).
    Raises NpformerError for files that are missing, unreadable or beyond the limits, for a vocabulary that does not
    match the model, and for a tokenizer that fails on a short text.
    """
    there = [name for name in PIECES if (folder / name).exists()]
    if len(there) == len(PIECES):
        return Pieces(folder, config, limits)
    if any((folder / name).exists() for name in FILES):
        return Files(folder, config, limits)
    missing = ", ".join(name for name in PIECES if name not in there)
    raise NpformerError(
        f"{folder}: no tokenizer; looked for {FILE}, and for {', '.join(PIECES)}, of which {missing} "
        f"{'is' if missing.count(',') == 0 else 'are'} missing; copy them from the original model"
    )


class Pieces(Uncalled):
    """Two SentencePiece models, with a shared vocabulary or one vocabulary each."""

    def __init__(self, folder: Path, config: Config, limits: Limits) -> None:
        (self.source, self._growth), (self.target, _) = (_sentencepiece(folder / name, limits) for name in PIECES[:2])
        self._where, self._limits = str(folder / PIECES[0]), limits
        settings = read_settings(folder)
        separate = boolean(f"{folder / SETTINGS}: separate_vocabs", settings.get("separate_vocabs", False))
        self.vocabulary = _vocabulary(folder / PIECES[2], config.vocab_size, limits)
        target_vocabulary = self.vocabulary
        if separate:
            target_vocabulary = _vocabulary(folder / "target_vocab.json", config.decoder.vocab_size, limits)
        else:
            self.target = self.source  # with a shared vocabulary, the source model decodes, as in Transformers
        self.pieces = {index: piece for piece, index in target_vocabulary.items()}
        names = [token_text(settings.get(role)) or default for role, default in SPECIAL.items()]
        self.unknown, self.end, self.pad = names
        for name in names:
            if name not in self.vocabulary:
                raise NpformerError(f"{folder / PIECES[2]}: the special token {name!r:.80} is missing")
        self.special = frozenset(names)
        self._split = re.compile("(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")")
        codes = () if separate else self.vocabulary
        self.languages = tuple(piece for piece in codes if LANGUAGE.fullmatch(piece))
        for text in TRIED:
            self.encode(text)
        self.decode(list(self.pieces)[:100])

    def encode(self, text: str) -> list[int]:
        tokens: list[str] = []
        with safely("the source's SentencePiece model failed"):
            check_growth(self._where, [text], self._growth, self._limits, self._made_of)
            for part in self._split.split(text):
                if part in self.special:
                    tokens.append(part)
                elif part:
                    code = LANGUAGE.match(part)
                    if code:
                        tokens.append(code[0])
                    tokens += self.source.encode(part[code.end() :] if code else part, out_type=str)
        unknown = self.vocabulary[self.unknown]
        return [self.vocabulary.get(token, unknown) for token in tokens] + [self.vocabulary[self.end]]

    def _made_of(self, text: str) -> int:
        """The number of characters of a normalized source."""
        return len(self.source.normalize(text))

    def decode(self, ids: Sequence[int]) -> str:
        missing = [each for each in ids if each not in self.pieces]
        if missing:
            raise NpformerError(f"decode: expected ids of the target vocabulary, got {missing[0]}")
        pieces = [piece for piece in map(self.pieces.__getitem__, ids) if piece not in self.special]
        with safely("the target's SentencePiece model failed"):
            return str(self.target.decode(pieces)).replace("▁", " ").strip()

    def tokens(self, ids: Sequence[int], of_source: bool) -> list[str]:
        pieces = {index: piece for piece, index in self.vocabulary.items()} if of_source else self.pieces
        return [pieces.get(each, str(each)) for each in ids]


class Files(Uncalled):
    """A tokenizer.json for both source and target, or one file for each.

    Without tokenizer.json, the files of older checkpoints are read, such as spiece.model for T5.
    """

    def __init__(self, folder: Path, config: Config, limits: Limits) -> None:
        older = not (folder / FILE).exists()
        self.source = of_text(folder, config, limits) if older else _read(folder / FILE, config.vocab_size, limits)
        self.truncation_side = self.source.truncation_side
        own = (folder / TARGET_FILE).exists()
        self.target = _read(folder / TARGET_FILE, config.decoder.vocab_size, limits) if own else self.source
        self.end = config.decoder.end_ids[0] if family_of(config).ends_sources and config.decoder.end_ids else None
        self.languages = tuple(sorted(filter(LANGUAGE.fullmatch, self.source.get_vocab())))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.source.encode(text).ids
        return ids if self.end is None or ids[-1:] == [self.end] else [*ids, self.end]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.target.decode(list(ids), skip_special_tokens=True))

    def tokens(self, ids: Sequence[int], of_source: bool) -> list[str]:
        from tokenizers import pre_tokenizers

        side = self.source if of_source else self.target
        found = [side.id_to_token(each) or str(each) for each in ids]
        if not isinstance(side.pre_tokenizer, pre_tokenizers.ByteLevel):
            return found
        return [byte_level_text(each) for each in found]


#: Maps the roles of Marian's special tokens to the default tokens.
SPECIAL = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}


def _sentencepiece(path: Path, limits: Limits) -> tuple[Any, int]:
    """A SentencePiece model, and the maximum factor by which it can lengthen a text."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise lacks(f"{path}: this file", "sentencepiece", "translate") from None
    content = read_bytes(path, "vocabulary", limits)
    if not content:
        raise NpformerError(f"{path}: the file is empty")
    growth = max((check_charsmap(str(path), blob) for blob in charsmaps(path, content)), default=1)
    limits.check("growth", growth, f"{path}: replacement of a character")
    with safely(f"{path}: not a SentencePiece model"):
        return SentencePieceProcessor(model_proto=content), growth


def _vocabulary(path: Path, size: int, limits: Limits) -> dict[str, int]:
    """Reads the id of each piece, which is the index of its row in the embedding table."""
    if not path.exists():
        raise NpformerError(f"{path}: missing; copy it from the original model")
    pieces = read_json(path, limits)
    odd = next((piece for piece, i in pieces.items() if type(i) is not int or not 0 <= i < size), None)
    if odd is not None:
        raise NpformerError(f"{path}: {odd!r:.80}: expected an id below {size}, got {shown(pieces[odd])}")
    return pieces


def _read(path: Path, rows: int, limits: Limits) -> SafeTokenizer:
    """Reads a tokenizer.json for an embedding table with `rows` rows."""
    return tried(read_tokenizer(path, rows, limits), path, rows, limits)
