"""What is trained: examples, and the loss and the gradients of some of them. An encoder's head, or an encoder-decoder.

`gradients.py` adds up a batch's parts, `data.py` makes examples of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from npformer.config import Config
from npformer.decoder import shift
from npformer.errors import NpformerError
from npformer.functions import IGNORE_INDEX, cross_entropy, cross_entropy_backward, log_softmax
from npformer.runtime.batch import Text, pack
from npformer.tap import listen, listening
from npformer.tape import Edit, Recording
from npformer.transformer import backward, forward, transformer, transformer_backward

E = TypeVar("E", contravariant=True)


class Part(NamedTuple):
    """What a shard adds to its batch: its share of the mean loss, how many targets it got right, its gradients."""

    loss: float
    right: int
    tree: dict[str, Any]


class Objective(Protocol[E]):
    """What is trained: how long an example is, how many targets it has, and a shard's loss and gradients."""

    def lengths(self, example: E, /) -> tuple[int, ...]:
        """The tokens of each of its texts: examples that are alike in them are worked on together."""

    def count(self, example: E, /) -> int:
        """Targets: what the loss is the mean over."""

    def part(self, tree: Mapping[str, Any], examples: Sequence[E], count: int, edit: Edit | None, /) -> Part:
        """Of some of a batch's examples, when the whole batch has `count` targets."""


@dataclass(frozen=True)
class Example:
    """A text and what the head is to say of it.

    target: a label's number; for a head on tokens one for each token, -100 where none is wanted; for question answering
    the first and the last token. For multiple choice `text` is the list of choices.
    """

    text: Any
    target: Any


# --- encoders with a head --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadLoss:
    """Cross-entropy of an encoder's head: over labels, over the vocabulary, over the choices, or over the tokens where
    an answer starts and where it ends (the mean of the two). Devlin et al., 2019, section 4.
    """

    config: Config
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.config.head == "base":
            raise NpformerError("a base model has no head, so no loss; load it with the head that is to be trained")
        if self.config.problem_type not in (None, "single_label_classification"):
            problem = self.config.problem_type
            raise NpformerError(
                f"problem_type {problem} is unsupported: only single-label classification can be trained"
            )

    def lengths(self, example: Example, /) -> tuple[int, ...]:
        return tuple(map(len, _texts(example)))

    def count(self, example: Example, /) -> int:
        if self.config.head in ("token-classification", "masked-lm"):
            return int((np.asarray(example.target) != IGNORE_INDEX).sum())
        return 1 if self.config.head == "question-answering" else int(example.target != IGNORE_INDEX)

    def part(self, tree: Mapping[str, Any], examples: Sequence[Example], count: int, edit: Edit | None, /) -> Part:
        batch = pack([text for example in examples for text in _texts(example)])
        recording, whole = Recording(), listening()  # whoever listens already is to see every stage whole
        with listen(edit) if edit else nullcontext(), listen(recording):
            answers = forward(tree, self.config, batch, whole)
        loss, right, grads = self.losses(answers, [example.target for example in examples], batch.lengths, count)
        return Part(loss, right, backward(grads, recording.stages, tree, self.config, batch))

    def losses(
        self, answers: Mapping[str, np.ndarray], targets: Sequence[Any], lengths: np.ndarray, count: int
    ) -> tuple[float, int, dict[str, np.ndarray]]:
        """The share in the mean loss, how many are right, and the gradients of the answers."""
        head = self.config.head
        if head == "question-answering":
            return self._spans(answers, targets, lengths, count)
        logits = answers["logits"]
        rows = logits.reshape(len(targets), -1) if head == "multiple-choice" else logits
        wanted = np.concatenate([np.asarray(target).reshape(-1) for target in targets])
        loss, right, grad = self._rows(rows, wanted, count)
        return loss, right, {"logits": grad.reshape(logits.shape)}

    def _rows(self, logits: np.ndarray, targets: np.ndarray, count: int) -> tuple[float, int, np.ndarray]:
        options: dict[str, Any] = {"label_smoothing": self.label_smoothing, "reduction": "sum"}
        loss = float(cross_entropy(logits, targets, **options)) / count
        grad = cross_entropy_backward(1 / count, logits, targets, **options)
        return loss, int((logits.argmax(axis=-1) == targets).sum()), grad

    def _spans(
        self, answers: Mapping[str, np.ndarray], targets: Sequence[Any], lengths: np.ndarray, count: int
    ) -> tuple[float, int, dict[str, np.ndarray]]:
        loss, grads = 0.0, {}
        right = np.ones(len(targets), bool)
        for column, name in enumerate(("start_logits", "end_logits")):
            pieces = []
            for i, logits in enumerate(np.split(answers[name], np.cumsum(lengths)[:-1])):
                each, is_right, grad = self._rows(logits[None], np.asarray(targets[i])[column : column + 1], 2 * count)
                loss += each
                right[i] &= bool(is_right)
                pieces.append(grad[0])
            grads[name] = np.concatenate(pieces)
        return loss, int(right.sum()), grads


def _texts(example: Example) -> Sequence[Text]:
    return [example.text] if isinstance(example.text, Text) else example.text


# --- encoder-decoders ------------------------------------------------------------------------------------------------


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
        pairs = teacher_forced(self.config, examples)
        source, target = pack([each.text for each in examples]), pack([Text(ids) for ids, _ in pairs])
        wanted = np.concatenate([answer for _, answer in pairs])
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


def teacher_forced(config: Config, examples: Sequence[Example]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each target what the decoder is given, and what it is to answer."""
    return [shift(each.target, config.decoder.start_id, config.decoder.end_ids[0]) for each in examples]
