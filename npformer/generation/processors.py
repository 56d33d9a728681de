"""Changes to the scores of the next token: biases, bans, forced tokens, penalties, and the limits of sampling.

Functions change scores (R, V) in place, or return a mask (R, V) of the tokens to ban. ids (R, L) are the tokens of each
row so far, beginning with the prompt or the start token. Negative ids pad shorter rows on the left. Changes are made in
the same order as in Transformers.
"""

from __future__ import annotations

import math

import numpy as np

from npformer.engine.functions import log_softmax, softmax
from npformer.generation.settings import Settings

TOP_H = 100  # number of most likely tokens from which top_h chooses


def bias_sequences(ids: np.ndarray, scores: np.ndarray, biases: tuple[tuple[tuple[int, ...], float], ...]) -> None:
    """Adds the bias of each sequence to the score of its last token, if the row ends with the preceding tokens."""
    total = np.zeros_like(scores)
    for (*start, last), bias in biases:
        total[_ends_with(ids, start), last] += np.float32(bias)
    scores += total


def penalize_repetition(ids: np.ndarray, scores: np.ndarray, penalty: float) -> None:
    """Divides positive scores of earlier tokens by the penalty, and multiplies negative scores by the penalty.

    Keskar et al., 2019.
    """
    ids = np.where(ids < 0, ids[:, -1:], ids)
    seen = np.take_along_axis(scores, ids, axis=1)
    np.put_along_axis(scores, ids, np.where(seen < 0, seen * penalty, seen / penalty), axis=1)


def ban_repeated_ngrams(ids: np.ndarray, scores: np.ndarray, size: int) -> None:
    """Bans every token that would repeat an n-gram of the row, where n = size."""
    length = ids.shape[1]
    if length < size:
        return
    windows = np.lib.stride_tricks.sliding_window_view(ids, size, axis=1)
    repeated = (windows[..., :-1] == ids[:, None, length + 1 - size :]).all(axis=-1)
    rows, places = np.nonzero(repeated & (windows[..., -1] >= 0))
    scores[rows, windows[rows, places, -1]] = -np.inf


def ban_words(ids: np.ndarray, scores: np.ndarray, words: tuple[tuple[int, ...], ...]) -> None:
    """For each word of several tokens, bans its last token if the row ends with the word's other tokens."""
    for *start, last in words:
        scores[_ends_with(ids, start), last] = -np.inf


def favour_end(scores: np.ndarray, ends: list[int], factor: float, steps: int) -> None:
    """Adds |score| * (factor ** steps - 1) to the scores of the end tokens that are not banned."""
    with np.errstate(over="ignore"):
        growth = float(min(np.float64(factor) ** steps, 1e30)) - 1  # larger values overflow in float32
    old = scores[:, ends]
    scores[:, ends] = old + np.where(np.isfinite(old), np.abs(old), 0) * growth


def _ends_with(ids: np.ndarray, tokens: list[int]) -> np.ndarray:
    """Whether each row of ids (R, L) ends with these tokens, (R,)."""
    before = ids.shape[1] - len(tokens)
    return (ids[:, before:] == tokens).all(axis=1) if before >= 0 else np.zeros(len(ids), bool)


