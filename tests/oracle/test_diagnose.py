"""Each known mistake is planted in a torch model, and the diagnosis names it; a correct model has no mistake.

The model is from transformers, and hooks read its stages as it runs. The golden file is recorded from the same weights.
Three texts of different lengths make a padded batch, so masks matter. BERT's texts use both token types, so these
matter, too.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import npformer
from npformer import golden
from npformer.checkpoint import convert, load_folder
from npformer.cli import golden as command
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from tests.oracle.planted_in_torch import (
    PLANTED,
    Plant,
    causal,
    doubly_scaled,
    heads_not_transposed,
    int8,
    layer_weights,
    mask_ignored,
    missing_bias,
    no_activation,
    no_offset,
    positions_off,
    pre_norm,
    query_and_key_swapped,
    replace_activation,
    segments_ignored,
    softmax_over_heads,
    softmax_over_queries,
    tanh_gelu,
    transposed_wide_weight,
    unbiased_variance,
    unscaled,
)
from tests.support import tiny

FAMILIES = ("distilbert", "bert", "electra", "albert", "roberta", "xlm-roberta", "camembert")


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("models") / family, family)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(*load_folder(folder), folder=folder)


@pytest.fixture(scope="module")
def recorded(model: Model) -> golden.Golden:
    return golden.record(model, texts(model))


def texts(model: Model) -> list[Text]:
    random = np.random.default_rng(1)
    ids = [random.integers(5, model.config.vocab_size, length) for length in (9, 6, 3)]
    return [
        Text(each, (np.arange(len(each)) > 2).astype(np.int64) if model.config.n_token_types else None) for each in ids
    ]


@pytest.fixture
def torch_model(folder: Path, recorded: golden.Golden, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = golden.load_torch(str(folder), recorded)
    made.monkeypatch = monkeypatch
    return made


#: Families whose modules differ. The modules of every other family are those of BERT or RoBERTa.
OF_OWN_MODULES = ("distilbert", "bert", "albert", "roberta")
FOR_ALL = [(family, plant) for family in OF_OWN_MODULES for plant in PLANTED]
FOR_ALL.remove(("distilbert", segments_ignored))  # DistilBERT has no token types
#: Mistakes that are impossible in ALBERT: in one layer, because its layers share weights, or in modules that it lacks.
NOT_IN_ALBERT = {
    "eps_of_one_norm", "transposed_square_weight", "missing_bias", "layer_weights", "half_product", "pre_norm",
    "heads_not_transposed", "heads_not_transposed_back",
}  # fmt: skip
FOR_ALL = [(family, plant) for family, plant in FOR_ALL if family != "albert" or plant.__name__ not in NOT_IN_ALBERT]
for each in ("distilbert", "bert", "albert"):  # positions of these families have no offset
    FOR_ALL.remove((each, no_offset))
#: The diagnosis does not depend on the family, so each mistake is tried in one family in which it is possible.
TAKEN = []
for i, plant in enumerate(PLANTED):
    able = [family for family, each in FOR_ALL if each is plant]
    TAKEN.append((able[i % len(able)], plant))


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_an_unspoilt_model_is_within_every_budget(torch_model: Any, recorded: golden.Golden) -> None:
    comparison = golden.compare(recorded, torch_model)
    assert comparison.ok, str(comparison)
    assert comparison.missing == ["layers.0.attention.scores", "layers.1.attention.scores", "probabilities"]
    assert max(row.budgets for row in comparison.rows) < 0.5  # torch's error is well within the budget
    golden.assert_close(recorded, torch_model)


@pytest.mark.parametrize("family", ["gpt_neox", "opt", "phi3", "bloom", "smollm3", "olmo2"])
def test_a_correct_decoder_is_within_every_budget(family: str, tmp_path: Path) -> None:
    """In transformers, OPT scales queries before the attention function gets them, and BLOOM adds a constant to its
    position biases."""
    folder = tiny.folder(tmp_path / family, family, "causal-lm")
    recorded = golden.record(
        Model(*load_folder(folder), folder=folder), [Text(np.arange(5, 14)), Text(np.arange(7, 10))]
    )
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok, str(comparison)
    assert {f"layers.{i}.attention.weights" for i in range(2)} <= {row.stage for row in comparison.rows}


@pytest.mark.parametrize(("family", "plant"), TAKEN, indirect=["family"])
def test_a_planted_mistake_is_named(plant: Plant, torch_model: Any, recorded: golden.Golden, model: Model) -> None:
    plant(torch_model)
    comparison = golden.compare(recorded, torch_model)
    diagnosis = golden.diagnose(recorded, torch_model, model, comparison=comparison)
    name, stage = PLANTED[plant]
    assert comparison.first.stage == stage, f"{diagnosis}\n{comparison}"
    assert name in diagnosis.causes, f"{diagnosis}\n{comparison}"
    if plant is not softmax_over_heads:  # with this mistake, padding gets attention, too, which changes the context
        assert not any("no known mistake" in str(each) for each in diagnosis.then), f"{diagnosis}"
    with pytest.raises(AssertionError, match="the first stage that diverges"):
        golden.assert_close(recorded, torch_model)


#: `tests/golden/test_mistakes.py` plants other mistakes in the same model.
AT_REAL_WIDTHS = (tanh_gelu, mask_ignored, int8, missing_bias, pre_norm, layer_weights)


def test_mistakes_are_named_at_real_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All six mistakes are named in the bundled model, with width 384, 6 layers and trained weights."""
    folder = convert(npformer.load("distilbert-sst2").folder, tmp_path / "torch", to="torch", dtype="float32")
    model = npformer.load(folder)
    recorded, missed = golden.record(model, texts(model)), {}
    assert golden.compare(recorded, golden.load_torch(str(folder), recorded)).ok
    for plant in AT_REAL_WIDTHS:
        with monkeypatch.context() as patch:
            port = golden.load_torch(str(folder), recorded)
            port.monkeypatch = patch
            plant(port)
            diagnosis = golden.diagnose(recorded, port, model)
        if PLANTED[plant][0] not in diagnosis.causes:
            missed[plant.__name__] = str(diagnosis)
    assert missed == {}


