"""Makes the golden probabilities of sampling, or with --check makes them again and compares them.

    python tests/golden/make_sampling.py [--check]

It needs the `oracle` group (torch, transformers). It makes `sampling.json`: for each set of settings, the probabilities
of all tokens after the processors of transformers' `generate` have changed the rows of `scores`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "sampling.json"
WIDTH, PROMPT = 40, 3
ENDS = (3, 8)

SETTINGS: list[dict[str, Any]] = [
    {"top_h": 0.3},
    {"top_h": 0.8},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"epsilon_cutoff": 0.02},
    {"epsilon_cutoff": 0.3},
    {"eta_cutoff": 0.02},
    {"eta_cutoff": 0.6},
    {"temperature": 2.0, "top_k": 15, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8},
    {"temperature": 0.5, "top_h": 0.9, "top_k": 20, "typical_p": 0.6, "epsilon_cutoff": 0.01, "eta_cutoff": 0.05},
    {"sequence_bias": [[[9], 2.5], [[6, 9], -1.25], [[4, 6, 10], 8.0]], "repetition_penalty": 1.3, "min_p": 0.05},
    {"exponential_decay_length_penalty": [2, 1.5], "typical_p": 0.95},
    {"exponential_decay_length_penalty": [5, 1.5], "bad_words_ids": [[12]], "min_p": 0.01},
]


def scores() -> np.ndarray:
    """Logits (4, WIDTH) from nearly flat to steep; in the last row, some tokens are already banned."""
    random = np.random.RandomState(0)
    found: np.ndarray = random.standard_normal((4, WIDTH)) * np.array([[0.1], [1.0], [4.0], [2.0]])
    found[3, ::3] = -np.inf
    return found


def ids() -> np.ndarray:
    """The tokens before each row of scores, (4, 7): a prompt of PROMPT tokens, and four generated tokens."""
    random = np.random.RandomState(1)
    found: np.ndarray = random.randint(10, WIDTH, (4, PROMPT + 4))
    found[1:3, -2:] = (4, 6)
    return found


def processors(model: Any, prompt: int, **settings: Any) -> Any:
    """The processors that transformers' `generate` uses for prompts of this many tokens."""
    import transformers

    given = transformers.GenerationConfig(**{"eos_token_id": list(ENDS), "max_new_tokens": 20, **settings})
    prepared, _ = model._prepare_generation_config(given)
    model._prepare_special_tokens(prepared)
    prepared.max_length = prompt + prepared.max_new_tokens
    return model._get_logits_processor(prepared, prompt)


def gpt2(width: int) -> Any:
    """A tiny model; `processors` uses only its config."""
    import transformers

    sizes = {"n_positions": 96, "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": width}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=3))


def made() -> list[dict[str, Any]]:
    import torch

    model, found = gpt2(WIDTH), []
    for settings in SETTINGS:
        changed = processors(model, PROMPT, do_sample=True, **{"top_k": 0, **settings})(
            torch.from_numpy(ids()), torch.from_numpy(scores())
        )
        rows = changed.softmax(-1).tolist()
        kept = [{str(token): p for token, p in enumerate(row) if p > 0} for row in rows]
        found.append({"settings": settings, "probabilities": kept})
    return found


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    """Whether two answers have equal tokens, and probabilities that agree to 1e-12; both were computed in float64."""
    pairs = [
        pair
        for one, two in zip(a, b, strict=True)
        for pair in zip(one["probabilities"], two["probabilities"], strict=True)
    ]
    return all(x.keys() == y.keys() and all(abs(x[t] - y[t]) <= 1e-12 for t in x) for x, y in pairs)


def main() -> int:
    found = made()
    if "--check" in sys.argv[1:]:
        equal = same(found, json.loads(DATA.read_text()))
        print(f"{DATA.name}: {'as committed' if equal else 'differs from what transformers gives'}")
        return 0 if equal else 1
    DATA.write_text("[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in found) + "\n]\n")
    print(f"{DATA.name}: {len(found)} sets of settings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
