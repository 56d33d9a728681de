"""Reads a SentencePiece model (Kudo and Richardson, 2018) without the package sentencepiece.

The file is a Protocol Buffers message, with fields defined in sentencepiece_model.proto of SentencePiece.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npformer.common.errors import NpformerError
from npformer.common.files import read_bytes
from npformer.common.limits import LIMITS, Limits

PIECES, TRAINER, NORMALIZER, DENORMALIZER = 1, 2, 3, 5  # fields of the model
MODEL_TYPE = 3  # a field of the trainer
CHARSMAP = 2  # a field of a normalizer
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of pieces
MOST_FIELDS = 1 << 21  # maximum fields of a message; a model has one field per piece, up to about 250,000
MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "words", 4: "characters"}


class Piece(NamedTuple):
    """A piece with its log probability and its type."""

    text: str
    score: float
    type: int


def read_unigram(path: Path, limits: Limits = LIMITS) -> tuple[list[Piece], bytes]:
    """The pieces of a unigram model, and its character map for normalization, which may be empty.

    Raises NpformerError for a file that is not a SentencePiece model, and for other model types.
    """
    pieces, charsmap, model_type = [], b"", 1
    for number, value in fields(path, read_bytes(path, "vocabulary", limits)):
        if not isinstance(value, bytes):
            continue
        if number == PIECES:
            pieces.append(_piece(path, value))
        elif number == TRAINER:
            for inner, each in fields(path, value):
                model_type = each if inner == MODEL_TYPE and isinstance(each, int) else model_type
        elif number == NORMALIZER:
            for inner, each in fields(path, value):
                charsmap = each if inner == CHARSMAP and isinstance(each, bytes) else charsmap
    if not pieces:
        raise NpformerError(f"{path}: not a SentencePiece model: it has no pieces")
    if model_type != 1:
        found = MODEL_TYPES.get(model_type, model_type)
        raise NpformerError(f"{path}: expected a SentencePiece model of type unigram, got {found}")
    return pieces, charsmap


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
        text, (score,) = message[2 : size + 2], struct.unpack("<f", message[-4:])  # faster, for nearly all pieces
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
