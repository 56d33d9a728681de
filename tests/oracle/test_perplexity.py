"""Perplexity compared with Transformers, for one whole text and for longer texts in windows, with the loop from
Transformers' guide.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import npformer
from tests.support import writers

TEXT = "The other day I was in the café — 京都, naïve 😀.\n\nWho is that? " * 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writers.folder(tmp_path_factory.mktemp("m") / "gpt2", max_length=48)


@pytest.mark.parametrize(("length", "stride"), [(40, None), (None, 1), (None, 16), (None, 47), (None, None)])
def test_a_text_has_the_perplexity_of_transformers(length: int | None, stride: int | None, folder: Path) -> None:
    """Sums the mean losses of the guide's windows, each multiplied by its number of tokens."""
    text = TEXT[:length]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt").input_ids
    total, before = 0.0, 1
    for first in range(0, ids.shape[1], stride or 24):
        end = min(first + 48, ids.shape[1])
        labels = ids[:, first:end].clone()
        labels[:, : before - first] = -100
        with torch.no_grad():
            total += float(model(ids[:, first:end], labels=labels).loss) * (end - before)
        before = end
        if end == ids.shape[1]:
            break
    found = npformer.perplexity(npformer.load(folder), text, stride)
    assert found.tokens == ids.shape[1] - 1
    assert found.log_probability == pytest.approx(-total, rel=1e-6)
    assert found.perplexity == float(found) == pytest.approx(math.exp(total / found.tokens), rel=1e-6)
