"""Examples, and the objectives for heads and for encoder-decoders, which compute the loss and gradients of a shard.

`batch_gradients.py` sums over the shards of a batch, and `data.py` reads examples from files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from npformer.base_model import packed
from npformer.common.checks import number, shown
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.embeddings import shift_right
from npformer.engine.functions import IGNORE_INDEX, cross_entropy, cross_entropy_backward, log_softmax
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.tape import Edit, Recording
from npformer.engine.taps import listen, listening
from npformer.engine.transformer import backward, forward, transformer, transformer_backward, unread
from npformer.families import parts_of

E = TypeVar("E", contravariant=True)


class ShardLoss(NamedTuple):
    """The contribution of a shard to a batch: part of the mean loss, number of correct predictions, and gradients."""

    loss: float
    right: int
    tree: dict[str, Any]


class Objective(Protocol[E]):
    """A training objective: the lengths and targets of an example, and the loss and gradients of a shard."""

    def lengths(self, example: E, /) -> tuple[int, ...]:
        """The number of tokens of each text in an example. Examples of similar lengths share a shard."""

    def count(self, example: E, /) -> int:
        """The number of targets in an example. The loss is the mean over the targets of a batch."""

    def part(self, tree: Mapping[str, Any], examples: Sequence[E], count: int, edit: Edit | None, /) -> ShardLoss:
        """The loss and gradients of a shard. count: number of targets in the batch."""


@dataclass(frozen=True)
class Example:
    """A text and its target.

    Parameters
    ----------
    text : Text, or a list of choices for multiple choice
    target : int or array of int
        For labels, the number of the label. For a head on tokens, one number for each token, or -100 for a token to
        ignore; "replaced-token" uses 1 for a replaced token, else 0. For question answering, the first and last token
        of the answer. For translation, the token ids of the target.

    Examples
    --------
    >>> Example(npformer.Text(np.array([101, 2053, 102])), target=0).target
    0
    """

    text: Any
    target: Any


# --- encoders with a head --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadLoss:
    """The cross-entropy of a head.

    The classes are the labels, the tokens of the vocabulary, or the choices. For question answering, the loss is the
    mean of the cross-entropies of the answer's first and last token. For replaced tokens, it is the binary
    cross-entropy. A subclass can override `losses` to compute a different loss from the same answers.

    Parameters
    ----------
    config : Config of a model with a head
    label_smoothing : float, fraction of the target probability that is spread over all classes

    Raises
    ------
    NpformerError
        If the model has no head, the problem_type is not single-label classification, an example has no text, or a
        target has the wrong shape.

    References
    ----------
    Devlin et al., 2019, section 4.

    Examples
    --------
    >>> loss = HeadLoss(npformer.load("distilbert-sst2").config)
    >>> loss.count(Example(npformer.Text(np.array([101, 2053, 102])), target=0))
    1
    """

    config: Config
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.config.head == "base":
            raise NpformerError("head: expected a head to train, got a base model, which has no loss")
        if self.config.problem_type not in (None, "single_label_classification"):
            problem = self.config.problem_type
            raise NpformerError(
                f"problem_type: expected single_label_classification, the only type that can be trained, got {problem}"
            )
        number("label_smoothing", self.label_smoothing, 0, 1)

    def lengths(self, example: Example, /) -> tuple[int, ...]:
        return tuple(map(len, _texts(example)))

    def count(self, example: Example, /) -> int:
        head, target = self.config.head, np.asarray(example.target)
        of_tokens = head in ("token-classification", "masked-lm", "causal-lm", "replaced-token")
        shape = self.lengths(example) if of_tokens else (2,) if head == "question-answering" else ()
        if target.shape != shape and not (shape == () and target.shape == (1,)):
            raise NpformerError(f"target: expected shape {shape} for {head}, got {target.shape}")
        return 1 if head == "question-answering" else int((target != IGNORE_INDEX).sum())

    def part(self, tree: Mapping[str, Any], examples: Sequence[Example], count: int, edit: Edit | None, /) -> ShardLoss:
        parts = parts_of(self.config)
        batch = packed(self.config, [text for example in examples for text in _texts(example)])
        recording, whole = Recording(unread(tree, parts)), listening()  # listeners need whole stages
        with listen(edit) if edit else nullcontext(), listen(recording):
            answers = forward(tree, parts, batch, whole)
        sizes = (
            [len(_texts(example)) for example in examples] if self.config.head == "multiple-choice" else batch.lengths
        )
        loss, right, grads = self.losses(answers, [example.target for example in examples], sizes, count)
        return ShardLoss(loss, right, backward(grads, recording.stages, tree, parts, batch))

    def losses(
        self, answers: Mapping[str, np.ndarray], targets: Sequence[Any], sizes: Sequence[int] | np.ndarray, count: int
    ) -> tuple[float, int, dict[str, np.ndarray]]:
        """Returns the part of the mean loss, the number of correct predictions, and the gradients of the logits.

        sizes: the number of choices of each example, or the length of each text.
        """
        head = self.config.head
        if head == "question-answering":
            return self._spans(answers, targets, sizes, count)
        rows = logits = answers["logits"]
        if head == "multiple-choice":
            loss, is_right, grad = self._pieces(logits, targets, sizes, count)
            return loss, int(is_right.sum()), {"logits": grad}
        if head == "replaced-token":  # softmax(0, x) = (1 - sigmoid(x), sigmoid(x))
            rows = np.stack([np.zeros_like(logits), logits], axis=-1)
        wanted = np.concatenate([np.asarray(target).reshape(-1) for target in targets])
        loss, right, grad = self._rows(rows, wanted, count)
        grad = grad[:, 1] if head == "replaced-token" else grad
        return loss, right, {"logits": grad.reshape(logits.shape)}

    def _rows(self, logits: np.ndarray, targets: np.ndarray, count: int) -> tuple[float, int, np.ndarray]:
        options: dict[str, Any] = {"label_smoothing": self.label_smoothing, "reduction": "sum"}
        loss = float(cross_entropy(logits, targets, **options)) / count
        grad = cross_entropy_backward(1 / count, logits, targets, **options)
        return loss, int((logits.argmax(axis=-1) == targets).sum()), grad

    def _spans(
        self, answers: Mapping[str, np.ndarray], targets: Sequence[Any], lengths: Sequence[int] | np.ndarray, count: int
    ) -> tuple[float, int, dict[str, np.ndarray]]:
        loss, grads = 0.0, {}
        right = np.ones(len(targets), bool)
        for column, name in enumerate(("start_logits", "end_logits")):
            tokens = [np.asarray(target)[column] for target in targets]
            each, is_right, grads[name] = self._pieces(answers[name], tokens, lengths, 2 * count)
            loss, right = loss + each, right & is_right
        return loss, int(right.sum()), grads

    def _pieces(
        self, logits: np.ndarray, targets: Sequence[Any], sizes: Sequence[int] | np.ndarray, count: int
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns the loss of examples with different numbers of classes, which are choices or the tokens of a text.

        Also returns a mask of correct predictions, and the gradient of the logits.
        """
        pieces = zip(np.split(logits.reshape(-1), np.cumsum(sizes)[:-1]), targets, strict=True)
        losses, right, grads = zip(
            *(self._rows(each[None], np.asarray(target).reshape(1), count) for each, target in pieces), strict=True
        )
        return sum(losses), np.array(right, bool), np.concatenate([grad[0] for grad in grads]).reshape(logits.shape)


