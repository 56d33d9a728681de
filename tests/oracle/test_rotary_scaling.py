"""Rotations that depend on the length of a text, compared with Transformers: single texts, batches and generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from npformer.engine.mechanisms import PartialRotary, Rotary
from npformer.engine.runtime.packing import Text
from npformer.families.rope import write_rotary
from npformer.loading import load_folder
from npformer.model import Model
from tests.support import tiny
from tests.support.in_double import in_double
from tests.support.rotary_frequencies import DYNAMIC, FREQUENCIES, LONGROPE, MAGNITUDE, THETA

#: Name -> family, and fields of the config. The rotated part of a head has 8 columns.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"mechanisms": (Rotary(THETA, scaling=DYNAMIC),), "max_length": DYNAMIC.longest}),
    "dynamic in part": (
        "gpt_neox",
        {"mechanisms": (PartialRotary(THETA, scaling=DYNAMIC, columns=4),), "max_length": DYNAMIC.longest},
    ),
    "longrope": ("llama", {"mechanisms": (Rotary(THETA, scaling=LONGROPE),), "max_length": 32}),
    "longrope in part": (
        "phi3",
        {
            "mechanisms": (PartialRotary(THETA, scaling=LONGROPE, columns=8),),
            "max_length": 32,
            "n_heads": 2,
            "n_kv_heads": 1,
        },
    ),
}
LENGTHS = (5, 8, 9, 13, 20, 3)  # a short text after longer ones has the original frequencies again


def both(name: str, folder: Path) -> tuple[Model, Any]:
    family, fields = MODELS[name]
    tiny.folder(folder, family, "causal-lm", pad_id=7, **fields)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return Model(*load_folder(folder, np.float64), threads=1), theirs.double().eval()


def logits(model: Any, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    with torch.no_grad(), in_double():
        found = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    return found * mask[..., None]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Compares single texts, and a batch padded on the left, whose largest position determines how all texts
    are scaled.

    Single texts have the same bits in any batch. The tolerance of 1e-12 allows several hundred rounding errors.
    """
    ours, theirs = both(name, tmp_path / "model")
    random = np.random.default_rng(0)
    texts = [random.integers(8, len(tiny.VOCABULARY), n) for n in LENGTHS]
    for ids, answer in zip(texts, ours.run([Text(ids) for ids in texts]), strict=True):
        [expected] = logits(theirs, ids[None], np.ones((1, len(ids)), np.int64))
        np.testing.assert_allclose(answer["logits"], expected, rtol=0, atol=1e-12)
    width = max(LENGTHS)
    ids = np.array([np.concatenate([np.full(width - len(each), 7), each]) for each in texts])
    mask = (np.arange(width) >= width - np.array(LENGTHS)[:, None]).astype(np.int64)
    found = ours(input_ids=ids, attention_mask=mask).logits
    np.testing.assert_allclose(found, logits(theirs, ids, mask), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "prompt", "new"), [("dynamic", 3, 6), ("longrope in part", 3, 6), ("longrope", 9, 8)])
def test_generated_tokens_are_those_of_transformers(name: str, prompt: int, new: int, tmp_path: Path) -> None:
    ours, theirs = both(name, tmp_path / "model")
    ids = np.random.default_rng(1).integers(8, len(tiny.VOCABULARY), prompt)
    with in_double():
        [row] = theirs.generate(
            torch.tensor(ids[None]), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=7
        )
    [[written]] = ours.generate(ids, max_new_tokens=new, min_new_tokens=new)
    assert written.ids.tolist() == row[prompt:].tolist()


@pytest.mark.parametrize(("scaling", "length"), FREQUENCIES)
def test_the_committed_frequencies_are_those_of_transformers(scaling: Any, length: int) -> None:
    most = DYNAMIC.original if scaling == DYNAMIC else 32
    fields = write_rotary(Rotary(THETA, scaling=scaling))["rope_parameters"]
    config = transformers.LlamaConfig(
        hidden_size=8, num_attention_heads=1, max_position_embeddings=most, rope_parameters=fields
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[fields["rope_type"]](config, None, seq_len=torch.tensor(length))
    assert magnitude == (1.0 if scaling == DYNAMIC else MAGNITUDE)
    assert tuple(frequencies.tolist()) == FREQUENCIES[scaling, length]
