"""Chooses next tokens from the rows of a decoder: projects the rows to the vocabulary and finds the best tokens.

With a typical vocabulary, a row of logits takes a quarter of a megabyte. Rows are therefore processed a few at a time,
so that they fit in the cache of a core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.functions import log_softmax
from npformer.engine.output_heads.formulas import project
from npformer.engine.runtime.products import kernel
from npformer.engine.runtime.threads import parallel_for
from npformer.engine.runtime.weight_products import in_order, weight_products
from npformer.engine.taps import listening
from npformer.generation.processors import Processors

ROWS = 8  # rows of logits processed at a time


class Projection:
    """The projection of rows (R, D) to logits (R, V), x W + b, in an array that all steps reuse."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        self.weight = in_order(weight)
        self.bias = bias if bias is not None and bias.any() else None
        self._logits = np.empty((0, weight.shape[1]), weight.dtype)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Computes logits, in an array that the next call overwrites."""
        if listening():
            return project(x, self.weight, self.bias).copy()
        rows = kernel(x.dtype).usable(len(x))
        if len(self._logits) < rows:
            self._logits = np.empty((rows, self.weight.shape[1]), x.dtype)
        (logits,) = weight_products(x, self.weight, out=[self._logits[:rows]])
        if self.bias is not None:
            logits += self.bias
        return logits


class Best(NamedTuple):
    """The best tokens of each row in descending order: (R, k) tokens and their log probabilities."""

    tokens: np.ndarray
    scores: np.ndarray


def best(logits: np.ndarray, ids: np.ndarray, processors: Processors, k: int) -> Best:
    """The k best tokens after the ids (R, L) of each row, with their log probabilities under the settings.

    As in beam search in Transformers, logits are normalized, then processed and, with renormalize_logits, normalized
    again. Bans do not change the scores of other tokens. If the settings request only bans, the logits are therefore
    normalized only once, before or after the bans.
    """
    s = processors.settings

    def work(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        some = logits[rows]
        if processors.rescales:
            some[:] = log_softmax(some)
            processors(ids[rows], some)
            if s.renormalize_logits:
                some[:] = log_softmax(some)
            return top(some, k)
        if s.renormalize_logits:
            processors(ids[rows], some)
            highest, total = _normalizer(some)
        else:
            highest, total = _normalizer(some)
            processors(ids[rows], some)
            forced, _ = processors.forced(ids[rows])  # the log probability of a forced token is 0
            highest[forced] = total[forced] = 0
        tokens, values = top(some, k)
        values -= highest
        values -= total
        return tokens, values

    return Best(*_by_rows(work, len(logits), logits.shape[1]))


def _normalizer(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two terms that log_softmax subtracts, (R, 1) each: the maximum, and log sum exp(score - maximum)."""
    highest = scores.max(axis=1, keepdims=True)
    shifted = scores - highest
    np.exp(shifted, out=shifted)
    return highest, np.log(shifted.sum(axis=1, keepdims=True))


def greedy(logits: np.ndarray, ids: np.ndarray, processors: Processors, scored: bool) -> Best:
    """The best token after the ids of each row. Its log probability is computed if `scored`, and is otherwise 0."""

    def work(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        some = logits[rows]
        processors(ids[rows], some)
        tokens = some.argmax(axis=1)[:, None]
        values = np.take_along_axis(some, tokens, axis=1)
        check_choice(values)
        if not scored:
            return tokens, np.zeros(tokens.shape, logits.dtype)
        highest, total = _normalizer(some)
        return tokens, values - highest - total

    return Best(*_by_rows(work, len(logits), logits.shape[1]))


def check_choice(scores: np.ndarray) -> None:
    """Raises NpformerError if the best score is NaN, +inf or -inf, which means that all tokens are banned."""
    if (scores == -np.inf).any():
        raise NpformerError(
            "settings: expected an allowed next token; the settings ban all tokens, or ban a forced token"
        )
    if not np.isfinite(scores).all():
        raise NpformerError("the scores of the next token are not finite: the weights are damaged or far too large")


def top(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices and values (R, k) of the k largest elements of each row (R, V), in descending order, then by index.

    Each row is reshaped to a table and read only once, because the k columns with the largest maxima contain the k
    largest elements.
    """
    rows, width = scores.shape
    columns = width // 64
    if columns <= 4 * k:
        return _sorted(scores, np.broadcast_to(np.arange(width), scores.shape), k)
    table = scores[:, : columns * 64].reshape(rows, 64, columns)
    chosen = np.argpartition(table.max(axis=1), columns - k, axis=1)[:, columns - k :]
    places = (np.arange(64)[:, None] * columns + chosen[:, None]).reshape(rows, -1)
    rest = np.broadcast_to(np.arange(columns * 64, width), (rows, width - columns * 64))
    places = np.concatenate([places, rest], axis=1)
    return _sorted(np.take_along_axis(scores, places, axis=1), places, k)


def _sorted(values: np.ndarray, places: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((places, -values), axis=1)[:, :k]
    return np.take_along_axis(places, order, axis=1), np.take_along_axis(values, order, axis=1)


def _by_rows(
    work: Callable[[slice], tuple[np.ndarray, np.ndarray]], n_rows: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Applies `work` to a few rows at a time, on several threads, and concatenates the results."""
    blocks = [slice(at, at + ROWS) for at in range(0, n_rows, ROWS)]
    answers: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0), np.empty(0))] * len(blocks)

    def work_on(some: slice) -> None:
        for i in range(some.start, some.stop):
            answers[i] = work(blocks[i])

    parallel_for(work_on, len(blocks), nanoseconds=n_rows * width)
    tokens, values = zip(*answers, strict=True)
    return np.concatenate(tokens), np.concatenate(values)
