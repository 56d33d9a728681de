"""The decoding loops: greedy search and sampling, with one row per text, and beam search, with several rows per prompt.

`state.py` runs a model for a group of sources or prompts, and `logits.py` chooses tokens from the model's logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from npformer.common.progress import steps_of
from npformer.engine.functions import log_softmax, softmax
from npformer.engine.runtime.steps import Steps
from npformer.generation.logits import Best, best, check_choice, greedy, top
from npformer.generation.processors import Processors, narrow
from npformer.generation.settings import Settings
from npformer.generation.state import State

Stopping = Callable[[np.ndarray], np.ndarray]  # from tokens and prompts (R, L), a mask of the rows that end here (R,)


@dataclass
class Hypothesis:
    """A generated text: its scores and its ids, which include the end token but not the prompt or start token."""

    ids: np.ndarray  # (L,)
    score: float | None = None  # beam search: log probability / length ** length_penalty
    token_scores: np.ndarray | None = None  # (L,) log probabilities of the tokens
    likely: Best | None = None  # (L, 1 + logprobs), each token and the most likely tokens at its position, if requested
    cross_attentions: list[np.ndarray] = field(default_factory=list)  # (H, L, S) for each layer, if requested


# --- one row for each text ------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step of `greedy_or_sample`: the running texts, their new tokens, and the scores of these tokens, (R,) each.

    likely: with the setting logprobs, each new token and the most likely tokens, (R, 1 + logprobs).
    """

    texts: np.ndarray
    tokens: np.ndarray
    scores: np.ndarray
    likely: Best | None = None


def greedy_or_sample(
    run: State,
    settings: Settings,
    scored: bool = False,
    group: Sequence[tuple[int, int]] = (),
    stopping: Stopping | None = None,
) -> Iterator[Step]:
    """Greedy search or sampling, step by step.

    group: a pair for each text: the index of its source, and its number among the texts generated from that source.
    Random draws depend on these numbers. Texts that have ended are no longer computed.
    """
    ids, processors = run.prompts, Processors(settings, run.prompts.shape[1])
    draws = [np.random.default_rng([settings.seed or 0, *place]) for place in group if settings.do_sample]
    alive, count = np.arange(len(ids)), steps_of(len(ids), settings.max_new_tokens)
    while True:
        logits = run.step(ids[:, -1])
        with run.model.cores():
            table = None if settings.logprobs is None else log_softmax(logits)  # before the settings change the logits
            if settings.do_sample:
                tokens, scores = _sample(logits, ids, processors, [draws[i] for i in alive])
            else:
                tokens, scores = greedy(logits, ids, processors, scored)
        likely = None if table is None else _likely(table, tokens, settings.logprobs or 0)
        count(len(alive))
        yield Step(alive, tokens[:, 0], scores[:, 0], likely)
        ids = np.concatenate([ids, tokens], axis=1)
        going = np.flatnonzero(~_ended(ids, settings, stopping))
        if ids.shape[1] - processors.prompt >= settings.max_new_tokens or not len(going):
            return
        if len(going) < len(alive):
            alive, ids = alive[going], ids[going]
            run.keep(going)


def _likely(table: np.ndarray, tokens: np.ndarray, count: int) -> Best:
    """The chosen tokens (R, 1), then the `count` most likely tokens, with log probabilities from table (R, V)."""
    best_tokens, values = top(table, count) if count else (tokens[:, :0], table[:, :0])
    chosen = np.take_along_axis(table, tokens, axis=1)
    return Best(np.concatenate([tokens, best_tokens], axis=1), np.concatenate([chosen, values], axis=1))


def _ended(ids: np.ndarray, settings: Settings, stopping: Stopping | None) -> np.ndarray:
    """Whether each row of tokens (..., L) ends here, because of an end token or of `stopping`."""
    ended: np.ndarray = np.isin(ids[..., -1], settings.end_ids)
    if stopping is not None:
        ended |= stopping(ids.reshape(-1, ids.shape[-1])).reshape(ended.shape)
    return ended


