"""`NpformerError`, for mistakes in a file, a setting or an argument that users can correct, and `NpformerWarning`.

A message says where the error is, what was expected, what was found, and what to do. It may contain names and values
from untrusted files, so its length is limited and control characters are escaped.
"""

import re
import sys
import warnings

_LINES, _WIDTH = 100, 1000  # maximum lines, and characters of a line, because names from files may be long


#: Characters that move a terminal's cursor, change its state or reorder nearby text, except tab and line feed.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Escapes control characters, such as `\\u001b`, so that a name from an untrusted file cannot control a terminal.

    The escapes are the same as in JSON, so a JSON parser restores the characters.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def bounded(message: str) -> str:
    """Escapes a message, shortens long lines in the middle, and drops the last lines of a long message."""
    message = escaped(message)
    if len(message) <= _WIDTH:
        return message
    lines = message.split("\n", _LINES)
    if len(lines) > _LINES:
        lines[_LINES:] = ["..."]
    return "\n".join(each if len(each) <= _WIDTH else f"{each[:700]} ... {each[-290:]}" for each in lines)


class NpformerError(ValueError):
    """A ValueError for wrong input, such as a corrupt checkpoint, an unsupported setting or an invalid argument.

    Parameters
    ----------
    message : str

    Examples
    --------
    >>> npformer.linear(np.ones(2), np.ones((3, 4)))
    Traceback (most recent call last):
    npformer.common.errors.NpformerError: linear: got x (2,), weight (3, 4): ...
    """

    def __init__(self, message: object) -> None:
        super().__init__(bounded(str(message)))


class NpformerWarning(UserWarning):
    """A UserWarning from npformer, for example about a truncated text or an ignored tensor.

    Parameters
    ----------
    message : str

    Examples
    --------
    >>> import warnings
    >>> classify = npformer.pipeline("text-classification", max_length=4)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", npformer.NpformerWarning)  # or "error", which raises it
    ...     classify("I love ice cream")["label"]
    'POSITIVE'
    """

    def __init__(self, message: object) -> None:
        super().__init__(bounded(str(message)))


def warn(message: str) -> None:
    """Issues a warning that points at the caller of npformer. Skips decorators of the standard library."""
    inside = ("npformer.", "functools", "contextlib")
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(NpformerWarning(message), stacklevel=level)
