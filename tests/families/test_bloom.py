"""BLOOM and ALiBi: config.json, slopes, masked tokens, and the diagnosis of a port's mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import NpformerError
from npformer.engine.mechanisms.alibi import alibi_slopes
from npformer.families import read_config, write_config
from npformer.interpret.direct_attribution import logit_attribution
from tests.support import tiny

SIZES = {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}


def read(**fields: Any) -> Any:
    return read_config({"model_type": "bloom", **SIZES, **fields})


def test_older_and_newer_names() -> None:
    config = read()
    assert (
        read_config({"model_type": "bloom", "vocab_size": 50, "n_embed": 32, "n_layer": 2, "num_attention_heads": 4})
        == config
    )
    assert (config.d_ffn, config.max_length, config.activation) == (128, 2048, "gelu_tanh")
    assert read_config(write_config(config)) == config
    with pytest.raises(NpformerError, match="apply_residual_connection_post_layernorm: True is not supported"):
        read(apply_residual_connection_post_layernorm=True)


def test_the_activation_is_fixed() -> None:
    """As in transformers, no field of config.json changes the activation."""
    assert read(activation_function="relu", hidden_act="relu") == read()
    assert "activation_function" not in write_config(read())
    with pytest.raises(NpformerError, match="activation: expected one of gelu_tanh, got 'relu'"):
        tiny.config("bloom", "base", activation="relu")


def test_slopes_of_powers_of_two_and_of_other_numbers() -> None:
    """Eight heads have the paper's slopes. Twelve heads add the 1st, 3rd, 5th and 7th slopes of sixteen heads."""
    eight = [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    np.testing.assert_allclose(alibi_slopes(12), [*eight, *(2.0 ** (-h / 2) for h in (1, 3, 5, 7))], rtol=1e-6)
    assert len({alibi_slopes(count).shape == (count,) for count in range(1, 40)}) == 1


def test_masked_tokens_are_at_no_distance() -> None:
    model, ids = tiny.model("bloom", "base", dtype=np.float64), np.arange(5, 14)
    mask = np.array([0, 0, 1, 1, 0, 1, 1, 1, 0])
    alone = model(ids[mask == 1]).last_hidden_state[0]
    np.testing.assert_array_equal(model(ids, attention_mask=mask).last_hidden_state[0][mask == 1], alone)


def test_the_parts_of_a_logit_add_up() -> None:
    found = logit_attribution(tiny.model("bloom", "causal-lm", dtype=np.float64), np.arange(5, 14), 7)
    assert found.total == pytest.approx(found.logit, rel=1e-12)
