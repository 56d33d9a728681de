"""`StopStrings`: strings that end the generation of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

CHARACTER = 4  # maximum bytes, and thus maximum tokens, of a character in UTF-8
PARTIAL = "\ufffd"  # the text of an incomplete character


class StopStrings:
    """A function that returns whether a stop string ends in the last token of each row of ids, (R, L) -> (R,).

    As in Transformers, a stop string may begin in the prompt, and it may end inside the last token. Negative ids are
    padding.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self.longest = max(len(each.encode()) for each in self.strings)  # a token has at least one byte

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        tails = ids[:, -self.longest - CHARACTER :].tolist()
        return np.array([self._ends([each for each in row if each >= 0]) for row in tails], bool)

    def _ends(self, ids: list[int]) -> bool:
        tail = self._from_a_character(ids)
        text = self._text(tail)
        if not any(each in text for each in self.strings):
            return False
        known = self._known(tail)
        return any(text.find(each, max(0, known - len(each) + 1)) >= 0 for each in self.strings)

    def _from_a_character(self, ids: list[int]) -> list[int]:
        """Enough of the last tokens to contain any of the strings, from the beginning of a character if possible.

        A decoder with a token for each byte turns bytes that begin inside a character into U+FFFD.
        """
        tails = [ids[-n:] for n in range(self.longest + 1, self.longest + 1 + CHARACTER)]
        return next((each for each in tails if not self._text(each).startswith(PARTIAL)), ids[-self.longest :])

    def _known(self, ids: list[int]) -> int:
        """The number of characters that are complete before the last token, which may complete one more."""
        known = 0
        for end in range(len(ids) - 1, max(len(ids) - 1 - CHARACTER, -1), -1):
            before = self._text(ids[:end])
            known = max(known, len(before.rstrip(PARTIAL)))
            if not before.endswith(PARTIAL):
                break
        return known

    def _text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text
