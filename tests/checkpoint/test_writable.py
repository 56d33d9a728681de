"""Weights that a user can change: `load(..., writable=True)`; the model computes with changed weights at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import Text
from npformer.checkpoint import flatten
from tests.support import tiny

IDS = [101, 1045, 2293, 3256, 6949, 102]
TEXT = [Text(IDS)]


def test_a_changed_weight_changes_the_next_answer_after_any_number_of_calls() -> None:
    """From the third call on, copies in another layout replace read-only weights, but never writable weights."""
    model, other = npformer.load("distilbert-sst2", writable=True), npformer.load("distilbert-sst2")
    weight = model.weights["layers"][0]["attention"]["query"]["weight"]
    for _ in range(5):
        before = model.run(TEXT)[0]["logits"]
        np.testing.assert_array_equal(before, other.run(TEXT)[0]["logits"])
    weight[0, 0] = 1
    weight[:, 64:128] *= 2
    after = model.run(TEXT)[0]["logits"]
    assert not np.array_equal(before, after)
    anew = npformer.Model(model.config, {**model.weights}, model.folder)
    np.testing.assert_array_equal(after, anew.run(TEXT)[0]["logits"])
    np.testing.assert_array_equal(before, other.run(TEXT)[0]["logits"])


def test_weights_are_read_only_otherwise() -> None:
    weight = npformer.load("distilbert-sst2").weights["layers"][0]["attention"]["query"]["weight"]
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1


@pytest.mark.parametrize("own", [True, False])
def test_the_file_stays_as_it_is(tmp_path: Path, own: bool) -> None:
    folder = tiny.folder(tmp_path / "m", own=own)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    model = npformer.load(folder, writable=True)
    assert all(array.flags.writeable for array in flatten(model.weights).values())
    for array in flatten(model.weights).values():
        array += 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """Checks a projection tied to its table, and layers that share weights."""
    model = npformer.load(tiny.folder(tmp_path / "bert", "bert", "masked-lm"), writable=True)
    model.weights["embeddings"]["token"]["weight"][3, 4] = 7
    assert model.weights["head"]["output"]["weight"][4, 3] == 7
    albert = npformer.load(tiny.folder(tmp_path / "albert", "albert", "base"), writable=True)
    albert.weights["layers"][0]["ffn"]["hidden"]["weight"][0, 0] = 7
    assert albert.weights["layers"][1]["ffn"]["hidden"]["weight"][0, 0] == 7
