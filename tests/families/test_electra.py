"""Features of ELECTRA: narrow tables, two models with different heads in one family, and GELU in its heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder, to_torch, to_tree
from npformer.checkpoint.safetensors import write_tensors
from npformer.common.errors import NpformerError
from npformer.engine.activations import gelu
from npformer.engine.functions import linear
from npformer.families import read_config
from npformer.tasks.pipelines import tasks_of
from npformer.training import Example, HeadLoss, standard_rates
from npformer.training.start import start
from tests.support import tiny

ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())


def described(name: str, **changes: Any) -> dict[str, Any]:
    return {**ARCHITECTURES[f"Electra{name}"]["config"], **changes}


def checkpoint(path: Path, name: str) -> Path:
    """Writes a checkpoint as transformers saves it, with random weights; tied tensors are stored once."""
    shapes, tied = (ARCHITECTURES[f"Electra{name}"][key] for key in ("tensors", "tied"))
    random = np.random.default_rng(0)
    tensors = {key: random.standard_normal(shapes[key]).astype("f") for key in shapes.keys() - set(tied)}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(described(name)))
    write_tensors(path / "model.safetensors", dict(sorted(tensors.items())), {"format": "pt"})
    return path


def test_a_discriminator_has_one_logit_per_token(tmp_path: Path) -> None:
    """The answers are the same in both layouts. The head is as wide as the layers, not as the narrow tables."""
    folder = checkpoint(tmp_path / "torch", "ForPreTraining")
    own = convert(folder, tmp_path / "own")
    assert json.loads((own / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]
    for each in (folder, own, convert(own, tmp_path / "back", to="torch")):
        model = npformer.load(each)
        assert model.config == read_config(described("ForPreTraining"))
        hidden, output = (model.weights["head"][name] for name in ("hidden", "output"))
        assert (hidden["weight"].shape, output["weight"].shape) == ((6, 6), (6, 1))
        x = npformer.load(each, head="base")([3, 1, 4]).last_hidden_state[0]
        expected = linear(gelu(linear(x, **hidden)), **output)[:, 0]
        logits = model([3, 1, 4]).logits
        assert logits.shape == (1, 3)
        np.testing.assert_allclose(logits[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max())  # summation order


def test_a_discriminator_s_head_is_omitted_if_another_is_requested(tmp_path: Path) -> None:
    """Omitting the head causes no warning, which pytest would raise. A head that is needed must be complete."""
    folder = checkpoint(tmp_path / "torch", "ForPreTraining")
    base = npformer.load(folder, head="base")
    assert base.config == read_config(described("Model"))
    assert base([3, 1, 4]).keys() == {"last_hidden_state"}
    with pytest.raises(NpformerError, match=r"missing: head.norm.weight \(generator_predictions.LayerNorm.weight\)"):
        npformer.load(folder, head="masked-lm")
    with pytest.raises(NpformerError, match=r"missing: head.hidden.weight \(discriminator_predictions.dense.weight\)"):
        npformer.load(checkpoint(tmp_path / "base", "Model"), head="replaced-token")


@pytest.mark.parametrize("own", [False, True])
def test_a_discriminator_gives_vectors_as_its_encoder_does(own: bool, tmp_path: Path) -> None:
    """The discriminator's head has no task, so a pipeline without a task returns the vectors of tokens."""
    folder = tiny.folder(tmp_path / "model", "electra", "replaced-token", own=own)
    base = npformer.load(folder, head="base")
    assert tasks_of(npformer.load(folder).config) == ["feature-extraction", "sentence-embedding"]
    for task in (None, "feature-extraction", "sentence-embedding"):
        made = npformer.pipeline(task, folder)
        assert made.model.config == base.config
        again = npformer.pipeline(task or "feature-extraction", base)
        assert np.array_equal(made("I love it"), again("I love it"))
    with pytest.raises(NpformerError, match="fill-mask: expected a masked-lm model, got a replaced-token model"):
        npformer.pipeline("fill-mask", folder)