def _texts(example: Example) -> Sequence[Text]:
    texts = [example.text] if isinstance(example.text, Text) else example.text
    if not isinstance(texts, list | tuple) or not all(isinstance(each, Text) and len(each) for each in texts):
        got = "an empty one" if isinstance(example.text, Text) else shown(example.text)
        raise NpformerError(f"text: expected a Text with tokens, or a list of Texts for multiple choice, got {got}")
    return texts


# --- encoder-decoders ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TranslationLoss:
    """The cross-entropy of an encoder-decoder under teacher forcing.

    The decoder reads the start token and the target, and predicts the target and the end token.

    Parameters
    ----------
    config : Config of a translation model
    label_smoothing : float, fraction of the target probability that is spread over the vocabulary

    Raises
    ------
    NpformerError
        If the model is not a translation model or has no end token.

    References
    ----------
    Vaswani et al., 2017, section 5.4, uses label smoothing of 0.1.

    Examples
    --------
    >>> from npformer.training.translator import translator
    >>> loss = TranslationLoss(translator(vocabulary=300, width=32, heads=4, layers=2, ffn=64, longest=16))
    >>> loss.count(Example(npformer.Text(np.array([5, 6, 0])), np.array([7, 8])))  # two tokens and the end token
    3
    """

    config: Config
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        if self.config.head != "translation" or not self.config.decoder.end_ids:
            raise NpformerError("config: expected a translation model with an end token (eos_token_id)")
        number("label_smoothing", self.label_smoothing, 0, 1)

    def lengths(self, example: Example, /) -> tuple[int, ...]:
        return self.count(example), len(example.text)

    def count(self, example: Example, /) -> int:
        return len(example.target) + 1

    def part(self, tree: Mapping[str, Any], examples: Sequence[Example], count: int, edit: Edit | None, /) -> ShardLoss:
        parts, pairs = parts_of(self.config), teacher_forced(self.config, examples)
        source, target = pack([each.text for each in examples]), pack([Text(ids) for ids, _ in pairs])
        wanted = np.concatenate([answer for _, answer in pairs])
        recording = Recording(unread(tree, parts))
        with listen(edit) if edit else nullcontext(), listen(recording):
            logits = transformer(tree, parts, source, target)["logits"]
        options: dict[str, Any] = {"label_smoothing": self.label_smoothing, "reduction": "sum"}
        options["log_probabilities"] = log_softmax(logits)  # computed once for both functions, because it is expensive
        loss = float(cross_entropy(logits, wanted, **options)) / count
        right = int((logits.argmax(axis=-1) == wanted).sum())
        grad = cross_entropy_backward(1 / count, logits, wanted, **options)
        stages = recording.stages
        return ShardLoss(loss, right, transformer_backward({"logits": grad}, stages, tree, parts, source, target))


def teacher_forced(config: Config, examples: Sequence[Example]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the decoder's input ids and target ids for each example."""
    return [shift_right(each.target, config.decoder.start_id, config.decoder.end_ids[0]) for each in examples]
