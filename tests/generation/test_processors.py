"""The softmax of processed scores equals golden probabilities from transformers, with the same bits in any batch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from npformer.config import Config
from npformer.engine.functions import softmax
from npformer.generation.processors import Processors, narrow
from npformer.generation.settings import Settings, resolve
from tests.golden import make_sampling as golden

CASES = json.loads(golden.DATA.read_text())
CONFIG = Config(
    "gpt2", "causal-lm", vocab_size=golden.WIDTH, d_model=8, n_heads=2, n_layers=1, d_ffn=8, max_length=90, causal=True
)


def settled(settings: dict[str, Any]) -> Settings:
    given = {"do_sample": True, "top_k": 0, "eos_token_id": golden.ENDS, "max_new_tokens": 20, **settings}
    return resolve(None, CONFIG, given, golden.PROMPT)


def changed(settings: dict[str, Any], rows: slice, dtype: type) -> np.ndarray:
    scores, chosen = golden.scores()[rows].astype(dtype), settled(settings)
    Processors(chosen, golden.PROMPT)(golden.ids()[rows], scores)
    narrow(scores, chosen)
    return scores


def test_the_golden_settings_match_the_generator() -> None:
    assert [each["settings"] for each in CASES] == golden.SETTINGS


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["settings"]))
def test_probabilities_match_transformers(case: dict[str, Any]) -> None:
    found = softmax(changed(case["settings"], slice(None), np.float64)).tolist()
    kept = [{str(token): p for token, p in enumerate(row) if p > 0} for row in found]
    assert golden.same([{"probabilities": kept}], [case])


@pytest.mark.parametrize("settings", golden.SETTINGS, ids=str)
def test_a_row_has_the_same_bits_alone(settings: dict[str, Any]) -> None:
    """The test uses float32, in which a different order of sums would change the bits."""
    together = changed(settings, slice(None), np.float32)
    for row in range(4):
        assert np.array_equal(changed(settings, slice(row, row + 1), np.float32), together[row : row + 1])


@pytest.mark.parametrize("name", ["top_h", "top_p", "typical_p", "min_p", "epsilon_cutoff", "eta_cutoff"])
def test_the_strictest_value_leaves_a_token(name: str) -> None:
    value = {"min_p": 1.0, "epsilon_cutoff": 0.999, "eta_cutoff": 0.999}.get(name, 1e-6)
    scores = golden.scores()
    narrow(scores, settled({name: value}))
    assert (scores > -np.inf).any(axis=1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_growing_favour_of_the_end_stays_finite(dtype: type) -> None:
    chosen = settled({"exponential_decay_length_penalty": (0, 1e6), "max_new_tokens": 80, "min_new_tokens": 79})
    ids = np.full((1, golden.PROMPT + 78), 20)
    for new in (1, 60, 78):
        scores = golden.scores()[:1].astype(dtype)
        Processors(chosen, golden.PROMPT)(ids[:, : golden.PROMPT + new], scores)
        assert (scores[:, golden.ENDS] == -np.inf).all()
    scores = golden.scores()[:1].astype(dtype)
    Processors(chosen, golden.PROMPT)(np.full((1, golden.PROMPT + 79), 20), scores)
    assert np.isfinite(scores).all()
