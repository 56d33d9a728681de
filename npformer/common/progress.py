"""Progress on stderr: a line that is rewritten while a command works, and a line of summary when that took long.

`bar` counts what is done, `status` says what is being done. A message that appears meanwhile is written between
`hidden()`, so that it gets a line of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, RLock, Thread
from typing import Any, TextIO

DELAY = 2.0  # seconds of silence before a bar shows
TICK = 0.25  # seconds between two pictures of it
WIDTH = 20  # characters of the bar

_lock = RLock()
_written: list[Line] = []  # the line that is on the terminal now, if any
_waiting: list[Event] = []  # of the commands that run; one that is set has shown something


class Line:
    """A line of a stream that is written over again and again."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def show(self, text: str) -> None:
        """Writes the text over the line, cut to the terminal's width."""
        with _lock:
            _written[:] = [self]  # whatever line was there is written over
            self._write(f"\r{text[: width()]:<{width()}}")

    def clear(self) -> None:
        """Empties the line, if anything is in it."""
        with _lock:
            if self in _written:
                _written.clear()
                self._write(f"\r{'':{width()}}\r")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a stream that is closed or full: progress is lost, the work is not
            self.stream.write(text)
            self.stream.flush()


def width() -> int:
    """Returns the characters that fit in a line of the terminal."""
    from shutil import get_terminal_size  # which takes long to import

    return get_terminal_size().columns - 1


def wrapped(text: str, indent: str = "") -> str:
    """Breaks each line of a text between words, so that it fits the terminal; `indent` stands before what follows."""
    from textwrap import wrap

    how: Any = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(part for line in text.split("\n") for part in (wrap(line, width(), **how) or [""]))


def note(text: str) -> None:
    """Says on a terminal what a command has written."""
    if sys.stderr.isatty():
        with hidden():
            print(text, file=sys.stderr)


@contextmanager
def waiting(command: str) -> Iterator[None]:
    """Shows on a terminal how long a command has worked, while no other line of progress is there.

    It ends for good when the command prints something: see `shown`.
    """
    line, began, ended = Line(), time.monotonic(), Event()

    def draw() -> None:
        pause = DELAY
        while not ended.wait(pause):
            with _lock:
                if not ended.is_set() and _written in ([], [line]):
                    line.show(f"{command}  {clock(time.monotonic() - began)}")
            pause = TICK

    if not line.stream.isatty():
        yield
        return
    _waiting.append(ended)
    drawing = Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        shown()
        _waiting.remove(ended)
        drawing.join()


def shown() -> None:
    """Ends `waiting` and clears its line, before the command prints or reads on the terminal."""
    with _lock:
        for each in _waiting:
            each.set()
        for line in list(_written):
            line.clear()


@contextmanager
def hidden() -> Iterator[None]:
    """Clears the line of progress, and keeps it away until the block ends."""
    with _lock:
        for line in list(_written):
            line.clear()
        yield


@contextmanager
def status() -> Iterator[Callable[[str], object] | None]:
    """Gives a function that shows a text in the last line of a terminal, which is empty again at the end.

    None if stderr is not a terminal.
    """
    line = Line()
    try:
        yield line.show if line.stream.isatty() else None
    finally:
        line.clear()


@contextmanager
def bar(
    total: int | None, unit: str = "texts", done: int = 0, delay: float | None = None, shown: bool | None = None
) -> Iterator[Callable[[int], object]]:
    """Gives a function that counts more items as done, and shows a bar until the block ends; a line of summary follows.

    Parameters
    ----------
    total : number of all items, None if it is not known
    unit : plural noun for the items
    done : number of items that an earlier run has done
    delay : seconds until the bar shows, by default DELAY; work that ends before leaves no line
    shown : whether to show it; by default if stderr is a terminal
    """
    line, count, began, ended = Line(), done, time.monotonic(), Event()
    delay = DELAY if delay is None else delay

    def add(more: int) -> None:
        nonlocal count
        count += more

    def draw() -> None:
        line.show(picture(count, total, unit, done, time.monotonic() - began))

    def keep_drawing() -> None:
        pause = delay or TICK
        while not ended.wait(pause):
            draw()
            pause = TICK

    if not (line.stream.isatty() if shown is None else shown):
        yield add
        return
    if not delay:
        draw()
    drawing = Thread(target=keep_drawing, daemon=True)
    drawing.start()
    try:
        yield add
    finally:
        ended.set()
        drawing.join()
        line.clear()
    seconds = time.monotonic() - began
    if seconds >= delay:
        noun = unit.removesuffix("s") if count - done == 1 else unit
        with hidden():
            line._write(f"{count - done:,} {noun} in {clock(seconds)}{_rate(count - done, seconds)}\n")


def with_bar(items: Iterable[Any], total: int | None, unit: str = "texts", **how: Any) -> Iterator[Any]:
    """Yields the items and counts each of them on a `bar`."""
    with bar(total, unit, **how) as add:
        for item in items:
            yield item
            add(1)


def picture(count: int, total: int | None, unit: str, done: int, seconds: float) -> str:
    """Returns the line of a bar: the share that is done, the count, the time, items a second, and the time left."""
    if total is None:
        return f"{count:,} {unit}  {clock(seconds)}{_rate(count - done, seconds)}"
    filled = "#" * (WIDTH * count // max(total, 1))
    rate = (count - done) / seconds if seconds else 0
    left = f"  {clock((total - count) / rate)} left" if rate else ""
    counted = f"{count:,}/{total:,} {unit}"
    return f"[{filled:<{WIDTH}}] {counted}  {clock(seconds)}{_rate(count - done, seconds)}{left}"


def clock(seconds: float) -> str:
    """Formats a time as m:ss or h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


def _rate(count: int, seconds: float) -> str:
    rate = count / seconds if seconds else 0
    return f", {rate:,.{0 if rate >= 10 else 1}f} a second" if rate >= 0.05 else ""
