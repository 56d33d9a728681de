"""GPT-NeoX and Pythia: their config.json, fused weights, parallel layers, and the diagnosis of a port's mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import NpformerError
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.parallel_layer import ParallelLayer
from npformer.engine.mechanisms import PartialRotary, Rotary
from npformer.engine.mechanisms.rotary_scaling import Linear
from npformer.families import FAMILIES, parts_of, read_config, write_config
from npformer.families.base import TensorPart
from npformer.interpret.direct_attribution import logit_attribution
from tests.support import tiny

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 32,
}  # fmt: skip


def read(**fields: Any) -> Any:
    return read_config({"model_type": "gpt_neox", **SIZES, **fields})


def test_rotations_of_older_and_newer_files() -> None:
    scaled = {"rope_type": "linear", "factor": 2.0}
    older = read(rotary_pct=0.5, rotary_emb_base=300, rope_scaling=scaled)
    newer = read(rope_parameters={"rope_theta": 300.0, "partial_rotary_factor": 0.5, **scaled})
    assert older == newer
    assert older.mechanisms == (PartialRotary(300.0, columns=8, scaling=Linear(2.0)),)
    assert read_config(write_config(older)) == older
    assert read().mechanisms == (PartialRotary(10_000.0, columns=4),)
    assert read(rotary_pct=1.0).mechanisms == (Rotary(10_000.0),)


def test_every_number_of_columns_is_written_back() -> None:
    """The file stores the number of rotated columns as a fraction of the width. In float64, 2 / 98 * 98 < 2."""
    for columns in range(2, 98, 2):
        rotary = PartialRotary(10.0, columns=columns)
        config = tiny.config("gpt_neox", "base", d_model=98, n_heads=1, mechanisms=(rotary,))
        assert read_config(write_config(config)) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rotary_pct": 0.2}, "rotary.columns: expected an even number, got 3"),
        ({"rotary_pct": 0.01}, "rotary.columns: "),
        ({"rotary_pct": 1.5}, "rotary.columns: expected a whole number from 2 to 16, got 24"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "rope_type: 'ntk' is not supported"),
        ({"use_parallel_residual": 1}, "use_parallel_residual: "),
    ],
)
def test_a_choice_that_is_not_computed_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read(**fields)


def test_layers_are_parallel_or_not() -> None:
    assert type(parts_of(read()).stack.layers[0]) is ParallelLayer
    assert type(parts_of(read(use_parallel_residual=False)).stack.layers[0]) is Layer
    with pytest.raises(NpformerError, match=r"^parallel: expected False, because a gpt2 model has no parallel layers"):
        parts_of(tiny.config("gpt2", "base", parallel=True))


def test_query_key_and_value_are_interleaved_by_heads() -> None:
    """With three heads of two rows each, the first head's query, key and value come first, then the second head's."""
    fused = np.arange(18)
    parts = [FAMILIES["gpt_neox"].part(tiny.config("gpt_neox", "base", n_heads=4), ("query", "key", "value"), each)
             for each in ("query", "key", "value")]  # fmt: skip
    assert parts[0] == TensorPart(0, (1, 1, 1), 4)
    query, key, value = (each._replace(blocks=3).of(fused, 0) for each in parts)
    assert query.tolist() == [0, 1, 6, 7, 12, 13]
    assert key.tolist() == [2, 3, 8, 9, 14, 15]
    assert parts[0]._replace(blocks=3).joined([query, key, value], 0).tolist() == fused.tolist()


@pytest.mark.parametrize("parallel", [True, False])
def test_the_parts_of_a_logit_add_up(parallel: bool) -> None:
    found = logit_attribution(
        tiny.model("gpt_neox", "causal-lm", dtype=np.float64, parallel=parallel), np.arange(5, 14), 7
    )
    assert found.total == pytest.approx(found.logit, rel=1e-12)


@pytest.mark.parametrize("shape", [(12, 0), (0, 4), (12, 4)])
@pytest.mark.parametrize("blocks", [1, 2])
def test_the_parts_of_a_tensor_form_it_also_without_numbers(shape: tuple[int, int], blocks: int) -> None:
    parts = [TensorPart(i, (1, 1, 1), blocks) for i in range(3)]
    tensor = np.arange(float(np.prod(shape))).reshape(shape)
    joined = parts[0].joined([each.of(tensor, 0) for each in parts], 0)
    np.testing.assert_array_equal(joined, tensor)
