"""feature-extraction: a vector for each token, from the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.model import Model
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task, without_head
from npformer.text.inputs import Pair, as_text


@dataclass(frozen=True)
class FeatureOptions(Options):
    """Options of `FeatureExtraction`."""

    return_tensors: bool = False


class FeatureExtraction(Task):
    """Returns the last layer's vectors for all tokens of a text, as nested lists of shape (1, L, D).

    The tokens include special tokens. In a text read in windows, the vector of a token comes from the window with the
    most context around the token.

    Parameters
    ----------
    model : Model with any head; the head is not computed
    return_tensors : bool
        Return an array instead of nested lists.
    **options : options common to all tasks; see `Options`

    Examples
    --------
    >>> features = FeatureExtraction(npformer.load("distilbert-sst2"), return_tensors=True)
    >>> features("I love ice cream").shape
    (1, 6, 384)
    """

    name = "feature-extraction"
    options_type = FeatureOptions

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(without_head(model), **options)

    def inputs(self, item: Any, options: FeatureOptions) -> list[str | Pair]:
        return [as_text(item)]

    def answer(self, requests: list[Request], options: FeatureOptions) -> list[Any]:
        features = [vectors(request)[None] for request in requests]
        return features if options.return_tensors else [each.tolist() for each in features]


def vectors(request: Request) -> np.ndarray:
    """Returns the model's first output for the tokens of a text, (L, D), joined from the pieces of the text."""
    pairs = zip(request.outputs[0], request.encoded[0].rows(), strict=True)
    return np.concatenate([next(iter(output.values()))[rows] for output, rows in pairs])
