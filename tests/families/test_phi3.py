"""Phi-3: its config.json, fused weights, and the diagnosis of a port's mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerWarning
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tree import to_torch
from npformer.engine.mechanisms import PartialRotary, Rotary, Window
from npformer.families import read_config, write_config
from tests.support import tiny

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 32,
}  # fmt: skip
MECHANISMS = (PartialRotary(30.0, columns=4), Window(4))


def read(**fields: Any) -> Any:
    return read_config({"model_type": "phi3", **SIZES, **fields})


def test_rotations_and_windows() -> None:
    config = read(partial_rotary_factor=0.5, sliding_window=5, num_key_value_heads=1)
    assert config.mechanisms == (PartialRotary(10_000.0, columns=8), Window(4))
    assert read_config(write_config(config)) == config
    assert read().mechanisms == (Rotary(10_000.0),)


def test_fused_weights_contain_query_key_and_value_and_gate_and_up() -> None:
    """The fused weight has four heads for queries, two for keys and two for values, each 8 wide."""
    config = tiny.config("phi3", "base", n_layers=1)
    tree = tiny.weights(config)
    layer, files = tree["layers"][0], to_torch(tree, config)
    fused = files["layers.0.self_attn.qkv_proj.weight"]
    for rows, name in ((fused[:32], "query"), (fused[32:48], "key"), (fused[48:], "value")):
        np.testing.assert_array_equal(rows, layer["attention"][name]["weight"].T)
    fused = files["layers.0.mlp.gate_up_proj.weight"]
    for rows, name in ((fused[:64], "gate"), (fused[64:], "up")):
        np.testing.assert_array_equal(rows, layer["ffn"][name]["weight"].T)
    assert not any(name.endswith("bias") for name in parameters(config))


def test_a_checkpoint_with_its_own_code_loads_with_a_warning(tmp_path):
    """Phi-3 was published with its own code. The same model without the code gives the same answers."""
    plain = tiny.folder(tmp_path / "plain", "phi3", "causal-lm")
    folder = Path(shutil.copytree(plain, tmp_path / "published"))
    data = json.loads((plain / "config.json").read_text())
    code = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    (folder / "config.json").write_text(json.dumps({**data, "auto_map": code}))
    with pytest.warns(NpformerWarning, match=r"config\.json: auto_map: the checkpoint's own code .* is never run"):
        model = npformer.load(folder)
    assert np.array_equal(model([[5, 6, 7]]).logits, npformer.load(plain)([[5, 6, 7]]).logits)
