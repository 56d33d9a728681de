"""`ControlTexts`: finds the texts of control tokens in a text.

A regular expression with an alternative for each token would try thousands of alternatives at every character, and
block all other threads. `ControlTexts` sorts the tokens, and needs only a binary search at each position.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator


class ControlTexts:
    """The texts of control tokens. If several tokens begin at the same position of a text, the longest one is found.

    Parameters
    ----------
    texts : strings; duplicates and empty strings are ignored
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(set(texts) - {""})
        self.longest = max(map(len, self.texts), default=0)
        self.shorter = _shorter(self.texts)
        first = {re.escape(each[0]) for each in self.texts}
        self.first = re.compile(f"[{''.join(sorted(first))}]" if first else r"(?!)")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each text of a token, from left to right."""
        at = 0
        while found := self.first.search(text, at):
            at = found.start()
            length = self._length(text[at : at + self.longest])
            if length:
                yield at, at + length
            at += length or 1

    def replaced(self, text: str, replacement: Callable[[str], str]) -> str:
        """Returns a text in which the text of each token is replaced."""
        parts, end = list[str](), 0
        for first, last in self.spans(text):
            parts += text[end:first], replacement(text[first:last])
            end = last
        return "".join([*parts, text[end:]])

    def _length(self, rest: str) -> int:
        """Returns the length of the longest token at the beginning of a text, or 0.

        In sorted order, that token is before the text, and every token between the two begins with that token.
        """
        at = bisect(self.texts, rest) - 1
        while at >= 0 and not rest.startswith(self.texts[at]):
            at = self.shorter[at]
        return len(self.texts[at]) if at >= 0 else 0


def _shorter(texts: list[str]) -> list[int]:
    """Returns for each of the sorted texts the index of the longest other text that is its prefix, or -1."""
    found, open_ = list[int](), list[int]()
    for i, text in enumerate(texts):
        while open_ and not text.startswith(texts[open_[-1]]):
            open_.pop()
        found.append(open_[-1] if open_ else -1)
        open_.append(i)
    return found
