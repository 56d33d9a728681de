"""Mistakes in which tokens may see which: causal masks, windows, and special tokens that are hidden."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from npformer.functions import softmax
from npformer.golden.at import At
from npformer.golden.mistakes.attention import WEIGHTS, of_scores
from npformer.golden.mistakes.inputs import in_a_batch
from npformer.golden.port import Mistake, Port, Ways

BEFORE: Callable[[int], np.ndarray] = lambda n: np.tri(n, dtype=bool)  # noqa: E731
AFTER: Callable[[int], np.ndarray] = lambda n: np.tri(n, dtype=bool).T  # noqa: E731


def weights_of(port: Port, causal: bool) -> str:
    """Returns the pattern of the weights of self-attention with a causal mask, or without; "" if there is none."""
    if port.config.decoder:
        return f"{'decoder' if causal else 'encoder'}.*.attention.weights"
    return WEIGHTS if port.config.causal is causal else ""


def pictured(causal: bool, **pictures: Callable[[int], np.ndarray]) -> Callable[[Port], Ways]:
    """Hides other keys: those where a picture of (queries, keys) is False; of causal attention, or of other."""

    def ways(port: Port) -> Ways:
        if not (weights := weights_of(port, causal)):
            return
        seen = in_a_batch(port) if port.config.decoder and causal else None  # it needs no other mask of padding
        for way, picture in pictures.items():
            low = -np.inf if picture(3).any(-1).all() else -1e9

            def rule(
                y: np.ndarray,
                at: At,
                picture: Callable[[int], np.ndarray] = picture,
                low: float = low,
                padding_seen: bool = False,
            ) -> Any:
                scores = at("attention.scores") if padding_seen else at.uncovered
                return softmax(np.where(picture(scores.shape[-1]), scores, low))

            yield way.replace("_", " "), port.ruling({weights: rule})
            if seen is not None:
                said = f"{way.replace('_', ' ')}, padding is seen too".removeprefix(", ")
                yield said, seen.ruling({weights: partial(rule, padding_seen=True)})

    return ways


def masked_otherwise(causal: bool) -> Callable[[Port], Ways]:
    """Uses a causal mask in other ways than before the softmax."""
    formulas: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "applied after the softmax": lambda x: np.tril(softmax(x)),
        "-10000 added to what is seen": lambda x: softmax(x - 1e4 * np.tri(x.shape[-1])),
        "scores of later tokens 0": lambda x: softmax(np.tril(x)),
    }

    def ways(port: Port) -> Ways:
        if weights := weights_of(port, causal):
            for way, formula in formulas.items():
                yield way, port.ruling({weights: lambda y, at, formula=formula: formula(at.uncovered)})

    return ways


SHIFTED = {
    "a_token_sees_earlier_ones": lambda n: np.tri(n, k=-1, dtype=bool),
    "a_token_sees_itself,_earlier_ones_and_the_next": lambda n: np.tri(n, k=1, dtype=bool),
}


def in_encoder(port: Port) -> Ways:
    yield from pictured(
        False, a_token_sees_itself_and_earlier_ones=BEFORE, a_token_sees_itself_and_later_ones=AFTER, **SHIFTED,
        a_token_does_not_see_itself=lambda n: ~np.eye(n, dtype=bool),
    )(port)  # fmt: skip
    yield from masked_otherwise(False)(port)


def misused(port: Port) -> Ways:
    yield from pictured(True, a_token_sees_itself_and_later_ones=AFTER)(port)
    yield from masked_otherwise(True)(port)


def window(port: Port) -> Ways:
    for size in (1, 2, 3, 4, 8, 16, 32, 64, 128, 256):
        if size < max(port.lengths):
            yield (
                f"{size} to each side",
                port.ruling(of_scores(lambda x, size=size: softmax(np.where(_near(x, size), x, -np.inf)))),
            )


def _near(x: np.ndarray, size: int) -> np.ndarray:
    rows, columns = map(np.arange, x.shape[-2:])
    return np.abs(columns - rows[:, None]) <= size


def special_hidden(port: Port) -> Ways:
    for way, hide in {"the first": [0], "the last": [-1], "the first and the last": [0, -1]}.items():
        if min(port.lengths) > len(hide):
            yield way, port.ruling(of_scores(lambda x, hide=hide: softmax(_without(x, hide))))


def _without(x: np.ndarray, hide: list[int]) -> np.ndarray:
    x = x.copy()
    x[..., hide] = -np.inf
    return x


MISTAKES = (
    Mistake("causal mask", "in an encoder every token sees every other, before and after it", in_encoder),
    Mistake(
        "causal mask left out",
        "in this model, or in its decoder, a token sees itself and earlier ones; the scores of later ones must be -inf",
        pictured(True, **{"": lambda n: np.ones((n, n), bool)}),
    ),
    Mistake(
        "causal mask off by one",
        "a token sees itself and earlier ones, and no later one",
        pictured(True, **SHIFTED),
    ),
    Mistake(
        "causal mask misused",
        "the scores of later tokens must be -inf, or far below all others, before the softmax",
        misused,
    ),
    Mistake("attention in a window", "in this model every token sees every other, however far", window),
    Mistake("special tokens hidden", "[CLS] and [SEP] are attended to like all tokens", special_hidden),
)
