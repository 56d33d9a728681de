"""Progress on stderr: a line that is updated while a command runs, and a summary line after a long run.

`bar` counts finished items, and `status` shows the current step. Other messages are written inside `hidden()`, so that
they get their own line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, RLock, Thread
from typing import Any, TextIO

DELAY = 2.0  # seconds before a bar appears
TICK = 0.25  # seconds between updates
WIDTH = 20  # characters of the bar

_lock = RLock()
_written: list[Line] = []  # the line currently on the terminal, if any
_waiting: list[Event] = []  # one event per running command; set once it has printed something


class Line:
    """A terminal line that is overwritten repeatedly."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def show(self, text: str) -> None:
        """Overwrites the line with the text, truncated to the width of the terminal."""
        with _lock:
            _written[:] = [self]  # any earlier line is overwritten
            self._write(f"\r{text[: width()]:<{width()}}")

    def clear(self) -> None:
        """Clears the line if it has text."""
        with _lock:
            if self in _written:
                _written.clear()
                self._write(f"\r{'':{width()}}\r")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed or full stream must not stop the work
            self.stream.write(text)
            self.stream.flush()


def width() -> int:
    """The number of characters that fit in a line of the terminal."""
    from shutil import get_terminal_size  # slow to import

    return get_terminal_size().columns - 1


def wrapped(text: str, indent: str = "") -> str:
    """Wraps each line of a text to the width of the terminal. Continuation lines begin with `indent`."""
    from textwrap import wrap

    how: Any = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(part for line in text.split("\n") for part in (wrap(line, width(), **how) or [""]))


def note(text: str) -> None:
    """Prints a note, for example which files a command has written, to stderr if that is a terminal."""
    if sys.stderr.isatty():
        with hidden():
            print(text, file=sys.stderr)


@contextmanager
def waiting(command: str) -> Iterator[None]:
    """Shows the elapsed time of a command on a terminal until the command prints something (see `shown`).

    Other progress lines take precedence.
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
    """Stops `waiting` and clears its line, before the command uses the terminal."""
    with _lock:
        for each in _waiting:
            each.set()
        for line in list(_written):
            line.clear()


@contextmanager
def hidden() -> Iterator[None]:
    """Hides the progress line until the block ends."""
    with _lock:
        for line in list(_written):
            line.clear()
        yield


@contextmanager
def status() -> Iterator[Callable[[str], object] | None]:
    """Yields a function that shows a text on the last line of a terminal, or None if stderr is not a terminal.

    The line is cleared at the end.
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
    """Yields a function that counts finished items. Shows a bar until the block ends, then a summary line.

    Parameters
    ----------
    total : total number of items, None if unknown
    unit : plural noun for the items
    done : number of items finished by an earlier run
    delay : seconds before the bar appears, by default DELAY; shorter work prints nothing
    shown : bool, show the bar; by default if stderr is a terminal
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
    """Yields the items and counts them on a `bar`."""
    with bar(total, unit, **how) as add:
        for item in items:
            yield item
            add(1)


def picture(count: int, total: int | None, unit: str, done: int, seconds: float) -> str:
    """The line of a bar, with progress, count, elapsed time, items per second, and time left."""
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
