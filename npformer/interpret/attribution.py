"""Attribution of a model's answer to words, by two measures that need no gradients.

Leave-one-out runs the model again with each word left out in turn. Attention roll-out follows attention back through
the layers, which shows where information could flow, but not its effect on a label. `integrated_gradients.py` has the
gradient measures, and `view/attribution_view.py` draws all of them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.common.progress import with_bar
from npformer.engine.functions import softmax
from npformer.engine.taps import listening
from npformer.interpret.cost import affordable
from npformer.interpret.metric import asked_label
from npformer.interpret.stacks import WeightStack
from npformer.text.words import Span, text_words, word_spans, word_text

TOKENS = 4096  # tokens in a batch, enough to use all cores; a progress bar advances after each batch
BATCH = 1024  # number of tokens in an edited forward pass
MOST = 8_192  # maximum number of tokens to read without grouping words: about 15 s on two cores for BERT-base
ODDS = "the log-odds of"
Pieces = tuple[tuple[str, int | None], ...]  # the pieces of a text, each with its word's number, or None between words


class NothingLeft(NpformerError):
    """Raised if leaving words out leaves an empty text."""


@dataclass(frozen=True, eq=False)
class Method:
    """One measure applied to one text: a score for each word, a description, and the text to mark.

    `unit` describes a score in a few words, such as "how far the log-odds of POSITIVE fall without the word".
    """

    name: str
    about: str
    texts: tuple[Pieces, ...]
    scores: np.ndarray
    signed: bool
    places: tuple[int, ...]  # the first token of each word
    beside: tuple[str, np.ndarray] | None = None  # a second column: its heading, and a number for each word
    unit: str = ""

    @property
    def words(self) -> list[str]:
        """The words in the order of the text."""
        return [piece for text in self.texts for piece, number in text if number is not None]


@dataclass(frozen=True)
class Target:
    """The number that an attribution explains: the log-odds of a label or of the next word, log p / (1 - p).

    Log-odds do not saturate near probability 1. With two labels, the log-odds equal the difference of the logits. With
    independent labels, they equal the logit. For a regression, the number is the output; for several words of a
    translation, it is the mean of the log-odds.
    """

    what: str  # a description for use in sentences, such as "the log-odds of POSITIVE"
    labels: tuple[int, ...]
    alone: bool  # True if the target is the logit itself, because labels are independent
    outcome: str = ""  # the name of the label or word, if the target is its log-odds
    # row of the first label in a text's logits (-1: the last row), or None if the text has a single row of logits
    first: int | None = None

    def rows(self, lengths: np.ndarray) -> slice | np.ndarray:
        """Returns, text by text, the rows of the packed logits to which the labels belong, given the texts' lengths."""
        if self.first is None:
            return slice(None)
        start = np.cumsum(lengths) - (lengths if self.first >= 0 else 0) + self.first
        return (start[:, None] + np.arange(len(self.labels))).ravel()

    def of(self, logits: np.ndarray) -> np.ndarray:
        """Computes the target of each text from its rows of the logits, (B * labels, C) -> (B,), in float64."""
        logits, at = logits.astype(np.float64), self._labels(logits)
        values = logits[at] if self.alone else logits[at] - np.logaddexp.reduce(_without(logits, at), axis=1)
        return values.reshape(-1, len(self.labels)).mean(axis=1)

    def gradient(self, logits: np.ndarray) -> np.ndarray:
        """Returns the derivative of `of` with respect to the logits: 1 for the label, -softmax of the other logits."""
        at = self._labels(logits)
        grad = np.zeros(logits.shape) if self.alone else -softmax(_without(logits.astype(np.float64), at))
        grad[at] = 1
        return (grad / len(self.labels)).astype(logits.dtype)

    def _labels(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the index of the label in each row of the logits."""
        return np.arange(len(logits)), np.resize(self.labels, len(logits))

    @property
    def is_odds(self) -> bool:
        return self.what.startswith(ODDS)


def target(model: Any, label: str | int | None, logits: np.ndarray) -> Target:
    """Makes the target for a text with these logits (C,). `label` is a name or number, by default the model's answer.

    Raises NpformerError for a label that the model does not have.
    """
    config = model.config
    if config.head == "causal-lm":
        word, name = asked_label(model, int(logits.argmax()) if label is None else label, len(logits), "attribution")
        return Target(f"{ODDS} '{name}' as the next token", (word,), False, f"'{name}'", first=-1)
    names = list(config.labels) if len(config.labels) == len(logits) else [f"label {i}" for i in range(len(logits))]
    wanted = int(logits.argmax()) if label is None else label
    number = names.index(wanted) if isinstance(wanted, str) and wanted in names else wanted
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise NpformerError(f"attribution: label={label!r}: expected one of {', '.join(names)}")
    if config.problem_type == "regression":
        return Target("the model's output", (number,), True)
    independent = config.problem_type == "multi_label_classification" or len(logits) == 1
    return Target(f"{ODDS} {names[number]}", (number,), independent, names[number])


def _without(logits: np.ndarray, at: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns the logits with -inf at these indices, to exclude them from log-sum-exp and softmax."""
    others = logits.copy()
    others[at] = -np.inf
    return others


def leave_one_out(
    model: Any, given: Any, label: str | int | None, progress: bool | None = None, group: int | None = None
) -> Method:
    """Scores words: score_i = log-odds of the label on the whole text - log-odds on the text without word i.

    `label` is by default the model's answer. `group` adjacent words are left out together; by default one word, or more
    if the runs would read more than `MOST` tokens. Raises NpformerError for a text without words, and NothingLeft
    for a single word without special tokens.
    """
    from npformer.interpret.study_inputs import texts_of  # needed only with a model
    from npformer.text.inputs import Pair, as_text_or_pair

    part = as_text_or_pair(given)
    texts = (part,) if isinstance(part, str) else part
    words = [text_words(text) for text in texts]
    count = sum(map(len, words))
    if not count:
        raise NpformerError(f"attribution: expected a text with at least one word, got {given!r:.80}")
    tokens = len(texts_of(model, given)[0][0])
    size = words_together(model, count, tokens, group)
    if size > 1:
        words = [_with_punctuation(text, spans) for text, spans in zip(texts, words, strict=True)]
        size = words_together(model, sum(map(len, words)), tokens, group)
    parts = [together(spans, size) for spans in words]
    without = [
        [without_words(text, *span) if i == j else text for j, text in enumerate(texts)]
        for i, spans in enumerate(parts)
        for span in spans
    ]
    inputs = texts_of(model, [each[0] if len(each) == 1 else Pair(*each) for each in (texts, *without)])[0]
    if not all(map(len, inputs)):
        raise NothingLeft(
            f"attribution: leave-one-out: leaving {size} out leaves no token of {given!r:.80}; use a longer text, or "
            "another method"
        )
    logits = logits_of(model, inputs, progress)
    is_next = model.config.head == "causal-lm"
    rows = np.stack([each[-1 if is_next else ...] for each in logits]).astype(np.float64)
    explained = target(model, label, rows[0])
    places = _first_tokens(model, part, parts)
    return left_out(explained, explained.of(rows), _cut(texts, parts), places, size, is_long=group is None)


def _with_punctuation(text: str, spans: Sequence[Span]) -> list[Span]:
    """Joins punctuation, except opening brackets and quotes, to the preceding word, including any space between."""
    joined: list[Span] = []
    for first, end in spans:
        kind = unicodedata.category(text[first])
        if joined and kind.startswith("P") and kind not in ("Ps", "Pi"):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return joined


def without_words(text: str, first: int, end: int) -> str:
    """Returns a text without some words and without the space before them, or after them at the start of the text.

    In most vocabularies, the space belongs to the word's token. If it stayed, the text would have two spaces in a row
    or end with a space, and the model would read a token that nobody typed.
    """
    before, after = text[:first], text[end:]
    return before.rstrip() + after if before.strip() else before + after.lstrip()


def _first_tokens(model: Any, given: Any, parts: Sequence[Sequence[Span]]) -> tuple[int, ...]:
    """Returns the token at which each part of a text or pair begins. parts: for each text, spans of characters."""
    from npformer.text.encoding import Encoder

    tokens = Encoder(model).read([given])[0].pieces[0]
    places: list[int] = []
    for number, spans in enumerate(parts):
        own = [i for i, source in enumerate(tokens.sequence_ids) if source == number]
        ends = [tokens.offsets[i][1] for i in own]
        # the first token that ends after the start of a part
        found = np.searchsorted(ends, [first for first, _ in spans], side="right")
        places += [own[i] if i < len(own) else len(tokens) for i in found.tolist()]
    return tuple(places)


def words_together(model: Any, count: int, tokens: int, asked: int | None) -> int:
    """Returns how many adjacent words to leave out together: one, or more in a long text of `count` words."""
    if asked is not None:
        return whole("attribution: group", asked, 1)
    return math.ceil(count * tokens / affordable(model, MOST))


def together(spans: Sequence[Span], size: int) -> list[Span]:
    """Joins the spans of `size` adjacent words."""
    return [(spans[i][0], spans[min(i + size, len(spans)) - 1][1]) for i in range(0, len(spans), size)]


def logits_of(model: Any, inputs: Sequence[Any], progress: bool | None) -> Iterator[np.ndarray]:
    """Yields each input's logits, computed in packed batches. `progress` shows a bar."""
    words = model.config.head in ("causal-lm", "translation")  # these heads compute V logits for each token
    tokens = BATCH if listening() else BATCH * model.threads if words else TOKENS  # an edited pass uses one thread
    size = max(1, tokens // len(inputs[0][0] if isinstance(inputs[0], tuple) else inputs[0]))
    batches = (model.run(inputs[first : first + size]) for first in range(0, len(inputs), size))
    yield from with_bar((answers["logits"] for batch in batches for answers in batch), len(inputs), shown=progress)


def left_out(
    explained: Target, odds: np.ndarray, texts: tuple[Pieces, ...], places: tuple[int, ...], size: int, is_long: bool
) -> Method:
    """Makes the leave-one-out measure from `odds`: the target of the whole text, then with each part left out."""
    part = "word" if size == 1 else "words"
    about = f"{explained.what} on the whole text ({odds[0]:z.4f}) minus {'those' if explained.is_odds else 'that'}"
    about = f"{about[0].upper()}{about[1:]} without the {part}."
    if size > 1:
        about += (
            f" {size} adjacent words are left out together, because the text is long; group=1 leaves out one at a time."
        )
    beside = None
    if explained.is_odds and len(explained.labels) == 1:
        probabilities = 0.5 + 0.5 * np.tanh(odds / 2)  # the sigmoid, without overflow
        about += f" Probability on the whole text: {probabilities[0]:.4f}."
        beside = (f"probability of {explained.outcome} without the {part}", probabilities[1:])
    name = "Leave one word out" if size == 1 else f"Leave {size} words out"
    verb = "fall" if explained.is_odds else "falls"
    unit = f"how far {explained.what} {verb} without the {part}"
    return Method(name, about, texts, odds[0] - odds[1:], True, places, beside, unit)


def _cut(texts: Sequence[str], parts: Sequence[Sequence[Span]]) -> tuple[Pieces, ...]:
    """Splits texts into the parts to leave out, numbered over all texts, and the text between them."""
    cut, number = [], 0
    for text, spans in zip(texts, parts, strict=True):
        pieces: list[tuple[str, int | None]] = []
        at = 0
        for first, end in spans:
            pieces += [(text[at:first], None), (text[first:end], number)]
            at, number = end, number + 1
        cut.append(tuple(piece for piece in [*pieces, (text[at:], None)] if piece[0]))
    return tuple(cut)


def roll_out(stack: WeightStack, token: int) -> Method:
    """Computes each word's share of the output at `token`: row `token` of A_n ... A_2 A_1, with A = (mean W + I) / 2.

    Each layer counts as half attention (the mean over its heads) and half residual. Abnar and Zuidema, 2020,
    "Quantifying Attention Flow in Transformers", section 3.
    """
    shares = np.eye(len(stack.keys.tokens))
    for weights in stack.layers:
        mean = weights.mean(axis=0, dtype=np.float64)
        shares = (mean + np.eye(len(mean))) / 2 @ shares
    name = stack.queries.tokens[token]
    about = f"Each word's share of the output at {name}: attention averaged over heads, multiplied through the layers"
    about += ", with half of each layer for the residual. It does not depend on the label."
    return on_tokens("Attention roll-out", about, stack.keys.tokens, shares[token], signed=False)


def on_logit(found: Any) -> Method:
    """Makes a measure from a `LogitAttribution`: each word's contribution over all layers."""
    layer, head = np.unravel_index(np.abs(found.heads.sum(axis=-1)).argmax(), found.heads.shape[:2])
    about = f"Contribution of each word to {found.what} ({found.logit:z.4f}), with layer norms fixed: through the heads"
    about += f" that read it for token {found.position}. That token also contributes through its own row. Biases add"
    about += f" {sum(found.biases.values()):z.4f}. Head {head} of layer {layer} has the largest contribution of"
    about += f" all heads: {found.heads[layer, head].sum():z.4f}."
    return on_tokens("Logit attribution", about, found.tokens, found.words.sum(axis=0), signed=True)


def given_scores(name: str, tokens: Sequence[str], scores: Any) -> Method:
    """Makes a measure from scores that the caller has computed, one per token."""
    array = np.asarray(scores, np.float64)
    if array.shape != (len(tokens),) or not np.isfinite(array).all():
        raise NpformerError(f"attribution: scores {name!r}: expected {len(tokens)} finite numbers, one per token")
    about = "Scores given by the caller, one for each token; a word's score is the sum over its tokens."
    return on_tokens(name, about, tokens, array, signed=bool((array < 0).any()))


def on_tokens(name: str, about: str, tokens: Sequence[str], scores: np.ndarray, signed: bool, unit: str = "") -> Method:
    """Makes a measure from one score per token. A word's score is the sum over its tokens."""
    spans = word_spans(tokens)
    pieces: list[tuple[str, int | None]] = []
    for number, (first, end) in enumerate(spans):
        pieces += [(word_text(tokens[first:end]), number), (" ", None)]
    summed = np.add.reduceat(scores, [first for first, _ in spans])
    places = tuple(first for first, _ in spans)
    return Method(name, about, (tuple(pieces[:-1]),), summed, signed, places, unit=unit)
