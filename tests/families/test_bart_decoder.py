"""BART's decoder alone, BartForCausalLM: a causal stack that generates text. Its files also contain cross-attention."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder, to_torch
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.families import read_config, write_config
from npformer.families.bart import CROSSED
from npformer.families.marian import LAYER
from npformer.interpret import stages
from npformer.training import Example, HeadLoss, Trainable, gradients, standard_rates
from tests.families.test_bart import config as both_stacks
from tests.families.test_bart import folder as folder_of_both
from tests.support import tiny, torch_writer, writers


def described(**changes: Any) -> dict[str, Any]:
    """Returns a config.json as Transformers writes it, with different sizes for the encoder and the decoder."""
    data = write_config(tiny.config("bart", "causal-lm"))
    return {**data, "encoder_layers": 0, "encoder_ffn_dim": 7, "encoder_attention_heads": 5, **changes}


def folder(path: Path, kind: str = "safetensors") -> Path:
    """Writes a folder as Transformers does, with the cross-attention of every layer."""
    settings = tiny.config("bart", "causal-lm")
    tensors = {name: np.ascontiguousarray(a) for name, a in to_torch(tiny.weights(settings), settings).items()}
    for n in range(settings.n_layers):
        for group in CROSSED:
            module, is_norm = f"model.decoder.layers.{n}.{LAYER[group]}", group.endswith("norm")
            tensors[f"{module}.weight"] = np.ones(32 if is_norm else (32, 32), np.float32)
            tensors[f"{module}.bias"] = np.ones(32, np.float32)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(described()))
    if kind == "bin":
        torch_writer.save(path / "pytorch_model.bin", tensors)
    else:
        write_tensors(path / "model.safetensors", tensors, {"format": "pt"})
    return path


def ids(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, len(tiny.VOCABULARY), length)


def test_the_config_has_the_decoder_s_sizes() -> None:
    config = read_config(described())
    assert config == tiny.config("bart", "causal-lm")
    assert (config.n_layers, config.n_heads, config.d_ffn, config.decoder.n_layers) == (2, 4, 64, 0)
    assert (config.start_id, config.end_ids, config.pad_id, config.n_positions) == (2, (3,), 0, 66)
    data = write_config(config)
    assert read_config(json.loads(json.dumps(data))) == config
    assert (data["architectures"], data["is_decoder"], data["is_encoder_decoder"]) == (["BartForCausalLM"], True, False)
    left_out = {key: each for key, each in data.items() if not key.endswith("_id")}
    found = read_config(left_out)
    assert (found.start_id, found.end_ids, found.pad_id) == (0, (2,), 1)
    assert read_config({**data, "bos_token_id": None, "eos_token_id": None}).end_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_layers": 0}, "decoder_layers: expected a whole number from 1"),
        ({"decoder_attention_heads": 5}, "n_heads: 5 does not divide d_model 32"),
        ({"normalize_before": True}, "normalize_before: True is not supported"),
        ({"bos_token_id": "1"}, "bos_token_id: expected a whole number"),
        ({"pad_token_id": "x"}, "pad_token_id: expected a whole number"),
        ({"activation_function": "mish"}, "activation_function: expected one of"),
    ],
)
def test_a_config_that_is_not_computed_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config(described(**changes))
    without = {key: each for key, each in described().items() if key != "decoder_layers"}
    with pytest.raises(NpformerError, match="decoder_layers: missing"):
        read_config(without)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_files_are_read_without_attention_to_a_source_and_written_without_it(kind: str, tmp_path: Path) -> None:
    made = folder(tmp_path / "m", kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # unused tensors must not cause a warning
        model = npformer.load(made)
    assert repr(model) == "<npformer.Model bart causal-lm: 2 layers, 4 heads, width 32, float32>"
    expected = flatten(tiny.weights(model.config))
    found = flatten(model.weights)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)
    back = convert(convert(made, tmp_path / "own"), tmp_path / "back", to="torch")
    again, _ = read_tensors(back / "model.safetensors")
    config, tree = load_folder(made)
    stored = to_torch(tree, config)
    assert again.keys() == stored.keys()
    assert all(np.array_equal(again[name], stored[name]) for name in stored)
    assert not [name for name in again if "encoder_attn" in name or name == "lm_head.weight"]


def test_the_decoder_of_a_model_with_both_stacks_is_read_by_its_head(tmp_path: Path) -> None:
    """The decoder of a model with both stacks uses the shared table; a warning lists the encoder's unused tensors."""
    made = folder_of_both(tmp_path / "both")
    with pytest.warns(UserWarning, match=r"tensors that the model does not use(.|\n)*model.encoder.layers.0"):
        model = npformer.load(made, head="causal-lm")
    whole = npformer.load(made)
    assert (model.config.n_layers, model.config.n_heads) == (1, 2)
    assert np.array_equal(
        model.weights["embeddings"]["token"]["weight"], whole.weights["decoder"]["embeddings"]["token"]["weight"]
    )
    with pytest.raises(NpformerError, match=r"missing: encoder\.embeddings\.position"):
        npformer.load(tiny.folder(tmp_path / "alone", "bart", "causal-lm"), head="translation")
    with pytest.raises(NpformerError, match="decoder: expected no layers for a causal-lm model"):
        npformer.Config(**{**vars(both_stacks()), "head": "causal-lm", "causal": True})


