"""The one exception type for what a user can correct: a file, a setting, an argument. And the one function that warns.

A message says where the problem is, what was expected, what came, and what to do.
"""

import sys
import warnings


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


def warn(message: str) -> None:
    """Warns, with the first line outside npformer as the place."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("npformer."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
