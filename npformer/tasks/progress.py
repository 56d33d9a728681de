"""A progress bar on stderr: how many texts are answered (or steps taken), how many a second, and the time left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def with_bar(answers: Iterable[Any], total: int | None, delay: float = 0, unit: str = "texts") -> Iterator[Any]:
    """Yields the answers and moves a bar with each one.

    `total` is the number of answers, if known; the bar shows after `delay` seconds, so that quick work has none.
    """
    from tqdm import tqdm

    return iter(tqdm(answers, total=total, unit=f" {unit}", delay=delay))
