"""The process of the command: exit codes, Ctrl-C, and closed or full standard streams.

No large module is imported here, not even `typing`, because before `set_up` has run, Ctrl-C causes a traceback.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

BAD_INPUT, USAGE, DIVERGES = 1, 2, 3  # exit codes; 0 is success
SIGNALLED = 128  # if a signal ends a program, its exit code in a shell is this plus the signal's number
INTERRUPTED = SIGNALLED + signal.SIGINT

_interrupted = False  # whether Ctrl-C was pressed, which may cause other errors later
_code: int | None = None  # the exit code of a command that has ended


def set_up() -> None:
    """Makes Ctrl-C end the process silently, and opens closed standard streams."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in background jobs
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook, sys.excepthook = _unraisable, _uncaught
    if not atexit._ncallbacks():  # hooks that were registered earlier would run after `_end`, which exits
        atexit.register(_end)
    _open_streams()


def ended(code: int) -> int:
    """Stores and returns the exit code of a command, so that `_end` can end the process with it."""
    global _code
    _code = code
    return code


def _end() -> None:
    """Ends the process without freeing memory piece by piece, which takes 10 ms or more for a model."""
    if _code is not None:
        from contextlib import suppress

        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # raised if the stream is closed or the disk is full
                stream.flush()
        os._exit(_code)


class Escaping:
    """A text stream that escapes control characters, because labels, tokens and names come from untrusted files."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        from npformer.common.errors import escaped
        from npformer.common.progress import shown

        if self.stream.isatty():
            shown()
        self.stream.write(escaped(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def interruptible(work: Callable[[], int]) -> int:
    """Runs `work`, in which Ctrl-C raises KeyboardInterrupt, so that no half-written file is left."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        return work()
    try:
        signal.signal(signal.SIGINT, _interrupt)
        return work()
    except Exception:
        if _interrupted:  # an extension module that is being imported turns KeyboardInterrupt into a different error
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, _leave)


def complain(message: object) -> None:
    """Writes a message to stderr, or does nothing if stderr cannot be written to."""
    to_stderr(f"npformer: {message}")


def to_stderr(text: str) -> None:
    from npformer.common.errors import escaped
    from npformer.common.progress import hidden

    try:
        with hidden():
            print(escaped(text), file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirects a stream that cannot be written to, so that its buffered text is discarded."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _interrupt(*_: Any) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def _leave(*_: Any) -> None:
    os._exit(INTERRUPTED)


def _unraisable(error: Any) -> None:
    """Ends the process if Ctrl-C interrupted a destructor, because Python would only print the exception."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        _leave()
    if not _interrupted:
        sys.__unraisablehook__(error)


def _uncaught(kind: Any, error: Any, traceback: Any) -> None:
    """Prints an uncaught exception, unless Ctrl-C caused it. Compiled parts of NumPy raise other errors on Ctrl-C."""
    if not (_interrupted or issubclass(kind, KeyboardInterrupt)):
        sys.__excepthook__(kind, error, traceback)


def _open_streams() -> None:
    """Opens /dev/null for each standard stream closed by cron or `>&-`, so that no other file gets the descriptor.

    /dev/null is opened for writing as stdin and for reading as stdout, so that reading texts and writing answers still
    fails. Messages to stderr are lost.
    """
    streams = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for number, (name, mode, access) in enumerate(streams):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
