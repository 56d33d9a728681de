"""The decoding loops: greedy search and sampling, one row for each target; beam search, several for each source.

`DecodeState` advances a decoder for a group of sources; `logits.py` chooses tokens from its logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from npformer.functions import softmax
from npformer.generation.kv_cache import KVCache
from npformer.generation.logits import Projection, best, check_choice, greedy
from npformer.generation.processors import Processors, narrow
from npformer.generation.settings import Settings
from npformer.runtime.packing import Batch
from npformer.transformer import decode_target

if TYPE_CHECKING:
    from npformer.model import Seq2Seq


@dataclass
class Hypothesis:
    """A generated target: its ids, without the start token and with the end token, and their scores."""

    ids: np.ndarray  # (L,)
    score: float | None = None  # beam search: log probability / length ** length_penalty
    token_scores: np.ndarray | None = None  # (L,) log probabilities of the tokens
    cross_attentions: list[np.ndarray] = field(default_factory=list)  # (H, L, S) of each layer, if asked for


class DecodeState:
    """A decoder that advances step by step, with n_beams targets for each of some encoded sources."""

    def __init__(self, model: Seq2Seq, sources: Sequence[np.ndarray], n_beams: int, projection: Projection) -> None:
        self.model = model
        self.n_beams = n_beams
        self.projection = projection
        self.lengths = np.array([len(source) for source in sources])
        self.source = np.concatenate(sources)
        self.cache = KVCache(model.config.decoder.n_layers, self.lengths, n_beams)
        self.steps = 0

    def step(self, tokens: np.ndarray, parents: np.ndarray | None = None) -> np.ndarray:
        """The logits after one more token of each target, (R,) -> (R, V). parents: the beams that these continue."""
        self.cache.step(parents)
        texts = np.full(len(tokens) // self.n_beams, self.n_beams)
        positions = np.full(len(tokens), self.steps)
        target = Batch(tokens, positions, np.zeros_like(tokens), texts)
        with self.model.cores():
            x = decode_target(
                self.model.weights, self.model.config, target, self.source, self.lengths, self.cache.layers
            )
            self.steps += 1
            return self.projection(x)

    def keep(self, texts: np.ndarray) -> None:
        """Continues with these texts only."""
        self.cache.keep(texts)
        self.lengths = self.lengths[texts]


# --- one row for each target -----------------------------------------------------------------------------------------


def greedy_or_sample(
    model: Seq2Seq,
    sources: Sequence[np.ndarray],
    settings: Settings,
    projection: Projection,
    scored: bool = False,
    group: Sequence[tuple[int, int]] = (),
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Greedy search or sampling: yields for each step the running targets, their new tokens and their scores.

    group holds for each target its source's number and its own number among the source's targets; draws depend on them.
    A target that has ended is not computed further.
    """
    run, processors = DecodeState(model, sources, 1, projection), Processors(settings)
    draws = [np.random.default_rng([settings.seed or 0, *place]) for place in group if settings.do_sample]
    alive = np.arange(len(sources))
    ids = np.full((len(sources), 1), settings.start_id)
    while True:
        logits = run.step(ids[:, -1])
        with model.cores():
            if settings.do_sample:
                tokens, scores = _sample(logits, ids, processors, [draws[i] for i in alive])
            else:
                tokens, scores = greedy(logits, ids, processors, scored)
        yield alive, tokens[:, 0], scores[:, 0]
        ids = np.concatenate([ids, tokens], axis=1)
        going = np.flatnonzero(~np.isin(tokens[:, 0], settings.end_ids))
        if ids.shape[1] > settings.max_new_tokens or not len(going):
            return
        if len(going) < len(alive):
            alive, ids = alive[going], ids[going]
            run.keep(going)


