"""Labelled rows of a file as examples of a classifier, and its scores on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from npformer.errors import warn
from npformer.model import Model
from npformer.text.encoding import Encoder
from npformer.training.data import Row, label_ids
from npformer.training.gradients import Example
from npformer.training.metrics import Scores, scores

WINDOW = 1024  # texts handed to the tokenizer and to the model at a time


def encode(model: Model, path: str | Path, rows: Sequence[Row], limit: int | None = None) -> list[Example]:
    """The rows as token ids, cut to the model's length or to `limit`, with a warning, and their labels' numbers."""
    encoder = Encoder(model, limit)
    targets = label_ids(path, rows, model.config.labels)
    examples, cut = [], 0
    for start in range(0, len(rows), WINDOW):
        window = rows[start : start + WINDOW]
        parts = [row.text if row.text_pair is None else (row.text, row.text_pair) for row in window]
        for part, encoding, target in zip(parts, encoder.encode(parts), targets[start : start + WINDOW], strict=True):
            fitted = encoder.fit(part, encoding, "truncate")
            examples.append(Example(encoder.text(fitted.pieces[0]), target))
            cut += fitted.truncated
    if cut:
        warn(f"{path}: {cut} of {len(rows)} texts were cut to {encoder.limit} tokens")
    return examples


def evaluate(model: Model, examples: Sequence[Example]) -> Scores:
    """What the model makes of them."""
    given: list[int] = []
    for start in range(0, len(examples), WINDOW):
        answers = model.run([example.text for example in examples[start : start + WINDOW]])
        given += [int(np.argmax(answer["logits"])) for answer in answers]
    return scores([example.target for example in examples], given, model.config.labels)
