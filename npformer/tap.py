"""Looking inside: `tap` names an intermediate array, `scope` prefixes the name, `listen` hears and may replace it.

A stage costs one context-variable look-up while nobody listens, and nothing is kept alive. What listens is built
on this: traces in `interpret/trace.py`, edits in `interpret/edit.py`, golden files in `golden/`.
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
    """Return `array`, unless something listens: then what the listeners make of the stage `name`.

    The full name is the enclosing scopes' and this one, joined by dots: `layers.0.attention.scores`.
    """
    listeners = _listeners.get()
    if not listeners:
        return array
    path = _path.get() + name
    for listener in listeners:
        array = listener(path, array)
    return array


def scope(name: str) -> AbstractContextManager[None]:
    """Prefix the names of the stages inside: `with scope("layers.0"): ...`."""
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
    """Call `listener(name, array)` at every stage inside, and let what it returns stand in for the array.

    Listeners hear a stage in the order they were opened, `first` before those already listening: an edit goes
    first, so that a trace records what the forward really used, whichever of the two was opened first.
    """
    others = _listeners.get()
    token = _listeners.set((listener, *others) if first else (*others, listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def listeners() -> tuple[Listener, ...]:
    """Who listens, in the order they hear a stage."""
    return _listeners.get()


def listening() -> bool:
    """Whether something listens: every stage must then be computed, whole, in order, on this thread."""
    return bool(_listeners.get())


def spare(array: np.ndarray) -> np.ndarray | None:
    """`array` as room for the next result, or None when a listener may have kept it.

    For arrays a function has made itself: `softmax(scores, out=spare(scores))` saves an allocation.
    """
    return None if _listeners.get() else array
