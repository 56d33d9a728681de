"""Attribution of a result to words by two measures without gradients.

Leaving a word out runs the model again without it. Attention roll-out follows attention back through the layers: it
shows where information could flow, not its effect on a label. `integrated_gradients.py` has the gradient measures,
`view/attribution_view.py` draws all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.progress import with_bar
from npformer.functions import softmax
from npformer.interpret.metric import asked_label
from npformer.interpret.stacks import Stack
from npformer.taps import listening
from npformer.text.words import text_words, word_spans, word_text

TOKENS = 16_384  # tokens between two steps of a progress bar: enough for all cores
BATCH = 1024  # tokens of an edited forward
ODDS = "the log-odds of"
Pieces = tuple[tuple[str, int | None], ...]  # words of a text with their numbers, and the parts between (None)


@dataclass(frozen=True, eq=False)
class Method:
    """One measure on one text: a score for each word, a description, and the text to mark."""

    name: str
    about: str
    texts: tuple[Pieces, ...]
    scores: np.ndarray
    signed: bool
    beside: tuple[str, np.ndarray] | None = None  # a second column: its heading, and one number for each word

    @property
    def words(self) -> list[str]:
        """The words in order."""
        return [piece for text in self.texts for piece, number in text if number is not None]


@dataclass(frozen=True)
class Target:
    """The number that an attribution explains: the log-odds of a label or of the next word, log p / (1 - p).

    Log-odds do not saturate near probability 1. With two labels they are the difference of the logits, with independent
    labels the logit itself. A regression has its output instead.
    """

    what: str  # part of a sentence: "the log-odds of POSITIVE"
    label: int
    alone: bool  # whether the target is the logit itself, independent of the other labels
    is_next: bool = False  # whether the label is the word after the text, which the logits of its last token answer

    def rows(self, lengths: np.ndarray) -> slice | np.ndarray:
        """The rows of the packed logits of texts of these lengths that hold the target."""
        return np.cumsum(lengths) - 1 if self.is_next else slice(None)

    def of(self, logits: np.ndarray) -> np.ndarray:
        """Computes the target of each text from the logits, (B, C) -> (B,), in float64."""
        logits = logits.astype(np.float64)
        return logits[:, self.label] if self.alone else log_odds(logits, self.label)

    def gradient(self, logits: np.ndarray) -> np.ndarray:
        """Returns the derivative of `of` by the logits, (B, C): 1 for the label, -softmax over the others."""
        grad = np.zeros(logits.shape)
        if not self.alone:
            others = [i for i in range(logits.shape[1]) if i != self.label]
            grad[:, others] = -softmax(logits[:, others].astype(np.float64))
        grad[:, self.label] = 1
        return grad.astype(logits.dtype)

    @property
    def is_odds(self) -> bool:
        return self.what.startswith(ODDS)


def target(model: Any, label: str | int | None, logits: np.ndarray) -> Target:
    """Makes the target for a text with these logits (C,): `label` by name or number, by default the model's answer.

    Raises NpformerError for a label that the model does not have.
    """
    config = model.config
    if config.head == "causal-lm":
        word, name = asked_label(model, int(logits.argmax()) if label is None else label, len(logits), "attribution")
        return Target(f"{ODDS} '{name}' as the next word", word, False, is_next=True)
    names = list(config.labels) if len(config.labels) == len(logits) else [f"label {i}" for i in range(len(logits))]
    wanted = int(logits.argmax()) if label is None else label
    number = names.index(wanted) if isinstance(wanted, str) and wanted in names else wanted
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise NpformerError(f"attribution: label={label!r}: expected one of {', '.join(names)}")
    if config.problem_type == "regression":
        return Target("the model's output", number, True)
    independent = config.problem_type == "multi_label_classification" or len(logits) == 1
    return Target(f"{ODDS} {names[number]}", number, independent)


def log_odds(logits: np.ndarray, label: int) -> np.ndarray:
    """log p / (1 - p) of one label, with p = softmax(logits): its logit minus the log-sum-exp of the others."""
    return logits[:, label] - np.logaddexp.reduce(np.delete(logits, label, axis=1), axis=1)


def leave_one_out(model: Any, given: Any, label: str | int | None, progress: bool = False) -> Method:
    """score_i = log-odds of the label on the whole text - log-odds on the text without word i.

    `label` is by default the model's answer. Raises NpformerError for a text without a word.
    """
    from npformer.text.inputs import Pair, as_text_or_pair  # only a model needs texts

    part = as_text_or_pair(given)
    texts = (part,) if isinstance(part, str) else part
    spans = [(i, first, end) for i, text in enumerate(texts) for first, end in text_words(text)]
    if not spans:
        raise NpformerError(f"attribution: expected a text with at least one word, got {given!r:.80}")
    without = [[t[:a] + t[b:] if i == j else t for j, t in enumerate(texts)] for i, a, b in spans]
    logits = _logits(model, [each[0] if len(each) == 1 else Pair(*each) for each in (texts, *without)], progress)
    explained = target(model, label, logits[0])
    odds = explained.of(logits)
    about = f"{explained.what} on the whole text ({odds[0]:z.4f}) minus {'those' if explained.is_odds else 'that'}"
    about = f"{about[0].upper()}{about[1:]} without the word."
    beside = None
    if explained.is_odds:
        probabilities = 0.5 + 0.5 * np.tanh(odds / 2)  # the sigmoid, without its overflow
        about += f" Probability on the whole text: {probabilities[0]:.4f}."
        beside = ("probability without it", probabilities[1:])
    return Method("Leave one word out", about, _cut(texts), odds[0] - odds[1:], True, beside)


def _logits(model: Any, texts: Sequence[Any], progress: bool) -> np.ndarray:
    """Computes the logits of each text in float64, those of the next word for a model that has them for each token."""
    from npformer.interpret.traces import texts_of

    inputs, _, _ = texts_of(model, list(texts))
    tokens = BATCH if listening() else TOKENS  # an edited forward runs in one piece
    size = max(1, tokens // len(inputs[0]))
    batches = (model.run(inputs[first : first + size]) for first in range(0, len(inputs), size))
    is_next = model.config.head == "causal-lm"
    logits = (answers["logits"][-1 if is_next else ...] for batch in batches for answers in batch)
    return np.stack(list(with_bar(logits, len(inputs), shown=progress))).astype(np.float64)


def _cut(texts: Sequence[str]) -> tuple[Pieces, ...]:
    """Splits each text into its words, numbered over all texts, and the parts between them."""
    cut, number = [], 0
    for text in texts:
        pieces: list[tuple[str, int | None]] = []
        at = 0
        for first, end in text_words(text):
            pieces += [(text[at:first], None), (text[first:end], number)]
            at, number = end, number + 1
        cut.append(tuple(piece for piece in [*pieces, (text[at:], None)] if piece[0]))
    return tuple(cut)


def roll_out(stack: Stack, token: int) -> Method:
    """Computes the share of each word in the output at `token`: row `token` of A_n ... A_2 A_1, A = (mean W + I) / 2.

    A layer is half attention (the mean over its heads), half residual. Abnar and Zuidema, 2020,
    "Quantifying Attention Flow in Transformers", section 3.
    """
    shares = np.eye(len(stack.keys.tokens))
    for weights in stack.layers:
        mean = weights.mean(axis=0, dtype=np.float64)
        shares = (mean + np.eye(len(mean))) / 2 @ shares
    name = stack.queries.tokens[token]
    about = f"Share of each word in the output at {name}: attention averaged over heads, multiplied through the layers"
    about += ", with half of each layer for the residual. It does not depend on the label."
    return on_tokens("Attention roll-out", about, stack.keys.tokens, shares[token], signed=False)


def on_logit(found: Any) -> Method:
    """Makes a measure of a `LogitAttribution`: the contribution of each word over all layers."""
    layer, head = np.unravel_index(np.abs(found.heads.sum(axis=-1)).argmax(), found.heads.shape[:2])
    about = (
        f"Contribution of each word to {found.what} ({found.logit:z.4f}), with layer norms held: through the heads that"
    )
    about += f" read it for token {found.position}, and that token also through its own row. Biases add"
    about += f" {sum(found.biases.values()):z.4f}. The largest head is head {head} of layer {layer}, with"
    about += f" {found.heads[layer, head].sum():z.4f}."
    return on_tokens("Logit attribution", about, found.tokens, found.words.sum(axis=0), signed=True)


def given_scores(name: str, tokens: Sequence[str], scores: Any) -> Method:
    """Wraps a caller's scores, one for each token, as a measure named `name`."""
    array = np.asarray(scores, np.float64)
    if array.shape != (len(tokens),) or not np.isfinite(array).all():
        raise NpformerError(f"attribution: scores {name!r}: expected {len(tokens)} finite numbers, one per token")
    about = "One given score for each token; a word has the sum of its pieces."
    return on_tokens(name, about, tokens, array, signed=bool((array < 0).any()))


def on_tokens(name: str, about: str, tokens: Sequence[str], scores: np.ndarray, signed: bool) -> Method:
    """Makes a measure from a score for each token: a word gets the sum of its pieces."""
    spans = word_spans(tokens)
    pieces: list[tuple[str, int | None]] = []
    for number, (first, end) in enumerate(spans):
        pieces += [(word_text(tokens[first:end]), number), (" ", None)]
    return Method(name, about, (tuple(pieces[:-1]),), np.add.reduceat(scores, [first for first, _ in spans]), signed)
