"""`keep`: weights in memory in bfloat16, float16 or int8. The answers equal the answers with the rounded weights in
float32 (for int8, within rounding)."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError, golden
from npformer.checkpoint import convert, flatten, load_folder
from npformer.checkpoint.read import FINITE, OWN_WEIGHTS, read_folder
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.checkpoint.tree import SCALE, SMALL
from npformer.cli.main import main
from npformer.engine.runtime.mapped import is_mapped
from npformer.engine.runtime.narrow import NARROW, NarrowWeight
from npformer.golden.record import weights_sha256
from npformer.interpret.direct_attribution import logit_attribution
from npformer.interpret.integrated_gradients import by_gradients
from npformer.training import Trainable
from tests.support import tiny

WIDE = {"d_model": 96, "n_heads": 2, "d_ffn": 128, "vocab_size": 300, "max_length": 64}
IDS = np.array([[5, 17, 200, 33, 8, 90, 12, 7]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.folder(tmp_path / "gpt2", "gpt2", "causal-lm", **WIDE)


@pytest.fixture(params=["torch", "npformer"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns a GPT-2 folder in torch's or npformer's own layout."""
    return tiny.folder(tmp_path / "gpt2", "gpt2", "causal-lm", own=request.param == "npformer", **WIDE)


def narrow(model: Any) -> dict[str, NarrowWeight]:
    return {name: each for name, each in flatten(dict(model.weights)).items() if isinstance(each, NarrowWeight)}


def in_float32(model: Any) -> npformer.Model:
    """Returns the model with its weights converted to float32 arrays."""
    arrays = {name: np.array(each) for name, each in flatten(dict(model.weights)).items()}
    return npformer.Model(model.config, npformer.checkpoint.unflatten(arrays))


@pytest.mark.parametrize("keep", NARROW)
def test_answers_are_those_of_the_float32_numbers(either: Path, keep: str) -> None:
    model = npformer.load(either, keep=keep)
    arrays = flatten(dict(model.weights))
    assert all(isinstance(each, NarrowWeight) == (each.ndim == 2 and each.size >= SMALL) for each in arrays.values())
    assert {each.stored for each in narrow(model).values()} == {keep}
    table, head = arrays["embeddings.token.weight"], arrays["head.output.weight"]
    assert np.shares_memory(table.values, head.values)
    found, expected = model(IDS).logits, in_float32(model)(IDS).logits
    if keep == "int8":  # int8 products are scaled after the sum
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model([*IDS, IDS[0, :3]]).logits[0], found[0])
    one, two = ([each.ids for [each] in model.generate(rows, max_new_tokens=5)] for rows in (IDS, [*IDS, IDS[0, 3:]]))
    np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.parametrize("keep", NARROW)
def test_a_converted_folder_has_the_narrow_weights_and_is_mapped(either: Path, keep: str, tmp_path: Path) -> None:
    expected = npformer.load(either, keep=keep)
    converted = convert(either, tmp_path / keep, keep=keep)
    assert (converted / OWN_WEIGHTS).stat().st_size < 0.6 * sum(a.nbytes for a in read_folder(either).tensors.values())
    for name in (keep, "stored"):
        model = npformer.load(converted, keep=name)
        assert is_mapped(model.weights)
        assert narrow(model).keys() == narrow(expected).keys()
        np.testing.assert_array_equal(model(IDS).logits, expected(IDS).logits)
    wide = npformer.load(converted)
    assert not narrow(wide)
    np.testing.assert_array_equal(wide(IDS).logits, in_float32(expected)(IDS).logits)
    again = convert(converted, tmp_path / "again")
    assert (again / OWN_WEIGHTS).read_bytes() == (converted / OWN_WEIGHTS).read_bytes()
    torch = convert(converted, tmp_path / "torch", to="torch")
    np.testing.assert_array_equal(npformer.load(torch)(IDS).logits, wide(IDS).logits)
    unscaled = convert(converted, tmp_path / "float32", dtype="float32")
    assert not any(name.endswith(SCALE) for name in read_folder(unscaled).tensors)


def test_stored_keeps_each_tensor_s_own_dtype(tmp_path: Path) -> None:
    model = npformer.load("distilbert-sst2", keep="stored")
    assert {each.stored for each in narrow(model).values()} == {"float16"}
    ids = [[101, 1045, 2293, 3256, 6949, 102]]
    np.testing.assert_array_equal(model(ids).logits, npformer.load("distilbert-sst2")(ids).logits)
    assert not narrow(npformer.load(tiny.folder(tmp_path / "float32", **WIDE), keep="stored"))


def test_a_translation_model(tmp_path: Path) -> None:
    expected, found = (npformer.load("en-de-multi30k", keep=keep) for keep in ("float32", "stored"))
    source = np.array([[5, 17, 200, 33, 8]])
    for each in (
        lambda model: model(source, labels=IDS).logits,
        lambda model: model.generate(source, num_beams=3, max_new_tokens=8)[0][0].ids,
    ):
        np.testing.assert_array_equal(each(expected), each(found))


# --- other readers of weights -----------------------------------------------------------------------------------


def test_traces_gradients_and_copies_read_the_numbers(folder: Path) -> None:
    model, text = npformer.load(folder, keep="bfloat16"), npformer.Text(IDS[0])
    plain = in_float32(model)
    plain.tokenizer = model.tokenizer
    ours, theirs = (npformer.trace(each, text) for each in (model, plain))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    explained, expected = (logit_attribution(each, text) for each in (model, plain))
    np.testing.assert_array_equal(explained.heads, expected.heads)
    explained, expected = (by_gradients(each, text, list("abcdefgh"), None, steps=2) for each in (model, plain))
    for method, same in zip(explained, expected, strict=True):
        np.testing.assert_array_equal(method.scores, same.scores)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)


