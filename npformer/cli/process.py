"""The process of the command: its exit codes, what Ctrl-C does, and standard streams that are closed, full or gone.

Nothing large is imported here, `typing` included: until `set_up` has run, Ctrl-C ends in a traceback.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

BAD_INPUT, USAGE, DIVERGES = 1, 2, 3  # exit codes; 0 is success
SIGNALLED = 128  # and the signal's number: what a shell reports of a program that the signal has ended
INTERRUPTED = SIGNALLED + signal.SIGINT


def set_up() -> None:
    """Let Ctrl-C end the process without a word, and open the standard streams that are closed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in a background job, which ignores it
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = _unraisable
    _open_streams()


def interruptible(work: Callable[[], int]) -> int:
    """What `work` returns. In it Ctrl-C raises KeyboardInterrupt, so that a command leaves its files whole."""
    before = signal.getsignal(signal.SIGINT)
    if before is not _leave:
        return work()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return work()
    finally:
        signal.signal(signal.SIGINT, before)


def complain(message: object) -> None:
    """A line on stderr, as every message of the command; lost where stderr cannot be written."""
    to_stderr(f"npformer: {message}")


def to_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds nowhere, as it cannot be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _leave(*_: Any) -> None:
    os._exit(INTERRUPTED)


def _unraisable(error: Any) -> None:
    """An interrupt that fell into a destructor would be printed, and lost."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(error)


def _open_streams() -> None:
    """Give a stream that the process was started without (by cron, by `>&-`) its number, before a file takes it.

    Reading it, or writing answers to it, fails as with a closed one; messages go nowhere.
    """
    streams = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for number, (name, mode, access) in enumerate(streams):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
