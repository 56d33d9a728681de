"""Progress on stderr: a line that is updated while a command runs, and a summary line after a long run.

`bar` counts finished items, and `status` shows the current step. Other messages are written inside `hidden()`, which
puts them on separate lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event, RLock, Thread
from typing import Any, TextIO

DELAY = 2.0  # seconds before a bar appears
TICK = 0.25  # seconds between updates
WIDTH = 20  # characters of the bar

_lock = RLock()
_written: list[Line] = []  # the line currently on the terminal, if any
_waiting: list[Event] = []  # one event per running command, set once the command has printed something
_before_each: ContextVar[Callable[[], None]] = ContextVar("before_each", default=lambda: None)


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
    """Prints a note, for example the names of written files, to stderr if stderr is a terminal."""
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
) -> Iterator[Count]:
    """Yields a `Count`, to be called with the number of newly finished items.

    A bar is shown until the block ends, and replaced by a summary line at the end.

    Parameters
    ----------
    total : total number of items, None if unknown
    unit : plural noun for the items
    done : number of items finished by an earlier run
    delay : seconds before the bar appears, by default DELAY; shorter work prints nothing
    shown : bool, show the bar; by default only if stderr is a terminal
    """
    line, count, ended = Line(), Count(done), Event()
    delay = DELAY if delay is None else delay

    def draw() -> None:
        line.show(picture(int(count.work + 1e-6), total, unit, done, count.seconds(), count.at, count.pause))

    def keep_drawing() -> None:
        pause = delay or TICK
        while not ended.wait(pause):
            draw()
            pause = TICK

    if not (line.stream.isatty() if shown is None else shown):
        yield count
        return
    if not delay:
        draw()
    drawing = Thread(target=keep_drawing, daemon=True)
    drawing.start()
    try:
        yield count
    finally:
        ended.set()
        drawing.join()
        line.clear()
    seconds, more = count.seconds(), count.finished - done
    if seconds >= delay:
        noun = unit.removesuffix("s") if more == 1 else unit
        with hidden():
            line._write(f"{more:,} {noun} in {clock(seconds)}{_rate(more, seconds)}\n")


class Count:
    """The count of a bar: the finished items, and the work done for later items, measured in items.

    work : the sum of both, which never decreases
    at : seconds from the beginning to the last change of `work`
    pause : seconds between the last two changes
    """

    def __init__(self, done: int) -> None:
        self.finished, self.begun, self.work = done, 0.0, float(done)
        self.at, self.pause = 0.0, 0.0
        self._began, self._lock = time.monotonic(), RLock()

    def seconds(self) -> float:
        """Returns the seconds since the beginning."""
        return time.monotonic() - self._began

    def __call__(self, more: int) -> None:
        """Counts finished items."""
        with self._lock:
            self.finished += more
            self.begun = max(0.0, self.begun - more)
            self._changed()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts the work that `part`s report in the block as work for the items that finish next."""
        reporting = _report.set(self._ahead)
        try:
            yield
        finally:
            _report.reset(reporting)

    def _ahead(self, items: float) -> None:
        with self._lock:
            self.begun += items
            self._changed()

    def _changed(self) -> None:
        if self.finished + self.begun > self.work:
            self.work, now = self.finished + self.begun, self.seconds()
            self.at, self.pause = now, now - self.at


#: The function that counts finished units of the surrounding work; None without a bar.
_report: ContextVar[Callable[[float], object] | None] = ContextVar("report", default=None)


def reporter() -> Callable[[float], object]:
    """Returns a function, for use in any thread, that counts finished units of the caller's `part`."""
    return _report.get() or (lambda units: None)


@contextmanager
def part(size: float, units: float) -> Iterator[None]:
    """Counts the work in the block as `size` units of the surrounding work. The block reports progress in `units`.

    The units of a bar are items. At the end of the block, all its work counts as finished.
    """
    around, reported, lock = _report.get(), 0.0, RLock()
    if around is None:
        yield
        return

    def report(more: float) -> None:
        nonlocal reported
        with lock:
            more = min(more, units - reported)
            reported += more
            around(size * more / units)

    reporting = _report.set(report)
    try:
        yield
    finally:
        _report.reset(reporting)
    report(units)


def steps_of(texts: int, most: int) -> Callable[[int], object]:
    """Returns a function to call at each step with the number of texts still running, for at most `most` steps.

    The total is `texts` * `most` units. A text that has ended counts as if it had run in all steps.
    """
    report, before, left = reporter(), texts, most

    def step(running: int) -> None:
        nonlocal before, left
        report(running + (before - running) * left)
        before, left = running, left - 1

    return step


def with_bar(items: Iterable[Any], total: int | None, unit: str = "texts", **how: Any) -> Iterator[Any]:
    """Yields the items and counts them on a `bar`."""
    with bar(total, unit, **how) as count:
        yield from counted(items, count)


@contextmanager
def before_each(check: Callable[[], None]) -> Iterator[None]:
    """Calls `check` before each item that a bar counts in the block. `check` may raise an error to end the work."""
    token = _before_each.set(check)
    try:
        yield
    finally:
        _before_each.reset(token)


def counted(items: Iterable[Any], count: Count) -> Iterator[Any]:
    """Yields the items, and counts each item and the work that was done to produce it."""
    iterator, end, check = iter(items), object(), _before_each.get()
    while True:
        check()
        with count.working():  # excludes the caller's work on an item, which may also run a model
            item = next(iterator, end)
        if item is end:
            return
        yield item
        count(1)


def picture(
    count: int, total: int | None, unit: str, done: int, seconds: float, at: float | None = None, pause: float = 0.0
) -> str:
    """The line of a bar, with progress, count, elapsed time, items per second, and time left.

    at : seconds at which the count was reached, by default now. Until the count changes again, the time left decreases
        by at most the `pause` between two changes. It never increases.
    """
    at = seconds if at is None else at
    rate = (count - done) / at if at else 0
    if total is None:
        return f"{count:,} {unit}  {clock(seconds)}{_rate(count - done, at)}"
    filled = "#" * (WIDTH * count // max(total, 1))
    left = (total - count) / rate - min(seconds - at, pause) if rate else 0
    shown = f"  {clock(max(left, 0))} left" if rate else ""
    return f"[{filled:<{WIDTH}}] {count:,}/{total:,} {unit}  {clock(seconds)}{_rate(count - done, at)}{shown}"


def clock(seconds: float) -> str:
    """Formats a time as m:ss or h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


def _rate(count: float, seconds: float) -> str:
    rate = count / seconds if seconds else 0
    return f", {rate:,.{0 if rate >= 10 else 1}f} a second" if rate >= 0.05 else ""
