"""Features of ModernBERT: rotations, local layers, gated networks, and two forms of config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import load, pipeline
from npformer.checkpoint import convert
from npformer.common.errors import NpformerError
from npformer.config import Local
from npformer.engine.mechanisms import Rotary, Window
from npformer.engine.mechanisms.rotary import rotary_angles, rotate
from npformer.engine.runtime.packing import Text
from npformer.families import parts_of, read_config, write_config
from npformer.interpret.direct_attribution import logit_attribution
from npformer.interpret.traces import trace
from tests.support import later_modernbert, tiny
from tests.support.check_family import same_bits

FULL, LOCAL = "full_attention", "sliding_attention"


def described(**changes: Any) -> dict[str, Any]:
    """Returns a config.json as earlier versions of transformers wrote it."""
    data = write_config(tiny.config("modernbert", n_layers=6))
    for name in ("rope_parameters", "layer_types"):
        del data[name]
    return {**data, **changes}


def test_products_of_rotated_rows_depend_on_the_distance_of_their_positions_only() -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((2, 1, 24))
    products = []
    for start in (0, 17, 300):
        angles = [rotary_angles(np.array([start + place]), 8, 10_000.0, np.float64) for place in (5, 2)]
        rows = rotate(q[None], *angles[0]), rotate(k[None], *angles[1])
        products.append((rows[0].reshape(3, 8) * rows[1].reshape(3, 8)).sum(-1))
    np.testing.assert_allclose(products[1:], [products[0]] * 2, rtol=0, atol=1e-12)
    assert np.abs(products[0] - (q.reshape(3, 8) * k.reshape(3, 8)).sum(-1)).min() > 1e-3


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_text_has_the_same_bits_with_either_pooling_of_its_classifier(pooling: str) -> None:
    same_bits("modernbert", "sequence-classification", pooling=pooling, n_layers=4)


def test_local_layers_see_their_window_and_no_more() -> None:
    model = tiny.model("modernbert", "token-classification", n_layers=4)
    recorded = trace(model, Text(np.arange(2, 12)))
    places = np.arange(10)
    near = np.abs(places[:, None] - places) <= 3  # half of 6
    for i in range(4):
        weights = recorded[f"layers.{i}.attention.weights"]
        assert ((weights > 0) == (True if i in (0, 3) else near)).all(), i
        assert np.isfinite(recorded[f"layers.{i}.attention.scores"]).all()


def test_both_forms_of_config_json() -> None:
    config = read_config(described())
    assert config.mechanisms == (Rotary(160_000.0),)
    assert config.local == Local((1, 2, 4, 5), (Rotary(10_000.0), Window(3)))
    assert [len(config.mechanisms_of(i)) for i in range(6)] == [1, 2, 2] * 2
    kinds = [LOCAL if i % 2 else FULL for i in range(6)]
    rope = {FULL: {"rope_type": "default", "rope_theta": 8.0}, LOCAL: {"rope_type": "default", "rope_theta": 4.0}}
    new = read_config(described(layer_types=kinds, rope_parameters=rope))
    assert new.mechanisms == (Rotary(8.0),)
    assert new.local == Local((1, 3, 5), (Rotary(4.0), Window(3)))
    assert write_config(new)["global_attn_every_n_layers"] == 2
    assert read_config(write_config(new)) == new
    assert read_config(described(local_rope_theta=None)).local.mechanisms[0] == Rotary(160_000.0)
    assert read_config(described(global_attn_every_n_layers=1)).local.layers == ()
    assert read_config(described(layer_types=[FULL] * 6)).local.layers == ()
    assert read_config(described(global_attn_every_n_layers=2**31 - 1)).local.layers == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("kinds", [[LOCAL] * 6, [LOCAL, FULL] * 3, [FULL, LOCAL, FULL, FULL, LOCAL, LOCAL]])
def test_layers_are_local_at_any_steps(kinds: list[str]) -> None:
    config = read_config(described(layer_types=kinds))
    assert [LOCAL if i in config.local.layers else FULL for i in range(6)] == kinds
    written = write_config(config)
    assert "global_attn_every_n_layers" not in written  # the field would contradict layer_types
    assert read_config(written) == config
    assert tiny.config("modernbert", n_layers=6, local=config.local) == replace(config, pad_id=None, padding_idx=None)


@pytest.mark.parametrize("more", [{}, {"global_attn_every_n_layers": 2**31 - 1}, {"layer_types": [FULL]}])
def test_too_many_layers_are_refused_before_a_list_of_them_is_made(more: dict[str, Any]) -> None:
    with pytest.raises(NpformerError, match="layers"):
        read_config(described(num_hidden_layers=2**31 - 1, **more))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias: True is not supported; supported: False"),
        ({"norm_bias": True}, "norm_bias: True is not supported"),
        ({"mlp_bias": True}, "mlp_bias: True is not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: .* is not supported; supported: null"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn", "rope_theta": 1.0}}}, "rope_type: 'yarn' is not supported"),
        ({"rope_parameters": [3]}, "rope_parameters: expected an object"),
        ({"layer_types": [LOCAL, "chunked_attention"] * 3}, "layer_types: expected .* for each of 6 layers"),
        ({"layer_types": [[]] * 6}, "layer_types: expected .* for each of 6 layers"),
        ({"layer_types": [FULL]}, "layer_types: expected .* for each of 6 layers"),
        ({"classifier_activation": "mish"}, "classifier_activation: expected one of gelu, .*, got 'mish'"),
        ({"classifier_pooling": "max"}, "classifier_pooling: expected one of cls, mean, got 'max'"),
        ({"local_attention": 0}, "local_attention"),
        ({"global_rope_theta": -1.0}, "rope_theta of full_attention"),
        ({"hidden_size": 28}, "expected heads of even width"),
    ],
)
def test_missing_features_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config(described(**changes))


@pytest.mark.parametrize("head", ["sequence-classification", "masked-lm", "question-answering"])
def test_the_parts_of_a_logit_add_up_to_it(head: str) -> None:
    model = tiny.model("modernbert", head)
    found = logit_attribution(model, "I love ice cream", **({} if head.startswith("seq") else {"position": 2}))
    parts = [*found.embeddings.values(), found.heads.sum(), found.ffn.sum(), *found.biases.values()]
    assert sum(parts) == pytest.approx(found.logit, abs=1e-5)


def test_the_logit_of_a_mean_is_not_taken_apart() -> None:
    model = tiny.model("modernbert", "sequence-classification", pooling="mean")
    with pytest.raises(NpformerError, match="logit_attribution: unsupported: a head that reads the mean of all rows"):
        logit_attribution(model, "I love ice cream")


@pytest.mark.parametrize("name", later_modernbert.CONFIGS)
def test_later_checkpoints_are_read(name: str, tmp_path: Path) -> None:
    """The field position_embedding_type in config.json confirms that there is no table of positions."""
    folder = later_modernbert.folder(tmp_path / "model", name)
    config = load(folder).config
    assert (config.head, config.pooling) == ("masked-lm", "mean")
    assert config.mechanisms == (Rotary(160_000.0),)
    assert config.local == Local((1, 2), (Rotary(160_000.0), Window(4)))
    fill = pipeline("fill-mask", folder)
    mask = "<mask>" if name == "mmBERT" else "[MASK]"
    assert len(fill(f"in the {mask}", top_k=3)) == 3
    again = convert(convert(folder, tmp_path / "own"), tmp_path / "back", to="torch")
    assert pipeline("fill-mask", again)(f"in the {mask}") == fill(f"in the {mask}")


def test_a_tokenizer_that_falls_back_to_bytes_and_marks_spaces(tmp_path: Path) -> None:
    tokenizer = load(later_modernbert.folder(tmp_path / "model", "mmBERT")).tokenizer
    assert tokenizer.encode("in the é ü").tokens == [
        *("<bos>", "in", "▁the", "▁", "é", "▁", "<0xC3>", "<0xBC>", "<eos>")
    ]
    assert tokenizer.encode("the", "hat").tokens == ["<bos>", "the", "<eos>", "h", "a", "t", "<eos>"]


def test_a_file_with_null_for_both_bases_has_windows_and_no_rotation() -> None:
    config = read_config(described(global_rope_theta=None, local_rope_theta=None, rope_parameters=None))
    assert [type(each).__name__ for each in parts_of(config).stack.mechanisms] == ["Window"]
