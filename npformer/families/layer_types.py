"""`layer_types` in config.json, which says for each layer whether it attends within a window or to the whole text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from npformer.common.errors import NpformerError

FULL, SLIDING = "full_attention", "sliding_attention"


def read_layer_types(kinds: Any, n_layers: int) -> tuple[int, ...]:
    """The indices of the layers with a window. kinds: the type of each layer."""
    if not isinstance(kinds, list) or len(kinds) != n_layers or not all(each in (FULL, SLIDING) for each in kinds):
        raise NpformerError(f"layer_types: expected {FULL} or {SLIDING} for each of {n_layers} layers")
    return tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)


def write_layer_types(layers: Collection[int], n_layers: int) -> list[str]:
    """The type of each layer. Inverse of `read_layer_types`."""
    return [SLIDING if i in layers else FULL for i in range(n_layers)]
