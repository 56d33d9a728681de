"""`Pass`: recurring work, such as a pass of a model, with the information that `Replays` needs to repeat the work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
Work = Callable[[Mapping[str, Any], Sequence[np.ndarray], Sequence[Any]], Arrays]


class InPlace:
    """Large arrays that differ between passes, and that a pass reads without a copy.

    Parameters
    ----------
    arrays : contiguous arrays that own their memory
    """

    def __init__(self, *arrays: np.ndarray) -> None:
        assert all(each.base is None and each.flags.c_contiguous for each in arrays)
        self.arrays = arrays
        self.bound: tuple[Any, Any] | None = None  # the last program that ran, and its calls, bound to `arrays`


class Pass(NamedTuple):
    """The call work(weights, inputs, caches).

    Parameters
    ----------
    shape : everything on which the operations depend, except the weights, the values of the inputs, and the settings of
        the thread
    work : returns arrays by name
    weights : nested dicts and lists of arrays
    inputs : small arrays whose values differ between passes
    others : function that returns inputs for the test of a program, given the inputs of an earlier pass; at least the
        first array must have different values
    caches : objects that differ between passes, with a method `attend` that returns an array; or an `InPlace`, whose
        arrays are passed to `work`
    """

    shape: Hashable
    work: Work
    weights: Mapping[str, Any]
    inputs: Sequence[np.ndarray]
    others: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
    caches: Sequence[Any] | InPlace = ()

    def __call__(self, inputs: Sequence[np.ndarray] | None = None) -> Arrays:
        """Runs the work in the engine, by default on the inputs of this pass."""
        caches = self.caches.arrays if isinstance(self.caches, InPlace) else self.caches
        return self.work(self.weights, self.inputs if inputs is None else inputs, caches)
