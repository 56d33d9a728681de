"""Mistakes that ports make when they read the files of a family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npformer.families.base import TensorPart
from npformer.golden.graph import QKV
from npformer.golden.mistake import Mistake, Ways


def _in_thirds(port: Any) -> Ways:
    """Reads the fused tensor as all queries, then all keys, then all values."""
    whole = [TensorPart(i, (1, 1, 1)) for i in range(len(QKV))]
    by_head = [each._replace(blocks=port.config.n_heads) for each in whole]
    changed = dict[str, np.ndarray]()
    for layer in port.layers:
        for array in ("weight", "bias"):
            names = [f"{layer}attention.{each}.{array}" for each in QKV]
            if names[0] in port.weights:
                fused = by_head[0].joined([port.weights[name] for name in names], -1)
                changed |= {name: part.of(fused, -1) for name, part in zip(names, whole, strict=True)}
    yield "", port.weighing(changed)


INTERLEAVED = (
    Mistake(
        "query, key and value split in thirds",
        "query_key_value has the query, key and value of head 0, then those of head 1, and so on",
        _in_thirds,
        of_weights=True,
    ),
)


TURNED = tuple(f"*.attention.{name}_{stage}" for stage in ("rotated", "heads") for name in ("query", "key"))


def _other_layers(port: Any) -> Ways:
    config, local = port.config, port.config.local
    rotated = tuple(i for i in range(config.n_layers) if i not in local.layers)
    yield "1 and 0 exchanged", port.with_config(*TURNED, local=replace(local, layers=rotated))
    yield "rotation in all layers", port.with_config(*TURNED, local=None)


SMOLLM3 = (
    Mistake(
        "rotation in the wrong layers",
        "no_rope_layers in config.json has 1 for a layer with rotation and 0 for a layer without",
        _other_layers,
    ),
)