def test_golden_files_and_the_doctor_read_the_numbers(folder: Path) -> None:
    model = npformer.load(folder, keep="bfloat16")
    plain = in_float32(model)
    assert weights_sha256(model) == weights_sha256(plain)
    name = "layers.0.ffn.hidden.weight"
    weight = np.asarray(flatten(dict(model.weights))[name])
    assert not golden.check_weights(model, {name: weight})
    [finding] = golden.check_weights(model, {name: weight * 0})
    assert finding.what == "all zeros"


def test_narrow_weights_are_neither_changed_nor_trained(folder: Path) -> None:
    model = npformer.load(folder, keep="int8")
    with pytest.raises(NpformerError, match=r"expected float32, got int8; load the model without keep"):
        Trainable(model.weights, model.config)
    with pytest.raises(NpformerError, match="cannot be changed"):
        model.weights["layers"][0]["ffn"]["hidden"]["weight"][0, 0] = 1


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": "int4"}, "keep: expected one of float32, bfloat16, float16, int8, stored, got 'int4'"),
        ({"keep": "int8", "dtype": "float64"}, "keep: 'int8' needs dtype float32, got float64"),
        ({"keep": "int8", "writable": True}, "keep: 'int8' is not supported with writable=True; omit keep"),
        ({"keep": "int8", "allow_nonfinite": True}, "keep: 'int8' is not supported with allow_nonfinite=True"),
    ],
)
def test_impossible_settings(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        npformer.load(folder, **given)


def test_impossible_conversions(folder: Path, tmp_path: Path) -> None:
    for given in ({"to": "torch"}, {"dtype": "float16"}):
        with pytest.raises(NpformerError, match="keep: 'int8' works only in npformer's format and without dtype"):
            convert(folder, tmp_path / "x", keep="int8", **given)
    with pytest.raises(NpformerError, match="keep: expected one of bfloat16, float16, int8, got 'stored'"):
        convert(folder, tmp_path / "x", keep="stored")


@pytest.mark.parametrize(("number", "keep"), [(np.nan, "int8"), (np.inf, "bfloat16"), (1e6, "float16")])
def test_numbers_that_cannot_be_kept_are_named(tmp_path: Path, number: float, keep: str) -> None:
    folder = tiny.folder(tmp_path / "m", "gpt2", "causal-lm", **WIDE)
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    name = next(name for name in tensors if name.endswith("mlp.c_fc.weight"))
    tensors[name][3, 4] = number
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(
        NpformerError, match=rf"layers\.0\.ffn\.hidden\.weight.*{'too large' if number == 1e6 else number}"
    ):
        npformer.load(folder, keep=keep)


def test_a_scale_of_another_shape_is_refused(folder: Path, tmp_path: Path) -> None:
    converted = convert(folder, tmp_path / "int8", keep="int8")
    tensors = dict(read_folder(converted).tensors)
    name = f"layers.0.ffn.hidden.weight{SCALE}"
    tensors[name] = tensors[name][:, 1:]
    write_tensors(converted / OWN_WEIGHTS, tensors, {})
    with pytest.raises(NpformerError, match=rf"{name}: expected float32 \(1, 128\) or \(96, 1\) for an int8 matrix"):
        load_folder(converted)


def test_commands_and_pipelines_take_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["classify", "--keep", "int8", "I love ice cream"]) == 0
    assert "POSITIVE" in capsys.readouterr().out
    assert main(["convert", "distilbert-sst2", str(tmp_path / "int8"), "--keep", "int8"]) == 0
    assert "23." in capsys.readouterr().out
    assert main(["classify", "-m", str(tmp_path / "int8"), "--keep", "stored", "I love ice cream"]) == 0
    task = npformer.pipeline("text-classification", "distilbert-sst2", keep="bfloat16")
    assert {each.stored for each in narrow(task.model).values()} == {"bfloat16"}
    with pytest.raises(NpformerError, match="keep: the model is already loaded"):
        npformer.pipeline("text-classification", task.model, keep="int8")


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("marked", [True, False])
def test_a_scale_that_is_not_finite_is_refused_like_such_a_weight(scale, marked, tmp_path):
    """NumPy prints no warning, whether or not the file says that its weights are finite."""
    folder = convert(npformer.load("distilbert-sst2").folder, tmp_path / "m", keep="int8")
    arrays, _ = read_tensors(folder / OWN_WEIGHTS, mapped=False)
    name = "layers.0.attention.output.weight_scale"
    damaged = arrays[name].copy()
    damaged[0, 3] = scale
    metadata = {"format": "npformer"} | ({FINITE: "true"} if marked else {})
    write_tensors(folder / OWN_WEIGHTS, {**arrays, name: damaged}, metadata)
    for keep in ("float32", "stored", "int8", "float16"):
        number = re.escape(f"{damaged[0, 3]}")
        with pytest.raises(NpformerError, match=rf"{name}: the number at \[0, 3\] is {number}; the checkpoint is"):
            npformer.load(folder, keep=keep)
    assert npformer.load(folder, allow_nonfinite=True).weights["layers"][0]["attention"]["output"]["weight"].shape
