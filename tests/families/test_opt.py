"""OPT: its config.json, positions that skip masked tokens, projections, and the diagnosis of a port's mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import NpformerError
from npformer.families import parts_of, read_config, write_config
from npformer.interpret.direct_attribution import logit_attribution
from npformer.interpret.logit_lens import logit_lens
from npformer.interpret.traces import trace
from tests.support import tiny

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 16,
    "max_position_embeddings": 24,
}  # fmt: skip
AFTER = {"norm_first": False, "final_norm": False}  # norms after blocks, as in OPT-350M


def read(**fields: Any) -> Any:
    return read_config({"model_type": "opt", **SIZES, **fields})


def test_the_kinds_of_config_json() -> None:
    usual, narrow = read(), read(word_embed_proj_dim=16, do_layer_norm_before=False)
    assert (usual.d_embedding, usual.norm_first, usual.final_norm, usual.padding_idx) == (0, True, True, 1)
    assert (narrow.d_embedding, narrow.norm_first, narrow.final_norm) == (16, False, False)
    assert not read(_remove_final_layer_norm=True).final_norm
    assert (usual.max_length, usual.n_positions) == (24, 26)
    for config in (usual, narrow, read(_remove_final_layer_norm=True), read(enable_bias=False, pad_token_id=None)):
        assert read_config(write_config(config)) == config


def test_norms_keep_their_biases_without_those_of_layers() -> None:
    groups = parts_of(read(enable_bias=False)).groups(32)
    assert groups["norm"].bias == 32
    assert groups["layers.0.ffn.hidden"].bias is None


def test_norms_without_weights_are_refused() -> None:
    with pytest.raises(NpformerError, match="layer_norm_elementwise_affine: False is not supported"):
        read(layer_norm_elementwise_affine=False)


def test_masked_tokens_have_no_positions() -> None:
    """Masks tokens before, within and after a text."""
    model, ids = tiny.model("opt", "base", dtype=np.float64), np.arange(5, 14)
    mask = np.array([0, 0, 1, 1, 0, 1, 1, 1, 0])
    alone = model(ids[mask == 1]).last_hidden_state[0]
    np.testing.assert_array_equal(model(ids, attention_mask=mask).last_hidden_state[0][mask == 1], alone)


@pytest.mark.parametrize("fields", [{}, AFTER])
def test_the_parts_of_a_logit_add_up(fields: dict[str, Any]) -> None:
    model, ids = tiny.model("opt", "causal-lm", dtype=np.float64, **fields), np.arange(5, 14)
    found = logit_attribution(model, ids, 7)
    assert found.total == pytest.approx(found.logit, rel=1e-12)
    logits = trace(model, ids)["logits"][-1]
    np.testing.assert_array_equal(logit_lens(model, ids).logits[-1, 0], np.sort(logits)[::-1][:5])
