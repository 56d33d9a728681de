"""Reads a SentencePiece model (Kudo and Richardson, 2018) without the package sentencepiece.

The file is a Protocol Buffers message, with fields defined in sentencepiece_model.proto of SentencePiece.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from npformer.common.errors import NpformerError
from npformer.common.files import read_bytes
from npformer.common.limits import LIMITS, Limits

PIECES, TRAINER, NORMALIZER, DENORMALIZER = 1, 2, 3, 5  # fields of the model
MODEL_TYPE, BYTE_FALLBACK = 3, 35  # fields of the trainer
#: Maps the role of a special token to the trainer's field and default for its id (a negative id means no such token),
#: and to the field and default for its piece.
ROLES = {
    "unk_token": (40, 0, 45, "<unk>"),
    "bos_token": (41, 1, 46, "<s>"),
    "eos_token": (42, 2, 47, "</s>"),
    "pad_token": (43, -1, 48, "<pad>"),
}
CHARSMAP, DUMMY_PREFIX, REMOVES_SPACES = 2, 3, 4  # fields of a normalizer
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of pieces
UNIGRAM, BPE = 1, 2  # types of models
MOST_FIELDS = 1 << 21  # maximum number of fields of a message; a model has one field per piece, up to about 250,000
MOST_CHARACTERS = 1 << 23  # maximum characters of all pieces; the 900,000 pieces of XLM-V have about six million
MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "words", 4: "characters"}


class Piece(NamedTuple):
    """A piece with its log probability and its type."""

    text: str
    score: float
    type: int


class SentencePiece(NamedTuple):
    """The parts of a file that determine the tokens of a text."""

    pieces: list[Piece]
    charsmap: bytes  # map of the normalizer; may be empty
    byte_fallback: bool
    dummy_prefix: bool  # a space is added before a text
    removes_spaces: bool  # removes spaces at both ends of a text, and all spaces except one between words
    special: dict[str, str]  # the special tokens from training, by role


def read_sentencepiece(path: Path, model_type: int, limits: Limits = LIMITS) -> SentencePiece:
    """Reads a model of this type, UNIGRAM or BPE.

    Raises NpformerError for a file that is not a SentencePiece model, and for other model types.
    """
    pieces: list[Piece] = []
    trainer: dict[int, bytes | int | float] = {}
    normalizer: dict[int, bytes | int | float] = {}
    for number, value in fields(path, read_bytes(path, "vocabulary", limits)):
        if not isinstance(value, bytes):
            continue
        if number == PIECES:
            pieces.append(_piece(path, value))
        elif number == TRAINER:
            trainer |= dict(fields(path, value))
        elif number == NORMALIZER:
            normalizer |= dict(fields(path, value))
    if (size := sum(len(piece.text) for piece in pieces)) > MOST_CHARACTERS:
        raise NpformerError(f"{path}: expected pieces of at most {MOST_CHARACTERS} characters in all, got {size}")
    if not pieces:
        raise NpformerError(f"{path}: not a SentencePiece model: it has no pieces")
    found = trainer.get(MODEL_TYPE, UNIGRAM)
    if found != model_type:
        raise NpformerError(
            f"{path}: expected a SentencePiece model of type {MODEL_TYPES[model_type]}, "
            f"got {MODEL_TYPES.get(found, found) if isinstance(found, int) else 'no number'}"
        )
    charsmap = normalizer.get(CHARSMAP, b"")
    return SentencePiece(
        pieces,
        charsmap if isinstance(charsmap, bytes) else b"",
        bool(trainer.get(BYTE_FALLBACK, False)),
        bool(normalizer.get(DUMMY_PREFIX, True)),
        bool(normalizer.get(REMOVES_SPACES, True)),
        _special(trainer),
    )


def _special(trainer: Mapping[int, bytes | int | float]) -> dict[str, str]:
    found = {}
    for role, (id_field, default, piece_field, name) in ROLES.items():
        index, piece = trainer.get(id_field, default), trainer.get(piece_field, name)
        if isinstance(index, int) and 0 <= index < 2**63:  # a negative number is stored as its complement
            found[role] = piece.decode(errors="replace") if isinstance(piece, bytes) else str(piece)
    return found


def charsmaps(path: Path, content: bytes) -> Iterator[bytes]:
    """Yields the character maps of the normalizer and the denormalizer of a SentencePiece model."""
    for number, value in fields(path, content):
        if number in (NORMALIZER, DENORMALIZER) and isinstance(value, bytes):
            for inner, each in fields(path, value):
                if inner == CHARSMAP and isinstance(each, bytes) and each:
                    yield each


def _piece(path: Path, message: bytes) -> Piece:
    """Reads a piece: its text, its score (default 0) and its type (default NORMAL)."""
    text, score, kind = b"", 0.0, NORMAL
    size = message[1] if len(message) > 1 else 0
    if size < 128 and len(message) == size + 7 and message[0] == 0x0A and message[size + 2] == 0x15:
        text, (score,) = message[2 : size + 2], struct.unpack("<f", message[-4:])  # a shortcut for nearly all pieces
    else:
        for number, value in fields(path, message):
            match number, value:
                case (1, bytes(value)):
                    text = value
                case (2, float(value)):
                    score = value
                case (3, int(value)):
                    kind = value
    if not text or not math.isfinite(score):
        raise NpformerError(
            f"{path}: not a SentencePiece model: a piece has no text, or its score {score} is not finite"
        )
    try:
        return Piece(text.decode(), score, kind)
    except UnicodeDecodeError:
        raise NpformerError(f"{path}: not a SentencePiece model: a piece is not UTF-8") from None


def fields(path: Path, message: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Yields the number and value of each field of a message: bytes, an integer, or a 32-bit float.

    Skips 64-bit fields. Raises NpformerError for bytes that are not a message.
    """
    place, end = 0, len(message)

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while shift < 70:  # a varint has at most ten bytes
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise IndexError

    try:
        for count in itertools.count():
            if place >= end:
                return
            key = varint()
            if key < 8 or count == MOST_FIELDS:  # field numbers start at 1
                raise IndexError
            value: bytes | int | float | None = None
            match key & 7:
                case 0:
                    value = varint()
                case 2:
                    length = varint()
                    value = message[place : place + length]
                    place += length
                case 5:
                    (value,) = struct.unpack_from("<f", message, place)
                    place += 4
                case 1:
                    place += 8
                case _:
                    raise IndexError
            if place > end:
                raise IndexError
            if value is not None:
                yield key >> 3, value
    except (IndexError, struct.error):
        raise NpformerError(f"{path}: not a SentencePiece model") from None
