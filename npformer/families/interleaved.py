"""Query, key and value in one tensor whose rows are interleaved by heads, as in GPT-NeoX and BLOOM.

The rows of a head's query, of its key and of its value follow one another, then those of the next head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npformer.common.mistake import Mistake, Ways
from npformer.config import Config
from npformer.families.base import Part
from npformer.families.encoder_table import EncoderTable

QKV = ("query", "key", "value")


class Interleaved(EncoderTable):
    """A family whose query, key and value are interleaved by heads."""

    def part(self, config: Config, groups: Sequence[str], group: str) -> Part:
        return super().part(config, groups, group)._replace(blocks=config.n_heads)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        return (
            Mistake(
                "query, key and value split in thirds",
                "the rows of query_key_value are those of head 0's query, key and value, then those of head 1",
                _in_thirds,
            ),
        )


def _in_thirds(port: Any) -> Ways:
    """Reads the fused tensor as all queries, all keys, then all values; or as heads of two parts."""
    whole = [Part(i, (1, 1, 1)) for i in range(len(QKV))]
    by_head = [each._replace(blocks=port.config.n_heads) for each in whole]
    changed = dict[str, np.ndarray]()
    for layer in port.layers:
        for array in ("weight", "bias"):
            names = [f"{layer}attention.{each}.{array}" for each in QKV]
            if names[0] in port.weights:
                fused = by_head[0].joined([port.weights[name] for name in names], -1)
                changed |= {name: part.of(fused, -1) for name, part in zip(names, whole, strict=True)}
    yield "", port.weighing(changed)
