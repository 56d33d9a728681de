"""A progress bar on stderr for many texts: how many are answered, texts per second, and the time left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def with_bar(answers: Iterable[Any], total: int | None, delay: float = 0) -> Iterator[Any]:
    """Yields the answers and moves a bar with each one.

    `total` is the number of answers, if known; the bar shows after `delay` seconds, so that quick work has none.
    """
    from tqdm import tqdm

    return iter(tqdm(answers, total=total, unit=" texts", delay=delay))
