"""What one forward's taps said, kept for its backward pass: `Recording` listens, `Stages` reads, an `Edit` changes.

So training runs the one forward. Whatever changes a stage (dropout, a study's edit) tells the recordings behind it how
a gradient passes the change; on the way back `Stages.through_edit` takes the gradient through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile

import numpy as np

from npformer.errors import NpformerError
from npformer.tap import listeners

UNREAD = frozenset({"scores", "context", "query", "key", "value"})  # stages that no backward pass reads

Pullback = Callable[[np.ndarray], np.ndarray]  # from the gradient after a change to the gradient before it
Changes = Mapping[tuple[str, int], list[tuple[np.ndarray, Pullback]]]  # of a stage's n-th firing: before, pullback


class UnknownDerivative(NpformerError):
    """A gradient met a change whose derivative is not known."""


class Edit(ABC):
    """A listener that changes stages and knows the derivative of what it does. Open it before a `Recording`.

    Several may change one stage, one after another; the gradient passes them in reverse.
    """

    @abstractmethod
    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        """What the forward goes on with in place of `array`, and its pullback; None: nothing is changed."""

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        changed = self.change(name, array)
        if changed is None:
            return array
        result, pullback = changed
        for listener in dropwhile(lambda each: each is not self, listeners()):
            if isinstance(listener, Recording):
                listener.note(name, array, pullback)
        return result


@dataclass(frozen=True)
class Stages:
    """The stages below a scope. Of one that fires once a run of equal lengths, `firing` is the run that is read."""

    arrays: Mapping[str, list[np.ndarray]]
    changes: Changes
    gradients: dict[str, list[np.ndarray]] | None = None
    scope: str = ""
    firing: int = 0

    def within(self, scope: str) -> Stages:
        return replace(self, scope=f"{self.scope}{scope}.")

    def run(self, firing: int) -> Stages:
        return replace(self, firing=firing)

    def __getitem__(self, name: str) -> np.ndarray:
        """A stage as the forward went on with it."""
        return self.arrays[self.scope + name][self.firing]

    def made(self, name: str) -> np.ndarray:
        """A stage as the forward had made it, before any edit."""
        changes = self.changes.get((self.scope + name, self.firing))
        return changes[0][0] if changes else self[name]

    def through_edit(self, name: str, grad: np.ndarray) -> np.ndarray:
        """Maps the gradient of a stage after its edits to the one before them; backward passes call it at every tap."""
        if self.gradients is not None:
            self.gradients.setdefault(self.scope + name, []).append(grad.copy())
        for _, pullback in reversed(self.changes.get((self.scope + name, self.firing), ())):
            grad = pullback(grad)
        return grad


@dataclass(eq=False)
class Recording:
    """A listener that keeps every firing of the stages that backward passes read, and the changes before it.

    keep_gradients: have the backward pass leave every stage's gradient in `gradients`, in the order it comes to them.
    """

    keep_gradients: bool = False
    arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    changes: dict[tuple[str, int], list[tuple[np.ndarray, Pullback]]] = field(default_factory=dict)
    _fired: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        self._fired[name] += 1
        if name.rpartition(".")[2] not in UNREAD:
            self.arrays.setdefault(name, []).append(array)
        return array

    def note(self, name: str, before: np.ndarray, pullback: Pullback) -> None:
        """Keep a change of the stage that is about to be heard."""
        self.changes.setdefault((name, self._fired[name]), []).append((before, pullback))

    @property
    def stages(self) -> Stages:
        return Stages(self.arrays, self.changes, self.gradients if self.keep_gradients else None)
