"""Local attention: a token attends only to nearby tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.mistake import Mistake, Ways
from npformer.mechanisms.distances import at_distances
from npformer.mechanisms.mechanism import Mechanism

MOST = 12  # the greatest shift of the local layers that is tried


@dataclass(frozen=True)
class Window(Mechanism):
    """score_ij = -inf where query i and key j are more than `reach` places apart. Beltagy et al., 2020, section 3.1.

    Parameters
    ----------
    reach : int, the greatest distance of a key before or after the query
    """

    reach: int

    cached = True

    def check(self, config: Any) -> None:
        checks.whole("window.reach", self.reach, 0)

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray | None:
        if not queries.size:
            return None
        farthest = int(max(keys.max() - queries.min(), queries.max() - keys.min()))
        if farthest <= self.reach:
            return None
        near = np.abs(np.arange(-farthest, farthest + 1)) <= self.reach
        return at_distances(near[None], queries, keys)


def _other_windows(port: Any) -> Ways:
    reach = next(each.reach for of_layers in port.config.layer_kinds for each in of_layers if isinstance(each, Window))
    reaches = {
        "a token more": reach + 1,
        "a token less": reach - 1,
        "twice as many tokens": 2 * reach,
        "no window": port.config.max_length,
    }
    for way, other in reaches.items():
        if other > 0:
            yield way, port.with_mechanism(Window, "*.attention.weights", reach=other)
    if port.config.local:
        everywhere = (*port.config.mechanisms, Window(reach))
        yield "in all layers", port.with_config("*.attention.weights", mechanisms=everywhere)


def _other_layers(port: Any) -> Ways:
    """Windows, and other mechanisms of local layers, in other layers."""
    local, count = port.config.local, port.config.n_layers
    if not local:
        return
    changed = ("*.attention.weights", "*.attention.query_rotated", "*.attention.key_rotated")
    patterns = {
        **{f"each {n} later": {(i + n) % count for i in local.layers} for n in range(1, min(count, MOST))},
        "local and global layers exchanged": set(range(count)) - set(local.layers),
    }
    for way, layers in patterns.items():
        if layers and layers != set(local.layers):
            yield way, port.with_config(*changed, local=replace(local, layers=tuple(sorted(layers))))


Window.mistakes = (
    Mistake(
        "another local window",
        "in a local layer a query sees sliding_window keys up to itself, or half as many on either side",
        _other_windows,
    ),
    Mistake(
        "other layers are local",
        "layer_types in config.json, or a number of layers, decides which layers have a window and its rotation",
        _other_layers,
    ),
)