def _sample(
    logits: np.ndarray, ids: np.ndarray, processors: Processors, draws: Sequence[np.random.Generator]
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a token for each row by its probability, (R, 1), and returns it with its log probability."""
    processors(ids, logits)
    check_choice(logits.max(axis=1))
    narrow(logits, processors.settings)
    probabilities = softmax(logits)
    mass = probabilities.cumsum(axis=1, dtype=np.float64)
    points = [draw.random() * total for draw, total in zip(draws, mass[:, -1], strict=True)]
    tokens = np.array([[np.searchsorted(row, at, side="right")] for row, at in zip(mass, points, strict=True)])
    return tokens, np.log(np.take_along_axis(probabilities, tokens, axis=1))


# --- beams -----------------------------------------------------------------------------------------------------------

NEVER = -1e9  # the score of beams that must not be chosen, as in Transformers


@dataclass
class Beams:
    """The state of a beam search: b running targets of each of B texts, and each text's targets that have ended."""

    texts: np.ndarray  # (B,) indices of their sources
    ids: np.ndarray  # (B, b, L), the start token first
    scores: np.ndarray  # (B, b) log probabilities of the whole target
    token_scores: np.ndarray  # (B, b, L - 1)
    ended: list[list[Hypothesis]]  # for each text its best b, best first


def beam_search(
    model: Seq2Seq, sources: Sequence[np.ndarray], settings: Settings, projection: Projection
) -> list[list[Hypothesis]]:
    """The best num_beams targets of each source, best first.

    As in Transformers: among all beams' continuations the best (1 + number of end tokens) * b are candidates. Those of
    the best b that have ended are kept by their score; the best b that have not ended continue.
    """
    n, b = len(sources), settings.num_beams
    run, processors = DecodeState(model, sources, b, projection), Processors(settings)
    scores = np.full((n, b), NEVER, model.dtype)
    scores[:, 0] = 0  # all beams are equal at first, so only one of them counts
    ids, none = np.full((n, b, 1), settings.start_id), np.zeros((n, b, 0), model.dtype)
    beams = Beams(np.arange(n), ids, scores, none, [[] for _ in range(n)])
    done: list[list[Hypothesis]] = [[]] * n
    parents = None
    while len(beams.texts):
        logits = run.step(beams.ids[..., -1].ravel(), parents)
        with model.cores():
            parents = _advance(beams, logits, processors)
        going = []
        for i, text in enumerate(beams.texts):
            if _is_finished(beams.ended[i], beams.scores[i, 0], beams.ids.shape[2] - 1, settings):
                done[text] = beams.ended[i]
            else:
                going.append(i)
        if len(going) < len(beams.texts):
            some = np.array(going, int)
            beams = Beams(
                beams.texts[some], beams.ids[some], beams.scores[some], beams.token_scores[some],
                [beams.ended[i] for i in going],
            )  # fmt: skip
            parents = parents[some]
            run.keep(some)
    return done


def _advance(beams: Beams, logits: np.ndarray, processors: Processors) -> np.ndarray:
    """Replaces the beams by their best continuations; returns the beams that these continue, (B, b)."""
    s = processors.settings
    n, b, length = beams.ids.shape
    looked_at = max(2, 1 + len(s.end_ids)) * b
    flat = beams.ids.reshape(n * b, length)
    tokens, scores = (each.reshape(n, -1) for each in best(logits, flat, processors, min(looked_at, logits.shape[1])))
    totals = (scores.reshape(n, b, -1) + beams.scores[..., None]).reshape(n, -1)
    per_beam = tokens.shape[1] // b
    places = np.arange(b).repeat(per_beam) * logits.shape[1] + tokens
    order = np.lexsort((places, -totals), axis=1)[:, :looked_at]
    parents = order // per_beam
    tokens, scores, totals = (np.take_along_axis(each, order, axis=1) for each in (tokens, scores, totals))
    check_choice(totals[:, 0])
    ids = np.concatenate([np.take_along_axis(beams.ids, parents[..., None], axis=1), tokens[..., None]], axis=2)
    kept_scores = np.take_along_axis(beams.token_scores, parents[..., None], axis=1)
    token_scores = np.concatenate([kept_scores, scores[..., None]], axis=2)

    ends = np.isin(tokens, s.end_ids) | (length >= s.max_new_tokens)
    for i, j in zip(*np.nonzero(ends[:, :b]), strict=True):
        score = totals[i, j] / totals.dtype.type(length**s.length_penalty)
        _add(beams.ended[i], Hypothesis(ids[i, j, 1:], float(score), token_scores[i, j]), b)
    totals += ends * totals.dtype.type(NEVER)
    chosen = np.argsort(-totals, axis=1, kind="stable")[:, :b]
    beams.scores = np.take_along_axis(totals, chosen, axis=1)
    beams.ids = np.take_along_axis(ids, chosen[..., None], axis=1)
    beams.token_scores = np.take_along_axis(token_scores, chosen[..., None], axis=1)
    return np.take_along_axis(parents, chosen, axis=1)


def _add(ended: list[Hypothesis], new: Hypothesis, n_beams: int) -> None:
    """Inserts a target among the best n_beams, before those with a lower score."""
    ended.append(new)
    ended.sort(key=lambda each: -(each.score or 0.0))
    del ended[n_beams:]


def _is_finished(ended: list[Hypothesis], best_running: float, length: int, settings: Settings) -> bool:
    """Tells whether enough targets have ended and no running one can be better than the worst of them.

    A running target is judged by its present score and length, which it may still improve on; with early_stopping
    "never" and a positive length penalty by its present score at the greatest length, which it cannot.
    """
    if length >= settings.max_new_tokens:
        return True
    if len(ended) < settings.num_beams:
        return False
    if settings.early_stopping is True:
        return True
    far = settings.early_stopping == "never" and settings.length_penalty > 0
    at = settings.max_new_tokens if far else length
    return bool(best_running / type(best_running)(at**settings.length_penalty) <= (ended[-1].score or 0.0))
