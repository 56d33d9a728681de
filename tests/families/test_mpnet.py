"""Features of MPNet: biases for relative positions in every layer, and positions counted from padding token 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.engine.mechanisms.distances import at_distances
from npformer.engine.mechanisms.relative_bias import relative_bias, relative_buckets
from npformer.engine.runtime.packing import Text
from npformer.families import read_config, write_config
from npformer.interpret.traces import trace
from tests.support import tiny


def test_buckets() -> None:
    """Each distance below 8 has its own bucket. Greater distances share eight buckets, which begin at
    8 * 2^(k / 2), k = 0 to 7."""
    after = relative_buckets(np.arange(1, 200), 32) - 16
    assert after[:7].tolist() == [1, 2, 3, 4, 5, 6, 7]
    borders = [int(np.ceil(8 * 2 ** (k / 2) - 1e-9)) for k in range(8)]
    assert [int(np.flatnonzero(after == 8 + k)[0]) + 1 for k in range(8)] == borders
    assert after.max() == 15
    assert (relative_buckets(-np.arange(1, 200), 32) == after).all()
    assert relative_buckets(np.array([0]), 32) == 0


def test_the_bias_of_places_that_follow_one_another_is_a_view_of_the_same_numbers() -> None:
    values = relative_bias(np.random.default_rng(0).standard_normal((32, 3)), 20)
    rows, keys = np.arange(4, 9)[None], np.arange(12)[None]
    view = at_distances(values, rows, keys)
    assert view.shape == (1, 3, 5, 12)
    assert np.shares_memory(view, values)
    right = values[:, values.shape[-1] // 2 + keys[0] - rows[0][:, None]]
    assert np.array_equal(view[0], right)
    gaps = np.array([[4, 6, 7, 9, 11]])
    spread = at_distances(values, gaps, keys)
    assert not np.shares_memory(spread, values)
    assert np.array_equal(spread[0][:, [0, 2]], right[:, [0, 3]])


def test_a_classifier_computes_only_first_rows_with_the_bits_of_all() -> None:
    model = tiny.model("mpnet", "sequence-classification", threads=2, max_length=300)
    text = Text(np.random.default_rng(0).integers(2, 99, 250))
    assert np.array_equal(model.run([text])[0]["logits"], trace(model, text)["logits"])


def test_other_numbers_of_buckets_are_refused_which_transformers_does_not_read() -> None:
    data: dict[str, Any] = write_config(tiny.config("mpnet"))
    assert data["relative_attention_num_buckets"] == 32
    assert read_config(data) == tiny.config("mpnet")
    with pytest.raises(NpformerError, match="relative_attention_num_buckets: 64 is not supported; supported: 32"):
        read_config({**data, "relative_attention_num_buckets": 64})
