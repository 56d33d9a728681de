"""`perplexity` measures how well a model predicts the tokens of a text. It reads long texts in windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.common.checks import whole
from npformer.common.errors import NpformerError
from npformer.engine.functions import cross_entropy
from npformer.engine.runtime.packing import Text
from npformer.text.encoding import Encoder
from npformer.text.inputs import as_text

ROWS = 256  # rows of logits processed at a time


@dataclass(frozen=True)
class Perplexity:
    """The result of `perplexity`: the probability of a text according to a model.

    Parameters
    ----------
    log_probability : sum of the natural logarithms of the probabilities of tokens
    tokens : number of predicted tokens: all tokens except the first
    words, bytes : number of words (separated by white space) and number of UTF-8 bytes in the whole text

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
        """exp(-log p / words), which can be compared across tokenizers."""
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
        with np.errstate(over="ignore"):  # exp can overflow if words have many unlikely tokens
            return float(np.exp(np.float64(-self.log_probability / max(count, 1))))

    def __float__(self) -> float:
        return self.perplexity

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4f} per token, {self.word_perplexity:.4f} per word, "
            f"{self.byte_perplexity:.4f} per byte   {self.bits_per_byte:.4f} bits per byte   "
            f"{self.tokens} tokens, {self.words} words, {self.bytes} bytes"
        )


def perplexity(model: BaseModel, text: str, stride: int | None = None, max_length: int | None = None) -> Perplexity:
    """Computes the perplexity of a text: exp of the mean cross-entropy of its tokens, given the preceding tokens.

    A text that is too long for the model is read in windows that begin `stride` tokens apart. Only tokens that are new
    in a window are counted. Except in the first window, at least max_length - stride tokens precede the new tokens. The
    first token of the text is not predicted. As in Transformers, special tokens that the tokenizer adds are counted.

    Parameters
    ----------
    model : Model with head "causal-lm"
    text : str
    stride : int, tokens from one window to the next, by default half a window; a smaller stride is slower and more
        accurate
    max_length : int, tokens in a window, if below the limit of the model

    Returns
    -------
    Perplexity
        With .perplexity, .word_perplexity, .byte_perplexity, .bits_per_byte, .log_probability and .tokens; float()
        returns .perplexity.

    Raises
    ------
    NpformerError
        The model is not a causal language model, the text has fewer than two tokens or only special tokens, or a
        setting is invalid.

    References
    ----------
    https://huggingface.co/docs/transformers/perplexity. The loop on that page counts one token too few in each window
    after the first, so the result differs in about the fourth digit.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> config = npformer.Config("gpt2", "causal-lm", 5, 8, 2, 1, 16, max_length=4, causal=True)
    >>> model = npformer.Model(config, npformer.training.initialize(config))
    >>> model.tokenizer = Tokenizer(models.WordLevel({"to": 0, "be": 1, "or": 2, "not": 3, "?": 4}, unk_token="?"))
    >>> model.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> print(npformer.perplexity(model, "to be or not to be"))  # with new weights, about the size of the vocabulary
    perplexity 5.10... per token, 3.88... per word, 1.57... per byte   0.65... bits per byte   5 tokens, 6 words, 18
    bytes
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
        raise NpformerError(
            "perplexity: expected a text of at least two tokens, with at least one that is not a special token"
        )
    sums = [-_cross_entropy(model, ids[first:end], counted) for first, end, counted in windows(len(ids), width, step)]
    return Perplexity(math.fsum(sums), len(ids) - 1, len(text.split()), len(text.encode()))


def windows(length: int, width: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Yields windows of at most `width` tokens, as (first token, end, number of new tokens at the end)."""
    before = 1  # the first token is not predicted
    for first in range(0, length, step):
        end = min(first + width, length)
        yield first, end, end - before
        if end == length:
            return
        before = end


def _cross_entropy(model: BaseModel, ids: np.ndarray, counted: int) -> float:
    """The sum of the cross-entropies of the last `counted` tokens of a window."""
    [answer] = model.run([Text(ids)])
    rows = range(len(ids) - 1 - counted, len(ids) - 1, ROWS)
    logits, wanted = answer["logits"][:-1], ids[1:]
    sums = (cross_entropy(logits[i : i + ROWS], wanted[i : i + ROWS], reduction="sum") for i in rows)
    return math.fsum(map(float, sums))
