"""zero-shot-classification: scores for the caller's labels, from a natural-language inference model.

The text is the premise, and the template with a label inserted is the hypothesis (Yin et al., 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.checkpoint.read import CONFIG
from npformer.common.checks import shown
from npformer.common.errors import NpformerError, warn
from npformer.common.files import read_json
from npformer.common.other_libraries import TRANSFORMERS_VERSIONS
from npformer.engine.output_heads.formulas import probabilities
from npformer.model import Model
from npformer.tasks.declaration import Form
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task, logits_of_texts
from npformer.text.inputs import Pair, as_text, as_texts


@dataclass(frozen=True)
class ZeroShotOptions(Options):
    """Options of `ZeroShotClassification`."""

    candidate_labels: Any = ()
    hypothesis_template: str = "This example is {}."
    multi_label: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = self.candidate_labels
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        object.__setattr__(self, "candidate_labels", as_texts(labels, "candidate_labels"))
        if "{}" not in as_text(self.hypothesis_template, "hypothesis_template"):
            raise NpformerError(
                f"hypothesis_template: expected a {{}} for the label in {self.hypothesis_template!r:.80}"
            )


class ZeroShotClassification(Task):
    """Returns a dict with "sequence", "labels" and "scores" for each text, the best label first.

    The scores are the softmax over the entailment logits of all labels. With multi_label, or with a single label, a
    score is the softmax over the label's own entailment and contradiction logits.

    Parameters
    ----------
    model : Model with a sequence-classification head and a label that begins with "entail"
    candidate_labels : list of str, or str of comma-separated labels
    hypothesis_template : str
        A sentence with {} for the label.
    multi_label : bool
        Score each label independently; otherwise the scores of all labels sum to 1.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Yin et al., 2019, "Benchmarking Zero-shot Text Classification", section 5.

    Examples
    --------
    With a model from the hub::

        ask = npformer.pipeline("zero-shot-classification", "typeform/distilbert-base-uncased-mnli")
        ask("Who won the election?", ["politics", "sport"])["labels"][0]
    """

    name = "zero-shot-classification"
    options_type = ZeroShotOptions
    form = Form({"label": str, "score": np.floating}, several="labels", line="{score:.4f}  {label}")
    cut = "first"

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(model, **options)
        if len(model.config.labels) < 2:
            raise NpformerError(
                f"{self.name}: expected a model with labels for entailment and contradiction, got one label"
            )
        found = [i for i, label in enumerate(model.config.labels) if label.lower().startswith("entail")]
        if not found:
            names = ", ".join(model.config.labels)
            warn(f"expected a label that begins with 'entail', got {names}; using the last label")
        self.entailment = found[0] if found else len(model.config.labels) - 1
        _warn_of_other_ids(model, self.entailment)
        self.contradiction = len(model.config.labels) - 1 if self.entailment == 0 else 0

    def __call__(self, inputs: Any = None, candidate_labels: Any = None, **options: Any) -> Any:
        if inputs is None:
            inputs = options.pop("sequences", None)  # Transformers' name for `inputs`
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        return super().__call__(inputs, **options)

    def answers(self, items: Iterator[Any], options: ZeroShotOptions, quiet: bool = False) -> Iterator[Any]:
        if not options.candidate_labels:
            raise NpformerError("candidate_labels: expected at least one label")
        return super().answers(items, options, quiet)

    def values(self, answer: Any) -> dict[str, Any]:
        return {name: answer[name] for name in ("labels", "scores")}

    def row(self, answer: Any) -> dict[str, Any]:
        pairs = zip(answer["labels"], answer["scores"], strict=True)
        return {self.form.several: [{"label": label, "score": score} for label, score in pairs]}

    def findings(self, text: str, answer: Any) -> list[str]:
        return super().findings(text, self.row(answer)[self.form.several])

    def reply(self, answer: Any) -> Any:
        return self.row(answer)[self.form.several]

    def n_texts(self, options: ZeroShotOptions) -> int:
        return len(options.candidate_labels)

    def inputs(self, item: Any, options: ZeroShotOptions) -> list[str | Pair]:
        text = as_text(item)
        return [Pair(text, options.hypothesis_template.replace("{}", label)) for label in options.candidate_labels]

    def answer(self, requests: list[Request], options: ZeroShotOptions) -> list[Any]:
        labels = options.candidate_labels
        logits = logits_of_texts(requests).reshape(len(requests), len(labels), -1)
        if options.multi_label or len(labels) == 1:
            two = logits[..., [self.contradiction, self.entailment]].reshape(-1, 2)
            scores = probabilities(two)[:, 1].reshape(len(requests), -1)
        else:
            scores = probabilities(logits[..., self.entailment])
        orders = np.argsort(-scores, axis=-1, kind="stable")
        return [
            {"sequence": request.item, "labels": [labels[i] for i in order], "scores": row[order].tolist()}
            for request, row, order in zip(requests, scores, orders, strict=True)
        ]


def _warn_of_other_ids(model: Model, entailment: int) -> None:
    """Issues a warning if label2id in config.json contradicts id2label, because Transformers then uses label2id."""
    path = model.folder and model.folder / CONFIG
    ids = read_json(path).get("label2id") if path and path.exists() else None
    if not isinstance(ids, Mapping):
        return
    other = next((i for label, i in ids.items() if label.lower().startswith("entail")), entailment)
    if other != entailment:
        warn(
            f"{path}: the id of entailment is {shown(other)} in label2id, but {entailment} in id2label; using "
            f"id2label; see {TRANSFORMERS_VERSIONS}"
        )
