"""Local attention: a token attends only to nearby tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.engine.descriptions.mistake import Mistake, Ways
from npformer.engine.mechanisms.distances import at_distances
from npformer.engine.mechanisms.mechanism import Mechanism


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

    def farthest(self) -> int:
        return self.reach

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
        "one token more": reach + 1,
        "one token fewer": reach - 1,
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
    """Makes the wrong layers local: those with a window in the port's attention weights, or one layer more or fewer."""
    local, count = port.config.local, port.config.n_layers
    if not local:
        return
    layers = _layers_seen(port)
    if layers is None:
        computed = {int(name.split(".")[1]) for name in port.span if name.startswith("layers.")}
        layers = {*local.layers} ^ computed if len(computed) == 1 else set()
    if layers != set(local.layers) and 0 < len(layers) < count:
        said = ", ".join(map(str, sorted(layers)))
        changed = ("*.attention.weights", "*.attention.query_rotated", "*.attention.key_rotated")
        yield f"local: {said}", port.with_config(*changed, local=replace(local, layers=tuple(sorted(layers))))


def _layers_seen(port: Any) -> set[int] | None:
    """The layers whose attention weights are 0 beyond the local layers' window; None if no key is beyond it."""
    reach = next((each.reach for each in port.config.local.mechanisms if isinstance(each, Window)), None)
    found = set()
    if reach is None:
        return None
    for layer in range(port.config.n_layers):
        weights = port.given.get(f"layers.{layer}.attention.weights", [])
        far = [each[..., np.abs(np.subtract.outer(*map(np.arange, each.shape[-2:]))) > reach] for each in weights]
        if not any(each.size for each in far):
            return None
        if not any(each.any() for each in far):
            found.add(layer)
    return found


Window.mistakes = (
    Mistake(
        "wrong local window",
        "in a local layer a query sees sliding_window keys up to itself, or half as many on either side",
        _other_windows,
    ),
    Mistake(
        "the wrong layers are local",
        "layer_types or a layer count in config.json decides which layers have a window and the local rotation",
        _other_layers,
    ),
)
