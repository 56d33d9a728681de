"""Edits of calls whose arrays are stages, and of calls that are far above the stage, give the stages of a port."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from npformer import golden
from npformer.engine.runtime.packing import Text
from npformer.golden.page_edits import edits_of_model
from tests.support import tiny
from tests.support.edited_pages import Plant, edited, run
from tests.support.planted import KNOWN

pytestmark = [pytest.mark.numbers, pytest.mark.edits]


def lines(family: str, head: str, plant: Plant, shown: Callable[[str], bool]) -> list[str]:
    """The lines into which edits change the page to explain a port. shown: whether the port exports a stage."""
    model = tiny.model(family, head, n_layers=1)
    texts = [Text(np.arange(5, 14)), Text(np.arange(20, 26))]
    if model.config.n_token_types:
        texts = [replace(text, token_type_ids=(np.arange(len(text)) > 2).astype(np.int64)) for text in texts]
    recorded = golden.record(model, texts)
    stages = run(model, recorded, plant, padded=False)
    theirs = {name: [stages[f"{i}/{name}"] for i in range(2)] for name in recorded.stages if shown(name)}
    theirs = {name: arrays for name, arrays in theirs.items() if all(np.isfinite(each).all() for each in arrays)}
    wrong = golden.compare(
        recorded, {f"{i}/{name}": each for name, own in theirs.items() for i, each in enumerate(own)}
    )
    assert wrong.first is not None
    found = edits_of_model(model, recorded.inputs, theirs, recorded.budgets, wrong.first.stage)
    return [each.after for each in found.causes]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("no embedding norm", "return total"),
        ("no ffn norm", "return ffn_residual"),
        ("no W_O", "return combined"),
    ],
)
def test_the_stage_of_a_call_keeps_its_name_if_an_edit_leaves_the_call_out(key: str, line: str) -> None:
    """The call gives a stage its name, and the port exports another array under that name."""
    assert line in lines("bert", "sequence-classification", KNOWN[key][1], lambda name: True)


@pytest.mark.parametrize(("key", "line"), [("unscaled", "scores = q @ k.mT"), ("relu", "relu(linear(x, **hidden))")])
def test_edits_of_layers_give_the_logits_of_texts_with_token_types(key: str, line: str) -> None:
    found = lines("bert", "sequence-classification", KNOWN[key][1], lambda name: name == "logits")
    assert any(line in each for each in found), found


def test_scaled_token_rows_are_the_last_value_of_their_stage() -> None:
    plant = edited(("tokens = scale * embedding(ids, **token)", "tokens = embedding(ids, **token)"))
    assert "tokens = embedding(ids, **token)" in lines("gemma", "causal-lm", plant, lambda name: True)
