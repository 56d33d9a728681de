"""The stages derived from a model's parts, which forward passes report, edits change, and backward passes read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from npformer.base_model import packed
from npformer.checkpoint import load_folder
from npformer.engine import mechanisms
from npformer.engine.activations import gelu
from npformer.engine.blocks import Gated
from npformer.engine.descriptions.stage import Stage
from npformer.engine.mechanisms import Causal, Mechanism
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.tape import Recording, Stages
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward, transformer, transformer_backward, unread
from npformer.families import FAMILIES, encoders, parts_of
from npformer.interpret import stages
from npformer.interpret.edits import edit
from npformer.interpret.text_parts import is_input
from npformer.interpret.traces import post_process, trace
from npformer.model import Model, Seq2Seq
from tests.support import seq2seq_models, tiny, torch_values
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

PRE_NORM = {"norm_first": True, "final_norm": True}


def of_case(case: str) -> Model:
    return Model(*load_folder(torch_values.DATA / case, np.float32))


HEADS = {f"{family}, {head}": (family, head) for family in encoders() for head in encoders()[family].heads}
MODELS: dict[str, Callable[[], Model | Seq2Seq]] = {
    **{name: partial(tiny.model, *each) for name, each in HEADS.items()},
    **{f"bart, {head}": partial(tiny.model, "bart", head) for head in sorted({*FAMILIES["bart"].architectures.values()} - {"translation"})},
    **{case: partial(of_case, case) for case in torch_values.CASES if case not in {"-".join(each) for each in HEADS.values()}},
    "translation": seq2seq_models.random_model,
    "translation, pre-norm": partial(seq2seq_models.random_model, **PRE_NORM),
    "translation, one encoder layer": partial(seq2seq_models.random_model, n_layers=1),
}  # fmt: skip
TARGET = Text(np.array([2, 4, 1]))
#: One model of each structure, for the test that edits every stage.
EDITED = (
    *(
        "translation, one encoder layer",
        *(f"{family}, masked-lm" for family in ("distilbert", "modernbert", "deberta-v2", "mpnet")),
    ),
    *("translation", "albert, masked-lm", "nomic_bert, masked-lm"),
    *("deberta-v2-convolution", "deberta-v2-content-to-distance", "gpt2, causal-lm", "electra, replaced-token"),
    *("modernbert, sequence-classification", "bart, sequence-classification", "bert, question-answering"),
    "translation, pre-norm",
)


@cache
def model_of(name: str) -> Model | Seq2Seq:
    return MODELS[name]()


def fired(model: Model | Seq2Seq, changes: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Returns all stages of a forward pass on one text, with the end token that BART's heads need."""
    with trace() as recorded, edit(changes or {}):
        if isinstance(model, Seq2Seq):
            model.run([(text_of(model), TARGET)])
        else:
            post_process(model.config, model.run([text_of(model)]))
    return dict(recorded)


def text_of(model: Model | Seq2Seq) -> Text:
    return Text(np.array([5, 9, 12, 7, *(model.config.decoder.end_ids or (3,))[:1]]))


@pytest.mark.parametrize("name", MODELS)
def test_the_stages_that_fire_match_the_parts_in_their_order(name: str) -> None:
    model = model_of(name)
    of_model, found = stages.of_model(model.config), fired(model)
    assert list(found) == list(of_model)
    for stage in found:
        listed = stages.find(stage)
        assert listed is not None
        # tables may differ from layers in width, a source may differ in length, and keys may have fewer heads
        letters = str.maketrans("ESG", "DTH")
        shapes = [each.shape.translate(letters) for each in (listed, of_model[stage])]
        assert shapes[0] == shapes[1]
        assert of_model[stage].hook in (listed.hook, "")


@pytest.mark.parametrize("name", ["distilbert, base", "bert, base"])
def test_a_look_up_without_a_model_has_the_formulas_of_plain_models(name: str) -> None:
    for stage in stages.of_model(model_of(name).config).values():
        if not stage.name.startswith(("embeddings", "pool")):
            assert stages.find(stage.name).formula == stage.formula


@pytest.mark.parametrize(
    ("name", "stage", "formula"),
    [
        ("distilbert, base", "embeddings.sum", "token + position"),
        ("bert, base", "embeddings.sum", "token + position + segment"),
        ("distilbert, base", "layers.0.attention.scores", "Q_h K_h^T / sqrt(K)"),
        ("deberta-v2, base", "layers.0.attention.scores", "Q_h K_h^T / sqrt(3 K) + distance_scores"),
        ("mpnet, base", "layers.0.attention.scores", "Q_h K_h^T / sqrt(K) + b_h[bucket(j - i)]"),
        ("distilbert, sequence-classification", "pooled", "act(pooler)"),
        ("distilbert, sequence-classification", "logits", "pooled W + b"),
    ],
)
def test_a_formula_has_the_terms_of_its_model(name: str, stage: str, formula: str) -> None:
    assert stages.of_model(model_of(name).config)[stage].formula == formula


