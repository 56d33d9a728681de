"""Features of Nomic BERT: two forms of config.json and of tensor names, and norms with a bias in layers without
any other bias."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, load_folder
from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.engine.mechanisms import Rotary
from npformer.families import FAMILIES, ignored, read_config, write_config
from npformer.model import Model
from npformer.training.start import start
from tests.support import tiny

#: The config.json of nomic-embed-text-v1.5, with small sizes.
HUB: dict[str, Any] = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
    "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
    "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2, "n_positions": 64, "pad_vocab_size_multiple": 64,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "torch_dtype": "float32",
    "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True,
    "vocab_size": 320,
}  # fmt: skip


def test_the_hub_s_config_is_read_and_its_code_is_not_run() -> None:
    config = read_config(HUB)
    assert (config.d_model, config.n_heads, config.n_layers, config.d_ffn, config.max_length) == (32, 4, 2, 48, 64)
    assert (config.mechanisms, config.activation, config.eps, config.n_token_types) == (
        (Rotary(1000.0),),
        "silu",
        1e-12,
        2,
    )
    assert (config.vocab_size, config.pad_id) == (320, None)
    assert read_config(write_config(config)) == config
    assert read_config({**HUB, "vocab_size": 300, "n_inner": None}).vocab_size == 320  # the next multiple of 64
    assert read_config({**HUB, "n_inner": None}).d_ffn == 128
    assert read_config({**HUB, "architectures": ["NomicBertForPreTraining"]}).head == "masked-lm"
    assert {"use_flash_attn", "fused_bias_fc", "use_xentropy"} <= set(ignored(HUB, FAMILIES["nomic_bert"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"moe_every_n_layers": 2, "num_experts": 8, "activation_function": "gelu"},
            "moe_every_n_layers: 2 is not supp",
        ),
        ({"prenorm": True}, "prenorm: True is not supported; supported: False"),
        ({"rotary_scaling_factor": 2.0}, "rotary_scaling_factor: 2.0 is not supported; supported: None"),
        ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved: True is not supported"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction: 0.5 is not supported; supported: 1.0"),
        ({"rotary_emb_fraction": None}, "rotary_emb_fraction: None is not supported"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias: True is not supported; supported: False"),
        ({"activation_function": "gelu"}, "activation_function: 'gelu' is not supported; supported: 'swiglu'"),
        ({"use_rms_norm": True}, "use_rms_norm: True is not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: 'yarn' is not supported for nomic_bert models"),
        ({"rotary_emb_base": 0}, "rope_theta"),
        ({"n_embd": 28}, "expected heads of even width"),
        ({"n_embd": "32"}, "n_embd: expected a whole number"),
        ({"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
    ],
)
def test_missing_features_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config({**HUB, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}},
            "rope_parameters: rope_type: 'yarn' is not supp",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters: partial_rotary_factor: 0.5 is not"),
        ({"rope_parameters": [3]}, "rope_parameters: expected an object"),
        ({"head_dim": 16}, "head_dim: expected 8, which is hidden_size / num_attention_heads, got 16"),
        ({"pad_token_id": "0"}, "pad_token_id"),
    ],
)
def test_unsupported_values_in_transformers_form_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config({**write_config(tiny.config("nomic_bert")), **changes})


@pytest.mark.parametrize("head", ["sequence-classification", "masked-lm"])
def test_names_of_transformers_modules_and_the_older_prefix_are_read_too(head: str, tmp_path: Path) -> None:
    config = tiny.config("nomic_bert", head)
    tree = tiny.weights(config)
    files = layout.to_torch(tree, config)
    assert "nomic_bert.encoder.layers.0.attn.Wqkv.weight" in files
    expected = layout.flatten(layout.to_tree(files, config))
    modules = {}
    stored = layout.stored(tree, config)
    for ours, parameter in parameters(config).items():
        if ours in stored:
            name = f"{layout.module_path(config, parameter.group)}.{parameter.name}"
            modules[name] = stored[ours].T if parameter.transposed else stored[ours]
    assert "nomic_bert.layers.0.self_attn.q_proj.weight" in modules
    older = {name.replace("nomic_bert.", "bert."): array for name, array in files.items()}
    for flat in (modules, older):
        found = layout.flatten(layout.to_tree(flat, config))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_the_hub_s_head_for_masked_words_has_no_biases(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", "nomic_bert", "masked-lm")
    whole = read_tensors(folder / "model.safetensors")[0]
    without = {
        name: array
        for name, array in whole.items()
        if name not in ("cls.predictions.bias", "cls.predictions.transform.dense.bias")
    }
    assert len(without) == len(whole) - 2
    write_tensors(folder / "model.safetensors", without, {"format": "pt"})
    zeros = {name: without.get(name, np.zeros_like(array)) for name, array in whole.items()}
    other = tmp_path / "zeros"
    other.mkdir()
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    write_tensors(other / "model.safetensors", zeros, {"format": "pt"})
    ids = np.array([[2, 9, 8, 4, 3]])
    logits = [npformer.load(each)(ids).logits for each in (folder, other)]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-6)
    assert (
        read_tensors(convert(convert(folder, tmp_path / "own"), tmp_path / "b", to="torch") / "model.safetensors")[
            0
        ].keys()
        == without.keys()
    )


def test_a_new_head_is_put_on_a_folder_of_the_hub(tmp_path: Path) -> None:
    config = read_config(HUB)
    (tmp_path / "config.json").write_text(json.dumps(HUB))
    write_tensors(tmp_path / "model.safetensors", layout.to_torch(tiny.weights(config), config), {"format": "pt"})
    classifier, tree, kept = start(tmp_path, ("no", "yes"))
    assert (classifier.head, classifier.labels, kept) == ("sequence-classification", ("no", "yes"), False)
    assert tree["layers"][0]["attention"]["query"].keys() == {"weight"}
    assert tree["layers"][0]["ffn_norm"].keys() == tree["pooler"].keys() == {"weight", "bias"}
    assert np.isfinite(Model(classifier, tree)([[2, 9, 8, 3]]).logits).all()


def test_another_base_is_named(tmp_path: Path) -> None:
    golden.tiny(tmp_path / "tiny", "nomic_bert")
    config, weights = load_folder(tmp_path / "tiny")
    recorded = golden.load(tmp_path / "tiny" / "golden.safetensors")
    port = npformer.trace(Model(replace(config, mechanisms=(Rotary(10_000.0),)), weights), recorded.texts)
    arrays = {f"{i}/{name}": array for name in port for i, array in enumerate(port.texts(name))}
    diagnosis = golden.diagnose(recorded, arrays, npformer.load(tmp_path / "tiny"))
    assert diagnosis.mistake == "rotation with the wrong base", str(diagnosis)
