"""Mutates bytes without knowing their format: flips, cuts, inserts, duplicates, splices. Also draws extreme strings."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.draw import Draw

#: Numbers at the limits of integer types.
EDGES = (
    0, 1, -1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), 2**80, 10**30,
)  # fmt: skip

#: Strings that a reader may misinterpret.
STRINGS = (
    "", " ", "\0", "a", "A", "0", "-1", "1e400", "nan", "null", "true", ".", "..", "/", "\\", "../outside/victim",
    "/etc/passwd", "/dev/stdin", "config.json", "model.safetensors", "../outside/model.safetensors", "\n", "\r\n", "\t",
    "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "\ufffd", "\ud800", "\udfff", "\ud83d\ude00", "\u0301" * 300, "ß", "İ",
    "ﷺ" * 50, "日本", "😀", "[UNK]", "[CLS]", "##a", "▁", "Ġ", "</s>", ">>deu<<", "%s%n%x", "{0}", "${HOME}", "`id`",
    "__proto__", "__class__", "weight", "layers.0", "layers.99999999", "*", "a" * 300, "x." * 3000, "a" * 70_000,
    "(a+)+$", "[", "\\", "é" * 5000, "٣", "²", "1_000", "0x10", "+1", "layers.*.attention", "embeddings.token.weight",
)  # fmt: skip


def string(draw: Draw) -> str:
    """Returns an extreme string."""
    return draw.pick(STRINGS)


def alter(draw: Draw, text: str) -> str:
    """Returns a slightly changed copy of this string."""
    start, stop = draw.span(len(text), 20)
    between = draw.pick(("", "", string(draw), text[start:stop] * 2, text[start:stop].swapcase(), text[::-1]))
    return text[:start] + between + text[stop:]


def mutate(draw: Draw, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Returns bytes with one to four changes; `others` are files to splice in."""
    for _ in range(draw.pick((1, 1, 1, 2, 4))):
        data = _change(draw, data, others)
    return data


def _change(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = draw.span(len(data))
    part = data[start:stop]
    match draw.below(11):
        case 0 | 1 if data:
            place = draw.below(len(data))
            return data[:place] + bytes([data[place] ^ (1 << draw.below(8))]) + data[place + 1 :]
        case 2:
            return data[:start]
        case 3:
            return data[:start] + data[stop:]
        case 4:
            return data[:stop] + part + data[stop:]
        case 5:
            return data[:start] + draw.bytes(draw.below(17)) + data[start:]
        case 6:
            return data[:start] + bytes([draw.pick((0, 255, 127, 128, 10, 32))]) * len(part) + data[stop:]
        case 7:
            size = draw.pick((1, 2, 4, 8))
            number = (draw.pick(EDGES) % 2 ** (8 * size)).to_bytes(size, draw.pick(("little", "big")))
            return data[:start] + number + data[start + size :]
        case 8:
            return data[:start] + string(draw).encode("utf-8", "surrogatepass") + data[stop:]
        case 9 if others:
            other = draw.pick(others)
            first, last = draw.span(len(other))
            return data[:start] + other[first:last] + data[stop:]
        case _:
            return data[:start] + part * draw.pick((2, 10, 100) if len(part) < 1000 else (2,)) + data[stop:]
