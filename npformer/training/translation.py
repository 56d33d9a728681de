"""The loss of an encoder-decoder: cross-entropy of each target token after those before it, with label smoothing.

Vaswani et al., 2017, sections 3.1 and 5.4. An `Example` has the source's `Text` and the target's ids; `pairs.py` makes
them of sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.config import Config
from npformer.decoder import shift
from npformer.errors import NpformerError
from npformer.functions import cross_entropy, cross_entropy_backward, log_softmax
from npformer.runtime.batch import Text, pack
from npformer.seq2seq import Seq2Seq, transformer, transformer_backward
from npformer.tap import listen
from npformer.tape import Edit, Recording
from npformer.training.gradients import Example, Part

WINDOW = 256  # pairs handed to the model at a time when it is evaluated


@dataclass(frozen=True)
class TranslationLoss:
    """Teacher forcing: the decoder is given the start token and the target, and is to answer the target and its end."""

    config: Config
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        if self.config.head != "translation" or not self.config.decoder.end_ids:
            raise NpformerError("expected a translation model with an end token (eos_token_id)")

    def lengths(self, example: Example, /) -> tuple[int, ...]:
        return self.count(example), len(example.text)

    def count(self, example: Example, /) -> int:
        return len(example.target) + 1

    def part(self, tree: Mapping[str, Any], examples: Sequence[Example], count: int, edit: Edit | None, /) -> Part:
        shifted = _shifted(self.config, examples)
        source, target = pack([each.text for each in examples]), pack([Text(ids) for ids, _ in shifted])
        wanted = np.concatenate([answer for _, answer in shifted])
        recording = Recording()
        with listen(edit) if edit else nullcontext(), listen(recording):
            logits = transformer(tree, self.config, source, target)["logits"]
        options: dict[str, Any] = {"label_smoothing": self.label_smoothing, "reduction": "sum"}
        options["log_probabilities"] = log_softmax(logits)  # once for both: of so many classes it costs
        loss = float(cross_entropy(logits, wanted, **options)) / count
        right = int((logits.argmax(axis=-1) == wanted).sum())
        grad = cross_entropy_backward(1 / count, logits, wanted, **options)
        stages = recording.stages
        return Part(loss, right, transformer_backward({"logits": grad}, stages, tree, self.config, source, target))


def _shifted(config: Config, examples: Sequence[Example]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each target what the decoder is given, and what it is to answer."""
    return [shift(each.target, config.decoder.start_id, config.decoder.end_ids[0]) for each in examples]


def evaluate(model: Seq2Seq, examples: Sequence[Example]) -> dict[str, float]:
    """The mean cross-entropy of a target token given those before it, and the share that is given as the likeliest."""
    total, right, count = 0.0, 0, 0
    for start in range(0, len(examples), WINDOW):
        window = examples[start : start + WINDOW]
        shifted = _shifted(model.config, window)
        answers = model.run([(each.text, Text(ids)) for each, (ids, _) in zip(window, shifted, strict=True)])
        for answer, (_, wanted) in zip(answers, shifted, strict=True):
            total += float(cross_entropy(answer["logits"], wanted, reduction="sum"))
            right += int((answer["logits"].argmax(axis=-1) == wanted).sum())
            count += len(wanted)
    return {"dev_loss": total / count, "accuracy": right / count}
