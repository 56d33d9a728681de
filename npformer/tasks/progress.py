"""A bar on stderr for many texts: how many are answered, how many a second, and the time that is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def with_bar(answers: Iterable[Any], total: int | None, delay: float = 0) -> Iterator[Any]:
    """The answers, with a bar that moves as they come. total: how many there will be, where that is known.

    delay: seconds before the bar shows, so that quick work has none.
    """
    from tqdm import tqdm

    return iter(tqdm(answers, total=total, unit=" texts", delay=delay))
