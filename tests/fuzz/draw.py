"""`Draw`: random choices that are the same on every machine, in every Python version and with every hash seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Makes random choices from a key, only with `getrandbits`, which gives the same results in all Python versions."""

    def __init__(self, *key: object) -> None:
        text = "/".join(map(str, key))
        self._bits = random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")).getrandbits

    def below(self, n: int) -> int:
        """Returns a whole number from 0 to n - 1."""
        return self._bits(64) % n

    def between(self, low: int, high: int) -> int:
        """Returns a whole number from low to high."""
        return low + self.below(high - low + 1)

    def chance(self, one_in: int) -> bool:
        """Returns True with probability 1 / `one_in`."""
        return self.below(one_in) == 0

    def pick(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def bytes(self, n: int) -> bytes:
        return self._bits(8 * n).to_bytes(n, "big") if n else b""

    def span(self, size: int, longest: int = 0) -> tuple[int, int]:
        """Returns the start and end of a random part of a sequence of `size` elements; most parts are short."""
        start = self.below(size + 1)
        most = min(size - start, longest or size)
        length = self.below(min(most, 8) + 1) if self.below(4) else self.below(most + 1)
        return start, start + length


class Plain(Draw):
    """Makes no random choices, for the unmutated corpus: it always takes the first or the most common option."""

    def below(self, n: int) -> int:
        return n - 1

    def pick(self, values: Sequence[T]) -> T:
        return values[0]
