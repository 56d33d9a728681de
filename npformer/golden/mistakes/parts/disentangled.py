"""Mistakes that ports make in disentangled attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.engine.mechanisms.disentangled import Disentangled
from npformer.golden.mistake import Mistake, Ways


def _reversed_distances(port: Any) -> Ways:
    """Looks up the distance key - query, not query - key, by reversing the table around the row of distance 0."""
    if any(each.forms for each in port.config.mechanisms if isinstance(each, Disentangled)):
        reverse = np.roll(port.weights["distances.weight"][::-1], 1, axis=0)
        yield "", port.weighing({"distances.weight": reverse}).with_config("*.attention.distance_scores")


def _without_buckets(port: Any) -> Ways:
    """Uses the distance itself as its bucket."""
    if any(each.forms and each.max_distance for each in port.config.mechanisms if isinstance(each, Disentangled)):
        yield "", port.with_mechanism(Disentangled, "*.attention.distance_scores", max_distance=0)


MISTAKES = (
    Mistake("distances reversed", "the distance is the query's place minus the key's place", _reversed_distances),
    Mistake(
        "distances without buckets",
        "distances greater than position_buckets / 2 share rows of the table by their logarithm",
        _without_buckets,
    ),
)
