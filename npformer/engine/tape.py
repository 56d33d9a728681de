"""The stages of a forward pass, recorded for its backward pass. `Recording` stores the stages, and `Stages` reads them.

Training thus differentiates the same forward pass that inference runs. An `Edit` changes a stage, for dropout or an
ablation, and adds a pullback to the recording. The pullback maps the gradient after the change to the gradient before
the change. A backward pass applies the pullbacks in `Stages.through_edit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.taps import listeners

Pullback = Callable[[np.ndarray], np.ndarray]  # maps the gradient after a change to the gradient before it
Changes = Mapping[tuple[str, int], list[tuple[np.ndarray, Pullback]]]  # (old array, pullback)s by (stage, firing)


class UnknownDerivative(NpformerError):
    """Raised for a gradient through a change whose derivative is unknown."""


@dataclass(frozen=True)
class Differentiable:
    """A function with a known derivative: `backward(array, grad)` returns the gradient of `array`.

    Edits and metrics can be differentiable. A metric takes the dict of a text's outputs as `array`, and its `backward`
    returns a dict.

    >>> squared = Differentiable(np.square, lambda array, grad: 2 * array * grad)
    >>> squared(np.array([2.0, 3.0]))
    array([4., 9.])
    """

    function: Callable[[Any], Any]
    backward: Callable[[Any, Any], Any]

    def __call__(self, array: Any) -> Any:
        return self.function(array)


class Edit(ABC):
    """A listener that changes stages and knows the derivative of each change. Open it before a `Recording`.

    Several edits of one stage apply in the order in which they were opened. Their pullbacks apply in reverse order.
    """

    @abstractmethod
    def change(self, name: str, array: np.ndarray) -> tuple[np.ndarray, Pullback] | None:
        """Returns the array that replaces `array`, and its pullback, or None to leave the stage unchanged."""

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
    """The recorded stages below a scope.

    Attention is computed once for each group of adjacent texts of equal length. `firing` is the index of a group.
    """

    arrays: Mapping[str, list[np.ndarray]]
    changes: Changes
    gradients: dict[str, list[np.ndarray]] | None = None
    scope: str = ""
    firing: int = 0

    def within(self, scope: str) -> Stages:
        """The stages below a scope that is inside this scope."""
        return replace(self, scope=f"{self.scope}{scope}.")

    def run(self, firing: int) -> Stages:
        """The stages of one group of adjacent texts of equal length."""
        return replace(self, firing=firing)

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a stage after all edits, from which later stages were computed."""
        return self.arrays[self.scope + name][self.firing]

    def made(self, name: str) -> np.ndarray:
        """The array that the forward pass computed, before any edits."""
        changes = self.changes.get((self.scope + name, self.firing))
        return changes[0][0] if changes else self[name]

    def through_edit(self, name: str, grad: np.ndarray) -> np.ndarray:
        """Maps the gradient of a stage after its edits to the gradient before its edits.

        Backward functions call this method for every stage.
        """
        if self.gradients is not None:
            self.gradients.setdefault(self.scope + name, []).append(grad.copy())
        for _, pullback in reversed(self.changes.get((self.scope + name, self.firing), ())):
            grad = pullback(grad)
        return grad


@dataclass(eq=False)
class Recording:
    """A listener that records stages, and the changes made by edits, for backward passes.

    unread: stages that are not recorded, because no backward pass reads them (`transformer.unread`). keep_gradients:
    the backward pass stores the gradient of every stage in `gradients`, in the order of the pass.
    """

    unread: Container[str] = frozenset()
    keep_gradients: bool = False
    arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    changes: dict[tuple[str, int], list[tuple[np.ndarray, Pullback]]] = field(default_factory=dict)
    _fired: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        self._fired[name] += 1
        if name not in self.unread:
            self.arrays.setdefault(name, []).append(array)
        return array

    def note(self, name: str, before: np.ndarray, pullback: Pullback) -> None:
        """Records an edit of the stage that fires next."""
        self.changes.setdefault((name, self._fired[name]), []).append((before, pullback))

    @property
    def stages(self) -> Stages:
        return Stages(self.arrays, self.changes, self.gradients if self.keep_gradients else None)
