"""Words and their pieces: merges attention between word pieces, and splits a text into words.

`printable` makes labels safe for a terminal or an SVG file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

#: The markers of SentencePiece and byte-level BPE at the start of a word. WordPiece marks the other pieces with "##".
_START_MARKS = ("▁", "Ġ")
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))  # bytes that byte-level BPE does not replace
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + n): byte for n, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)
}
#: SentencePiece's names of bytes outside ASCII, such as "<0xF0><0x9F>".
_BYTE_NAMES = re.compile("(?:<0x[89A-F][0-9A-F]>)+")
Span = tuple[int, int]


def word_spans(tokens: Sequence[str]) -> list[Span]:
    """The span `(first, end)` of the tokens of each word: `[(0, 1), (1, 3)]` for `["[CLS]", "un", "##do"]`."""
    marked = any(token.startswith(_START_MARKS) for token in tokens)
    starts = [
        i
        for i, token in enumerate(tokens)
        if i == 0 or not (_continues_marked(tokens, i) if marked else _continues_wordpiece(token))
    ]
    return list(zip(starts, [*starts[1:], len(tokens)], strict=True))


def _continues_wordpiece(token: str) -> bool:
    return token.startswith("##") and len(token) > 2


def _continues_marked(tokens: Sequence[str], i: int) -> bool:
    return not (tokens[i].startswith(_START_MARKS) or _special(tokens[i]) or _special(tokens[i - 1]))


def _special(token: str) -> bool:
    enclosed = len(token) > 2 and (token[0], token[-1]) in {("<", ">"), ("[", "]")}
    return enclosed and not _BYTE_NAMES.match(token)


def word_text(pieces: Sequence[str], has_bytes: bool = False) -> str:
    """Joins the pieces of a word into a text without markers: `undo` for `["un", "##do"]`, `café` for `["ĠcafÃ©"]`.

    A marker without other pieces becomes `␣`. Bytes are decoded to characters, `é` for `["<0xC3>", "<0xA9>"]`.
    has_bytes: see `_from_bytes`.
    """
    if list(pieces) == ["▁"]:
        return "␣"
    starts = pieces[0].startswith(_START_MARKS) and (len(pieces[0]) > 1 or len(pieces) > 1 or pieces[0] == "▁")
    first = pieces[0][1:] if starts else pieces[0]
    text = _BYTE_NAMES.sub(_named, first + "".join(piece.removeprefix("##") for piece in pieces[1:]))
    return _from_bytes(text, has_bytes or pieces[0].startswith("Ġ"))


def piece_names(tokens: Sequence[str]) -> tuple[str, ...]:
    """Readable names of tokens, in the style of WordPiece: `("un", "##do")` for `["Ġun", "do"]`."""
    starts = {first for first, _ in word_spans(tokens)}
    has_bytes = _of_bytes(tokens)
    names = [
        word_text([token], has_bytes) if i in starts else _from_bytes(token, has_bytes)
        for i, token in enumerate(tokens)
    ]
    return tuple(f"##{name}" if i not in starts and name[:1].isalnum() else name for i, name in enumerate(names))


def _of_bytes(tokens: Sequence[str]) -> bool:
    """Whether the tokens are from byte-level BPE: a token begins with Ġ, or all characters stand for valid UTF-8."""
    if any(token.startswith("Ġ") for token in tokens):
        return True
    text = "".join(tokens)
    try:
        return not text.isascii() and bool(bytes([_BYTES[c] for c in text]).decode())
    except (KeyError, UnicodeDecodeError):
        return False


def name_after_word(token: str, words: Sequence[str]) -> str:
    """Readable name of a token that continues a word: `##le` for `le` if any of `words` begins with a marker."""
    starts = [each for each in words if each.startswith(_START_MARKS)][:1]
    return piece_names([*starts, token])[-1]


def _named(names: re.Match[str]) -> str:
    """Decodes named bytes, except in invalid or incomplete characters."""
    try:
        return bytes.fromhex(re.sub("<0x|>", "", names[0])).decode()
    except UnicodeDecodeError:
        return names[0]


def byte_level_text(token: str) -> str:
    """Decodes a token of byte-level BPE, and writes SentencePiece's marker and names of bytes: `▁<0xF0>` for `Ġð`."""
    try:
        spelt = bytes([_BYTES[c] for c in token])
    except KeyError:  # an added token
        return token
    try:
        text = spelt.decode()
    except UnicodeDecodeError:
        text = "".join(chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in spelt)
    return f"▁{text[1:]}" if text.startswith(" ") else text


