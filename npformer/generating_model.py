"""`GeneratingModel`, the base of `Model` and `Seq2Seq`: a model with the methods `generate` and `stream`.

`generation` is imported on first use, because the import takes 5% of the run time of a process that classifies one
sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npformer.base_model import BaseModel
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.padding import as_padded, unpadded

if TYPE_CHECKING:
    from npformer.generation import Hypothesis


class GeneratingModel(BaseModel):
    """A model that generates texts if its head is "causal-lm" or "translation". Parameters as in `Model`."""

    def generate(self, sources: Any, attention_mask: Any = None, **settings: Any) -> list[list[Hypothesis]]:
        """Generates texts from the token ids of one source or prompt, or of several in a list or a padded array.

        `generation.generate` lists the settings.
        """
        from npformer.generation import generate

        return generate(self, self.sources(sources, attention_mask), **settings)

    def stream(self, source: Any, **settings: Any) -> Iterator[int]:
        """Generates a text and yields its tokens one by one, like `generation.stream`."""
        from npformer.generation import stream

        sources = self.sources(source)
        if len(sources) != 1:
            raise NpformerError(f"stream: expected one source, got {len(sources)}")
        return stream(self, sources[0], **settings)

    def sources(self, input_ids: Any, attention_mask: Any = None) -> list[Text]:
        """Checks sources or prompts, in the forms that `__call__` accepts, and returns them as texts."""
        ids, mask, _ = as_padded(input_ids, attention_mask, None)
        if ids.ndim != 2:
            raise NpformerError(f"input_ids: expected (S,) or (B, S), got {ids.shape}")
        return unpadded(ids, mask)
