"""Scores change as with transformers' processors, in the same order, and tokens have the same probabilities."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import npformer
from npformer.config import Config
from npformer.engine.functions import softmax
from npformer.generation.processors import Processors, narrow
from npformer.generation.settings import resolve
from tests.golden.make_sampling import ENDS, gpt2, processors

WIDTH = 150
CONFIG = Config(
    "gpt2", "causal-lm", vocab_size=WIDTH, d_model=8, n_heads=2, n_layers=1, d_ffn=8, max_length=90, causal=True
)
LIMITS: dict[str, Any] = {
    "temperature": partial(np.random.Generator.uniform, low=0.2, high=3),
    "top_h": partial(np.random.Generator.uniform, low=0.05, high=0.99),
    "top_k": partial(np.random.Generator.integers, low=0, high=WIDTH + 9),
    "top_p": partial(np.random.Generator.uniform, low=0.05, high=1),
    "min_p": partial(np.random.Generator.uniform, low=0, high=1),
    "typical_p": partial(np.random.Generator.uniform, low=0.05, high=1),
    "epsilon_cutoff": partial(np.random.Generator.uniform, low=0.0, high=0.2),
    "eta_cutoff": partial(np.random.Generator.uniform, low=0.0, high=0.2),
}
#: Settings that change scores before the limits of sampling. Greedy and beam search use only these.
CHANGES: dict[str, Any] = {
    "sequence_bias": [[[9], 2.5], [[7, 9], -1.1], [[6, 7, 9], 0.3], [[4, 4], -5.0], [[5, 8], 4.0]],
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[12], [6, 7, 14]],
    "min_new_tokens": 6,
    "forced_eos_token_id": 8,
    "exponential_decay_length_penalty": (3, 1.2),
    "suppress_tokens": [20, 21],
    "begin_suppress_tokens": [22],
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    return gpt2(WIDTH)


def random_scores(random: np.random.Generator, rows: int = 4) -> np.ndarray:
    """Returns rows from nearly flat to steep, some with tokens that are already banned."""
    scores = random.standard_normal((rows, WIDTH)) * random.choice([0.01, 1, 3, 10, 30])
    scores[random.random(scores.shape) < random.choice([0, 0.3, 0.9])] = -np.inf
    scores[:, 40] = random.standard_normal(rows)
    return scores


@pytest.mark.filterwarnings("ignore:.*do_sample")
@pytest.mark.parametrize("seed", range(60))
def test_sampling_is_limited_as_in_transformers(theirs: Any, seed: int) -> None:
    """Tries each setting alone, and random combinations, in which the order of settings matters."""
    random = np.random.default_rng(seed)
    names = [name for name in LIMITS if random.random() < 0.5] if seed >= 2 * len(LIMITS) else [list(LIMITS)[seed // 2]]
    drawn = {name: LIMITS[name](random) for name in names}
    settings = {name: int(value) if name == "top_k" else float(value) for name, value in drawn.items()}
    scores, ids = random_scores(random), torch.zeros((4, 5), dtype=torch.int64)
    expected = processors(theirs, 5, do_sample=True, **{"top_k": 0, **settings})(ids, torch.from_numpy(scores)).numpy()
    narrow(scores, resolve(None, CONFIG, {"do_sample": True, "top_k": 0, **settings}))
    assert np.array_equal(scores > -np.inf, expected > -np.inf), settings
    assert np.abs(softmax(scores) - softmax(expected)).max() <= 1e-12
    kept = expected > -np.inf
    assert np.abs(scores[kept] - expected[kept]).max() <= 1e-12 * np.abs(expected[kept]).max()


@pytest.mark.parametrize("seed", range(40))
def test_scores_are_changed_as_in_transformers(theirs: Any, seed: int) -> None:
    """Tries each setting alone, and random combinations, after 0 to 19 tokens."""
    random = np.random.default_rng(seed)
    names = [name for name in CHANGES if random.random() < 0.5] if seed >= 9 else [list(CHANGES)[seed]]
    settings = {name: CHANGES[name] for name in names}
    chosen = resolve(None, CONFIG, {"eos_token_id": ENDS, "max_new_tokens": 20, **settings})
    made = processors(theirs, 5, **settings)
    for new in range(20):
        scores, ids = random_scores(random), random.integers(0, 11, (4, 5 + new))
        ids[:2, -2:] = (6, 7)
        expected = made(torch.from_numpy(ids), torch.from_numpy(scores)).numpy()
        Processors(chosen, 5)(ids, scores)
        assert np.array_equal(scores > -np.inf, expected > -np.inf), (settings, new)
        kept = expected > -np.inf
        assert np.abs(scores[kept] - expected[kept]).max() <= 1e-12 * np.abs(expected[kept]).max(), (settings, new)


@pytest.mark.parametrize(
    "settings",
    [
        {"min_p": 0.3},
        {"typical_p": 0.4},
        {"top_h": 0.6},
        {"epsilon_cutoff": 0.02},
        {"eta_cutoff": 0.3},
        {"min_p": 0.1, "typical_p": 0.9, "temperature": 0.8, "top_p": 0.9, "sequence_bias": [[[9], 4.0]]},
    ],
    ids=str,
)
def test_tokens_are_drawn_by_the_probabilities_of_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Shares of 2000 draws agree within 5 standard deviations plus 3 draws, an allowance for very rare tokens."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        n_positions=16, n_embd=8, n_layer=1, n_head=2, vocab_size=WIDTH, initializer_range=0.4, bos_token_id=0,
        eos_token_id=3,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    theirs.save_pretrained(tmp_path)
    prompt = torch.tensor([[50, 60, 70]])
    with torch.no_grad():
        logits = theirs(prompt).logits[:, -1]
    expected = processors(theirs, 3, do_sample=True, **settings)(prompt, logits).softmax(-1)[0].numpy()
    drawn = npformer.load(tmp_path, dtype="float64").generate(
        prompt.tolist() * 2, do_sample=True, seed=1, max_new_tokens=1, num_return_sequences=1000, **settings
    )
    shares = np.bincount([each.ids[0] for some in drawn for each in some], minlength=WIDTH) / 2000
    assert 1 < np.count_nonzero(expected) < 50  # the default of top_k is 50
    assert not shares[expected == 0].any()
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / 2000) + 0.0015).all()