@pytest.mark.parametrize(
    ("family", "kind"),
    [*zip(OF_OWN_MODULES, itertools.cycle(["float16", "bfloat16"]), strict=False)],
    indirect=["family"],
)
def test_a_model_in_16_bits_is_right_and_its_mistakes_are_named(
    kind: str, torch_model: Any, recorded: golden.Golden, model: Model
) -> None:
    torch_model.to(getattr(torch, kind))
    comparison = golden.compare(recorded, torch_model)
    assert (comparison.dtype, comparison.ok) == (kind, True), str(comparison)
    assert max(row.budgets for row in comparison.rows) < 0.5
    golden.assert_close(recorded, torch_model)
    causal(torch_model)
    assert "causal mask" in golden.diagnose(recorded, torch_model, model).causes


@pytest.mark.parametrize("family", ["bert", "albert"], indirect=True)
def test_training_mode_is_reported_and_kept(torch_model: Any, recorded: golden.Golden, model: Model) -> None:
    torch_model.train()
    comparison = golden.compare(recorded, torch_model)
    assert not comparison.ok
    assert "after eval() nothing diverges" in str(comparison)
    assert golden.diagnose(recorded, torch_model, model).mistake == "dropout left on"
    assert all(module.training for module in torch_model.modules())
    no_activation(torch_model)
    assert golden.diagnose(recorded, torch_model, model).causes == ["dropout left on", "activation left out"]


BY_MODULES = ["*.query", "*.key", "*.value", "*.attention.output", "*norm", "*.hidden", "*.ffn.output", "logits"]
BY_LAYERS = ["embeddings.norm", "layers.*.ffn_norm", "logits"]
SEEN = (tanh_gelu, unbiased_variance, unscaled, doubly_scaled, softmax_over_queries, mask_ignored, heads_not_transposed)
SEEN += (query_and_key_swapped, pre_norm, positions_off, missing_bias, transposed_wide_weight)