def test_a_token_sees_nothing_after_it_and_padding_counts_in_positions() -> None:
    model, text = tiny.model("bart", "causal-lm"), ids(20)
    whole = npformer.trace(model, Text(text))
    for length in (1, 7, 19):
        np.testing.assert_allclose(
            model.run([Text(text[:length])])[0]["logits"], whole["logits"][:length], rtol=1e-5, atol=1e-5
        )
    padded = np.concatenate([[0, 0, 0], text[:5]])  # 0 is the padding token
    mask = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    moved = model.run([Text(text[:5], positions=np.arange(3, 8))])[0]["logits"]
    assert np.array_equal(model(padded, attention_mask=mask).logits[0, 3:], moved)
    inside = text.copy()
    inside[4] = 0
    rows = npformer.trace(model, Text(inside))["embeddings.position"]
    np.testing.assert_array_equal(rows, model.weights["embeddings"]["position"]["weight"][2:22])


def test_a_trace_knows_its_stages_by_the_names_of_its_modules() -> None:
    model = tiny.model("bart", "causal-lm")
    recorded, runs = golden.record(model, [Text(ids(9)), Text(ids(4))]), stages.modules(model.config)
    assert [name for name in stages.names(model.config) if name in recorded.stages] == list(recorded.stages)
    arrays = {f"{i}/{path}": a for path, name in runs.items() for i, a in enumerate(recorded.stages[name])}
    comparison = golden.compare(recorded, arrays)
    assert (comparison.ok, comparison.theirs.unused) == (True, [])
    traced = npformer.trace(model, ids(6))
    assert np.array_equal(traced["model.decoder.layers.1.fc1"], traced["layers.1.ffn.hidden"])
    assert list(traced.select("model.decoder.layers.*.fc1")) == ["layers.0.ffn.hidden", "layers.1.ffn.hidden"]


def test_it_writes_measures_and_learns(tmp_path: Path) -> None:
    made = tiny.folder(tmp_path / "m", "bart", "causal-lm", vocab_size=writers.model().config.vocab_size)
    writers.tokenizer().save(str(made / "tokenizer.json"))
    model = npformer.load(made)
    write = npformer.pipeline(model=made, do_sample=False, max_new_tokens=9)
    assert write.name == "text-generation"
    assert write(["The other", ""]) == [write("The other"), write("")]
    assert npformer.perplexity(model, "Who is in the house? " * 20).tokens > 64  # more than one window
    assert standard_rates(model.config, 0.2)["*embeddings.norm"] == 0.2
    weights, loss = Trainable(model.weights, model.config), HeadLoss(model.config)
    examples = [Example(Text(ids(9)[:-1]), ids(9)[1:])]
    before = gradients(loss, weights, examples)
    for name, grad in before.flat.items():
        if isinstance(grad, np.ndarray):
            weights.flat[name] -= 0.02 * grad
    assert gradients(loss, weights, examples).loss < before.loss
