"""Features of GPT-2: files of several versions, its settings, a causal mask, and a head that reads the last token."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.families import read_config, write_config
from npformer.interpret.direct_attribution import logit_attribution
from npformer.interpret.traces import trace
from npformer.training import standard_rates
from npformer.training.start import write_model
from tests.support import tiny, torch_writer

ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())
HEADS = ("base", "causal-lm", "sequence-classification", "token-classification", "question-answering")


def described(name: str = "LMHeadModel", **changes: Any) -> dict[str, Any]:
    return {**ARCHITECTURES[f"GPT2{name}"]["config"], **changes}


# --- files -----------------------------------------------------------------------------------------------------------


def old_tensors(folder: Path, n_layers: int = 2, size: int = 64) -> dict[str, np.ndarray]:
    """Returns tensors as in gpt2's file on the hub: names without a prefix, and a mask in each layer."""
    tensors, _ = read_tensors(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): np.array(array) for name, array in tensors.items()}
    for i in range(n_layers):
        old[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, size, size), np.float32))
        old[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    return old


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_old_files_without_the_prefix_and_with_masks_are_read(head: str, kind: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "new", "gpt2", head)
    expected = flatten(load_folder(folder)[1])
    old = old_tensors(folder)
    (folder / "model.safetensors").unlink()
    if kind == "bin":
        torch_writer.save(folder / "pytorch_model.bin", old)
    else:
        write_tensors(folder / "model.safetensors", old, {"format": "pt"})
    found = flatten(load_folder(folder)[1])
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)
    back, _ = read_tensors(convert(folder, tmp_path / "back", to="torch") / "model.safetensors")
    prefix = "" if head == "base" else "transformer."
    assert back[f"{prefix}h.1.attn.c_attn.weight"].shape == (32, 96)
    assert not [name for name in back if name.endswith((".attn.bias", ".masked_bias"))]


