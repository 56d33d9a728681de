"""Kinds of mistakes that nobody listed, planted in a port that is plain NumPy: from every stage, and from few."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.golden.test_mistakes import diagnosed, stages
from tests.support.planted_kinds import KINDS

pytestmark = pytest.mark.numbers

QUICK = ("a head missing", "another bias", "sum and output")
#: Few stages show neither sums nor names of the others, and have no numbers exact in 16 bits.
UNSEEN = ("residual of 0.85", "units missing", "softmax in float16", "sum and output", "positions not added")


def unnamed(keys: Iterable[str], few: bool) -> dict[str, str]:
    """Returns the diagnoses of planted mistakes without their name and way."""
    found = {}
    for key in keys:
        name, way, plant = KINDS[key]
        diagnosis = diagnosed("bert", stages("bert", plant), few)
        fits = [fit for fit in diagnosis.fits if fit.certain]
        if not any(fit.mistake.name == name and (few or way in fit.way) for fit in fits):
            found[key] = str(diagnosis)
    return found


def test_kinds_are_named() -> None:
    assert unnamed(QUICK, False) == {}


@pytest.mark.slow
def test_all_kinds_are_named() -> None:
    assert unnamed(KINDS, False) == {}


@pytest.mark.slow
def test_kinds_are_named_from_few_stages() -> None:
    assert unnamed([key for key in KINDS if key not in UNSEEN], True) == {}


def test_a_constant_says_which_sizes_give_it() -> None:
    _, _, plant = KINDS["1 / sqrt(T)"]
    text = str(diagnosed("bert", stages("bert", plant)))
    assert "cause: scores scaled otherwise (by 1 / sqrt(T with padding))" in text, text


def test_a_stage_with_infinite_parents_is_diagnosed() -> None:
    """A singular matrix has no solution for the missing heads."""
    arrays = stages("bert", KINDS["units missing"][2])
    arrays["layers.0.ffn.activation"] = arrays["layers.0.ffn.activation"] + np.inf
    assert diagnosed("bert", arrays).stage
