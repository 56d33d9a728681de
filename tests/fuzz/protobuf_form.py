"""Mutates protobuf messages without their schema: removes, repeats and moves fields, and makes values extreme.

SentencePiece's models are such messages. Field 1 contains the pieces, each a message of text, score and type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.fuzz import byte_form
from tests.fuzz.draw import Draw

Field = tuple[int, int, bytes]  # number, wire type, and the value's bytes (without the length for wire type 2)

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
FLOATS = tuple(
    struct.pack("<f", each) for each in (0.0, -0.0, 1e38, -1e38, float("nan"), float("inf"), -float("inf"), 1e-45)
)


def varint(number: int) -> bytes:
    number %= 2**64
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def parse(data: bytes) -> list[Field]:
    """Returns the fields of a valid message."""
    fields, at = [], 0

    def read() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(data):
        key = read()
        start = at
        if key & 7 == VARINT:
            read()
        elif key & 7 == BYTES:
            size = read()
            start, at = at, at + size
        else:
            at += 8 if key & 7 == DOUBLE else 4
        fields.append((key >> 3, key & 7, data[start:at]))
    return fields


def build(fields: Sequence[Field]) -> bytes:
    return b"".join(
        varint(number << 3 | wire) + (varint(len(value)) if wire == BYTES else b"") + value
        for number, wire, value in fields
    )


def mutate(draw: Draw, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Returns a message with one to four changes, in its own fields or in the fields of a nested message."""
    for _ in range(draw.pick((1, 1, 1, 2, 4))):
        data = build(_change(draw, parse(data), [each for other in others for each in parse(other)]))
    return data


def _change(draw: Draw, fields: list[Field], others: Sequence[Field], depth: int = 0) -> list[Field]:
    if not fields:
        return [(1, VARINT, b"\x01")]
    # There are many more pieces than other fields, so the first and last fields are chosen more often.
    i = draw.pick(
        [draw.below(len(fields)), draw.below(min(len(fields), 5)), len(fields) - 1 - draw.below(min(len(fields), 3))]
    )
    number, wire, value = fields[i]
    before, after = fields[:i], fields[i + 1 :]
    if wire == BYTES and depth < 2 and draw.below(3):
        try:
            inner = parse(value)
        except IndexError:
            inner = []
        if inner and build(inner) == value:
            return [*before, (number, wire, build(_change(draw, inner, others, depth + 1))), *after]
    match draw.below(8):
        case 0:
            return [*before, *after]
        case 1:
            return [*fields, *[fields[i]] * draw.pick((1, 2, 500))]
        case 2:
            j = draw.below(len(fields))
            fields[i], fields[j] = fields[j], fields[i]
            return fields
        case 3:
            return [*before, (draw.pick((0, 1, 2, 3, 15, 2**28)), wire, value), *after]
        case 4 if others:
            return [*before, draw.pick(others), *after]
        case 5 if wire == BYTES:
            return [*before, (number, wire, byte_form.mutate(draw, value)), *after]
        case _:
            match wire:
                case 0:
                    value = varint(draw.pick(byte_form.EDGES))
                case 2:
                    value = byte_form.string(draw).encode("utf-8", "surrogatepass")
                case 5:
                    value = draw.pick(FLOATS)
                case _:
                    value = draw.bytes(len(value))
            return [*before, (number, wire, value), *after]
