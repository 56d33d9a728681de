"""SmolLM3: its config.json, layers without rotation, and the diagnosis of a port's mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.config import Local
from npformer.engine.mechanisms import Rotary, Window
from npformer.families import read_config, write_config
from npformer.interpret.traces import trace
from tests.support import tiny

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 16,
    "max_position_embeddings": 32,
}  # fmt: skip


def read(**fields: Any) -> Any:
    return read_config({"model_type": "smollm3", **SIZES, **fields})


def test_every_fourth_layer_has_no_rotation_unless_config_json_says_otherwise() -> None:
    assert (read().mechanisms, read().local) == ((Rotary(2_000_000.0),), Local((3,), ()))
    assert read(no_rope_layer_interval=2).local == Local((1, 3, 5), ())
    assert read(no_rope_layers=[0, 1, 1, 0, 1, 1, 0]).local == Local((0, 3), ())  # entries without a layer are ignored
    assert read(no_rope_layers=[1] * 6).local == Local((), ())
    assert tiny.config("smollm3", "base", n_layers=9).local == Local((3, 7), ())
    assert tiny.config("smollm3", "base").local == Local((1,), ())


def test_layers_without_rotation_may_have_a_window() -> None:
    config = read(use_sliding_window=True, sliding_window=5)
    assert config.local == Local((3,), (Window(4),))
    assert read(use_sliding_window=True, sliding_window=None).local == Local((3,), ())
    assert read(sliding_window=5).local == Local((3,), ())
    kinds = ["full_attention"] * 6
    assert read(layer_types=kinds, use_sliding_window=True, sliding_window=5).local == Local((3,), ())
    kinds[3] = "sliding_attention"
    assert read(layer_types=kinds, sliding_window=5).local == Local((3,), (Window(4),))  # as in Transformers' masks
    for each in (config, read(), read(no_rope_layers=[0] * 6), read(layer_types=kinds, sliding_window=5)):
        assert read_config(write_config(each)) == each


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers: expected 0 or 1 for each of 6 layers"),
        ({"no_rope_layers": [1, 0, 2, 1, 1, 1]}, "no_rope_layers: expected 0 or 1 for each of 6 layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval: expected"),
        ({"layer_types": ["sliding_attention"] * 6, "sliding_window": 4}, "layer_types: expected a window in no layer"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_unsupported_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read(**fields)


def test_a_layer_without_rotation_has_no_rotated_stages() -> None:
    model = tiny.model("smollm3", "causal-lm")
    stages = trace(model, "i love it")
    assert "layers.0.attention.query_rotated" in stages
    assert "layers.1.attention.query_rotated" not in stages
    heads = stages["layers.1.attention.query_heads"]
    rows = stages["layers.1.attention.query"].reshape(heads.shape[1], heads.shape[0], -1)
    np.testing.assert_array_equal(heads, rows.swapaxes(0, 1))
