"""Wrong weights are named from the stages that depend on them: tables of relative positions, and pairs in one layer.
A report without a cause says what to check and what to export."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import flatten, unflatten
from npformer.interpret.edits import edit
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.golden.conftest import texts_for
from tests.support import tiny

pytestmark = pytest.mark.numbers

FEW = ("embeddings.norm", "ffn_norm", "ffn_residual", "logits")


def diagnosed(family: str, changes: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], few: bool) -> str:
    model = tiny.model(family)
    recorded = golden.record(model, texts_for(model))
    flat = flatten(dict(model.weights))
    found = trace(Model(model.config, unflatten(flat | changes(flat))), recorded.texts)
    arrays = {
        f"{i}/{name}": array
        for name in found if not few or name.endswith(FEW)
        for i, array in enumerate(found.texts(name))
    }  # fmt: skip
    return str(golden.diagnose(recorded, arrays, model))


@pytest.mark.parametrize("few", [False, True], ids=["every stage", "hidden states"])
@pytest.mark.parametrize(("family", "table"), [("mpnet", "relative_bias"), ("deberta-v2", "distances")])
def test_a_wrong_table_of_relative_positions_is_named(family: str, table: str, few: bool) -> None:
    name = f"{table}.weight"
    said = diagnosed(family, lambda flat: {name: flat[name][::-1]}, few)
    assert f"cause: wrong table of relative positions (rows of {name} reversed)" in said


def test_biases_of_some_distances_are_named() -> None:
    name = "relative_bias.weight"
    said = diagnosed("mpnet", lambda flat: {name: flat[name][[1, 0, *range(2, len(flat[name]))]]}, few=False)
    assert "cause: relative bias with other values (the biases of distances -1 to 0 have other values)" in said


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_exchanged_weights_of_one_layer_are_named_from_hidden_states(family: str) -> None:
    pairs = {
        "layers.1.attention.query": "layers.1.attention.output",
        "layers.1.attention.output": "layers.1.attention.query",
    }
    said = diagnosed(
        family,
        lambda flat: {f"{own}.{part}": flat[f"{other}.{part}"] for own, other in pairs.items() for part in ("weight", "bias")},
        few=True,
    )  # fmt: skip
    assert "(layers.1.attention.query and layers.1.attention.output are exchanged)" in said


def unknown(array: np.ndarray, first: int = 0) -> np.ndarray:
    return np.concatenate([array[..., :first, :], np.sin(array[..., first:, :]) + 0.3 * array[..., first:, :]], axis=-2)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("weights", [False, True])
def test_a_report_without_a_cause_says_what_to_check_and_what_to_export(first: int, weights: bool) -> None:
    """The report does not ask to check weights that were compared, or that would also change the correct rows."""
    model = tiny.model("bert")
    recorded = golden.record(model, texts_for(model))
    with edit({"layers.1.ffn.output": lambda array: unknown(array, first)}):
        found = trace(model, recorded.texts, ["*.ffn_norm", "*.attention_norm", "logits"])
    arrays = {f"{i}/{name}": array for name in found for i, array in enumerate(found.texts(name))}
    if weights:
        arrays |= flatten(dict(model.weights))
    diagnosis = golden.diagnose(recorded, arrays, model)
    said = str(diagnosis)
    assert diagnosis.causes == []
    assert "closest" not in said
    assert ("check the weights" in said) == (not first and not weights), said
    inner = ["ffn.hidden", "ffn.activation", "ffn.output", "ffn_residual"]
    assert f"export the stages between: {', '.join(f'layers.1.{each}' for each in inner)}" in said
