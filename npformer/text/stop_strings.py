"""`StopStrings`: strings that end a generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class StopStrings:
    """Returns whether a stop string ends in the last token of each row of ids, (R, L) -> (R,).

    As in Transformers, a stop string may begin in the prompt, and may end inside the last token. Negative ids are
    padding.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self.longest = max(len(each.encode()) for each in self.strings)  # a token has at least one byte

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        tails = ids[:, -self.longest - 1 :].tolist()
        return np.array([self._ends([each for each in row if each >= 0]) for row in tails], bool)

    def _ends(self, ids: list[int]) -> bool:
        before, text = (self.tokenizer.decode(each, skip_special_tokens=False) for each in (ids[:-1], ids))
        known = len(before.rstrip("\ufffd"))  # the last token may complete a partial character
        return any(text.find(each, max(0, known - len(each) + 1)) >= 0 for each in self.strings)
