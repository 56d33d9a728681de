"""`Borders`: finds where a long text can be split into blocks without changing its tokens."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

BLOCK = 16_384  # characters tokenized at once in a text that can be split at borders (see `Borders`)

#: Normalizers and pre-tokenizers that treat each character or each word independently. Tokens before a space thus do
#: not depend on the text after the space. If a tokenizer has any other part, texts are not split.
NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
PRE_TOKENIZERS = {"BertPreTokenizer", "ByteLevel", "Whitespace", "WhitespaceSplit"}

MARKS = frozenset(string.punctuation)  # ASCII only


class Borders:
    """The borders of a tokenizer, at which texts can be split.

    Borders are the spaces between words and, for BERT, also the positions between two punctuation marks or ideographs.

    Unicode normalization never combines characters across a space, every supported pre-tokenizer starts a new word at a
    space, and the model of the tokenizer reads one word at a time. Only an added token could cross a border, so added
    tokens are also checked.
    """

    def __init__(self, tokenizer: Any) -> None:
        try:
            normalizer, splits = (
                {} if part is None else json.loads(part.__getstate__())
                for part in (tokenizer.normalizer, tokenizer.pre_tokenizer)
            )
            added = tokenizer.get_added_tokens_decoder().values()
        except Exception:  # the tokenizer has parts written in Python, or was made by the user
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
        # BERT treats each punctuation mark as a word, and Unicode normalization never combines two ASCII marks.
        self.at_marks = self.at_spaces and splits["type"] == "BertPreTokenizer" and not any(map(_has_marks, added))

    def blocks(self, text: str) -> Iterator[tuple[int, int]]:
        """Splits a text at borders into blocks `(first, end)` of about BLOCK characters, or more without a border."""
        first = 0
        while first < len(text):
            end = self.before(text, first + BLOCK, first) or self._after(text, first + BLOCK)
            yield first, end
            first = end

    def before(self, text: str, end: int, first: int = 0) -> int:
        """Returns the last border between `first` and `end`, or 0 without a border. The end of a text is a border."""
        if end >= len(text):
            return len(text)
        return next((i for i in range(end, first, -1) if self._is_border(text, i)), 0)

    def _after(self, text: str, start: int) -> int:
        return next((i for i in range(start, len(text)) if self._is_border(text, i)), len(text))

    def _is_border(self, text: str, i: int) -> bool:
        """Returns whether the text can be split before character i."""
        if text[i] == " ":
            return self.at_spaces and i + 1 < len(text) and text[i - 1].isalnum() and text[i + 1].isalnum()
        if text[i] in MARKS:
            return self.at_marks and text[i - 1] in MARKS
        return self.at_ideographs and "\u4e00" <= text[i] <= "\u9fff" and "\u4e00" <= text[i - 1] <= "\u9fff"


def _has_marks(token: Any) -> bool:
    """Returns whether an added token has two adjacent punctuation marks."""
    return any(a in MARKS and b in MARKS for a, b in pairwise(token.content))


def _stays_inside(token: Any) -> bool:
    """Returns whether an added token can neither contain a border nor absorb the space at a border."""
    content = token.content
    if not content.isascii() or any(map(str.isspace, content)) or not content:
        return False
    return not (token.lstrip or token.rstrip) or not (content[0].isalnum() or content[-1].isalnum())
