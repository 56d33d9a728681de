"""Families with query, key and value in one tensor, interleaved by head, such as GPT-NeoX and BLOOM.

For each head in turn, the tensor has the rows of its query, then of its key, then of its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npformer.config import Config
from npformer.engine.descriptions.mistake import Mistake, Ways
from npformer.families.base import TensorPart
from npformer.families.encoder_table import EncoderTable

QKV = ("query", "key", "value")


class Interleaved(EncoderTable):
    """A family with query, key and value interleaved by head."""

    def part(self, config: Config, groups: Sequence[str], group: str) -> TensorPart:
        return super().part(config, groups, group)._replace(blocks=config.n_heads)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        return (
            Mistake(
                "query, key and value split in thirds",
                "query_key_value has the query, key and value of head 0, then those of head 1, and so on",
                _in_thirds,
                of_weights=True,
            ),
        )


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