def test_a_model_without_a_norm_of_its_embeddings_and_without_biases_has_neither_in_its_formulas() -> None:
    found = stages.of_model(tiny.model("llama", "causal-lm").config)
    assert found["embeddings.sum"].formula == "X = token"
    assert found["layers.0.attention.key"].formula == "K = N W_K"
    assert found["layers.0.ffn.up"].formula == "M V"
    assert found["layers.0.ffn.output"].formula == "B = gated W_2"


@pytest.mark.parametrize(("n_kv_heads", "shape"), [(2, "(G, T, K)"), (4, "(H, T, K)")])
def test_fewer_heads_of_keys_have_their_own_letter(n_kv_heads: int, shape: str) -> None:
    config = tiny.config("llama", "causal-lm", n_heads=4, n_kv_heads=n_kv_heads)
    found = stages.of_model(config)
    assert [found[f"layers.0.attention.{name}"].shape for name in ("key_heads", "value_heads")] == [shape, shape]
    assert found["layers.0.attention.query_heads"].shape == "(H, T, K)"


def test_keys_of_cross_attention_are_those_of_the_source() -> None:
    found = stages.of_model(seq2seq_models.random_model().config)
    key, weights = (found[f"decoder.layers.0.cross_attention.{name}"] for name in ("key", "weights"))
    assert (key.shape, key.formula, weights.shape) == ("(S, D)", "K = source W_K + b_K", "(H, T, S)")


@pytest.mark.parametrize("name", MODELS)
def test_the_function_of_a_stage_exists(name: str) -> None:
    for function in {stage.function for stage in stages.of_model(model_of(name).config).values()}:
        module, _, attribute = function.rpartition(".")
        assert callable(getattr(import_module(f"npformer.engine.{module}"), attribute)), function


def test_the_output_of_a_gated_network_has_its_own_formula() -> None:
    assert Gated(gelu).stages[-1].formula == "B = gated W_2 + b_2"


@pytest.mark.parametrize("name", slow_after(4, EDITED))
def test_an_edited_stage_changes_only_its_descendants(name: str) -> None:
    model = model_of(name)
    of_model, right = stages.of_model(model.config), fired(model)
    below: dict[str, set[str]] = {}
    for stage in of_model.values():
        below[stage.name] = {stage.name}.union(*(below[parent] for parent in stage.parents))
    random = np.random.default_rng(0)
    for stage in of_model:
        found = fired(model, {stage: lambda x: x + random.standard_normal(x.shape).astype(x.dtype) / 4})
        changed = {each for each in found if not np.array_equal(found[each], right[each])}
        assert changed == {each for each in of_model if stage in below[each]}, stage


class Read(dict[str, list[np.ndarray]]):
    """Recorded arrays; `names` collects the names of the arrays that are read."""

    def __init__(self, arrays: Mapping[str, list[np.ndarray]]) -> None:
        super().__init__(arrays)
        self.names = set[str]()

    def __getitem__(self, name: str) -> list[np.ndarray]:
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("name", MODELS)
def test_backward_reads_the_stages_that_are_kept(name: str) -> None:
    """The backward pass reads all kept stages below the head. A head also keeps stages for its other answers."""
    model, recording = model_of(name), Recording()
    weights, config = model.weights, model.config
    batch = packed(config, [text_of(model)])
    with listen(recording):
        if isinstance(model, Seq2Seq):
            answers = {"logits": transformer(weights, parts_of(config), batch, pack([TARGET]))["logits"]}
        else:
            answers = forward(weights, parts_of(config), batch)
    arrays = Read(recording.arrays)
    if isinstance(model, Seq2Seq):
        transformer_backward(answers, Stages(arrays, {}), weights, parts_of(config), batch, pack([TARGET]))
    else:
        backward(answers, Stages(arrays, {}), weights, parts_of(config), batch)
    kept = {stage.name for stage in stages.of_model(config).values() if stage.kept}
    assert unread(weights, parts_of(config)) == {each for each in recording.arrays if not is_input(each)} - kept
    head = {each for each in kept if each.startswith(("pool", "head."))}
    assert kept - head <= arrays.names <= kept


@dataclass(frozen=True)
class Sloped(Mechanism):
    """A mechanism that has a size and a stage."""

    slopes: int

    @property
    def added(self) -> tuple[Stage, ...]:
        return (Stage("sloped", "(H, T, T)", "S", "functions.linear", parents=("query_heads",)),)


def test_stages_of_a_mechanism_come_from_its_class() -> None:
    names = [stage.name for stage in stages.layer_with([Sloped, Causal]).stages]
    assert names.index("attention.sloped") == names.index("attention.scores") - 1


def test_the_table_has_the_stages_of_every_exported_mechanism() -> None:
    exported = [getattr(mechanisms, name) for name in mechanisms.__all__ if name != "Mechanism"]
    for kind in exported:
        for stage in stages.layer_with([kind]).stages:
            assert stages.find(f"layers.0.{stage.name}") is not None
