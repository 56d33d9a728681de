"""Strings that end a generation: `StopStrings` finds the rows whose last token completes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class StopStrings:
    """Finds the rows of tokens (R, L) in which a stop string ends in the last token, (R,).

    It may begin in the prompt, and end inside the last token, as in Transformers. A negative number is not a token.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self.longest = max(len(each.encode()) for each in self.strings)  # a token has at least one byte

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        tails = ids[:, -self.longest - 1 :].tolist()
        return np.array([self._ends([each for each in row if each >= 0]) for row in tails], bool)

    def _ends(self, ids: list[int]) -> bool:
        before, text = (self.tokenizer.decode(each, skip_special_tokens=False) for each in (ids[:-1], ids))
        known = len(before.rstrip("\ufffd"))  # a partial character may be complete now
        return any(text.find(each, max(0, known - len(each) + 1)) >= 0 for each in self.strings)
