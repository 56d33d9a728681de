"""A log that clients cannot flood, with a few lines of each kind per period and a count of suppressed lines."""

from __future__ import annotations

import logging
import time

LINES = 5  # maximum number of lines of one kind in a PERIOD
PERIOD = 60.0  # length of a period in seconds
KINDS = 100  # maximum number of kinds of lines to remember


class Sparing(logging.Filter):
    """Passes the first lines of each kind in a period. The next line that gets through states how many were suppressed.

    Warnings and errors with the same message template are of the same kind, such as uvicorn's for malformed requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.periods: dict[str, tuple[float, int]] = {}  # kind -> start of the period, lines since then

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:  # passes access logs, which the operator has requested
            return True
        kind, now = record.msg, time.monotonic()
        start, count = self.periods.pop(kind, (now, 0))
        suppressed = max(0, count - LINES)
        if now - start >= PERIOD:
            start, count = now, 0
            if suppressed:
                record.msg, record.args = f"{record.getMessage()} ({suppressed} more lines like this were left out)", ()
        self.periods[kind] = start, count + 1
        if len(self.periods) > KINDS:
            del self.periods[next(iter(self.periods))]
        return count < LINES


def spare(*names: str) -> None:
    """Adds this filter to the loggers with these names."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(each, Sparing) for each in logger.filters):
            logger.addFilter(Sparing())
