"""Mistakes in how attention reads distances: their sign, and the buckets of those that are far."""

from __future__ import annotations

import numpy as np

from npformer.golden.port import Mistake, Port, Ways

SCORES = "*.attention.distance_scores"


def reversed_distances(port: Port) -> Ways:
    """Looks up key - query in place of query - key: the table from its end, around the row of distance 0."""
    table = port.weights.get("distances.weight")
    if table is not None and port.config.distance_forms:
        yield "", port.weighing({"distances.weight": np.roll(table[::-1], 1, axis=0)}).with_config(SCORES)


def every_distance_its_own(port: Port) -> Ways:
    """Takes the distance itself for its bucket."""
    if port.config.max_distance and port.config.distance_forms:
        yield "", port.with_config(SCORES, max_distance=0)


MISTAKES = (
    Mistake("distances reversed", "a distance is the query's place less the key's", reversed_distances),
    Mistake(
        "distances without buckets",
        "distances beyond half of position_buckets share rows of the table, by their logarithm",
        every_distance_its_own,
    ),
)
