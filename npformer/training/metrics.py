"""Metrics: accuracy, F1 and confusion matrix of classifiers, and loss and token accuracy of generative models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.progress import bar, part
from npformer.engine.functions import cross_entropy
from npformer.engine.runtime.packing import Text
from npformer.model import Model, Seq2Seq
from npformer.training.losses import Example, teacher_forced

TEXTS = 1024  # texts per run of the model
PAIRS = 256  # pairs per run of the model
LOGITS = 2**26  # maximum number of logits per run on blocks of text


@dataclass(frozen=True)
class Scores:
    """The scores of a classifier. confusion[i, j], (C, C), is the number of texts with label i and prediction j."""

    labels: tuple[str, ...]
    confusion: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def precision(self) -> np.ndarray:
        """The fraction of the predictions of each label that are correct, (C,); 0 for a label without predictions."""
        return np.diag(self.confusion) / np.maximum(1, self.confusion.sum(axis=0))

    @property
    def recall(self) -> np.ndarray:
        """The fraction of the texts of each label that are predicted correctly, (C,); 0 for a label without texts."""
        return np.diag(self.confusion) / np.maximum(1, self.confusion.sum(axis=1))

    @property
    def f1(self) -> np.ndarray:
        """2 precision recall / (precision + recall), (C,)."""
        given, there = self.confusion.sum(axis=0), self.confusion.sum(axis=1)
        return 2 * np.diag(self.confusion) / np.maximum(1, given + there)

    @property
    def macro_f1(self) -> float:
        """The mean F1 over the labels that occur in texts or predictions."""
        return float(self.f1[self.confusion.sum(axis=0) + self.confusion.sum(axis=1) > 0].mean())

    def __str__(self) -> str:
        name = max(8, *(len(label) for label in self.labels))
        lines = [f"accuracy {self.accuracy:.4f}   macro F1 {self.macro_f1:.4f}   {self.confusion.sum()} texts", ""]
        lines.append(f"{'label':{name}}  precision  recall      F1  texts")
        columns = zip(self.labels, self.precision, self.recall, self.f1, self.confusion.sum(axis=1), strict=True)
        lines += [f"{label:{name}}  {p:9.4f}  {r:6.4f}  {f:6.4f}  {count:5}" for label, p, r, f, count in columns]
        lines += ["", "rows: label; columns: prediction"]
        width = max(6, *(len(label) for label in self.labels)) + 2
        lines.append(" " * name + "".join(f"{label:>{width}}" for label in self.labels))
        for label, row in zip(self.labels, self.confusion, strict=True):
            lines.append(f"{label:{name}}" + "".join(f"{count:>{width}}" for count in row))
        return "\n".join(lines)


def scores(wanted: Sequence[int], given: Sequence[int], labels: Sequence[str]) -> Scores:
    """Returns the scores of the predictions `given` for the true labels `wanted`. Both are label numbers."""
    confusion: np.ndarray = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(confusion, (np.asarray(wanted), np.asarray(given)), 1)
    return Scores(tuple(labels), confusion)


def evaluate_labels(model: Model, examples: Sequence[Example], progress: bool = False) -> Scores:
    """Evaluates a classifier on examples. progress: show a progress bar on stderr."""
    given: list[int] = []
    with bar(len(examples), shown=progress) as count:
        for start in range(0, len(examples), TEXTS):
            some = [example.text for example in examples[start : start + TEXTS]]
            with count.working(), part(len(some), 1):
                answers = model.run(some)
            given += [int(np.argmax(answer["logits"])) for answer in answers]
            count(len(answers))
    return scores([example.target for example in examples], given, model.config.labels)


def evaluate_translation(model: Seq2Seq, examples: Sequence[Example]) -> dict[str, float]:
    """Returns the mean cross-entropy of target tokens under teacher forcing, and the token accuracy."""
    read, targets = zip(*teacher_forced(model.config, examples), strict=True)
    inputs = [(each.text, Text(ids)) for each, ids in zip(examples, read, strict=True)]
    return _predictions(model, inputs, targets, PAIRS)


def evaluate_blocks(model: Model, examples: Sequence[Example]) -> dict[str, float]:
    """Evaluates a causal-lm model on the blocks of `data.encode_blocks`.

    Each token is predicted from the earlier tokens of its block. "perplexity" is exp(loss). "log_probability" is -loss,
    so larger is better.
    """
    texts, targets = [each.text for each in examples], [each.target for each in examples]
    size = max(1, LOGITS // (model.config.vocab_size * max(map(len, texts))))
    measured = _predictions(model, texts, targets, size)
    loss = measured["dev_loss"]
    return {**measured, "log_probability": -loss, "perplexity": float(np.exp(np.float64(loss)))}


def _predictions(model: BaseModel, inputs: Sequence[Any], targets: Sequence[np.ndarray], size: int) -> dict[str, float]:
    """Returns the mean cross-entropy of target tokens, and the fraction of targets with the largest logit.

    `size` is the number of inputs in one run of the model.
    """
    total, right, count = 0.0, 0, 0
    for start in range(0, len(inputs), size):
        answers = model.run(inputs[start : start + size])
        for answer, wanted in zip(answers, targets[start : start + size], strict=True):
            logits = answer["logits"]
            total += float(cross_entropy(logits, wanted, reduction="sum"))
            right += int((logits.argmax(axis=-1) == wanted).sum())
            count += len(wanted)
    return {"dev_loss": total / count, "accuracy": right / count}
