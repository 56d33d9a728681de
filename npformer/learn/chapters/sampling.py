"""Chapter 6, the tanh approximation of GELU, and sampling."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from npformer.activations import relu, silu
from npformer.functions import softmax
from npformer.learn import right
from npformer.learn.exercise import Constant, Exercise, Slip, Undetermined, array, drawn
from npformer.learn.right import gelu, gelu_tanh

Array = np.ndarray


# --- gelu_tanh --------------------------------------------------------------------------------------------------------


ROOT = math.sqrt(2 / math.pi)


def _tanh_form(x: Array, root: float = ROOT, factor: float = 0.044715, power: int = 3) -> Array:
    return x * (1 + np.tanh(root * (x + factor * x**power))) / 2


GELU_TANH = Exercise(
    "gelu_tanh",
    right.gelu_tanh,
    lambda: [(array([-2, -1, 0, 1, 2]),), (drawn(1, 3, 4) * 2,), (array([[-30, 30, 5, -5]]),)],
    (
        "np.tanh takes arrays.",
        "Use math.sqrt(2 / math.pi), because np.sqrt of a number returns a float64, which widens float32 arrays.",
        "inner = sqrt(2 / pi) * (x + 0.044715 * x**3), and y = x / 2 * (1 + tanh(inner)).",
    ),
    ("npformer.plain.formulas:gelu_tanh",),
    (
        Slip("exact form", "This is the exact form of GELU. GPT-2 was trained with the tanh approximation.", gelu),
        Slip(
            "quick GELU", "This is x sigmoid(1.702 x), a rougher approximation.", lambda x: x / (1 + np.exp(-1.702 * x))
        ),
        Slip("cubic term left out", "The term 0.044715 x^3 is missing.", lambda x: _tanh_form(x, factor=0.0)),
        Slip(
            "square instead of cube",
            "The term is 0.044715 x^2. It should be 0.044715 x^3.",
            lambda x: _tanh_form(x, power=2),
        ),
        Slip(
            "cubic term subtracted",
            "The term 0.044715 x^3 is subtracted. It should be added.",
            lambda x: _tanh_form(x, factor=-0.044715),
        ),
        Slip("0.044715 left out", "The term is x^3. It should be 0.044715 x^3.", lambda x: _tanh_form(x, factor=1.0)),
        Slip(
            "sqrt(2 / pi) left out",
            "The argument of tanh is not multiplied by sqrt(2 / pi).",
            lambda x: _tanh_form(x, root=1.0),
        ),
        Slip(
            "2 / pi instead of sqrt(2 / pi)",
            "The argument of tanh is multiplied by 2 / pi. The factor should be sqrt(2 / pi).",
            lambda x: _tanh_form(x, root=2 / math.pi),
        ),
        Slip(
            "sqrt(2) / pi instead of sqrt(2 / pi)",
            "The argument of tanh is multiplied by sqrt(2) / pi. The factor should be sqrt(2 / pi).",
            lambda x: _tanh_form(x, root=math.sqrt(2) / math.pi),
        ),
        Slip(
            "sqrt(pi / 2) instead of sqrt(2 / pi)",
            "The argument of tanh is multiplied by sqrt(pi / 2). The factor should be sqrt(2 / pi).",
            lambda x: _tanh_form(x, root=math.sqrt(math.pi / 2)),
        ),
        Slip(
            "sqrt(2 / pi) in the first term only",
            "sqrt(2 / pi) multiplies x only. It should multiply the sum of x and 0.044715 x^3.",
            lambda x: x * (1 + np.tanh(ROOT * x + 0.044715 * x**3)) / 2,
        ),
        Slip("not halved", "The result is not divided by 2.", lambda x: 2 * gelu_tanh(x)),
        Slip("1 left out", "The 1 in 1 + tanh is missing.", lambda x: gelu_tanh(x) - x / 2),
        Slip(
            "sqrt(2 / pi) outside of tanh",
            "sqrt(2 / pi) multiplies tanh. It should multiply the argument of tanh.",
            lambda x: x * (1 + ROOT * np.tanh(x + 0.044715 * x**3)) / 2,
        ),
        Slip(
            "not multiplied by x",
            "The result is not multiplied by x.",
            lambda x: (1 + np.tanh(ROOT * (x + 0.044715 * x**3))) / 2,
        ),
        Slip(
            "brackets",
            "Only tanh is halved. Halve 1 + tanh: put it in brackets.",
            lambda x: x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3)) / 2),
        ),
        Slip(
            "brackets",
            "tanh is added to x / 2. Add it to 1 first, then multiply by x / 2: put 1 + tanh in brackets.",
            lambda x: x / 2 + np.tanh(ROOT * (x + 0.044715 * x**3)),
        ),
        Slip("relu", "This is relu.", relu),
        Slip("silu", "This is SiLU, x sigmoid(x).", silu),
    ),
    constants=(
        Constant(
            "wrong factor of x^3",
            "The factor of x^3 is {number}. It should be 0.044715.",
            lambda number: partial(_tanh_form, factor=number),
            (0.04, -0.04),
        ),
        Constant(
            "wrong factor in tanh",
            "The argument of tanh is multiplied by {number}. The factor should be sqrt(2 / pi).",
            lambda number: partial(_tanh_form, root=number),
        ),
    ),
)


# --- sample -----------------------------------------------------------------------------------------------------------


def _sample_cases() -> list[tuple[Any, ...]]:
    logits = np.log(array([0.1, 0.5, 0.15, 0.25]))
    small = [(logits, t, p, u) for u in (0.0, 0.3, 0.65, 0.7, 0.95) for t, p in ((1.0, 0.7), (1.0, 1.0), (0.5, 0.7))]
    wide = [
        (_distinct(seed), t, p, u) for seed in (1, 2) for t in (0.7, 1.5) for p in (0.3, 0.8) for u in (0.03, 0.5, 0.9)
    ]
    close = [(_distinct(3), 0.7, 1.0, u) for u in _near_sums(_distinct(3), 0.7)]  # a small error draws a different word
    return [*small, *wide, *close, (array([1, 2, 9]), 1.0, 0.5, 0.9)]


def _near_sums(logits: Array, temperature: float) -> list[float]:
    """Returns numbers slightly below and above some of the cumulative probabilities."""
    sums = softmax(logits.astype(np.float64) / temperature).cumsum()[1:6:2]
    return [float(each + step) for each in sums for step in (-1e-4, 1e-4)]


def _distinct(seed: int) -> Array:
    """Returns logits without ties, because tied words have no definite order."""
    return (np.random.default_rng(seed).permutation(7) / 2.5).astype(np.float32)


def _kept(p: Array, top_p: float, *, one: int = 0) -> Array:
    """Returns the mask of the most likely words that add up to top_p, with one word more (one=1) or fewer (one=-1)."""
    order = np.argsort(-p, kind="stable")
    count = int(np.searchsorted(p[order].cumsum(), top_p * p.sum() - 1e-9)) + 1 + one
    kept = np.zeros(len(p), bool)
    if count < 1:
        raise Undetermined  # no word is left to draw
    kept[order[:count]] = True
    return kept


def _without_last(p: Array, top_p: float) -> Array:
    """Returns the mask of the most likely words that add up to top_p, without the last of them."""
    if top_p == 1:
        raise Undetermined  # whether all probabilities together reach top_p depends on rounding
    return _kept(p, top_p, one=-1)


def _kept_ranks(p: Array, top_p: float) -> Array:
    """Returns a mask indexed by rank instead of id: True for the first n entries, where n words add up to top_p."""
    kept = _kept(p, top_p)
    if not p[: kept.sum()].any():
        raise Undetermined
    return np.arange(len(p)) < kept.sum()


def _drawn(
    logits: Array,
    temperature: float,
    top_p: float,
    u: float,
    *,
    scale: Any = lambda x, t: x / t,
    keep: Any = _kept,
    again: bool = True,
    by_rank: bool = False,
    side: Any = "right",
    word: Any = lambda order, at: order[at],
) -> int:
    """`right.sample` with one of its steps replaced."""
    p = softmax(scale(logits, temperature))
    p = np.where(keep(p, top_p), p, 0)
    p = p / p.sum() if again else p
    order = np.argsort(-p, kind="stable") if by_rank else np.arange(len(p))
    at = int(np.searchsorted(p[order].cumsum(), u, side=side))
    if at == len(p):
        raise Undetermined  # u exceeds the sum of the probabilities
    return int(word(order, at))


def _tempered_after(logits: Array, temperature: float, top_p: float, u: float) -> int:
    """Chooses the most likely words before the logits are divided by the temperature."""
    kept = _kept(softmax(logits), top_p)
    return _drawn(np.where(kept, logits, -np.inf), temperature, 1.0, u, keep=lambda p, top: p > 0)


def _least_likely(p: Array, top_p: float) -> Array:
    """Returns the mask of the least likely words that add up to top_p."""
    order = np.argsort(p, kind="stable")
    kept = np.zeros(len(p), bool)
    kept[order[: int(np.searchsorted(p[order].cumsum(), top_p - 1e-9)) + 1]] = True
    return kept


SAMPLE = Exercise(
    "sample",
    right.sample,
    _sample_cases,
    (
        "Divide the logits by the temperature, apply softmax, and sort the probabilities in descending "
        "order: np.argsort(-p).",
        "A word belongs to the set if the sum of all more likely words is still below top_p. Set the "
        "probabilities of the other words to 0, and divide by the sum.",
        "Compute np.cumsum(p) in the order of the ids, and use np.searchsorted with side='right' to find the first "
        "index where it is larger than u.",
    ),
    ("npformer.plain.decoding:sample", "npformer.plain.decoding:top_p"),
    (
        Slip(
            "temperature multiplied",
            "The logits are multiplied by the temperature. They should be divided by it.",
            partial(_drawn, scale=lambda x, t: x * t),
        ),
        Slip(
            "temperature ignored",
            "The temperature is not used. It should divide the logits.",
            partial(_drawn, scale=lambda x, t: x),
        ),
        Slip(
            "top_p before the temperature",
            "The most likely words are chosen before the logits are divided by the temperature. Divide first.",
            _tempered_after,
        ),
        Slip(
            "probabilities divided by the temperature",
            "The temperature divides the probabilities, after the softmax. It should divide the logits.",
            lambda logits, t, p, u: _drawn(logits, 1.0, min(1.0, p * t), u),
        ),
        Slip(
            "top_p ignored",
            "All words can be drawn. Draw only from the most likely words that add up to top_p.",
            partial(_drawn, keep=lambda p, top: p > 0),
        ),
        Slip(
            "last word of the set left out",
            "The word with which the sum reaches top_p is left out. It belongs to the set.",
            partial(_drawn, keep=_without_last),
        ),
        Slip(
            "one word more",
            "The set contains one more word than it needs to reach top_p.",
            partial(_drawn, keep=lambda p, top: _kept(p, top, one=1)),
        ),
        Slip(
            "top_p compared with each word's probability",
            "The set contains the words with a probability of at least top_p times the largest. It should contain "
            "the most likely words that add up to top_p.",
            partial(_drawn, keep=lambda p, top: p >= top * p.max()),
        ),
        Slip(
            "not divided by the sum",
            "The probabilities of the set do not add up to 1. Divide them by their sum.",
            partial(_drawn, again=False),
        ),
        Slip(
            "words in order of probability",
            "The probabilities are summed from the most likely word to the least. Sum them in the order of the ids.",
            lambda *a: _drawn(*a, by_rank=True),
        ),
        Slip(
            "rank instead of id",
            "The rank of the word is returned, 0 for the most likely word. Return its id.",
            partial(_drawn, by_rank=True, word=lambda order, at: at),
        ),
        Slip(
            "set by rank, not by id",
            "The set is computed for the sorted probabilities, but applied to the unsorted "
            "probabilities. The word with id order[i] has rank i.",
            partial(_drawn, keep=_kept_ranks),
        ),
        Slip(
            "most likely word",
            "The most likely word is returned. The number u should select the word.",
            lambda logits, *a: int(logits.argmax()),
        ),
        Slip(
            "excluded word drawn",
            "A word with a probability of 0 is drawn for u = 0. The sum must be larger than u, not at least u.",
            partial(_drawn, side="left"),
        ),
        Slip(
            "least likely words",
            "The set contains the least likely words, because the probabilities are sorted in ascending order.",
            partial(_drawn, keep=_least_likely),
        ),
        Slip(
            "drawn backward",
            "The sum that is compared with u starts at the last word. It should start at the first.",
            lambda logits, t, p, u: _drawn(logits, t, p, 1 - u),
        ),
    ),
)
