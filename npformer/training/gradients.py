"""The loss of a batch and its gradients: shards of packed rows, forward and backward on every core.

Shards are cut by the texts' lengths alone and their gradients added in the shards' order, so a step has the same bits
for any number of threads. A batch of any size needs the memory of a shard's activations for each thread: what is
elsewhere called gradient accumulation is what every batch does here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from npformer.config import Config
from npformer.errors import NpformerError
from npformer.functions import IGNORED, cross_entropy, cross_entropy_backward
from npformer.model import backward, forward
from npformer.runtime.batch import SHARD, SMALL_SHARD, Text, alike, pack
from npformer.runtime.threads import share, single_blas_thread
from npformer.tap import listen, listening
from npformer.tape import Edit, Recording
from npformer.training.trainable import Gradient, Trainable, add

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
class Gradients:
    """A batch's mean loss, the targets it got right of how many, its tokens, and the gradients by parameter."""

    loss: float
    right: int
    count: int
    tokens: int
    flat: dict[str, Gradient]


def gradients(
    objective: Objective[E],
    weights: Trainable,
    examples: Sequence[E],
    threads: int = 1,
    edit: Callable[[int], Edit | None] = lambda shard: None,
) -> Gradients:
    """The mean loss over a batch's targets, and its gradients. edit: of a shard's stages, such as `Dropout`.

    Inside `npformer.edit` they are those of the edited forward. Whoever listens gets the batch in one shard, in order.
    Raises NpformerError for a batch without a target.
    """
    lengths = [objective.lengths(example) for example in examples]
    count = sum(objective.count(example) for example in examples)
    if not count:
        raise NpformerError(f"a batch of {len(examples)} examples without one target has no loss")
    total = _Sum(weights)

    def work(index: int, shard: list[int]) -> Part:
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks whether the gradients are finite
            part = objective.part(weights.tree, [examples[i] for i in shard], count, edit(index))
        total.add(index, weights.collect(part.tree))
        return part._replace(tree={})

    shards = [list(range(len(examples)))] if listening() else cut(lengths)
    with single_blas_thread():
        parts = share([partial(work, index, shard) for index, shard in enumerate(shards)], threads)
    return Gradients(sum(p.loss for p in parts), sum(p.right for p in parts), count, sum(map(sum, lengths)), total.flat)


def cut(lengths: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Indices in shards of about SHARD tokens, for two cores an even number where the lengths allow it.

    Whatever the cores at hand, as sums of gradients depend on it. A batch of few tokens stays whole.
    """
    total = sum(map(sum, lengths))
    return alike(lengths, 2 * math.ceil(total / SHARD / 2) if total >= 2 * SMALL_SHARD else 1)


class _Sum:
    """Gradients added up in the order of the shards, whichever thread is done first."""

    def __init__(self, weights: Trainable) -> None:
        self.flat: dict[str, Gradient] = {}
        self._weights = weights
        self._waiting: dict[int, dict[str, Gradient]] = {}
        self._next = 0
        self._lock = threading.Lock()

    def add(self, index: int, flat: dict[str, Gradient]) -> None:
        with self._lock:
            self._waiting[index] = flat
            while self._next in self._waiting:
                for name, grad in self._waiting.pop(self._next).items():
                    self.flat[name] = add(self.flat[name], grad) if name in self.flat else grad
                self._next += 1


# --- encoders with a head --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A text and what the head is to say of it.

    target: a label's number; for a head on tokens one for each token, -100 where none is wanted; for question answering
    the first and the last token. For multiple choice `text` is the list of choices.
    """

    text: Any
    target: Any


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
            raise NpformerError(f"problem_type: {self.config.problem_type} is not trained here, one label a text is")

    def lengths(self, example: Example, /) -> tuple[int, ...]:
        return tuple(map(len, _texts(example)))

    def count(self, example: Example, /) -> int:
        if self.config.head in ("token-classification", "masked-lm"):
            return int((np.asarray(example.target) != IGNORED).sum())
        return 1 if self.config.head == "question-answering" else int(example.target != IGNORED)

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
