"""Mutates files of text lines, such as vocabularies, tables and texts. Also draws texts for a model."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz import byte_form
from tests.fuzz.draw import Draw

LINES = (
    b"", b" ", b"\t", b",", b"\r", b"a\rb", b"\x00", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b'""', b'"a',
    b'a"b', b'"a\nb"', b"a" * 100_000, b"\t" * 3000, b"{}", b"[]", b"null", b"1", b'{"label": "1"}', b"{" * 3000,
    b'{"label": "POSITIVE", "text": null}', b'{"label": "POSITIVE", "text": ["a"]}', b'{"label": true, "text": "a"}',
    b'{"label": 1e999, "text": "a"}', b'{"label": "POSITIVE", "text": "a", "text": "b"}', b'{"label":"\\ud800","text":"a"}',
    b"POSITIVE\ttext", b"99999\ttext", b"10000000000000000000\ttext", b"-1\ttext", b"0\t\x85", "٣\ttext".encode(),
    "²\ttext".encode(), "İ\ttext".encode(), "\u2028".encode(), b"label\ttext", b"\x1a", b"\x0c", b"\x1c", b"=cmd|' /C calc'!A0",
)  # fmt: skip


def mutate(draw: Draw, data: bytes, others: Sequence[bytes] = (), separator: bytes = b"\t") -> bytes:
    """Returns the lines with one to four changes, in whole lines, fields or line ends."""
    for _ in range(draw.pick((1, 1, 1, 2, 4))):
        data = _change(draw, data, others, separator)
    return data


def _change(draw: Draw, data: bytes, others: Sequence[bytes], separator: bytes) -> bytes:
    lines = data.split(b"\n")
    i, j = draw.below(len(lines)), draw.below(len(lines))
    match draw.below(12):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case 3:
            lines.insert(i, draw.pick(LINES))
        case 4:
            lines[i] = draw.pick(LINES)
        case 5 | 6:
            lines[i] = _field(draw, lines[i], separator)
        case 7:
            return draw.pick((b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"), data.rstrip(b"\n"),
                              data.decode("utf-8", "replace").encode("utf-16"), data.replace(separator, b" ")))  # fmt: skip
        case 8 if others:
            lines[i : i + 1] = draw.pick(others).split(b"\n")[: draw.pick((1, 3))]
        case 9:
            lines = [_field(draw, line, separator) if draw.chance(3) else line for line in lines]
        case 10:
            times = draw.pick((2, 40))
            lines = lines * (times if len(data) < 2**20 else 2)  # large files are only doubled
        case _:
            return byte_form.mutate(draw, data)
    return b"\n".join(lines)


def _field(draw: Draw, line: bytes, separator: bytes) -> bytes:
    fields = line.split(separator)
    i = draw.below(len(fields))
    fields[i : i + 1] = draw.pick((
        [byte_form.string(draw).encode("utf-8", "surrogatepass")], [draw.pick(LINES)], [], [fields[i], fields[i]],
        [b'"' + fields[i] + b'"'], [byte_form.mutate(draw, fields[i])], [fields[0]],
    ))  # fmt: skip
    return separator.join(fields)


#: Texts for a model, plain texts first.
TEXTS = (
    "I love ice cream", "not my music", "People in Paris like it.", "A dog runs.", "", " ", "a", "日本 我爱", "Ünïcödé é",
    "\0", "\u202eabc", "😀👩‍👩‍👧", "[MASK]", "[CLS] [SEP]", "i like [MASK] music", "\n\n", "\x7f\x85\u2028", "ﷺ", "İstanbul ß ﬁ",
    "word " * 70, "x" * 1500, "我" * 300, "e\u0301" * 200, "\u0301" * 50, "\ud800", "\ufeff", ".", "!?,;" * 40, "0123456789",
)  # fmt: skip


def text(draw: Draw) -> str:
    """Returns a text; at least half of the texts are plain."""
    if draw.chance(2):
        return draw.pick(TEXTS[:4])
    return draw.pick((draw.pick(TEXTS), byte_form.string(draw), byte_form.alter(draw, draw.pick(TEXTS[:20]))))