def _sample(
    logits: np.ndarray, ids: np.ndarray, processors: Processors, draws: Sequence[np.random.Generator]
) -> tuple[np.ndarray, np.ndarray]:
    """Samples a token for each row, (R, 1). Also returns its log probability."""
    processors(ids, logits)
    check_choice(logits.max(axis=1))
    narrow(logits, processors.settings)
    probabilities = softmax(logits)
    mass = probabilities.cumsum(axis=1, dtype=np.float64)
    points = [draw.random() * total for draw, total in zip(draws, mass[:, -1], strict=True)]
    tokens = np.array([[np.searchsorted(row, at, side="right")] for row, at in zip(mass, points, strict=True)])
    return tokens, np.log(np.take_along_axis(probabilities, tokens, axis=1))


# --- beams -----------------------------------------------------------------------------------------------------------

NEVER = -1e9  # score of a beam that must not be chosen, as in Transformers


@dataclass
class Beams:
    """The state of a beam search: for each of B texts, b running targets and the finished targets."""

    texts: np.ndarray  # (B,) index of the source or prompt of each text
    ids: np.ndarray  # (B, b, L), prompt or start token first
    scores: np.ndarray  # (B, b) log probabilities of the whole targets
    token_scores: np.ndarray  # (B, b, L) log probabilities of the new tokens
    ended: list[list[Hypothesis]]  # the best b finished targets of each text, best first


def beam_search(run: State, settings: Settings, stopping: Stopping | None = None) -> Steps[list[list[Hypothesis]]]:
    """Finds the best b = num_beams texts of each source or prompt, best first, in steps of one token.

    As in Transformers, the best max(2, 1 + number of end tokens) * b continuations of all beams are candidates. The
    best b unfinished candidates continue. A finished candidate among the best b candidates is kept if its score is
    among the b best of all finished targets.
    """
    (n, width), b = run.prompts.shape, settings.num_beams
    processors, dtype = Processors(settings, width), run.model.dtype
    scores = np.full((n, b), NEVER, dtype)
    scores[:, 0] = 0  # all beams are equal at first, so only one beam may continue
    ids, none = np.repeat(run.prompts[:, None], b, axis=1), np.zeros((n, b, 0), dtype)
    beams = Beams(np.arange(n), ids, scores, none, [[] for _ in range(n)])
    done: list[list[Hypothesis]] = [[]] * n
    parents, count = None, steps_of(n, settings.max_new_tokens)
    while len(beams.texts):
        logits = run.step(beams.ids[..., -1].ravel(), parents)
        with run.model.cores():
            parents = _advance(beams, logits, processors, stopping)
        count(len(beams.texts))
        going = []
        for i, text in enumerate(beams.texts):
            if _is_finished(beams.ended[i], beams.scores[i, 0], beams.token_scores.shape[2], settings):
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
        yield
    return done


def _advance(beams: Beams, logits: np.ndarray, processors: Processors, stopping: Stopping | None) -> np.ndarray:
    """Replaces the beams with their best continuations. Returns the parent of each beam, (B, b)."""
    s = processors.settings
    n, b, length = beams.ids.shape
    new = length - processors.prompt + 1
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

    ends = _ended(ids, s, stopping) | (new >= s.max_new_tokens)
    for i, j in zip(*np.nonzero(ends[:, :b]), strict=True):
        score = totals[i, j] / totals.dtype.type(new**s.length_penalty)
        _add(beams.ended[i], Hypothesis(ids[i, j, processors.prompt :], float(score), token_scores[i, j]), b)
    totals += ends * totals.dtype.type(NEVER)
    chosen = np.argsort(-totals, axis=1, kind="stable")[:, :b]
    beams.scores = np.take_along_axis(totals, chosen, axis=1)
    beams.ids = np.take_along_axis(ids, chosen[..., None], axis=1)
    beams.token_scores = np.take_along_axis(token_scores, chosen[..., None], axis=1)
    return np.take_along_axis(parents, chosen, axis=1)


def _add(ended: list[Hypothesis], new: Hypothesis, n_beams: int) -> None:
    """Inserts a target into the best n_beams finished targets, before targets with a lower score."""
    ended.append(new)
    ended.sort(key=lambda each: -(each.score or 0.0))
    del ended[n_beams:]


def _is_finished(ended: list[Hypothesis], best_running: float, length: int, settings: Settings) -> bool:
    """Whether enough targets have ended, and no running target is expected to beat the worst finished target.

    The search also ends at the maximum length and, with early_stopping True, when enough targets have ended. A running
    target is judged by its current score and length, although the score could still improve. With early_stopping
    "never" and a positive length penalty, it is judged by the maximum length instead, which gives an upper bound.
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
