"""Hooks read the stages of transformers' translation models as they run: a correct model has no mistake, and a planted
mistake is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.model import Seq2Seq
from tests.support import tiny

#: Lengths of the source and of the decoder's input; they differ, so both sides are padded.
LENGTHS = ((7, 5), (4, 6))


CASES = [(family, scaled) for family in ("marian", "bart") for scaled in (False, True)]


@pytest.fixture(params=[("marian", True), ("bart", False)], ids=str)
def case(request: pytest.FixtureRequest) -> tuple[str, bool]:
    """Returns a family, and whether embeddings are scaled."""
    return request.param


@pytest.fixture
def folder(case: tuple[str, bool], tmp_path: Path) -> Path:
    return tiny.folder(tmp_path / "m", case[0], "translation", scale_embedding=case[1])


@pytest.fixture
def model(folder: Path) -> Seq2Seq:
    return Seq2Seq(*load_folder(folder), folder=folder)


@pytest.fixture
def recorded(model: Seq2Seq) -> golden.Golden:
    random = np.random.default_rng(1)
    return golden.record(model, [tuple(random.integers(5, 200, n) for n in lengths) for lengths in LENGTHS])


@pytest.fixture
def theirs(folder: Path, recorded: golden.Golden) -> Any:
    return golden.load_torch(str(folder), recorded)


@pytest.mark.parametrize("case", CASES, indirect=True, ids=str)
def test_a_correct_model_has_no_mistake(theirs: Any, recorded: golden.Golden, model: Seq2Seq) -> None:
    """The state_dict contains the bias of the logits as (1, V), but the module for the logits does not add it."""
    comparison = golden.compare(recorded, theirs)
    assert comparison.ok, str(comparison)
    outside = "embeddings.token" if model.config.scale_embedding and model.config.model_type == "marian" else "scores"
    assert all(name.endswith(("scores", outside)) for name in comparison.missing)
    assert comparison.theirs.problems == {}
    assert max(row.budgets for row in comparison.rows) < 0.5  # torch's error is well within the budget
    assert str(golden.diagnose(recorded, theirs, model)) == "no stage diverges: nothing to diagnose"
    assert golden.check_weights(model, golden.compare(recorded, theirs.state_dict()).theirs.weights) == []


def test_a_mistake_in_attention_to_the_source_is_named(
    theirs: Any, recorded: golden.Golden, model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = sys.modules[type(theirs).__module__]
    eager = home.eager_attention_forward

    def unscaled(module: Any, *args: Any, **kwargs: Any) -> Any:
        return eager(module, *args, **kwargs | {"scaling": 1.0})

    monkeypatch.setattr(home, "eager_attention_forward", unscaled)
    diagnosis = golden.diagnose(recorded, theirs, model)
    assert (diagnosis.stage, diagnosis.mistake) == ("encoder.layers.0.attention.weights", "unscaled scores")


def test_a_missing_bias_is_named(theirs: Any, recorded: golden.Golden, model: Seq2Seq) -> None:
    with torch.no_grad():
        theirs.model.decoder.layers[1].encoder_attn.v_proj.bias.zero_()
    assert golden.compare(recorded, theirs).first.stage == "decoder.layers.1.cross_attention.value"  # type: ignore[union-attr]
    assert golden.diagnose(recorded, theirs, model).causes == ["missing bias"]


def test_states_are_known_by_the_names_of_the_output(theirs: Any, recorded: golden.Golden) -> None:
    from npformer.golden.torch_model import padded_ids

    source, mask, _ = padded_ids(recorded.sources, 0)
    ids, _, _ = padded_ids(recorded.texts, 0)
    given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": ids}
    with torch.no_grad():
        out = theirs(**{name: torch.from_numpy(each) for name, each in given.items()}, output_hidden_states=True)
    sides = ("encoder", "decoder")
    states = {f"{s}_hidden_states.{i}": x for s in sides for i, x in enumerate(out[f"{s}_hidden_states"])}
    comparison = golden.compare(recorded, states | {"logits": out.logits})
    assert comparison.ok, str(comparison)
    assert len(comparison.rows) == 7
