"""Gemma 1 to 3 and EmbeddingGemma: their config.json, their mechanisms, and the diagnosis of a port's mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import NpformerError
from npformer.base_model import packed
from npformer.checkpoint import convert, flatten, load_folder, unflatten
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.config import Config, Local
from npformer.engine.blocks import Normed
from npformer.engine.mechanisms import Rotary, SoftCap, Window, ZeroCentredHeadNorm
from npformer.engine.mechanisms.rotary_scaling import Linear
from npformer.engine.runtime.packing import Text
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families import FAMILIES, ignored, parts_of, read_config, write_config
from npformer.interpret.direct_attribution import head_results, logit_attribution
from npformer.interpret.traces import trace
from npformer.model import Model
from npformer.training import initialize
from tests.support import tiny
from tests.support.edited_pages import diagnosed
from tests.support.planted_decoders import PLANTED

SIZES = {
    "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "intermediate_size": 16, "max_position_embeddings": 32, "query_pre_attn_scalar": 8,
}  # fmt: skip
CAPPED = (Rotary(30.0), SoftCap(1.5))
HEAD_NORM = ZeroCentredHeadNorm()
#: Caps and windows that are small enough to change the scores, logits and attention of tiny models.
CHOICES: dict[str, dict[str, Any]] = {
    "gemma2": {
        "mechanisms": CAPPED, "local": Local((0,), (*CAPPED, Window(2))), "logit_cap": 1.5, "score_scale": 5**-0.5,
    },
    "gemma3_text": {
        "mechanisms": (HEAD_NORM, Rotary(100.0)), "local": Local((0,), (HEAD_NORM, Rotary(10.0), Window(2))),
        "score_scale": 5**-0.5,
    },
}  # fmt: skip


def read(model_type: str, **fields: Any) -> Config:
    return read_config({"model_type": model_type, **SIZES, **fields})


def model(name: str, head: str = "causal-lm", **more: Any) -> Model:
    return tiny.model(name, head, **CHOICES[name], **more)


# --- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "scale"), [("bfloat16", 55.5), ("float16", 55.4375), ("float32", 55.42562484741211)])
def test_embeddings_are_scaled_by_a_root_of_the_files_dtype(dtype: str, scale: float) -> None:
    wide = {"hidden_size": 3072, "num_attention_heads": 16}
    assert read("gemma", dtype=dtype, **wide).token_scale == scale
    assert read("gemma", torch_dtype=dtype, **wide).token_scale == scale
    assert parts_of(read("gemma2", dtype=dtype, **wide)).embeddings.scale == scale


def test_the_dtype_is_no_ignored_field() -> None:
    data = {"dtype": "bfloat16", "use_cache": True}
    assert ignored(data, FAMILIES["gemma"]) == ["use_cache"]
    assert ignored(data, FAMILIES["llama"]) == ["dtype", "use_cache"]


def test_gelu_of_gemma_is_the_approximation_by_tanh() -> None:
    assert read("gemma", hidden_act="gelu").activation == "gelu_tanh"
    assert read("gemma2", hidden_activation="gelu").activation == "gelu"


def test_layers_with_windows() -> None:
    two, three = read("gemma2"), read("gemma3_text", num_hidden_layers=7)
    assert two.local is not None
    assert three.local is not None
    assert two.local.layers == (0, 2)
    assert two.local.mechanisms[-1] == Window(4095)  # a token sees itself and the 4,095 before it
    assert three.local.layers == (0, 1, 2, 3, 4, 6)
    given = read("gemma3_text", sliding_window_pattern=2, sliding_window=5).local
    assert given == Local((0, 2), (HEAD_NORM, Rotary(10_000.0), Window(4)))


def test_half_the_window_is_on_either_side_in_both_directions() -> None:
    config = read("gemma3_text", sliding_window=512, use_bidirectional_attention=True)
    assert not config.causal
    assert config.local is not None
    assert config.local.mechanisms[-1] == Window(256)
    written = write_config(config)
    assert (written["sliding_window"], written["use_bidirectional_attention"]) == (512, True)
    assert read_config(written) == config


def test_rotations_of_each_kind_of_layer_in_older_and_newer_files() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    older = {"rope_theta": 5e5, "rope_local_base_freq": 300.0, "rope_scaling": scaling}
    newer = {"full_attention": {"rope_theta": 5e5, **scaling}, "sliding_attention": {"rope_theta": 300.0}}
    config = read("gemma3_text", **older)
    assert config.mechanisms == (HEAD_NORM, Rotary(5e5, scaling=Linear(8.0)))
    assert config.local is not None
    assert config.local.mechanisms[:2] == (HEAD_NORM, Rotary(300.0))
    assert read("gemma3_text", rope_parameters=newer) == config
    assert read_config(write_config(config)) == config
    assert read("gemma3_text").mechanisms[1] == Rotary(1e6)


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True is not supported for gemma2 models"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters: expected an object for each layer"),
        ("gemma3_text", {"rope_parameters": 3}, "rope_parameters: expected an object"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping: "),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: "),
    ],
)  # fmt: skip
def test_a_choice_that_is_not_computed_is_refused(model_type: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read(model_type, **fields)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wider_weights_in_npformer_s_format_give_the_same_answers(dtype: str, tmp_path: Path) -> None:
    """The factor of the embeddings is still rounded to the training dtype; Transformers would use the stored dtype."""
    folder = tiny.folder(tmp_path / "trained", "gemma", "causal-lm")
    data = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(data))
    config, weights = load_folder(folder)
    wide, wider = load_folder(convert(folder, tmp_path / "own", dtype=dtype))
    assert wide == config
    assert all(np.array_equal(array, flatten(wider)[name]) for name, array in flatten(weights).items())
    assert load_folder(convert(folder, tmp_path / "torch", "torch", dtype))[0].scale_dtype == "float32"


# --- checkpoints of models that also read pictures -------------------------------------------------------------------


def with_pictures(**fields: Any) -> dict[str, Any]:
    own = {name: value for name, value in SIZES.items() if name != "max_position_embeddings"}
    outer = {"model_type": "gemma3", "text_config": own, "vision_config": {"hidden_size": 8}, "image_token_index": 49}
    return outer | {"architectures": ["Gemma3ForConditionalGeneration"], "torch_dtype": "bfloat16"} | fields


def test_the_text_model_is_read_with_the_defaults_of_transformers() -> None:
    config = read_config(with_pictures())
    assert (config.model_type, config.head, config.scale_dtype) == ("gemma3_text", "causal-lm", "bfloat16")
    assert config == read(
        "gemma3_text", architectures=["Gemma3ForCausalLM"], max_position_embeddings=131_072, dtype="bfloat16"
    )
    short = read_config(with_pictures(text_config={"hidden_size": 2560, "num_hidden_layers": 34}))
    assert (short.vocab_size, short.n_heads, short.kv_heads, short.d_head) == (262_208, 8, 4, 256)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_tensors_of_the_text_model_have_a_longer_prefix_and_those_of_pictures_are_not_read(
    prefix: str, tmp_path: Path
) -> None:
    alone = tiny.folder(tmp_path / "alone", "gemma3_text", "causal-lm")
    tensors, _ = read_tensors(alone / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): np.array(array) for name, array in tensors.items()}
    outer = prefix.removesuffix("language_model.") if prefix.startswith("model.") else ""
    renamed |= {
        f"{outer}{module}.weight": np.zeros(3, np.float32) for module in ("vision_tower", "multi_modal_projector")
    }
    both = tmp_path / "both"
    both.mkdir()
    write_tensors(both / "model.safetensors", renamed, {"format": "pt"})
    data = json.loads((alone / "config.json").read_text())
    data["text_config"] = {name: data.pop(name) for name in list(data) if name not in ("architectures", "model_type")}
    data |= {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    (both / "config.json").write_text(json.dumps(data))
    given, expected = load_folder(both), load_folder(alone)
    assert given[0] == expected[0]
    assert all(np.array_equal(array, flatten(given[1])[name]) for name, array in flatten(expected[1]).items())
    written = convert(both, tmp_path / "text", to="torch")
    assert json.loads((written / "config.json").read_text())["model_type"] == "gemma3_text"
    assert load_folder(written)[0] == expected[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_config": None}, "text_config: expected an object, got None"),
        ({"architectures": ["Gemma3ForAudio"]}, "architectures: expected one of Gemma3TextModel"),
    ],
)
def test_a_damaged_description_of_the_text_model_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config(with_pictures(**fields))


# --- the model -------------------------------------------------------------------------------------------------------


def test_norms_begin_as_the_normalized_row() -> None:
    flat = flatten(initialize(tiny.config("gemma3_text", "base")))
    norms = [array for name, array in flat.items() if "norm" in name]
    assert len(norms) == 13  # four norms of rows and two of heads in each of two layers, and the last norm
    assert not np.concatenate(norms).any()


def test_scores_and_logits_are_capped() -> None:
    found = trace(model("gemma2"), np.arange(5, 14))
    for name in ("layers.0.attention.scores", "layers.1.attention.scores", "logits"):
        before = "head.output" if name == "logits" else name.replace("scores", "uncapped_scores")
        assert np.abs(found[before]).max() > 1.5
        np.testing.assert_allclose(found[name], 1.5 * np.tanh(found[before] / 1.5), rtol=1e-6)


@pytest.mark.parametrize("name", CHOICES)
def test_gradients_are_finite_differences(name: str) -> None:
    """Central differences with steps of 1e-6 in float64 have a relative error of about 1e-8."""
    of = model(name, dtype=np.float64)
    batch, recording = packed(of.config, [Text(np.arange(5, 14)), Text(np.arange(20, 24))]), Recording()
    with listen(recording):
        logits = forward(of.weights, of.parts, batch)["logits"]
    random = np.random.default_rng(0)
    grad, flat = random.standard_normal(logits.shape), flatten(dict(of.weights))
    found = flatten(backward({"logits": grad.copy()}, recording.stages, of.weights, of.parts, batch))
    tables = ("attention_norm", "attention.output_norm", "ffn.output_norm", "attention.query", "attention.query_norm")
    for each in (f"layers.0.{table}.weight" for table in tables if f"layers.0.{table}.weight" in flat):
        direction = random.standard_normal(flat[each].shape)
        moved = [unflatten({**flat, each: flat[each] + step * direction}) for step in (1e-6, -1e-6)]
        ahead, behind = (float((forward(tree, of.parts, batch)["logits"] * grad).sum()) for tree in moved)
        assert (ahead - behind) / 2e-6 == pytest.approx(float((found[each] * direction).sum()), rel=1e-6), each


@pytest.mark.parametrize("name", CHOICES)
def test_the_parts_of_a_logit_add_up_through_norms_and_caps(name: str) -> None:
    of, ids = model(name, dtype=np.float64), np.arange(5, 14)
    found = logit_attribution(of, ids, label=7)
    assert found.total == pytest.approx(found.logit, rel=1e-12)
    recorded = trace(of, ids)
    written = head_results(of, recorded).sum(axis=1)
    for i, rows in enumerate(written):
        np.testing.assert_allclose(rows, recorded[f"layers.{i}.attention.output_norm"], rtol=1e-9, atol=1e-12)
    assert all(isinstance(block, Normed) for _, block in of.parts.stack.layers[0].blocks)


# --- the diagnosis ---------------------------------------------------------------------------------------------------

#: A mistake in a part that both models have is planted in one model only.
CASES = [(name, planted) for name in CHOICES for planted in PLANTED[name]]


def of_head(name: str) -> Model:
    return model(name, "causal-lm" if name == "gemma2" else "base")


QUICK = ("w for 1 + w", "Llama's places", "norm of the sum", "no cap of scores", "rotated first")


@pytest.mark.parametrize(
    ("name", "planted", "full"),
    [
        pytest.param(*case, full, marks=() if full and case[1] in QUICK else pytest.mark.slow)
        for full in (True, False)
        for case in CASES
    ],
)
def test_a_mistake_of_a_port_is_named(name: str, planted: str, full: bool) -> None:
    ends = ("/embeddings.token", "/norm", "/logits", "_residual")
    mistake, plant = PLANTED[name][planted]
    found = str(diagnosed(of_head(name), plant, lambda stage: full or stage.endswith(ends)))
    assert mistake in found.partition("then")[0], found


def test_norms_after_the_rotation_are_not_reported_as_missing() -> None:
    """If stages of norms are missing, a port that rotates first cannot be distinguished from one without norms."""
    _, plant = PLANTED["gemma3_text"]["rotated first"]
    found = diagnosed(of_head("gemma3_text"), plant, lambda stage: not stage.endswith("_normed"))
    assert found.causes == ["norms of queries and keys after the rotation"], found
    assert not found.then, found
