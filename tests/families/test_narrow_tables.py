"""Tables that are narrower than the layers, with a projection after them, for every family that can have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import families, golden
from npformer.checkpoint import convert, flatten, load_folder, module_path, unflatten
from npformer.checkpoint import tree as layout
from npformer.checkpoint.safetensors import write_tensors
from npformer.config import Config
from npformer.engine.runtime.packing import Text
from npformer.families.bert import BERT
from npformer.golden.weights import check_weights
from npformer.interpret.stages import find
from npformer.model import Model
from npformer.training import Example, HeadLoss, Trainable, gradients, initialize
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

NARROW = replace(
    BERT,
    model_type="narrow",
    sizes={**BERT.sizes, "d_embedding": "embedding_size"},
    encoder={**BERT.encoder, "embeddings.project": "bert.embeddings_project"},
)
PROJECT = "embeddings.project"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(families.FAMILIES, "narrow", NARROW)
    yield
    layout._recent_sources.cache_clear()


def narrow(head: str = "sequence-classification", width: int = 16, **options: Any) -> Model:
    return tiny.model("narrow", head, d_embedding=width, **options)


def written(path: Path, config: Config) -> dict[str, Any]:
    """Writes a folder in Hugging Face's form; returns the content of its config.json."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(families.write_config(config)))
    write_tensors(path / "model.safetensors", layout.to_torch(tiny.weights(config), config), {"format": "pt"})
    return json.loads((path / "config.json").read_text())


@pytest.mark.parametrize("head", ["base", "masked-lm"])
def test_narrow_ones_are_read_and_written(head: str, tmp_path: Path) -> None:
    config = narrow(head).config
    assert written(tmp_path / "torch", config)["embedding_size"] == 16
    read, tree = load_folder(tmp_path / "torch")
    assert read == config
    assert {name: array.shape for name, array in flatten(tree["embeddings"]).items()} == {
        "token.weight": (len(tiny.VOCABULARY), 16), "position.weight": (64, 16), "segment.weight": (2, 16),
        "norm.weight": (16,), "norm.bias": (16,), "project.weight": (16, 32), "project.bias": (32,),
    }  # fmt: skip
    if head == "masked-lm":
        assert tree["head"]["hidden"]["weight"].shape == (32, 16)
        assert np.shares_memory(tree["head"]["output"]["weight"], tree["embeddings"]["token"]["weight"])
    assert module_path(read, PROJECT) == ("" if head == "base" else "bert.") + "embeddings_project"
    back = convert(convert(tmp_path / "torch", tmp_path / "own"), tmp_path / "back", to="torch")
    assert (back / "model.safetensors").read_bytes() == (tmp_path / "torch/model.safetensors").read_bytes()


@pytest.mark.parametrize("width", [0, 32])
def test_tables_as_wide_as_the_layers_need_no_projection(width: int, tmp_path: Path) -> None:
    """d_embedding = 0 and d_embedding = d_model mean the same. Files store d_model, which is read as 0."""
    config = narrow("base", width).config
    assert written(tmp_path / "torch", config)["embedding_size"] == 32
    assert PROJECT not in NARROW.weights(config, "base")
    assert load_folder(tmp_path / "torch")[0] == replace(config, d_embedding=0)


def test_the_projection_is_a_linear_of_the_normalized_sum() -> None:
    model = narrow("base", dtype=np.float64)
    seen, weights = npformer.trace(model, "I love it"), model.weights["embeddings"]["project"]
    expected = seen["embeddings.norm"] @ weights["weight"] + weights["bias"]
    np.testing.assert_allclose(seen[PROJECT], expected, rtol=1e-12)
    assert seen["layers.0.attention_residual"].shape == seen[PROJECT].shape == (5, 32)
    assert [stage.shape for stage in map(find, ("embeddings.norm", PROJECT)) if stage] == ["(T, E)", "(T, D)"]


