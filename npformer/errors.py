"""The one exception type for what a user can correct: a file, a setting, an argument. And the one function that warns.

A message says where the problem is, what was expected, what came, and what to do. Names and values in it may come from
a file that someone else wrote, so its length is bounded here, whatever they are.
"""

import re
import sys
import warnings

_LINES, _WIDTH = 100, 1000  # of the longest message; no message of ours without a foreign name in it comes near


#: Characters that move a terminal's cursor, change its state or reorder what stands around them; not tab and line feed.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Writes control characters as `\\u001b`, so that a name from a foreign file cannot steer a terminal.

    JSON reads the same characters from it.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def bounded(message: str) -> str:
    """Escapes and shortens a message: long lines in the middle (both ends say something), too many lines at the end."""
    message = escaped(message)
    if len(message) <= _WIDTH:
        return message
    lines = message.split("\n", _LINES)
    if len(lines) > _LINES:
        lines[_LINES:] = ["..."]
    return "\n".join(each if len(each) <= _WIDTH else f"{each[:700]} ... {each[-290:]}" for each in lines)


class NpformerError(ValueError):
    """An input is wrong: a corrupt checkpoint, an unsupported setting, a bad argument. A ValueError.

    Parameters
    ----------
    message : str

    Examples
    --------
    >>> npformer.linear(np.ones(2), np.ones((3, 4)))
    Traceback (most recent call last):
    npformer.errors.NpformerError: linear: weight must be (in, out) with x (..., in), got (3, 4) and (2,)
    """

    def __init__(self, message: object) -> None:
        super().__init__(bounded(str(message)))


def warn(message: str) -> None:
    """Warns, with the first line outside npformer as the place."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("npformer."):
        frame, level = frame.f_back, level + 1
    warnings.warn(bounded(message), stacklevel=level)
