"""Places where a text can be divided without a change to its tokens, for texts too long to be tokenized at once."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

BLOCK = 16_384  # characters that are tokenized at once, if the tokenizer allows it

#: Parts that treat each character, or each word between spaces, by itself, so that what follows a space changes nothing
#: before it. Any other part may look further, and its texts are tokenized whole.
NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
PRE_TOKENIZERS = {"BertPreTokenizer", "ByteLevel", "Whitespace", "WhitespaceSplit"}


MARKS = frozenset(string.punctuation)  # ASCII's


class Borders:
    """The borders that a tokenizer respects: at spaces between words, and for BERT's between two marks or ideographs.

    No normal form joins a space with its neighbours, every pre-tokenizer above begins a new word there, and models see
    a word at a time. What could still reach across a border is an added token, so those are looked at too.
    """

    def __init__(self, tokenizer: Any) -> None:
        try:
            normalizer, splits = (
                {} if part is None else json.loads(part.__getstate__())
                for part in (tokenizer.normalizer, tokenizer.pre_tokenizer)
            )
            added = tokenizer.get_added_tokens_decoder().values()
        except Exception:  # parts written in Python, or a tokenizer of a user's own
            normalizer, splits, added = {"type": "unknown"}, {}, ()
        parts = normalizer.get("normalizers", [normalizer]) if normalizer else []
        self.at_spaces = (
            {each["type"] for each in parts} <= NORMALIZERS
            and splits.get("type") in PRE_TOKENIZERS
            and splits.get("use_regex", True)
            and all(map(_stays_inside, added))
        )
        self.at_ideographs = (
            self.at_spaces
            and splits["type"] == "BertPreTokenizer"
            and any(each.get("handle_chinese_chars") for each in parts)
        )

        self.at_marks = (  # to BERT each mark is a word, and no normal form changes those of ASCII before one another
            self.at_spaces and splits["type"] == "BertPreTokenizer" and not any(map(_has_marks, added))
        )

    def blocks(self, text: str) -> Iterator[tuple[int, int]]:
        """Divides a text at borders: `(first, end)` of blocks of about BLOCK characters, longer where none is near."""
        first = 0
        while first < len(text):
            end = self.before(text, first + BLOCK, first) or self._after(text, first + BLOCK)
            yield first, end
            first = end

    def before(self, text: str, end: int, first: int = 0) -> int:
        """Returns the last border between `first` and `end`, or the end of the text; 0 if there is none."""
        if end >= len(text):
            return len(text)
        return next((i for i in range(end, first, -1) if self._is_border(text, i)), 0)

    def _after(self, text: str, start: int) -> int:
        return next((i for i in range(start, len(text)) if self._is_border(text, i)), len(text))

    def _is_border(self, text: str, i: int) -> bool:
        """Tells whether the text can be divided before character i."""
        if text[i] == " ":
            return self.at_spaces and i + 1 < len(text) and text[i - 1].isalnum() and text[i + 1].isalnum()
        if text[i] in MARKS:
            return self.at_marks and text[i - 1] in MARKS
        return self.at_ideographs and "\u4e00" <= text[i] <= "\u9fff" and "\u4e00" <= text[i - 1] <= "\u9fff"


def _has_marks(token: Any) -> bool:
    """Tells whether an added token has two marks side by side."""
    return any(a in MARKS and b in MARKS for a, b in pairwise(token.content))


def _stays_inside(token: Any) -> bool:
    """Tells whether an added token can neither contain a border nor take the space at one."""
    content = token.content
    if not content.isascii() or any(map(str.isspace, content)) or not content:
        return False
    return not (token.lstrip or token.rstrip) or not (content[0].isalnum() or content[-1].isalnum())
