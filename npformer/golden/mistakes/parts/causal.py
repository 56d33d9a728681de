"""Mistakes that ports make in the causal mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npformer.engine.functions import softmax
from npformer.golden.mistake import Mistake, Rules, Ways

Picture = Callable[[int], np.ndarray]  # number of tokens -> (queries, keys), True where a query may attend to a key


def _earlier(n: int) -> np.ndarray:
    """A strict causal mask, except that the first token sees itself, because it would otherwise see nothing."""
    seen = np.tri(n, k=-1, dtype=bool)
    seen[0, 0] = True
    return seen


AFTER: dict[str, Picture] = {"a token sees itself and later tokens": lambda n: np.tri(n, dtype=bool).T}
SHIFTED: dict[str, Picture] = {
    "a token sees only earlier tokens": lambda n: np.tri(n, k=-1, dtype=bool),
    "a token sees only earlier tokens, but the first sees itself": _earlier,
    "a token sees itself, earlier tokens and the next token": lambda n: np.tri(n, k=1, dtype=bool),
}


def pictured(pattern: str, picture: Picture, padding_seen: bool = False, zeros: bool = False) -> Rules:
    """Rules that mask exactly the keys for which the picture is False. zeros: a fully masked row has weights of 0."""
    low = -np.inf if picture(3).any(-1).all() else -1e9

    def rule(y: np.ndarray, at: Any) -> np.ndarray:
        scores = at("attention.scores") if padding_seen else at.uncovered
        seen = picture(scores.shape[-1])
        weights = softmax(np.where(seen, scores, low))
        return weights * seen if zeros else weights

    return {pattern: rule}


def misused(pattern: str) -> Ways:
    """Ways to misuse the mask: applying it after the softmax, inverting it, or using 0 instead of -inf."""
    yield "applied after the softmax", {pattern: lambda y, at: np.tril(softmax(at.uncovered))}
    yield (
        "-10000 added to the visible scores",
        {pattern: lambda y, at: softmax(at.uncovered - 1e4 * np.tri(at.uncovered.shape[-1]))},
    )
    yield "scores of later tokens set to 0", {pattern: lambda y, at: softmax(np.tril(at.uncovered))}


def _weights(port: Any) -> str:
    """The pattern of the stages with causal attention weights. An encoder-decoder has them only in its decoder."""
    return "decoder.*.attention.weights" if port.config.decoder else "*.attention.weights"


def _other_masks(pictures: dict[str, Picture]) -> Callable[[Any], Ways]:
    def ways(port: Any) -> Ways:
        batch = port.in_a_batch() if port.config.decoder else None  # a decoder's causal mask also hides padding
        for way, picture in pictures.items():
            yield way, pictured(_weights(port), picture)
            if not picture(3).any(-1).all():
                yield f"{way}, and the first no token", pictured(_weights(port), picture, zeros=True)
            if batch is not None:
                said = f"{way}, padding is seen too".removeprefix(", ")
                yield said, batch.ruling(pictured(_weights(port), picture, padding_seen=True))

    return ways


def _misused(port: Any) -> Ways:
    yield from _other_masks(AFTER)(port)
    yield from misused(_weights(port))


MISTAKES = (
    Mistake(
        "causal mask left out",
        "a decoder's token sees itself and earlier tokens, so the scores of later tokens must be -inf",
        _other_masks({"": lambda n: np.ones((n, n), bool)}),
    ),
    Mistake("causal mask off by one", "a token sees itself and earlier tokens, and no others", _other_masks(SHIFTED)),
    Mistake(
        "causal mask misused",
        "the scores of later tokens must be -inf, or far below all others, before the softmax",
        _misused,
    ),
)
