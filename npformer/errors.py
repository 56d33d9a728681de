"""The one exception type for what a user can put right: a file, a setting, an argument. And the one way to warn.

A message says where, what was expected, what came, and what to do.
"""

import sys
import warnings


class NpformerError(ValueError):
    """Bad input: a corrupt checkpoint, an unsupported setting, a wrong argument."""


def warn(message: str) -> None:
    """A warning that points at the line outside of npformer that led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("npformer."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
