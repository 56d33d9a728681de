"""feature-extraction: the last layer's vector of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.checks import boolean
from npformer.model import Model
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task, without_head
from npformer.text.inputs import Pair, as_text


@dataclass(frozen=True)
class FeatureOptions(Options):
    """return_tensors: an array rather than nested lists."""

    return_tensors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        boolean("return_tensors", self.return_tensors)


class FeatureExtraction(Task):
    """Nested lists of shape (1, L, D) for each text, [CLS] and [SEP] among its L tokens; any head is left out.

    In a text read in windows each token's vector is that of the window that shows more of what stands around it.
    """

    name = "feature-extraction"
    head = "base"
    options_type = FeatureOptions

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(without_head(model), **options)

    def inputs(self, item: Any, options: FeatureOptions) -> list[str | Pair]:
        return [as_text(item)]

    def answer(self, requests: list[Request], options: FeatureOptions) -> list[Any]:
        features = [vectors(request)[None] for request in requests]
        return features if options.return_tensors else [each.tolist() for each in features]


def vectors(request: Request) -> np.ndarray:
    """The vectors of a text's tokens, (L, D), each from one of its pieces."""
    pairs = zip(request.outputs[0], request.encoded[0].rows(), strict=True)
    return np.concatenate([output["last_hidden_state"][rows] for output, rows in pairs])
