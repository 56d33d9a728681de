"""Phi-3: its config.json, fused weights, and the diagnosis of a port's mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tree import to_torch
from npformer.families import read_config, write_config
from npformer.mechanisms import PartialRotary, Rotary, Window
from tests.support import tiny
from tests.support.plain_decoder import PLANTED
from tests.support.planted_decoders import diagnosis

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


def test_fused_rows_are_those_of_query_key_and_value_and_of_gate_and_up() -> None:
    """The fused weight has four heads of queries, two of keys and two of values, each 8 wide."""
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


@pytest.mark.parametrize(
    "planted",
    [pytest.param(name, marks=() if name == "up and gate" else pytest.mark.slow) for name in PLANTED["phi3"]],
)
def test_a_mistake_of_a_port_is_named(planted: str) -> None:
    found = diagnosis(tiny.model("phi3", "causal-lm", mechanisms=MECHANISMS), planted, full=True)
    assert PLANTED["phi3"][planted] in found, found