@pytest.mark.parametrize(
    ("family", "plant", "stages"),
    [
        pytest.param(family, plant, stages, id=f"{family}-{plant.__name__}")
        for i, plant in enumerate(SEEN)
        for family, stages in (("distilbert", BY_MODULES), ("albert", BY_LAYERS), ("bert", BY_LAYERS))
        if (family, plant) in FOR_ALL and (family == "distilbert" or i % 4 == ("bert", "albert").index(family))
    ],
    indirect=["family"],
)
def test_it_is_named_from_fewer_stages_too(plant: Plant, stages: list[str], torch_model: Any, model: Model) -> None:
    recorded = golden.record(model, texts(model), stages)
    plant(torch_model)
    assert PLANTED[plant][0] in golden.diagnose(recorded, torch_model, model).causes


@pytest.mark.parametrize("family", OF_OWN_MODULES, indirect=True)
def test_the_exact_gelu_in_a_model_of_the_tanh_one_is_named(family: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", family, activation="gelu_tanh")
    model = Model(*load_folder(folder), folder=folder)
    recorded = golden.record(model, texts(model))
    spoilt = golden.load_torch(str(folder), recorded)
    golden.assert_close(recorded, spoilt)
    replace_activation(spoilt, torch.nn.GELU())
    assert golden.diagnose(recorded, spoilt, model).mistake == "erf GELU for tanh"


@pytest.mark.parametrize(
    ("family", "head"),
    [
        *itertools.product(["bert"], ["base", "token-classification", "question-answering", "masked-lm"]),
        ("bert", "next-sentence"),
        ("electra", "replaced-token"),
    ],
)
def test_every_head_is_hooked(family: str, head: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", family, head)
    recorded = golden.record(Model(*load_folder(folder), folder=folder), ["I love ice cream", "no"])
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok, str(comparison)
    computed_later = {name for name in recorded.stages if name.endswith(("scores", "probabilities"))}
    assert set(comparison.missing) == computed_later


@pytest.mark.parametrize("family", ["distilbert", "roberta"], indirect=True)
def test_the_command_runs_a_model_of_transformers(family: str, tmp_path: Path, capsys: Any) -> None:
    folder = golden.tiny(tmp_path / "m", family)
    code, printed = compare_by_command([folder / "golden.safetensors", "--torch", folder], capsys)
    assert code == 0, printed
    other = golden.tiny(tmp_path / "other", family, seed=1)
    code, printed = compare_by_command([folder / "golden.safetensors", "--torch", other], capsys)
    assert code == 3
    assert "the first stage that diverges: embeddings.token" in printed
    assert "weights of a different checkpoint" not in printed
    assert "weights: different checkpoint: 40 of 40" in printed or "(different checkpoint)" in printed
    assert "no other stage diverges" in printed


def compare_by_command(arguments: list[Any], capsys: Any) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    code = command.run(parser.parse_intermixed_args(["compare", *map(str, arguments)]))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("family", ["bert"], indirect=True)
def test_a_different_model_is_an_error(torch_model: Any, recorded: golden.Golden, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match="found none of them"):
        golden.compare(recorded, torch.nn.Linear(3, 3))
    with pytest.raises(NpformerError, match="transformers cannot load it"):
        golden.load_torch(str(tmp_path / "nothing"), recorded)


@pytest.mark.parametrize("family", ["bert"], indirect=True)
def test_layers_that_share_a_module_have_their_own_stages(
    torch_model: Any, recorded: golden.Golden, model: Model
) -> None:
    """Layer 1 uses the norm modules of layer 0, so a hook on such a module sees the arrays of two calls."""
    first, second = torch_model.bert.encoder.layer[:2]
    second.attention.output.LayerNorm = first.attention.output.LayerNorm
    second.output.LayerNorm = first.output.LayerNorm
    found = golden.diagnose(recorded, torch_model, model)
    assert found.causes == ["weights of another layer"], found
