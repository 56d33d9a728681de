"""Mistakes that ports make in local attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npformer.engine.mechanisms.window import Window
from npformer.golden.mistake import Mistake, Ways


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
    """Makes the wrong layers local: those whose weights show a window, else one more or one fewer, else all others."""
    local, count = port.config.local, port.config.n_layers
    if not local:
        return
    own, layers = set(local.layers), _layers_seen(port)
    if layers is None:
        computed = {int(name.split(".")[1]) for name in port.span if name.startswith("layers.")}
        if len(computed) != 1:
            return
        layers = own ^ computed
        if len(layers) in (0, count):
            layers = {*range(count)} - own
    if layers != own and 0 < len(layers) < count:
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


MISTAKES = (
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