def test_a_port_of_the_discriminator_is_compared_and_diagnosed() -> None:
    """An array may be named after npformer's stage, the head, or the head's last layer. The last layer's array has an
    additional axis of one column."""
    model, texts = tiny.model("electra", "replaced-token"), ["I love ice cream", "no", "is it"]
    reference, t = golden.record(model, texts), npformer.trace(model, texts)
    padded = np.zeros((3, 6), np.float32)
    for row, logits in zip(padded, t["logits"], strict=True):
        row[: len(logits)] = logits
    names = {"logits": padded, "discriminator_predictions": padded}
    names["discriminator_predictions.dense_prediction"] = padded[..., None]
    for name, array in names.items():
        comparison = golden.compare(reference, {name: array})
        assert [row.stage for row in comparison.rows] == ["logits"]
        assert comparison.ok
    arrays = {f"{i}/{name}": each for name in t for i, each in enumerate(t.texts(name))}
    output = model.weights["head"]["output"]
    for stage, bias, cause in (("activation", 0.0, "missing bias"), ("hidden", output["bias"], "values of")):
        made = [linear(x, output["weight"])[:, 0] + bias for x in t[f"head.{stage}"]]
        wrong = arrays | {f"{i}/logits": each for i, each in enumerate(made)}
        diagnosis = golden.diagnose(reference, wrong, model)
        assert diagnosis.stage == "logits"
        assert diagnosis.mistake.startswith(cause)


def test_its_logits_are_shown_by_token() -> None:
    shown = npformer.view.stages(tiny.model("electra", "replaced-token"), "I love it")
    assert [step.name for step in shown.steps if step.columns == "queries" and step.array.ndim == 1] == [
        "logits",
        "probabilities",
    ]
    assert shown.steps[-1].formula == "sigmoid(logits)"


def test_a_replaced_token_is_learned() -> None:
    """Compares the binary cross-entropy over tokens with targets, and its gradient, with an explicit sigmoid."""
    config = tiny.config("electra", "replaced-token")
    logits, targets = np.array([-2.0, 0.5, 3.0, 0.0]), np.array([0, 0, 1, -100])
    texts = [targets[:3], targets[3:]]
    loss, right, grads = HeadLoss(config).losses({"logits": logits}, texts, np.array([3, 1]), 3)
    p, y = 1 / (1 + np.exp(-logits[:3])), targets[:3]
    assert loss == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
    assert right == 2
    np.testing.assert_allclose(grads["logits"], [*(p - y) / 3, 0], rtol=1e-12)
    assert [HeadLoss(config).count(Example(npformer.Text(np.full(len(each), 5)), each)) for each in texts] == [3, 0]


def test_the_encoder_of_any_head_is_a_base_model(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "torch", "ForSequenceClassification")
    whole, base = load_folder(folder)[1], load_folder(folder, head="base")[1]
    assert base.keys() == {"embeddings", "layers"}
    assert all(np.array_equal(array, flatten(whole)[name]) for name, array in flatten(base).items())


def test_old_files_with_electra_s_names_are_read() -> None:
    config = read_config(described("ForMaskedLM"))
    tensors = to_torch(tiny.weights(config), config)
    old = {key.replace("LayerNorm.weight", "LayerNorm.gamma"): array for key, array in tensors.items()}
    old |= {
        "electra.embeddings.position_ids": np.arange(8)[None],
        "generator_lm_head.weight": tensors["electra.embeddings.word_embeddings.weight"],
    }
    assert old.keys() > tensors.keys() - {key for key in tensors if key.endswith("LayerNorm.weight")}
    found, expected = flatten(to_tree(old, config)), flatten(to_tree(tensors, config))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_the_generator_s_projection_is_the_narrow_table() -> None:
    model = tiny.model("electra", "masked-lm", d_embedding=12)
    head = model.weights["head"]
    assert (head["hidden"]["weight"].shape, head["norm"]["weight"].shape) == ((32, 12), (12,))
    assert np.shares_memory(head["output"]["weight"], model.weights["embeddings"]["token"]["weight"])
    assert "generator_lm_head.weight" not in to_torch(dict(model.weights), model.config)


