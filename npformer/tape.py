"""What one forward's taps said, kept for its backward pass: `Recording` listens, `Stages` reads.

So training runs the one forward. An edit of stages (dropout) opens before the recording; on the way back
`Stages.through_edit` takes a gradient from what the forward went on with to what it had made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

UNREAD = frozenset({"scores", "context", "query", "key", "value"})  # stages that no backward pass reads


class Edit(Protocol):
    """An edit that a gradient can pass: a listener that knows what it did at a stage's n-th firing."""

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray: ...

    def made(self, name: str, firing: int) -> np.ndarray | None:
        """What the forward had made there; None where nothing was changed."""

    def backward(self, name: str, firing: int, grad: np.ndarray) -> np.ndarray:
        """The gradient of what the forward had made, from that of what it went on with."""


@dataclass(frozen=True)
class Stages:
    """The stages below a scope. Of one that fires once a run of equal lengths, `firing` is the run that is read."""

    arrays: Mapping[str, list[np.ndarray]]
    edit: Edit | None = None
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
        """A stage as the forward had made it, before an edit."""
        made = self.edit.made(self.scope + name, self.firing) if self.edit is not None else None
        return self[name] if made is None else made

    def through_edit(self, name: str, grad: np.ndarray) -> np.ndarray:
        """The gradient of a stage before its edit, from the one after; backward functions call it at every tap."""
        if self.gradients is not None:
            self.gradients.setdefault(self.scope + name, []).append(grad.copy())
        return grad if self.edit is None else self.edit.backward(self.scope + name, self.firing, grad)


@dataclass
class Recording:
    """A listener that keeps every firing of the stages that backward passes read.

    keep_gradients: have the backward pass leave every stage's gradient in `gradients`, in the order it comes to them.
    """

    edit: Edit | None = None
    keep_gradients: bool = False
    arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        if self.edit is not None:
            array = self.edit(name, array)
        if name.rpartition(".")[2] not in UNREAD:
            self.arrays.setdefault(name, []).append(array)
        return array

    @property
    def stages(self) -> Stages:
        return Stages(self.arrays, self.edit, self.gradients if self.keep_gradients else None)
