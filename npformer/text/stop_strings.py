"""Texts at which a generation ends: `StopStrings` tells which rows of tokens have just completed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class StopStrings:
    """Tells of rows of tokens (R, L) which end with a stop string: one that reaches into the last token, (R,).

    It may begin in the prompt, and end within the last token, as in Transformers. A number below 0 is no token.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self.longest = max(len(each.encode()) for each in self.strings)  # a token has at least a byte

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        tails = ids[:, -self.longest - 1 :].tolist()
        return np.array([self._ends([each for each in row if each >= 0]) for row in tails], bool)

    def _ends(self, ids: list[int]) -> bool:
        before, text = (self.tokenizer.decode(each, skip_special_tokens=False) for each in (ids[:-1], ids))
        known = len(before.rstrip("\ufffd"))  # part of a character may be whole now
        return any(text.find(each, max(0, known - len(each) + 1)) >= 0 for each in self.strings)