class Processors:
    """The changes to scores that the settings request, except those of sampling (`narrow`)."""

    def __init__(self, settings: Settings, prompt: int = 1) -> None:
        """prompt: number of tokens in each row before the first generated token."""
        self.settings = settings
        self.prompt = prompt
        words = [word for word in settings.bad_words_ids if word and word not in {(end,) for end in settings.end_ids}]
        self.bad_words = tuple(word for word in words if len(word) > 1)
        self.banned = [word[0] for word in words if len(word) == 1]

    @property
    def rescales(self) -> bool:
        """Whether scores can change in other ways than by bans and forced tokens.

        If so, the result depends on whether scores are normalized before or after the changes.
        """
        s = self.settings
        return s.repetition_penalty != 1 or bool(s.sequence_bias) or s.exponential_decay_length_penalty is not None

    def __call__(self, ids: np.ndarray, scores: np.ndarray) -> None:
        """Changes the scores, which may be logits or log probabilities, in place."""
        s, new = self.settings, ids.shape[1] - self.prompt
        if s.sequence_bias:
            bias_sequences(ids, scores, s.sequence_bias)
        if s.repetition_penalty != 1:
            penalize_repetition(ids, scores, s.repetition_penalty)
        if s.no_repeat_ngram_size:
            ban_repeated_ngrams(ids, scores, s.no_repeat_ngram_size)
        scores[:, self.banned] = -np.inf
        ban_words(ids, scores, self.bad_words)
        if new < s.min_new_tokens:
            scores[:, list(s.end_ids)] = -np.inf
        rows, tokens = self.forced(ids)
        if len(tokens):
            scores[rows] = -np.inf
            scores[np.ix_(rows, tokens)] = 0
        if s.exponential_decay_length_penalty is not None:
            start, factor = s.exponential_decay_length_penalty
            if new > start:
                favour_end(scores, list(s.end_ids), factor, new - start)
        scores[:, list(s.suppress_tokens)] = -np.inf
        if s.begin_suppress_tokens:
            first = self._begins_by_force(ids) == new  # rows in which the next token is the first unforced token
            scores[np.ix_(first, np.array(s.begin_suppress_tokens))] = -np.inf

    def forced(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A mask (R,) of the rows that must continue with a forced token, and the forced tokens."""
        s, new = self.settings, ids.shape[1] - self.prompt
        if s.forced_eos_token_id and new + 1 == s.max_new_tokens:
            return np.ones(len(ids), bool), np.array(s.forced_eos_token_id)
        if new or s.forced_bos_token_id is None:
            return np.zeros(len(ids), bool), np.array([], np.int64)
        return self._begins_by_force(ids), np.array([s.forced_bos_token_id])

    def _begins_by_force(self, ids: np.ndarray) -> np.ndarray:
        """A mask (R,) of rows with a forced first token: as in Transformers, rows with a prompt of one token."""
        before = (ids[:, : self.prompt] >= 0).sum(axis=1)
        return (before == 1) & (self.settings.forced_bos_token_id is not None)


def narrow(scores: np.ndarray, settings: Settings) -> None:
    """Divides the scores by the temperature, then bans the tokens that each sampling setting excludes, in place."""
    s = settings
    if s.temperature != 1:
        scores /= s.temperature
    if s.top_h is not None:
        scores[outside_top_h(scores, s.top_h)] = -np.inf
    if 0 < s.top_k < scores.shape[1]:
        scores[scores < np.partition(scores, -s.top_k, axis=1)[:, -s.top_k, None]] = -np.inf
    if s.top_p < 1:
        scores[outside_top_p(scores, s.top_p)] = -np.inf
    if s.min_p is not None:
        scores[below_min_p(scores, s.min_p)] = -np.inf
    if s.typical_p < 1:
        scores[atypical(scores, s.typical_p)] = -np.inf
    if 0 < s.epsilon_cutoff < 1:
        scores[below_probability(scores, s.epsilon_cutoff)] = -np.inf
    if 0 < s.eta_cutoff < 1:
        scores[below_probability(scores, eta(scores, s.eta_cutoff))] = -np.inf


def outside_top_h(scores: np.ndarray, top_h: float) -> np.ndarray:
    """Masks all tokens except the most likely tokens with a total entropy of at most top_h * H, and the best token.

    H is the entropy of the distribution over the TOP_H most likely tokens. Potraghloo et al., 2025: Top-H decoding.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP_H]
    terms = _entropy_terms(log_softmax(np.take_along_axis(scores, order, axis=1)))
    dropped = terms.cumsum(axis=1) > top_h * terms.sum(axis=1, keepdims=True)
    dropped[:, 0] = False
    return _unsorted(dropped, order, scores.shape, rest=True)


def outside_top_p(scores: np.ndarray, top_p: float) -> np.ndarray:
    """Masks all tokens except the smallest set of most likely tokens with a total probability of at least top_p.

    Holtzman et al., 2020: nucleus sampling.
    """
    order = np.argsort(scores, axis=1, kind="stable")
    dropped = softmax(np.take_along_axis(scores, order, axis=1)).cumsum(axis=1) <= 1 - top_p
    dropped[:, -1] = False
    return _unsorted(dropped, order, scores.shape)


def below_min_p(scores: np.ndarray, min_p: float) -> np.ndarray:
    """Masks tokens with p < min_p * max p. Nguyen et al., 2024: min-p sampling."""
    p = softmax(scores)
    below: np.ndarray = p < min_p * p.max(axis=1, keepdims=True)
    return below


def atypical(scores: np.ndarray, mass: float) -> np.ndarray:
    """Masks all tokens except the tokens with -log p nearest to the entropy, up to a total probability of `mass`.

    Meister et al., 2023: typical sampling.
    """
    log_p = log_softmax(scores)
    distance = np.abs(log_p + _entropy_terms(log_p).sum(axis=1, keepdims=True))
    order = np.argsort(distance, axis=1, kind="stable")
    below = softmax(np.take_along_axis(scores, order, axis=1)).cumsum(axis=1) < mass
    last = np.minimum(below.sum(axis=1, keepdims=True), scores.shape[1] - 1)
    beyond: np.ndarray = distance > np.take_along_axis(distance, np.take_along_axis(order, last, axis=1), axis=1)
    return beyond


def below_probability(scores: np.ndarray, least: float | np.ndarray) -> np.ndarray:
    """Masks tokens with p < least, except the best token. Hewitt et al., 2022: epsilon sampling."""
    below: np.ndarray = (softmax(scores) < least) & (scores < scores.max(axis=1, keepdims=True))
    return below


def eta(scores: np.ndarray, epsilon: float) -> np.ndarray:
    """min(epsilon, sqrt(epsilon) exp(-H)), (R, 1), where H is the entropy. Hewitt et al., 2022: eta sampling."""
    entropy = _entropy_terms(log_softmax(scores)).sum(axis=1, keepdims=True)
    return np.minimum(epsilon, math.sqrt(epsilon) * np.exp(-entropy))


def _entropy_terms(log_p: np.ndarray) -> np.ndarray:
    """-p log p, (R, V), and 0 where p is 0."""
    return -np.multiply(np.exp(log_p), log_p, out=np.zeros_like(log_p), where=log_p > -np.inf)


def _unsorted(sorted_mask: np.ndarray, order: np.ndarray, shape: tuple[int, ...], rest: bool = False) -> np.ndarray:
    """Converts a mask of the tokens in `order` (R, K) to a mask by token id (R, V), with `rest` for other tokens."""
    mask = np.full(shape, rest)
    np.put_along_axis(mask, order, sorted_mask, axis=1)
    return mask
