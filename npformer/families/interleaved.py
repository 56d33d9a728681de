"""Families with query, key and value in one tensor, interleaved by head, such as GPT-NeoX and BLOOM.

For each head in turn, the tensor has the rows of the query, the rows of the key, and the rows of the value.
"""

from __future__ import annotations

from collections.abc import Sequence

from npformer.config import Config
from npformer.families.base import TensorPart
from npformer.families.encoder_table import EncoderTable


class Interleaved(EncoderTable):
    """A family with query, key and value interleaved by head."""

    def part(self, config: Config, groups: Sequence[str], group: str) -> TensorPart:
        return super().part(config, groups, group)._replace(blocks=config.n_heads)
