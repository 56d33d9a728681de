"""Finds two mistakes between two of a port's stages, where neither alone gives the port's values.

One of the two explains a part of the error, and the other explains the rest if the first one is in the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isclose
from typing import NamedTuple

from npformer.golden.diagnosis import Fit
from npformer.golden.port import Port

FIRST = 3  # number of mistakes with different values that are tried as the first of two
LEAST = 0.1  # the share of the error that the first mistake must explain
SECONDS = 5.0  # after this many seconds, no further first mistake is tried
SAME = 1e-6  # two mistakes give the same values if the shares that they explain differ by at most this fraction

Causes = list[tuple[Fit, Port]]


class Pair(NamedTuple):
    """Two mistakes: the first with its port, and the causes that explain the rest in that port, best first."""

    first: Fit
    port: Port
    second: Causes

    @property
    def names(self) -> frozenset[str]:
        return frozenset((self.first.mistake.name, self.second[0][0].mistake.name))


def two_mistakes(parts: Causes, second: Callable[[Port], Causes]) -> list[Pair]:
    """Returns the pairs of mistakes that give the port's values, best first, each once.

    parts: mistakes that explain a part of the error. second: returns the causes that explain the rest in a port
    """
    found, began = list[Pair](), time.monotonic()
    for fit, port in _distinct(parts):
        if time.monotonic() - began > SECONDS:
            break
        if causes := second(port):
            pair = Pair(fit, port, causes)
            found += [pair] if all(pair.names != other.names for other in found) else []
    return found


def _distinct(parts: Causes) -> Sequence[tuple[Fit, Port]]:
    """Returns the mistakes that explain the largest shares of the error, one for each distinct share."""
    best: Causes = []
    for fit, port in sorted(parts, key=lambda each: -each[0].explained):
        if fit.explained >= LEAST and not any(isclose(fit.explained, a.explained, rel_tol=SAME) for a, _ in best):
            best.append((fit, port))
    return best[:FIRST]
