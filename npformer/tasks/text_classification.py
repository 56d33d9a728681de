"""text-classification: the label of a text or a pair, from a sequence-classification model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common.checks import one_of, whole
from npformer.engine.output_heads.formulas import probabilities
from npformer.tasks.declaration import Form
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task, logits_of_texts

BEST = "best"  # default of top_k: the best label, without a list


@dataclass(frozen=True)
class ClassificationOptions(Options):
    """Options of `TextClassification`."""

    top_k: Any = BEST
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not None and not (isinstance(self.top_k, str) and self.top_k == BEST):
            whole("top_k", self.top_k, 1)
        if self.function_to_apply is not None:
            one_of("function_to_apply", self.function_to_apply, ("softmax", "sigmoid", "none"))


class TextClassification(Task):
    """Returns a dict with "label" and "score" for each text, or with top_k a list of dicts, best first.

    transformers.pipeline returns the dict of a single text in a list; here `answer[0]` is the dict itself.

    The logits of a text read in windows are the mean over the windows, weighted by the number of tokens in each window.
    For a pair, the longer text is read in windows, each combined with the whole shorter text.

    Parameters
    ----------
    model : Model with a sequence-classification head
    top_k : int or None
        Number of labels to return; None means all. By default, the best label is returned without a list.
    function_to_apply : "softmax", "sigmoid" or "none", optional
        Turns logits into scores; the default depends on the model's problem_type.
    **options : options common to all tasks; see `Options`

    Examples
    --------
    >>> classify = npformer.pipeline("text-classification")
    >>> [each["label"] for each in classify("I love ice cream", top_k=2)]
    ['POSITIVE', 'NEGATIVE']
    """

    name = "text-classification"
    options_type = ClassificationOptions
    form = Form({"label": str, "score": np.floating}, several="labels", layout="beside")

    def gives_lists(self) -> bool:
        return bool(self.options.top_k != BEST)

    def findings(self, text: str, answer: Any) -> list[str]:
        width = max(map(len, self.model.config.labels))
        best = answer if isinstance(answer, list) else [answer]
        return [f"{each['label']:{width}}  {each['score']:.4f}" for each in best]

    def answer(self, requests: list[Request], options: ClassificationOptions) -> list[Any]:
        function = options.function_to_apply or self.model.config.scoring
        scores = probabilities(logits_of_texts(requests), function)
        labels = self.model.config.labels
        if options.top_k == BEST:
            best = scores.argmax(axis=-1)
            return [_scored(labels, row, index) for row, index in zip(scores, best, strict=True)]
        orders = np.argsort(-scores, axis=-1, kind="stable")[:, : options.top_k]
        return [[_scored(labels, row, i) for i in order] for row, order in zip(scores, orders, strict=True)]


def _scored(labels: tuple[str, ...], scores: np.ndarray, index: int) -> dict[str, Any]:
    return {"label": labels[index], "score": float(scores[index])}
