"""`layer_types` in config.json: whether each layer attends within a window or to the whole text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from npformer.common.errors import NpformerError
from npformer.config import Config

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = {"layer_types", "mlp_layer_types"}  # fields of config.json with an entry for each layer


def read_layer_types(kinds: Any, n_layers: int) -> tuple[int, ...]:
    """The indices of the layers with a window. kinds: the type of each layer."""
    if not isinstance(kinds, list) or len(kinds) != n_layers or not all(each in (FULL, SLIDING) for each in kinds):
        got = f"a list of {len(kinds)}" if isinstance(kinds, list) and len(kinds) != n_layers else f"{kinds!r:.80}"
        raise NpformerError(f"layer_types: expected {FULL} or {SLIDING} for each of {n_layers} layers, got {got}")
    return tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)


def check_layer_types(data: Mapping[str, Any], config: Config) -> None:
    """Raises NpformerError if the layer types in a config.json do not match the model."""
    from npformer.engine.mechanisms import Window  # imported here, because most models have no layer_types

    if (mlps := data.get("mlp_layer_types")) is not None and mlps != ["dense"] * config.n_layers:
        raise NpformerError(f"mlp_layer_types: expected 'dense' for each of {config.n_layers} layers, got {mlps!r:.80}")
    if (kinds := data.get("layer_types")) is None:
        return
    windows = read_layer_types(kinds, config.n_layers)
    own = [any(isinstance(each, Window) for each in config.mechanisms_of(i)) for i in range(config.n_layers)]
    wrong = next((i for i, has_window in enumerate(own) if has_window != (i in windows)), None)
    if wrong is not None:
        expected = SLIDING if own[wrong] else FULL
        raise NpformerError(
            f"layer_types: layer {wrong}: expected {expected}, the type implied by the window fields of a "
            f"{config.model_type} model, got {kinds[wrong]}"
        )


def write_layer_types(layers: Collection[int], n_layers: int) -> list[str]:
    """The type of each layer. Inverse of `read_layer_types`."""
    return [SLIDING if i in layers else FULL for i in range(n_layers)]
