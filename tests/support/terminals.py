"""Runs a command on a pseudo-terminal that is read continuously, so its buffer is never full."""

from __future__ import annotations

import os
import subprocess
import termios
from threading import Thread
from typing import Any


def run_on_terminal(command: list[str], columns: int, **options: Any) -> tuple[int, bytes, bytes]:
    """Returns the exit code of a command, its output, and its stderr, which is a terminal."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    shown: list[bytes] = []

    def read() -> None:
        try:
            while some := os.read(ours, 65536):
                shown.append(some)
        except OSError:  # raised on Linux once the other end is closed
            pass

    reader = Thread(target=read)
    reader.start()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=300, check=False, **options)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return done.returncode, done.stdout, b"".join(shown)
