"""The details of a correct diagnosis, which states only facts that the other program's numbers show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npformer import golden, trace
from npformer.checkpoint import flatten
from npformer.config import Sharing
from npformer.engine.mechanisms import Window
from npformer.engine.runtime.packing import Text
from npformer.golden.at import At
from npformer.golden.diagnosis import Diagnosis, Fit, together
from npformer.golden.forward import Forward
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes.clipped import clipped
from npformer.golden.mistakes.parts import window
from npformer.golden.port import Port
from npformer.golden.weights import check_weights
from npformer.model import Model
from tests.golden.test_mistakes_of_parts import llama
from tests.support import tiny
from tests.support.edited_pages import edited, run

pytestmark = pytest.mark.numbers

MASK = Mistake("a mask", "the correct mask", {})


def test_an_addition_that_changes_nothing_is_not_named() -> None:
    said = ("earlier ones", "earlier ones, padding is seen too", "the first token")
    fits = [Fit(MASK, way, 0.5, 1.0, True) for way in said]
    assert [fit.way for fit in together(fits)] == ["earlier ones, or the first token"]
    assert [fit.way for fit in together(fits[1::-1])] == ["earlier ones"]


def test_the_same_mistake_in_all_layers_is_one_paragraph() -> None:
    each = [
        Diagnosis(f"layers.{i}.output", 2.0, fits=[Fit(MASK, f"layers.{i}.output.weight", 0.5, 1.0, True)])
        for i in range(3)
    ]
    said = str(Diagnosis(each[0].stage, 2.0, fits=each[0].fits, then=each[1:]))
    assert said.count("cause:") == 1
    assert "the same mistake in other stages: layers.1.output, layers.2.output" in said


def test_a_last_layer_that_is_right_is_not_called_missing() -> None:
    model, texts = llama(), [Text(np.arange(3, 12)), Text(np.arange(20, 26))]
    recorded, stages = golden.record(model, texts), trace(model, texts)
    arrays = {f"{i}/{name}": array for name in stages for i, array in enumerate(stages.texts(name))}
    head = flatten(dict(model.weights))["head.output.weight"]
    for i in range(2):
        arrays[f"{i}/norm"] = arrays[f"{i}/layers.1.ffn_residual"]
        arrays[f"{i}/logits"] = arrays[f"{i}/norm"] @ head
    assert golden.diagnose(recorded, arrays, model).causes == ["RMSNorm left out"]


@pytest.mark.parametrize("rows", [2, -1])
def test_a_moved_table_of_positions_is_named(rows: int) -> None:
    model = tiny.model("bert", "masked-lm")
    name = "embeddings.position.weight"
    moved = np.roll(flatten(dict(model.weights))[name], -rows, axis=0)
    moved[-rows if rows > 0 else 0 :][: abs(rows)] = 1
    (finding,) = check_weights(model, {name: moved})
    assert finding.cause == "positions off by one"
    assert f"row i has the values of row i {'+' if rows > 0 else '-'} {abs(rows)}" in str(finding)


def test_a_wrong_split_of_gate_and_up_is_named() -> None:
    model = tiny.model("phi3", "causal-lm")
    flat, names = flatten(dict(model.weights)), [f"layers.0.ffn.{each}.weight" for each in ("gate", "up")]
    both = np.concatenate([flat[name] for name in names], axis=-1)
    found = check_weights(model, {name: both[:, i::2] for i, name in enumerate(names)})
    said = "gate, up are stored one after another, but read as if stored in alternating columns"
    assert [(each.what, each.cause) for each in found] == 2 * [(said, "fused weight split wrongly")]


def test_sinusoids_in_a_learned_table_are_named() -> None:
    model = tiny.model("distilbert", "masked-lm")
    name = "embeddings.position.weight"
    rows, width = flatten(dict(model.weights))[name].shape
    angles = np.arange(rows)[:, None] / 10000 ** (np.arange(width) // 2 * 2 / width)
    table = np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))
    (finding,) = check_weights(model, {name: table.astype(np.float32)})
    assert finding.cause == "sinusoidal positions instead of learned"


def test_a_shared_layer_that_reads_the_embeddings_again_is_named() -> None:
    """The numbers are those of a model without the second layer, which has the same weights."""
    model = tiny.model("albert", "masked-lm", sharing=Sharing())
    reference = golden.record(model, [Text(np.arange(5, 14)), Text(np.arange(20, 26))])
    plant = edited(
        (
            "for layer in layers:\n        x = encoder_layer(x",
            "first = x\n    for layer in layers:\n        x = encoder_layer(first",
        )
    )
    arrays = run(model, reference, plant, padded=False)
    shown = {name: each for name, each in arrays.items() if name.endswith(("embeddings.project", "ffn_norm", "logits"))}
    assert "layer reads the wrong rows (every layer reads embeddings.project)" in str(
        golden.diagnose(reference, shown, model)
    )


@pytest.mark.parametrize("few", [False, True], ids=["every stage", "outputs of layers"])
def test_the_local_layers_are_those_of_the_port(few: bool) -> None:
    """With all stages, the local layers are found at once. With only the layers' outputs, they are found one by one."""
    model, texts = tiny.model("modernbert", "masked-lm", n_layers=4), [Text(np.arange(5, 35))]
    local = model.config.local
    assert local is not None
    assert local.layers == (1, 2)
    port = Model(replace(model.config, local=replace(local, layers=(0, 1, 3))), model.weights)
    stages = trace(port, texts)
    kept = [
        name for name in stages if not few or name in ("embeddings.norm", "logits") or name.endswith("ffn_residual")
    ]
    said = str(golden.diagnose(golden.record(model, texts, kept), {f"0/{name}": stages[name] for name in kept}, model))
    lists = ["0, 1, 2", "0, 1", "0, 1, 3"] if few else ["0, 1, 3"]
    causes = [line.strip() for line in said.splitlines() if "cause:" in line]
    assert causes == [f"cause: the wrong layers are local (local: {each})" for each in lists], said


