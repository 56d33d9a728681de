"""Named stages: `tap` names an array, `scope` prefixes names, and `listen` observes arrays and may replace them.

Without a listener, a tap only looks up a context variable, and keeps no array alive. Traces
(`interpret/traces.py`), edits (`interpret/edits.py`) and golden files (`golden/`) are listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import numpy as np

Listener = Callable[[str, np.ndarray], np.ndarray]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())
_path: ContextVar[str] = ContextVar("path", default="")
_UNNAMED = nullcontext()


def tap(name: str, array: np.ndarray) -> np.ndarray:
    """Marks an array as a named stage. Returns the array, or the array with which a listener replaced it.

    The full name joins the enclosing scopes and this name with dots: `layers.0.attention.scores`.

    Parameters
    ----------
    name : str
    array : array

    Returns
    -------
    array, unchanged if there is no listener

    Examples
    --------
    >>> with npformer.trace() as stages, npformer.scope("layers.0"):
    ...     x = npformer.tap("double", 2 * np.ones(2))
    >>> stages["layers.0.double"]
    array([2., 2.])
    """
    listeners = _listeners.get()
    if not listeners:
        return array
    path = _path.get() + name
    for listener in listeners:
        array = listener(path, array)
    return array


def scope(name: str) -> AbstractContextManager[None]:
    """Adds a prefix to the names of all stages in the `with` block.

    Parameters
    ----------
    name : str

    Returns
    -------
    context manager

    Examples
    --------
    >>> with npformer.edit({"layers.*.x": lambda x: x + 1}), npformer.scope("layers.0"):
    ...     npformer.tap("x", np.zeros(2))
    array([1., 1.])
    """
    return _scope(name) if _listeners.get() else _UNNAMED


@contextmanager
def _scope(name: str) -> Iterator[None]:
    token = _path.set(f"{_path.get()}{name}.")
    try:
        yield
    finally:
        _path.reset(token)


@contextmanager
def listen(listener: Listener, first: bool = False) -> Iterator[None]:
    """Calls `listener(name, array)` at every stage in the `with` block. The returned array replaces the stage.

    Listeners are called in the order in which they were opened, except that a listener opened with `first` comes before
    all others. Edits use `first`, so that a trace records the edited stage even if the trace was opened earlier.
    """
    others = _listeners.get()
    token = _listeners.set((listener, *others) if first else (*others, listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def listeners() -> tuple[Listener, ...]:
    """Returns the open listeners, in calling order."""
    return _listeners.get()


def listening() -> bool:
    """Returns whether a listener is open.

    If so, each stage must be computed for all texts at once, in order, on the calling thread.
    """
    return bool(_listeners.get())


def spare(array: np.ndarray) -> np.ndarray | None:
    """Returns `array` if its memory may be reused for the next result, or None if a listener may have kept it.

    `softmax(scores, out=spare(scores))` saves an allocation. The caller must have created the array.
    """
    return None if _listeners.get() else array
