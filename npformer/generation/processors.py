"""Changes to the scores of the next token: bans, forced tokens, the repetition penalty, and the limits of sampling.

Each function changes scores (R, V) in place; ids (R, L) are the rows' tokens so far, prompt or start token first, with
negative ones before what is shorter. They run in Transformers' order.
"""

from __future__ import annotations

import numpy as np

from npformer.functions import softmax
from npformer.generation.settings import Settings


def penalise_repetition(ids: np.ndarray, scores: np.ndarray, penalty: float) -> None:
    """Divides the scores of earlier tokens by the penalty, or multiplies negative ones. Keskar et al., 2019."""
    ids = np.where(ids < 0, ids[:, -1:], ids)
    seen = np.take_along_axis(scores, ids, axis=1)
    np.put_along_axis(scores, ids, np.where(seen < 0, seen * penalty, seen / penalty), axis=1)


def ban_repeated_ngrams(ids: np.ndarray, scores: np.ndarray, size: int) -> None:
    """Bans every token that would repeat an n-gram of the target, with n = size."""
    length = ids.shape[1]
    if length < size:
        return
    windows = np.lib.stride_tricks.sliding_window_view(ids, size, axis=1)
    repeated = (windows[..., :-1] == ids[:, None, length + 1 - size :]).all(axis=-1)
    rows, places = np.nonzero(repeated & (windows[..., -1] >= 0))
    scores[rows, windows[rows, places, -1]] = -np.inf


def ban_words(ids: np.ndarray, scores: np.ndarray, words: tuple[tuple[int, ...], ...]) -> None:
    """Bans the last token of each word of several tokens where the word's other tokens have just come."""
    for *start, last in words:
        if len(start) <= ids.shape[1]:
            scores[(ids[:, ids.shape[1] - len(start) :] == start).all(axis=1), last] = -np.inf


class Processors:
    """The processors that the settings ask for."""

    def __init__(self, settings: Settings, prompt: int = 1) -> None:
        """prompt: the tokens in each row before the first that is generated."""
        self.settings = settings
        self.prompt = prompt
        words = [word for word in settings.bad_words_ids if word and word not in {(end,) for end in settings.end_ids}]
        self.bad_words = tuple(word for word in words if len(word) > 1)
        self.banned = [word[0] for word in words if len(word) == 1]

    @property
    def rescales(self) -> bool:
        """Whether a score changes to anything but -inf, so that normalising first gives other results."""
        return self.settings.repetition_penalty != 1

    def __call__(self, ids: np.ndarray, scores: np.ndarray) -> None:
        """Changes the scores in place; they may be logits or log probabilities."""
        s, new = self.settings, ids.shape[1] - self.prompt
        if s.repetition_penalty != 1:
            penalise_repetition(ids, scores, s.repetition_penalty)
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
        scores[:, list(s.suppress_tokens)] = -np.inf
        if s.begin_suppress_tokens:
            first = self._begins_by_force(ids) == new  # rows whose next token is the first that is free
            scores[np.ix_(first, np.array(s.begin_suppress_tokens))] = -np.inf

    def forced(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which rows must go on with one of some tokens, (R,), and these tokens."""
        s, new = self.settings, ids.shape[1] - self.prompt
        if s.forced_eos_token_id and new + 1 == s.max_new_tokens:
            return np.ones(len(ids), bool), np.array(s.forced_eos_token_id)
        if new or s.forced_bos_token_id is None:
            return np.zeros(len(ids), bool), np.array([], np.int64)
        return self._begins_by_force(ids), np.array([s.forced_bos_token_id])

    def _begins_by_force(self, ids: np.ndarray) -> np.ndarray:
        """Which rows begin with a forced token, (R,): those with one token before it, as in Transformers."""
        before = (ids[:, : self.prompt] >= 0).sum(axis=1)
        return (before == 1) & (self.settings.forced_bos_token_id is not None)


def narrow(scores: np.ndarray, settings: Settings) -> None:
    """Limits sampling, in place: divides by the temperature, keeps the top_k best, then those that make up top_p.

    At least the best token stays. Nucleus sampling: Holtzman et al., 2020.
    """
    if settings.temperature != 1:
        scores /= settings.temperature
    if 0 < settings.top_k < scores.shape[1]:
        kept = np.partition(scores, -settings.top_k, axis=1)[:, -settings.top_k, None]
        scores[scores < kept] = -np.inf
    if settings.top_p < 1:
        order = np.argsort(scores, axis=1, kind="stable")
        mass = softmax(np.take_along_axis(scores, order, axis=1)).cumsum(axis=1)
        dropped = mass <= 1 - settings.top_p
        dropped[:, -1] = False
        np.put_along_axis(scores, order, np.where(dropped, -np.inf, np.take_along_axis(scores, order, axis=1)), axis=1)
