"""Runs one computation at a time, and drops a request as soon as the same page sends a newer one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")
PAGES = 64  # number of pages for which the newest request is remembered


class Superseded(Exception):
    """Raised in the computation of a request when its page has sent a newer one."""


class Latest:
    """Runs the newest request of each page. `computed` is the number of computations that started."""

    def __init__(self) -> None:
        self.computed = 0
        self._running, self._noting = Lock(), Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()  # page -> the number of its newest state

    def run(self, page: str, number: int, work: Callable[[Callable[[], None]], T]) -> T:
        """Returns `work(check)`. `work` must call `check()` regularly.

        Raises Superseded, before or during the work, if the same page has sent a request with a larger number.
        """

        def check() -> None:
            with self._noting:
                if self._newest.get(page, number) > number:
                    raise Superseded

        with self._noting:
            self._newest[page] = max(number, self._newest.get(page, number))
            self._newest.move_to_end(page)
            while len(self._newest) > PAGES:
                self._newest.popitem(last=False)
        with self._running:
            check()
            self.computed += 1
            return work(check)
