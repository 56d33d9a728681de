"""The effect of a layer at a token: the shares, lengths and answers equal those of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer.families import FAMILIES, encoders
from npformer.interpret.edits import edit, replace_row
from npformer.view.explorer.layer_part import layer_at
from npformer.view.explorer.parts import Parts
from npformer.view.explorer.state import read_state
from tests.support import tiny
from tests.support.explorer_client import state

TEXT, TOKEN = "I love good ice cream", 3
SINGLE = sorted(FAMILIES.keys() - {"marian", "bart", "t5", "mt5", "transformer"})


def made(family: str) -> Any:
    return tiny.model(family, "base") if family in encoders() else tiny.model(family, "causal-lm")


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts({"m": npformer.load("distilbert-sst2")})


def test_a_layer_s_reads_lengths_and_answers_are_the_engine_s(parts: Parts) -> None:
    model, stages = parts.models[0], npformer.trace(parts.models[0], TEXT)
    found = parts.part(read_state(state(TEXT)), f"layer:2:{TOKEN}")
    attention, ffn = found["blocks"]
    weights = stages["layers.2.attention.weights"][:, TOKEN]
    mean = weights.mean(axis=0)
    assert [i for i, _ in attention["reads"]["mean"]] == np.argsort(-mean)[:3].tolist()
    assert attention["reads"]["mean"][0][1] == pytest.approx(mean.max())
    assert attention["reads"]["heads"][5][0] == (weights[5].argmax(), pytest.approx(weights[5].max()))
    for block, before in ((attention, "layers.1.ffn_norm"), (ffn, "layers.2.attention_norm")):
        row, added = stages[before][TOKEN], stages[block["stage"]][TOKEN]
        assert block["length"] == pytest.approx(np.linalg.norm(added) / np.linalg.norm(row), rel=1e-5)
        with edit(replace_row(block["stage"], TOKEN, np.zeros(model.config.d_model))):
            shares = npformer.trace(model, TEXT)["probabilities"]
        assert block["without"][:2] == (model.config.labels[shares.argmax()], pytest.approx(shares.max(), rel=1e-5))
        before_odds = np.log(stages["probabilities"].astype(np.float64)) @ [-1, 1]
        assert block["without"][3] == pytest.approx(np.log(shares.astype(np.float64)) @ [-1, 1] - before_odds, abs=2e-3)


@pytest.mark.parametrize("family", SINGLE)
def test_every_family_s_row_is_the_sum_that_its_layer_made(family: str) -> None:
    """A layer's sum minus the outputs of its blocks is the row that it reads: the output of the previous layer."""
    recorded = npformer.trace(made(family), [5, 6, 7, 8])
    first, second = (layer_at(recorded, None, layer, 2, frozenset()) for layer in (0, 1))
    assert first["blocks"]
    outputs = [
        name for name in recorded if name.startswith(f"{first['blocks'][0]['stage'].rpartition('layers.')[0]}layers.0.")
    ]
    row = np.linalg.norm(recorded[outputs[-1]][2].astype(np.float64))
    block = second["blocks"][0]
    assert block["length"] == pytest.approx(np.linalg.norm(recorded[block["stage"]][2]) / row, rel=1e-3)


def test_changes_are_respected(parts: Parts) -> None:
    edits = [
        {"kind": "stage", "stage": "layers.2.ffn.output"},
        {"kind": "patch", "stage": "layers.3.ffn_residual", "position": 1},
    ]
    changed = read_state(state(TEXT, TEXT, edits=edits))
    assert [each["length"] for each in parts.part(changed, "layer:2:3")["blocks"]][1] == 0
    assert [each["length"] for each in parts.part(changed, "layer:3:3")["blocks"]][1] is None


def test_a_translator_has_the_rows_of_its_decoder() -> None:
    translator = Parts({"m": npformer.load("en-de-multi30k")})
    asked = read_state(state("A man is riding a bike."))
    assert "reads the source" in translator.part(asked, "layer:0:1")["error"]
    stages = len(npformer.trace(translator.models[0], "A man is riding a bike.").key_tokens)
    found = translator.part(asked, "layer:4:1")
    assert [each["name"] for each in found["blocks"]] == ["attention", "cross-attention", "FFN"]
    assert found["blocks"][1]["reads"]["of"] == "sources"
    assert all(i < stages for i, _ in found["blocks"][1]["reads"]["mean"])
    for wrong in ("layer:99:0", "layer:4:99"):
        assert "expected a number below" in translator.part(asked, wrong)["error"]