@pytest.mark.parametrize("head", slow_after(1, ["masked-lm", "sequence-classification"]))
def test_gradients_match_differences(head: str) -> None:
    """Moves each parameter, including the table shared with the masked-word head, along a random direction."""
    config = narrow(head, n_layers=1).config
    trained, random = Trainable(tiny.weights(config, dtype=np.float64), config), np.random.default_rng(0)
    trained = Trainable(unflatten({name: array.copy() for name, array in flatten(trained.tree).items()}), config)
    given = [random.integers(0, config.vocab_size, length) for length in (7, 4, 4)]
    wanted: list[Any] = [0, 1, 1] if head == "sequence-classification" else [ids[::-1] for ids in given]
    examples = [Example(Text(ids, (ids % 2)), target) for ids, target in zip(given, wanted, strict=True)]
    found = gradients(HeadLoss(config), trained, examples).flat
    assert {f"{PROJECT}.weight", f"{PROJECT}.bias"} <= found.keys() == trained.flat.keys()
    for name, array in trained.flat.items():
        grad, start, h = found[name], array.copy(), 1e-4
        if not isinstance(grad, np.ndarray):
            rows = np.zeros_like(array)
            rows[grad.ids] = grad.values
            grad = rows
        way = random.standard_normal(array.shape)
        losses = []
        for step in (-2, -1, 1, 2):
            array[...] = start + step * h * way
            losses.append(gradients(HeadLoss(config), trained, examples).loss)
        array[...] = start
        numerical = (losses[0] - 8 * losses[1] + 8 * losses[2] - losses[3]) / (12 * h)
        assert numerical == pytest.approx((grad * way).sum(), rel=1e-6, abs=1e-8), name


def test_attribution_by_gradients_uses_the_input_of_the_layers() -> None:
    """Integrated gradients add up to the change that they report."""
    methods = npformer.view.attribution(narrow(), "I love good ice cream", label=0).methods
    shown = next(each for each in methods if each.name == "Integrated gradients")
    change = re.search(r"by (\S+); the sum is off", shown.about)
    assert change
    assert shown.scores.sum() == pytest.approx(float(change[1]), abs=2e-3)


def test_a_tiny_model_has_narrow_tables_and_a_golden_file(tmp_path: Path) -> None:
    golden.tiny(tmp_path / "tiny", "narrow")
    model, recorded = npformer.load(tmp_path / "tiny"), golden.load(tmp_path / "tiny" / golden.TINY_FILE)
    assert (model.config.d_embedding, model.config.d_model) == (16, 32)
    stages = {"hidden_states.0": PROJECT, "hidden_states.1": "layers.0.ffn_norm", "bert.embeddings_project": PROJECT}
    comparison = golden.compare(
        recorded, {f"{i}/{name}": each for name, ours in stages.items() for i, each in enumerate(recorded.stages[ours])}
    )
    assert comparison.ok
    assert [row.stage for row in comparison.rows] == [PROJECT, "layers.0.ffn_norm"]


@pytest.mark.parametrize(
    ("weight", "change", "stage", "mistake"),
    [
        ("embeddings.norm", lambda w: w * np.float32(np.sqrt(15 / 16)), "embeddings.norm", "unbiased variance"),
        (PROJECT, lambda w: w.T.reshape(w.shape), PROJECT, "transposed weight"),
    ],
)
def test_mistakes_of_ports_are_named(weight: str, change: Any, stage: str, mistake: str) -> None:
    model = narrow()
    recorded = golden.record(model, "I love it")
    flat = flatten(dict(model.weights))
    wrong = Model(model.config, unflatten({**flat, f"{weight}.weight": change(flat[f"{weight}.weight"])}))
    seen = npformer.trace(wrong, recorded.texts)
    diagnosis = golden.diagnose(recorded, {f"0/{name}": seen.texts(name)[0] for name in seen}, model)
    assert (diagnosis.stage, diagnosis.mistake) == (stage, mistake)


def test_the_projection_s_weight_is_recognized_in_both_layouts() -> None:
    model = narrow()
    weight = model.weights["embeddings"]["project"]["weight"]
    for theirs in (weight, weight.T):
        assert check_weights(model, {f"{PROJECT}.weight": theirs}) == []
    table = model.weights["embeddings"]["position"]["weight"]
    found = check_weights(model, {"embeddings.position.weight": table.T})
    assert list(map(str, found)) == ["embeddings.position.weight: expected (64, 16), got (16, 64)"]


def test_the_projection_is_drawn_as_a_linear_layer() -> None:
    project = initialize(narrow("base").config, scheme="torch")["embeddings"]["project"]
    for array in project.values():  # U(-1, 1) / sqrt(16)
        assert 0.2 < np.abs(array).max() <= 0.25
