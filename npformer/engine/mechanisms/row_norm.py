"""Norms of whole queries and keys, over all heads at once, before the rotation, as in OLMo 2.

Team OLMo, 2024, 2 OLMo 2 Furious, "QK-norm".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npformer.engine.mechanisms.head_norm import HeadNorm


class RowNorm(HeadNorm):
    """q = Normalize(q) and k = Normalize(k), with weights as wide as all heads of queries and of keys."""

    normalized = "{}, normalized"

    def for_model(self, config: Any) -> RowNorm:
        return replace(self, eps=config.eps, widths=(config.n_heads * config.d_head, config.kv_heads * config.d_head))
