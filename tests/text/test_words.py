"""Readable names of tokens, without marks and with decoded bytes, and titles truncated at a word."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.text.words import byte_level_text, name_after_word, piece_names, shortened, word_spans, word_text

#: GPT-2's table of characters for bytes, written independently of npformer's table.
BYTE_LEVEL = {byte: chr(byte) for byte in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]}
BYTE_LEVEL |= {byte: chr(256 + n) for n, byte in enumerate(sorted(set(range(256)) - BYTE_LEVEL.keys()))}


@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        (["[CLS]", "un", "##do", "[SEP]"], ("[CLS]", "un", "##do", "[SEP]")),
        (["It", "Ġun", "i", "vers", "ally", "."], ("It", "un", "##i", "##vers", "##ally", ".")),
        (["▁Stra", "ße", ".", "</s>"], ("Stra", "##ße", ".", "</s>")),
        (["▁park", "▁", "."], ("park", "␣", ".")),
        (["ĠcafÃ©", "Ġ", "Ċ", "ĠðŁĺ", "Ģ"], ("café", "␣", "\\n", "\\xf0\\x9f\\x98", "\\x80")),  # an emoji's bytes
        (["▁", "<0xF0>", "<0x9F>", "▁a", "<0x0A>"], ("␣", "<0xF0>", "<0x9F>", "a", "<0x0A>")),
        (["é", "£", "Ğ"], ("é", "£", "Ğ")),  # as bytes, these are not valid UTF-8
        (["è", "¿", "Ļ"], ("\\xe8", "\\xbf", "\\x99")),  # the bytes of one character, in a text without spaces
    ],
)
def test_names_have_no_marks(tokens: list[str], names: tuple[str, ...]) -> None:
    assert piece_names(tokens) == names


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1).filter(str.isprintable))
def test_bytes_are_read_as_the_text_they_spell(text: str) -> None:
    written = "Ġ" + "".join(BYTE_LEVEL[byte] for byte in text.encode())
    assert word_text([written]) == text
    assert piece_names(["Ġa", written]) == ("a", text)


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1), st.data())
def test_a_word_has_the_characters_that_its_pieces_cut(text: str, data: st.DataObject) -> None:
    spelt = " ".join(["a", text, "b"]).encode()
    cuts = data.draw(st.sets(st.integers(2, len(spelt) - 2))) | {1, len(spelt) - 2}  # no word begins inside a piece
    ends = [0, *sorted(cuts), len(spelt)]
    tokens = ["".join(BYTE_LEVEL[byte] for byte in spelt[first:end]) for first, end in pairwise(ends)]
    pieces = [byte_level_text(token) for token in tokens]
    assert [word_text(pieces[first:end]) for first, end in word_spans(pieces)] == ["a", text, "b"]


def test_a_word_does_not_keep_the_space_before_its_first_byte() -> None:
    assert word_text(["Ġ", "è", "¿", "Ļ"]) == "这"


def test_a_line_break_between_words_stays_apart() -> None:
    pieces = ["▁a", "<0x0A>", "b", "<0xC3>", "<0xA9>", "<0xFF>"]
    assert [word_text(pieces[first:end]) for first, end in word_spans(pieces)] == ["a", "<0x0A>", "b<0xC3><0xA9><0xFF>"]


@pytest.mark.parametrize(
    ("token", "words", "name"),
    [
        ("le", ["a", "Ġa"], "##le"),
        ("Ġle", ["a", "Ġa"], "le"),
        ("ße", ["▁a", "▁a"], "##ße"),
        (".", ["▁a"], "."),
        ("le", ["a", "a"], "le"),
        ("##le", ["a", "a"], "##le"),
    ],
)
def test_a_token_that_continues_a_word_is_marked(token: str, words: list[str], name: str) -> None:
    assert name_after_word(token, words) == name


def test_titles_are_cut_at_a_word() -> None:
    assert shortened("a short text") == "a short text"
    assert shortened("one two three", 10) == "one two…"
    assert shortened("x" * 20, 10) == "x" * 9 + "…"
