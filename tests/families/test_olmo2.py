"""OLMo 2: its config.json, norms after blocks and of whole queries and keys, and the diagnosis of a port's mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import rms_norm
from npformer.common.errors import NpformerError
from npformer.engine.mechanisms import Rotary, RowNorm
from npformer.engine.mechanisms.rotary_scaling import Linear
from npformer.families import parts_of, read_config, write_config
from npformer.interpret.direct_attribution import head_results, logit_attribution
from npformer.interpret.traces import trace
from tests.support import tiny
from tests.support.edited_pages import diagnosis
from tests.support.planted_decoders import PLANTED

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
    "max_position_embeddings": 32,
}  # fmt: skip


def read(**fields: Any) -> Any:
    return read_config({"model_type": "olmo2", **SIZES, **fields})


def model(**fields: Any) -> Any:
    return tiny.model("olmo2", "causal-lm", **{"mechanisms": (RowNorm(), Rotary(30.0)), **fields})


def test_config_json_is_read_and_written_back() -> None:
    config = read(num_key_value_heads=2, rope_theta=5e5)
    assert (config.mechanisms, config.eps, config.kv_heads) == ((RowNorm(), Rotary(5e5)), 1e-5, 2)
    scaled = read(rope_scaling={"rope_type": "linear", "factor": 2.0}, rms_norm_eps=1e-6, attention_bias=True)
    assert scaled.mechanisms == (RowNorm(), Rotary(10_000.0, scaling=Linear(2.0)))
    for each in (config, scaled):
        assert read_config(write_config(each)) == each


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv: 8.0 is not supported"),
        ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "rope_scaling: rope_type: 'su' is not supported"),
        ({"model_type": "olmo"}, "'olmo' needs layer norms without weights, and limits on queries, keys and values"),
        ({"architectures": ["Olmo2ForTokenClassification"]}, "architectures: expected one of Olmo2Model"),
    ],
)
def test_unsupported_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read(**fields)


def test_norms_follow_the_blocks_and_cover_whole_queries_and_keys() -> None:
    of = model(dtype=np.float64)
    config, stages = of.config, trace(of, np.arange(5, 14))
    names = set(stages)
    assert not names & {"layers.0.attention_norm", "layers.0.ffn_norm"}
    for i, layer in enumerate(of.weights["layers"]):
        here = f"layers.{i}."
        for block in ("attention", "ffn"):
            normed = rms_norm(stages[f"{here}{block}.output"], **layer[block]["output_norm"], eps=config.eps)
            np.testing.assert_allclose(stages[f"{here}{block}.output_norm"], normed, rtol=1e-13)
        total = stages[f"{here}attention_residual"] + stages[f"{here}ffn.output_norm"]
        np.testing.assert_array_equal(stages[f"{here}ffn_residual"], total)
        gate = stages[f"{here}attention_residual"] @ layer["ffn"]["gate"]["weight"]
        np.testing.assert_allclose(stages[f"{here}ffn.gate"], gate, rtol=0, atol=1e-13)
        for name, width in (("query", 32), ("key", 16)):
            own = layer["attention"][f"{name}_norm"]
            assert own["weight"].shape == (width,)
            normed = rms_norm(stages[f"{here}attention.{name}"], **own, eps=config.eps)
            np.testing.assert_allclose(stages[f"{here}attention.{name}_normed"], normed, rtol=1e-13)


def test_the_parts_of_a_logit_add_up() -> None:
    of, ids = model(dtype=np.float64), np.arange(5, 14)
    found = logit_attribution(of, ids, label=7)
    assert found.total == pytest.approx(found.logit, rel=1e-12)
    recorded = trace(of, ids)
    for i, rows in enumerate(head_results(of, recorded).sum(axis=1)):
        np.testing.assert_allclose(rows, recorded[f"layers.{i}.attention.output_norm"], rtol=1e-9, atol=1e-12)


def test_formulas_of_stages_name_whole_queries_and_outputs() -> None:
    formulas = {each.name: each.formula for each in parts_of(read()).stack.layers[0].stages}
    assert formulas["attention.query_normed"] == "Q, normalized"
    assert formulas["attention.output_norm"] == "A = Normalize(A')"


# --- the diagnosis ---------------------------------------------------------------------------------------------------


def test_a_norm_left_out_after_attention_is_not_said_to_be_before_the_ffn() -> None:
    found = diagnosis(model(), PLANTED["olmo2"]["no norm after attention"][1], full=True)
    assert "as its name means in Llama" not in found, found
