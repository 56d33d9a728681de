"""Weights that are rounded on first use, for the ports that `diagnose.py` tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np


class Rounded(Mapping[str, np.ndarray]):
    """Weights of which some are rounded on first use, because a stage needs only a few of a model's weights."""

    def __init__(
        self, weights: Mapping[str, np.ndarray], rounded: Callable[[np.ndarray], np.ndarray], names: frozenset[str]
    ) -> None:
        self.weights, self._rounded, self._names = weights, rounded, names
        self._made: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            return self.weights[name]
        if name not in self._made:
            self._made[name] = self._rounded(self.weights[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def unrounded(weights: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Returns the unrounded weight."""
    while isinstance(weights, Rounded):
        weights = weights.weights
    return weights[name]
