"""`GeneratingModel`, the base of `Model` and `Seq2Seq`: a model with the methods `generate` and `stream`.

Generation is imported when it is first used: a process that classifies one sentence would spend a twentieth of its time
on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npformer.base_model import BaseModel
from npformer.common.errors import NpformerError
from npformer.runtime.packing import Text
from npformer.runtime.padding import as_padded, unpadded

if TYPE_CHECKING:
    from npformer.generation import Hypothesis


class GeneratingModel(BaseModel):
    """A model that writes texts, if its head does. Parameters as in `Model`."""

    def generate(self, sources: Any, attention_mask: Any = None, **settings: Any) -> list[list[Hypothesis]]:
        """Generates texts for one source's or prompt's ids, a padded array with its mask, or a list.

        `generation.generate` lists the settings.
        """
        from npformer.generation import generate

        return generate(self, self.sources(sources, attention_mask), **settings)

    def stream(self, source: Any, **settings: Any) -> Iterator[int]:
        """Generates one text token by token: `generation.stream`."""
        from npformer.generation import stream

        sources = self.sources(source)
        if len(sources) != 1:
            raise NpformerError(f"stream: one source at a time, got {len(sources)}")
        return stream(self, sources[0], **settings)

    def sources(self, input_ids: Any, attention_mask: Any = None) -> list[Text]:
        """Checks a caller's sources or prompts, in the forms of `__call__`, and returns them as texts."""
        ids, mask, _ = as_padded(input_ids, attention_mask, None)
        if ids.ndim != 2:
            raise NpformerError(f"input_ids: expected (S,) or (B, S), got {ids.shape}")
        return unpadded(ids, mask)