@pytest.mark.parametrize("head", ["sequence-classification", "multiple-choice"])
def test_the_pooler_s_activation_is_always_gelu(head: str) -> None:
    name = {"sequence-classification": "ForSequenceClassification", "multiple-choice": "ForMultipleChoice"}[head]
    config = read_config(described(name, hidden_act="relu"))
    assert (config.activation, config.pooler) == ("relu", "gelu")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ForMultipleChoice", {"summary_type": "mean"}, "summary_type: 'mean' is not supported; supported: 'first'"),
        ("ForMultipleChoice", {"summary_use_proj": False}, "summary_use_proj: False is not supported"),
        ("ForMultipleChoice", {"summary_activation": None}, "summary_activation: None is not supported"),
    ],
)
def test_an_option_unsupported_by_one_head_is_refused_only_there(name: str, change: Any, message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config(described(name, **change))
    for other in ("Model", "ForSequenceClassification", "ForTokenClassification", "ForPreTraining"):
        read_config(described(other, **change))


def test_a_config_without_the_tables_width_is_an_error() -> None:
    data = described("Model")
    del data["embedding_size"]
    with pytest.raises(NpformerError, match="embedding_size: missing"):
        read_config(data)


def test_training_drops_the_same_stages_as_transformers() -> None:
    always = {"embeddings.norm": 0.2, "layers.*.attention.output": 0.2, "layers.*.ffn.output": 0.2}
    always["*attention.weights"] = 0.2
    for head, more in {
        "sequence-classification": {"layers.1.ffn_norm": 0.2, "pooled": 0.2},
        "token-classification": {"layers.1.ffn_norm": 0.2},
        "multiple-choice": {"pooled": 0.1},
        "question-answering": {},
        "replaced-token": {},
    }.items():
        assert standard_rates(tiny.config("electra", head), 0.2) == always | more


def test_its_tokenizer_is_bert_s(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", "electra", "base")
    (folder / "tokenizer.json").unlink()
    tiny.vocabulary_folder(folder, do_lower_case=True)
    pair = npformer.load(folder).tokenizer.encode("I LOVE it", "is zzz")
    assert pair.tokens == ["[CLS]", "i", "love", "it", "[SEP]", "is", "z", "##z", "##z", "[SEP]"]
    assert pair.type_ids == [0] * 5 + [1] * 5


def test_it_is_traced_with_the_names_of_its_modules() -> None:
    seen = npformer.trace(tiny.model("electra", "sequence-classification"), "I love it")
    modules = {name: seen.row(name).huggingface for name in seen}
    assert modules["embeddings.project"] == "electra.embeddings_project"
    assert modules["layers.1.attention.query"] == "electra.encoder.layer.1.attention.self.query"
    assert modules["layers.1.ffn.activation"] == "electra.encoder.layer.1.intermediate"
    assert (modules["pooler"], modules["logits"]) == ("classifier.dense", "classifier.out_proj")
    assert seen["embeddings.norm"].shape == (5, 16)
    assert seen["embeddings.project"].shape == (5, 32)


def test_fine_tuning_begins_with_a_discriminator_s_encoder(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "torch", "ForPreTraining")
    config, tree, kept = start(folder, ("no", "yes"))
    assert (config.head, config.labels, config.pooler, kept) == (
        "sequence-classification",
        ("no", "yes"),
        "gelu",
        False,
    )
    encoder = flatten(load_folder(folder, head="base")[1])
    assert all(np.array_equal(flatten(tree)[name], array) for name, array in encoder.items())
    assert flatten(tree).keys() - encoder.keys() == {
        "pooler.weight", "pooler.bias", "head.output.weight", "head.output.bias",
    }  # fmt: skip