def test_a_projection_that_is_written_though_it_is_tied_is_read(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", "gpt2", "causal-lm")
    tensors, _ = read_tensors(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    more = dict(tensors) | {"lm_head.weight": np.array(tensors["transformer.wte.weight"])}
    write_tensors(folder / "model.safetensors", more, {"format": "pt"})
    model = npformer.load(folder)
    assert np.shares_memory(model.weights["head"]["output"]["weight"], model.weights["embeddings"]["token"]["weight"])


def test_a_tensor_that_is_missing_is_named_with_its_part(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", "gpt2")
    tensors, _ = read_tensors(folder / "model.safetensors")
    less = {name: array for name, array in tensors.items() if name != "transformer.h.1.attn.c_attn.weight"}
    write_tensors(folder / "model.safetensors", less, {"format": "pt"})
    with pytest.raises(NpformerError, match=r"transformer\.h\.1\.attn\.c_attn\.weight"):
        npformer.load(folder)


# --- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
        ("activation_function", "gelu_pytorch_tanhh"),
        ("n_inner", 0),
        ("eos_token_id", "2"),
        ("bos_token_id", "x"),
        ("pad_token_id", 1.5),
        ("position_embedding_type", "relative_key"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(NpformerError, match=field):
        read_config(described(**{field: value}))


def test_settings_that_may_be_left_out_or_written_in_several_ways() -> None:
    plain = read_config(described())
    assert (plain.d_ffn, plain.start_id, plain.end_ids, plain.pad_id) == (10, 10, (10,), None)
    assert read_config(described(n_inner=None)).d_ffn == 4 * 6
    assert read_config(described(eos_token_id=[3, 4])).end_ids == (3, 4)
    assert read_config(described(eos_token_id=None, bos_token_id=None)).end_ids == ()
    assert read_config(described(pad_token_id=0)).pad_id == 0
    left_out = {key: value for key, value in described().items() if key not in ("activation_function", "n_inner")}
    assert read_config(left_out).activation == "gelu_tanh"
    names = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu"}
    assert {name: read_config(described(activation_function=name)).activation for name in names} == names
    # reorder_and_upcast_attn only changes the order of operations
    assert read_config(described(reorder_and_upcast_attn=True)) == plain


@pytest.mark.parametrize("changes", [{}, {"end_ids": (3, 4), "pad_id": 2}, {"end_ids": (), "start_id": 7}])
def test_a_config_is_written_as_it_is_read(changes: dict[str, Any]) -> None:
    config = tiny.config("gpt2", "causal-lm", **changes)
    assert read_config(write_config(config)) == config


# --- a model with two heads ------------------------------------------------------------------------------------------


def double(path: Path) -> Path:
    """Writes a GPT2DoubleHeadsModel as Transformers does, with heads for choices and for the next token."""
    folder, random = tiny.folder(path, "gpt2", "causal-lm", pad_id=7), np.random.default_rng(0)
    tensors = {name: np.array(array) for name, array in read_tensors(folder / "model.safetensors")[0].items()}
    tensors["multiple_choice_head.summary.weight"] = random.standard_normal((1, 32)).astype(np.float32)
    tensors["multiple_choice_head.summary.bias"] = np.ones(1, np.float32)
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    data = json.loads((folder / "config.json").read_text()) | {"architectures": ["GPT2DoubleHeadsModel"]}
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_a_checkpoint_with_two_heads_is_the_model_of_the_next_token(tmp_path: Path) -> None:
    folder = double(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = npformer.load(folder)
        back = convert(convert(folder, tmp_path / "own"), tmp_path / "back", to="torch")
    assert model.config == tiny.config("gpt2", "causal-lm", pad_id=7)
    assert json.loads((back / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    assert not [name for name in read_tensors(back / "model.safetensors")[0] if "multiple_choice" in name]


def test_choices_are_read_at_their_last_tokens(tmp_path: Path) -> None:
    model = npformer.load(double(tmp_path / "m"), head="multiple-choice")
    lengths, choices = (4, 9, 6), np.full((3, 9), 7)
    for row, length in zip(choices, lengths, strict=True):
        row[:length] = ids(length, length)
    whole = np.stack([choices, choices[::-1]])
    mask = (whole != 7).astype(int)
    found = model(whole, attention_mask=mask).logits
    assert found.shape == (2, 3)
    assert np.array_equal(model(whole).logits, found)  # without a mask, padding is found by its id
    assert np.array_equal(found[0], found[1, ::-1])
    output = model.weights["head"]["output"]
    for row, length, logit in zip(choices, lengths, found[0], strict=True):
        alone = Text(row[:length])
        assert np.array_equal(model.run([alone])[0]["logits"], [logit])
        last = trace(model, alone)["norm"][-1] @ output["weight"] + output["bias"]
        np.testing.assert_allclose(last, [logit], rtol=1e-5, atol=1e-5)
    assert standard_rates(model.config)["norm"] == 0.1  # Transformers' summary_first_dropout


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("summary_type", "mean"),
        ("summary_use_proj", False),
        ("summary_proj_to_labels", False),
        ("summary_activation", "tanh"),
    ],
)
def test_another_summary_is_refused_by_name_where_it_is_read(field: str, value: object) -> None:
    data = described("DoubleHeadsModel", **{field: value})
    assert read_config(data).head == "causal-lm"
    with pytest.raises(NpformerError, match=f"{field}: .* is not supported"):
        read_config(data, "multiple-choice")


def test_a_head_for_choices_is_not_written_alone_or_read_if_missing(tmp_path: Path) -> None:
    config, tree = load_folder(double(tmp_path / "m"), head="multiple-choice")
    with pytest.raises(NpformerError, match="Transformers has no class for gpt2 with only a multiple-choice head"):
        write_model(tmp_path / "new", {}, config, tree)
    with pytest.raises(NpformerError, match="keep the original checkpoint"):
        trace(npformer.Model(config, tree), [5, 6]).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(NpformerError, match=r"missing: head.output.weight \(multiple_choice_head.summary.weight\)"):
        npformer.load(tiny.folder(tmp_path / "one", "gpt2", "causal-lm"), head="multiple-choice")


# --- effects of a text's place in a batch ----------------------------------------------------------------------------


def ids(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(8, len(tiny.VOCABULARY), length)


def test_a_token_sees_nothing_after_it() -> None:
    model, text = tiny.model("gpt2", "causal-lm"), ids(20)
    whole = trace(model, Text(text))
    for length in (1, 7, 19):
        begun = model.run([Text(text[:length])])[0]["logits"]
        np.testing.assert_allclose(begun, whole["logits"][:length], rtol=1e-5, atol=1e-5)
    weights = whole["layers.1.attention.weights"]
    assert not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_a_trace_has_the_formulas_of_norms_before_the_blocks() -> None:
    t = trace(tiny.model("gpt2", "causal-lm"), np.arange(5, 12))
    assert t.row("layers.1.attention_norm").formula == "N = Normalize(X)"
    assert t.row("layers.1.attention.query").formula == "Q = N W_Q + b_Q"
    assert t.row("layers.1.ffn_residual").formula == "Z = Y + B"
    assert np.array_equal(t["layers.1.ffn_residual"], t["layers.1.attention_residual"] + t["layers.1.ffn.output"])
    assert t.row("layers.1.attention.weights").formula == "W_h = softmax(scores)"


def test_the_classifier_reads_the_last_token_that_is_not_padding() -> None:
    model, text = tiny.model("gpt2", pad_id=7), ids(9)
    right = model.run([Text(text)])[0]["logits"]
    for after in (1, 3):
        padded = np.append(text, [7] * after)
        assert np.array_equal(model.run([Text(padded)])[0]["logits"], right)
    inside = text.copy()
    inside[4] = 7
    rows = trace(model, Text(inside))["norm"] @ model.weights["head"]["output"]["weight"]
    np.testing.assert_allclose(model.run([Text(inside)])[0]["logits"], rows[-1], rtol=1e-4, atol=1e-5)
    only = Text(np.array([7, 7, 7]))
    rows = trace(model, only)["norm"] @ model.weights["head"]["output"]["weight"]
    np.testing.assert_allclose(model.run([only])[0]["logits"], rows[0], rtol=1e-4, atol=1e-5)
    unpadded = tiny.model("gpt2")  # without a padding token, the head reads the last token
    assert not np.array_equal(unpadded.run([Text(np.append(text, [7]))])[0]["logits"], right)


def test_texts_of_one_token_are_traced_as_others_are() -> None:
    """A classifier's logits have one row per text, even if the text has only one token."""
    model = tiny.model("gpt2")
    shapes = {trace(model, ids)["logits"].shape for ids in ([5], [5, 6])}
    assert shapes == {(len(model.config.labels),)}
    assert {each.shape for each in trace(model, [[5], [6]])["logits"]} == shapes
    found = logit_attribution(model, [5])
    assert found.total == pytest.approx(found.logit, abs=1e-5)


def test_padding_on_the_left_moves_positions_as_in_transformers() -> None:
    """A token's position is its index in the padded batch. The mask hides the padding before a text."""
    model, text = tiny.model("gpt2", pad_id=7), ids(5)
    batch, mask = np.full((2, 8), 7), np.zeros((2, 8), np.int64)
    batch[0, 3:], mask[0, 3:] = text, 1
    batch[1, :5], mask[1, :5] = text, 1
    left, right = model(input_ids=batch, attention_mask=mask)["logits"]
    assert np.array_equal(left, model.run([Text(text, positions=np.arange(3, 8))])[0]["logits"])
    assert np.array_equal(right, model.run([Text(text)])[0]["logits"])
    assert not np.allclose(left, right)


def test_a_missing_mask_is_diagnosed(tmp_path: Path) -> None:
    """The golden file records each text separately, without padding."""
    folder = golden.tiny(tmp_path / "m", "gpt2")
    model, recorded = npformer.load(folder), golden.load(folder / golden.TINY_FILE)
    arrays = {f"{i}/{name}": array for name in recorded.stages for i, array in enumerate(recorded.stages[name])}
    assert golden.compare(recorded, arrays).ok
    for i in range(3):
        scores = np.exp(arrays[f"{i}/layers.0.attention.scores"])
        arrays[f"{i}/layers.0.attention.weights"] = scores / scores.sum(-1, keepdims=True)
    assert golden.diagnose(recorded, arrays, model).mistake == "causal mask left out"