@pytest.mark.parametrize("layers", [(), (0, 1), (1, 2), (0, 1, 2)])
def test_only_another_list_of_some_layers_is_a_mistake(layers: tuple[int, ...]) -> None:
    """If all layers are local, or none is, a different mistake is named."""
    model, text = tiny.model("modernbert", "masked-lm", n_layers=3), Text(np.arange(5, 35))
    local = model.config.local
    assert local is not None
    assert local.layers == (1, 2)
    stages = trace(Model(replace(model.config, local=replace(local, layers=layers)), model.weights), text)
    given = {name: [stages[name]] for name in stages if name.endswith("attention.weights")}
    port = Port(model.config, {}, [text], "", [], frozenset(), (30,), (30,), given=given)
    (mistake,) = (each for each in window.MISTAKES if each.name == "the wrong layers are local")
    assert [way for way, _ in mistake.ways(port)] == (["local: 0, 1"] if layers == (0, 1) else [])


def test_of_two_layers_the_other_one_is_local() -> None:
    """With only hidden states, "no window" in the first layer would explain that layer, but not the second."""
    model, texts = tiny.model("gemma2", "causal-lm"), [Text(np.arange(5, 17))]
    local = model.config.local
    assert local is not None
    assert local.layers == (0,)
    stages = trace(Model(replace(model.config, local=replace(local, layers=(1,))), model.weights), texts)
    kept = [name for name in stages if name in ("embeddings.sum", "norm", "logits") or name.endswith("ffn_residual")]
    found = golden.diagnose(golden.record(model, texts, kept), {f"0/{name}": stages[name] for name in kept}, model)
    assert (found.causes, found.then) == (["the wrong layers are local"], [])


def test_local_layers_may_differ_by_their_rotation_alone() -> None:
    model, texts = tiny.model("modernbert", "masked-lm", n_layers=4), [Text(np.arange(5, 35))]
    local = model.config.local
    assert local is not None
    near, *window = sorted(local.mechanisms, key=lambda each: isinstance(each, Window))
    config = replace(
        model.config, mechanisms=(*model.config.mechanisms, *window), local=replace(local, mechanisms=(near,))
    )
    model = Model(config, model.weights)
    port = Model(replace(config, local=replace(local, layers=(1, 2, 3), mechanisms=(near,))), model.weights)
    stages = trace(port, texts)
    said = golden.diagnose(golden.record(model, texts), {f"0/{name}": stages[name] for name in stages}, model)
    assert said.stage == "layers.3.attention.query_rotated"
    assert "the wrong layers are local" in said.causes


@pytest.mark.parametrize(
    ("low", "high", "way"), [(-1, 9, "to at least -1"), (-9, 2, "to at most 2"), (-1, 2, "from -1 to 2")]
)
def test_equal_extremes_show_where_a_stage_is_clipped(low: float, high: float, way: str) -> None:
    values = np.arange(-4.0, 5.0).clip(low, high)
    port = Port(tiny.model("bert").config, {}, [], "pooler", [values], frozenset({"pooler"}), (), ())
    assert next(clipped(port))[0] == way


@pytest.mark.parametrize(
    ("stage", "place", "where"),
    [
        ("attention.context", (1, 4), "head 1, row 4 of text 0"),
        ("attention.query", (slice(6, None), slice(3, 6)), "the rows from 6, columns 3 to 5"),
        ("attention.scores", (1,), "head 1, every row of text 0"),
    ],
)
def test_the_values_that_differ_are_located(stage: str, place: tuple[int | slice, ...], where: str) -> None:
    """A race or the edge of a tile has no formula, but the affected rows, columns and heads can be named."""
    model, texts = llama(), [Text(np.arange(3, 12)), Text(np.arange(20, 26))]
    recorded, stages = golden.record(model, texts), trace(model, texts)
    arrays = {f"{i}/{name}": array.copy() for name in stages for i, array in enumerate(stages.texts(name))}
    wrong = arrays[f"0/layers.0.{stage}"]
    wrong[place] += np.sin(np.arange(wrong[place].size)).reshape(wrong[place].shape).astype(np.float32) + 2
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert (diagnosis.stage, diagnosis.causes, diagnosis.where) == (f"layers.0.{stage}", [], where)
    assert f"only these values differ: {where}" in str(diagnosis)


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet", "deberta-v2", "bart"])
def test_a_layer_of_any_family_can_run_again(family: str) -> None:
    """A layer that runs on its own input gives its output to the precision of float64, whatever its mechanisms are."""
    model, text = tiny.model(family), Text(np.array([5, 6, 7, 8, 9, 3]))
    differences = {}

    def compare(output: np.ndarray, at: At) -> np.ndarray:
        differences[at.name] = np.abs(at.layer_on(at("input")) - output).max()
        return output

    weights = flatten(dict(model.weights))
    port = Port(model.config, weights, [text], "", [], frozenset(), (len(text),), (len(text),))
    Forward({}, weights)(port.ruling({"*.ffn_norm": compare}))
    assert len(differences) == model.config.n_layers + model.config.decoder.n_layers
    assert max(differences.values()) < 1e-12
