"""Perplexity: how well a model predicts a text, token by token. A text of any length is read in windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.functions import cross_entropy
from npformer.runtime.packing import Text
from npformer.text.encoding import Encoder
from npformer.text.inputs import as_text

ROWS = 256  # rows of logits whose cross-entropy is computed at a time


@dataclass(frozen=True)
class Perplexity:
    """The probability that a model gives a text, as `perplexity` found it.

    Parameters
    ----------
    log_probability : the sum of the natural logarithms of the tokens' probabilities
    tokens : tokens that were predicted, which are all but the first
    words, bytes : words between white space, and bytes of UTF-8, of the whole text

    Examples
    --------
    >>> round(Perplexity(log_probability=-2 * math.log(8), tokens=2, words=1, bytes=6).perplexity, 6)
    8.0
    """

    log_probability: float
    tokens: int
    words: int
    bytes: int

    @property
    def perplexity(self) -> float:
        """exp(-log p / tokens)."""
        return self._of(self.tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(-log p / words), which models with different tokens share."""
        return self._of(self.words)

    @property
    def byte_perplexity(self) -> float:
        """exp(-log p / bytes)."""
        return self._of(self.bytes)

    @property
    def bits_per_byte(self) -> float:
        """-log2 p / bytes."""
        return -self.log_probability / self.bytes / math.log(2)

    def _of(self, count: int) -> float:
        with np.errstate(over="ignore"):  # a word of many bad tokens may be beyond the largest number
            return float(np.exp(np.float64(-self.log_probability / max(count, 1))))

    def __float__(self) -> float:
        return self.perplexity

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4f} a token, {self.word_perplexity:.4f} a word, "
            f"{self.byte_perplexity:.4f} a byte   {self.bits_per_byte:.4f} bits a byte   "
            f"{self.tokens} tokens, {self.words} words, {self.bytes} bytes"
        )


def perplexity(model: BaseModel, text: str, stride: int | None = None, max_length: int | None = None) -> Perplexity:
    """Measures how well a model predicts a text: exp of the mean cross-entropy of each token given those before it.

    A text that is longer than the model takes is read in windows, each `stride` tokens after the one before. Of each
    window only those tokens count that no window before had. They have at least max_length - stride tokens before them,
    but for the first window's. The first token has nothing before it and does not count. Special tokens stand around
    the text if the model's tokenizer puts them there, and count, as in Transformers.

    Parameters
    ----------
    model : Model with head "causal-lm"
    text : str
    stride : tokens from a window to the next; by default half a window. Less is slower, and a truer figure.
    max_length : tokens of a window, if fewer than the model takes

    Returns
    -------
    Perplexity
        With .perplexity, .word_perplexity, .byte_perplexity, .bits_per_byte, .log_probability and .tokens; float() of
        it is the first.

    Raises
    ------
    NpformerError
        The model is of another kind, the text has fewer than two tokens, or a setting is impossible.

    References
    ----------
    https://huggingface.co/docs/transformers/perplexity, whose loop counts a token too few in each window but the first,
    so that its figure differs in the fourth digit or so.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> config = npformer.Config("gpt2", "causal-lm", 5, 8, 2, 1, 16, max_length=4, causal=True)
    >>> model = npformer.Model(config, npformer.training.initialise(config))
    >>> model.tokenizer = Tokenizer(models.WordLevel({"to": 0, "be": 1, "or": 2, "not": 3, "?": 4}, unk_token="?"))
    >>> model.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> print(npformer.perplexity(model, "to be or not to be"))  # of new weights, about one in the vocabulary
    perplexity 5.10... a token, 3.88... a word, 1.57... a byte   0.65... bits a byte   5 tokens, 6 words, 18 bytes
    """
    check_model("perplexity", model)
    if model.config.head != "causal-lm":
        raise NpformerError(f"perplexity: expected a causal-lm model, got a {model.config.head} model")
    most = whole("perplexity: the model's positions", model.config.max_length, 2)
    width = most if max_length is None else whole("max_length", max_length, 2, most)
    step = max(1, width // 2) if stride is None else whole("stride", stride, 1, width - 1)
    encoder = Encoder(model)
    ids = encoder.ids(as_text(text))
    if len(ids) < 2 or np.array_equal(ids, encoder.ids("")):
        raise NpformerError("perplexity: expected a text of at least two tokens, and one of its own among them")
    sums = [-_cross_entropy(model, ids[first:end], counted) for first, end, counted in windows(len(ids), width, step)]
    return Perplexity(math.fsum(sums), len(ids) - 1, len(text.split()), len(text.encode()))


def windows(length: int, width: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Yields windows of `width` tokens: (first token, end, number of its last tokens that none before predicted)."""
    before = 1  # the first token is never predicted
    for first in range(0, length, step):
        end = min(first + width, length)
        yield first, end, end - before
        if end == length:
            return
        before = end


def _cross_entropy(model: BaseModel, ids: np.ndarray, counted: int) -> float:
    """The sum of the cross-entropies of a window's last `counted` tokens."""
    [answer] = model.run([Text(ids)])
    rows = range(len(ids) - 1 - counted, len(ids) - 1, ROWS)
    logits, wanted = answer["logits"][:-1], ids[1:]
    sums = (cross_entropy(logits[i : i + ROWS], wanted[i : i + ROWS], reduction="sum") for i in rows)
    return math.fsum(map(float, sums))