def _from_bytes(text: str, has_bytes: bool) -> str:
    """Decodes the characters that stand for UTF-8 bytes in byte-level BPE. Other texts are unchanged.

    has_bytes: the text is known to come from byte-level BPE. Control characters and partial characters are then
    escaped.
    """
    if text.isascii():
        return text
    try:
        decoded = bytes([_BYTES[c] for c in text]).decode(errors="backslashreplace" if has_bytes else "strict")
    except (KeyError, UnicodeDecodeError):
        return text
    if not decoded.strip(" "):
        return "␣" * len(decoded)
    if not (has_bytes or decoded.isprintable()):
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in decoded)


def merge_pieces(weights: np.ndarray, queries: Sequence[Span], keys: Sequence[Span]) -> np.ndarray:
    """Converts attention between pieces to attention between words, (..., words of queries, words of keys).

    Attention to a word is the sum over its pieces, and attention from a word is the mean over its pieces, so that rows
    still sum to 1. Clark et al., 2019, What Does BERT Look At?, section 4.1.
    """
    to_words = np.add.reduceat(weights, [first for first, _ in keys], axis=-1)
    from_words = np.add.reduceat(to_words, [first for first, _ in queries], axis=-2)
    return from_words / np.array([end - first for first, end in queries], weights.dtype)[:, None]


def text_words(text: str) -> list[Span]:
    """The span `(first, end)` of each word of a text.

    White space separates words. Each leading or trailing punctuation mark, and each Chinese, Japanese or Korean
    character, is a word.
    """
    spans: list[Span] = []
    for first, end in _chunks(text):
        head, tail = first, end
        while head < end and _stands_alone(text[head]):
            head += 1
        while tail > head and _stands_alone(text[tail - 1]):
            tail -= 1
        spans += [(i, i + 1) for i in range(first, head)]
        spans += _ideographs_apart(text, head, tail)
        spans += [(i, i + 1) for i in range(tail, end)]
    return spans


def _chunks(text: str) -> list[Span]:
    bounds = [i for i in range(len(text) + 1) if _space(text, i - 1) != _space(text, i)]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _space(text: str, i: int) -> bool:
    return not 0 <= i < len(text) or text[i].isspace()


def _stands_alone(char: str) -> bool:
    return unicodedata.category(char).startswith("P")


def _ideographs_apart(text: str, first: int, end: int) -> list[Span]:
    spans: list[Span] = []
    joins = False  # whether the previous character can be part of a longer word
    for i in range(first, end):
        alone = unicodedata.east_asian_width(text[i]) == "W" and unicodedata.category(text[i]) == "Lo"
        start = spans.pop()[0] if joins and not alone else i
        spans.append((start, i + 1))
        joins = not alone
    return spans


def shortened(text: str, most: int = 160) -> str:
    """Shortens a text for a title, at the end of a word if possible, and adds an ellipsis."""
    if len(text) <= most:
        return text
    head = text[: most - 1]
    return (head.rpartition(" ")[0] or head).rstrip() + "…"


def printable(text: str) -> str:
    """Replaces control characters, surrogates and characters that change the text direction with U+FFFD.

    A terminal would interpret escape sequences, and XML forbids most control characters.
    """
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") or c in _DIRECTION else c for c in text)
