"""Another program's arrays are recognized by name and layout, and compared within budgets. Other arrays are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import flatten, load_folder
from npformer.checkpoint import tree as layout
from npformer.checkpoint.archive import load_arrays
from npformer.checkpoint.read import read_folder
from npformer.common.errors import NpformerError
from npformer.families import family_of
from npformer.golden.names import per_text, weight_names
from npformer.golden.weights import check_weights
from npformer.interpret.stages import modules
from npformer.model import Model
from tests.golden.conftest import LENGTHS, texts_for
from tests.support import tiny
from tests.support.seq2seq_models import random_model

pytestmark = pytest.mark.numbers


def ours(recorded: golden.Golden) -> dict[str, np.ndarray]:
    """The recorded float32 stages, named text by text."""
    return {f"{i}/{name}": array for name in recorded.stages for i, array in enumerate(recorded.stages[name])}


def packed(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays)


def padded(arrays: list[np.ndarray], width: int = 9, fill: float = np.nan) -> np.ndarray:
    """A batch whose token axes are as long as the longest text, with filler after shorter texts."""
    lengths = dict.fromkeys(LENGTHS)
    shape = [max(each.shape[axis] for each in arrays) for axis in range(arrays[0].ndim)]
    shape = [width if size == max(lengths) else size for size in shape]
    batch = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = array
    return batch


# --- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [9, 16])
def test_a_padded_batch_of_all_stages_is_recognized(recorded: golden.Golden, width: int) -> None:
    """Padding values do not matter, so they are NaN here."""
    comparison = golden.compare(recorded, {name: padded(arrays, width) for name, arrays in recorded.stages.items()})
    assert comparison.ok
    assert not comparison.missing
    assert len(comparison.rows) == len(recorded.stages)
    # 1 / FACTOR, because the recorded run is one of the draws
    assert max(row.budgets for row in comparison.rows) <= 0.2


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("layers.0.attention.query", packed),
        ("layers.0.attention.query", lambda arrays: padded(arrays).reshape(27, 32)),
        ("layers.0.attention.query_heads", lambda arrays: padded(arrays).swapaxes(1, 2)),
        ("layers.0.attention.query", lambda arrays: padded(arrays).reshape(3, 9, 4, 8)),
        ("layers.1.attention.weights", padded),
        ("logits", np.stack),
    ],
)
def test_other_layouts_are_recognized(recorded: golden.Golden, name: str, layout: Callable) -> None:
    comparison = golden.compare(recorded, {name: layout(recorded.stages[name])})
    assert [row.stage for row in comparison.rows] == [name]
    assert comparison.ok, str(comparison)


def test_positions_given_once_are_used_for_all_texts(recorded: golden.Golden) -> None:
    assert golden.compare(recorded, {"embeddings.position": recorded.stages["embeddings.position"][0][None]}).ok


def test_one_text_comes_with_or_without_a_batch_axis(model: Model) -> None:
    recorded = golden.record(model, texts_for(model, (5,)))
    for batch in (False, True):
        arrays = {name: each[0][None] if batch else each[0] for name, each in recorded.stages.items()}
        assert golden.compare(recorded, arrays).ok
    longer = {"logits": recorded.stages["logits"][0], "layers.0.ffn_norm": np.zeros((1, 8, 32), np.float32)}
    longer["layers.0.ffn_norm"][0, :5] = recorded.stages["layers.0.ffn_norm"][0]
    assert golden.compare(recorded, longer).ok


def test_shapes_that_are_no_layout_are_not() -> None:
    shapes = [(9, 32), (6, 32)]
    for shape in ((9, 32), (2, 8, 32), (2, 9, 16), (3, 9, 32), (14, 32), (15, 31), (32,)):
        assert per_text("layers.0.attention.query", np.zeros(shape), shapes, (0,)) is None
    assert per_text("layers.0.attention.weights", np.zeros((2, 4, 9, 8)), [(4, 9, 9), (4, 6, 6)], (1, 2)) is None


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [True, False])
def test_hugging_faces_module_paths_are_known(model: Model, recorded: golden.Golden, prefix: bool) -> None:
    arrays = {}
    for path, stage in modules(model.config).items():
        name = path if prefix else path.removeprefix(family_of(model.config).prefix)
        if stage in recorded.stages and name != "pooler":  # npformer has a different stage named "pooler"
            arrays[name] = padded(recorded.stages[stage])
    comparison = golden.compare(recorded, arrays)
    assert comparison.ok, str(comparison)
    assert not comparison.theirs.unused
    assert len(comparison.rows) >= 19


def test_transformer_lens_hooks_and_models_outputs_are_known(recorded: golden.Golden) -> None:
    first, last = "layers.0.ffn_norm", "layers.1.ffn_norm"
    if recorded.config.norm_first:
        first, last = "layers.0.ffn_residual", "norm"
    arrays = {
        "blocks.0.attn.hook_q": padded(recorded.stages["layers.0.attention.query_heads"]).swapaxes(1, 2),
        "blocks.1.attn.hook_pattern": padded(recorded.stages["layers.1.attention.weights"]),
        "hidden_states.1": padded(recorded.stages[first]),
        "last_hidden_state": padded(recorded.stages[last]),
        "attentions.0": padded(recorded.stages["layers.0.attention.weights"]),
    }
    comparison = golden.compare(recorded, arrays)
    assert comparison.ok
    assert len(comparison.rows) == 5


def test_both_logits_of_answers_come_in_one_array() -> None:
    model = tiny.model("bert", "question-answering")
    recorded = golden.record(model, texts_for(model))
    both = np.stack([padded(recorded.stages[f"{name}_logits"]) for name in ("start", "end")], axis=-1)
    comparison = golden.compare(recorded, {"qa_outputs": both})
    assert comparison.ok
    assert [row.stage for row in comparison.rows] == ["start_logits", "end_logits"]


def test_a_map_of_names_is_followed(recorded: golden.Golden) -> None:
    arrays = {"h3": packed(recorded.stages["layers.0.ffn_norm"]), "extra": np.zeros(3)}
    comparison = golden.compare(recorded, arrays, {"h3": "layers.0.ffn_norm"})
    assert comparison.ok
    assert comparison.theirs.unused == ["extra"]
    with pytest.raises(NpformerError, match=r"name map: 'h3'.*did you mean layers.0.ffn_norm"):
        golden.compare(recorded, arrays, {"h3": "layers.0.ffn_nrom"})


def test_nothing_recognized_is_an_error_that_shows_both_kinds_of_names(recorded: golden.Golden) -> None:
    with pytest.raises(NpformerError, match=r"expected names like layers.0.attention.\w+ or [\w.]+, got a, b;"):
        golden.compare(recorded, {"a": np.zeros(3), "b": np.zeros(3)})
    with pytest.raises(NpformerError, match="no array has the name"):
        golden.compare(recorded, {})


# --- differences ----------------------------------------------------------------------------------------------------


def test_the_first_stage_that_diverges_is_named_and_where(recorded: golden.Golden) -> None:
    arrays = ours(recorded)
    for name in ("layers.0.ffn.hidden", "layers.1.ffn_norm"):
        arrays[f"1/{name}"] = arrays[f"1/{name}"].copy()
        arrays[f"1/{name}"][4, 7] += 0.01
    comparison = golden.compare(recorded, arrays)
    assert not comparison.ok
    first = comparison.first
    assert (first.stage, first.worst) == ("layers.0.ffn.hidden", (1, 4, 7))
    np.testing.assert_allclose(first.max_abs, 0.01, 1e-3)
    np.testing.assert_allclose(first.budgets, first.max_abs / recorded.budgets["layers.0.ffn.hidden"])
    assert 0.9999 < first.cosine < 1
    assert [row.stage for row in comparison.rows if row.diverges] == ["layers.0.ffn.hidden", "layers.1.ffn_norm"]


def test_the_table_fits_in_80_columns(recorded: golden.Golden) -> None:
    arrays = ours(recorded)
    arrays["0/layers.0.attention.query_heads"] = -1e4 * arrays["0/layers.0.attention.query_heads"]
    text = str(golden.compare(recorded, {**arrays, **{f"other {i}": np.zeros(1) for i in range(9)}}))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["stage", "max", "abs", "budgets", "cosine", "worst", "at"]
    assert lines[-1] == "the first stage that diverges: layers.0.attention.query_heads"
    assert "not used: other 0, other 1" in text
    assert "3 more" in text


def test_nan_diverges(recorded: golden.Golden) -> None:
    arrays = ours(recorded)
    arrays["2/layers.0.attention.weights"] = arrays["2/layers.0.attention.weights"].copy()
    arrays["2/layers.0.attention.weights"][1, 2] = np.nan
    comparison = golden.compare(recorded, arrays)
    assert comparison.first.stage == "layers.0.attention.weights"
    assert comparison.first.worst == (2, 1, 2, 0)
    assert "nan at 2, 1, 2, 0; 3 values of text 2 are not finite" in str(comparison)


def test_a_stage_of_another_shape_diverges(recorded: golden.Golden) -> None:
    comparison = golden.compare(recorded, {"layers.0.ffn_norm": np.zeros((3, 9, 768)), "logits": np.zeros((3, 2))})
    assert comparison.first.stage == "layers.0.ffn_norm"
    assert "expected (9, 32), and one for each of 3 texts, named i/STAGE, or a batch of them, got (3, 9, 768)" in str(
        comparison
    )


def test_stages_that_are_missing_are_said_and_no_failure(recorded: golden.Golden) -> None:
    comparison = golden.compare(recorded, {"logits": np.stack(recorded.stages["logits"])})
    assert comparison.ok
    assert len(comparison.missing) == len(recorded.stages) - 1
    assert "not compared, because the port has no such stage: embeddings.token" in str(comparison)
    with pytest.raises(NpformerError, match="no array has the name"):
        golden.compare(recorded, {"3/nothing": np.zeros(1)})
    partly = {key: array for key, array in ours(recorded).items() if key != "1/logits"}
    assert "expected one array for each text, 0 to 2, got [0, 2]" in str(golden.compare(recorded, partly))


def test_other_token_ids_are_an_error(recorded: golden.Golden) -> None:
    arrays = ours(recorded)
    for name, ids in {
        "input_ids": padded([text.ids for text in recorded.texts], fill=0),
        "0/ids": recorded.texts[0].ids,
    }.items():
        assert golden.compare(recorded, {**arrays, name: ids}).ok
        with pytest.raises(NpformerError, match="text 0: expected the golden file's token ids"):
            golden.compare(recorded, {**arrays, name: ids + 1})
        many = np.broadcast_to(np.int64(7), (10**7, 10**7))  # too many numbers to list
        with pytest.raises(NpformerError, match=r"golden file's token ids, \[[^]]+\], got \[7, 7, .{60,90}; run"):
            golden.compare(recorded, {**arrays, name: many})
    with pytest.raises(NpformerError, match="the golden file has 3 texts"):
        golden.compare(recorded, {**arrays, "3/ids": recorded.texts[0].ids})


@pytest.mark.parametrize("array", [np.array(["a"]), np.zeros(3, complex), np.array([None])])
def test_arrays_of_no_numbers_are_an_error(recorded: golden.Golden, array: np.ndarray) -> None:
    with pytest.raises(NpformerError, match="logits: expected an array of numbers"):
        golden.compare(recorded, {"logits": array})


def test_assert_close_is_for_tests(recorded: golden.Golden) -> None:
    arrays = ours(recorded)
    golden.assert_close(recorded, arrays)
    with pytest.raises(AssertionError, match="the first stage that diverges: logits"):
        golden.assert_close(recorded, {"logits": np.zeros((3, 2), np.float32)})
    with pytest.raises(AssertionError, match="no stage was compared"):
        golden.assert_close(recorded, {"layers.0.attention.query.weight": np.zeros((32, 32))})


# --- files of arrays ------------------------------------------------------------------------------------------------


def test_arrays_come_from_safetensors_and_npz(recorded: golden.Golden, tmp_path: Path) -> None:
    import safetensors.numpy

    arrays = {name: padded(each, fill=0) for name, each in recorded.stages.items()}
    np.savez(tmp_path / "a.npz", **arrays)
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(each) for name, each in arrays.items()}, tmp_path / "a.safetensors"
    )
    for name in ("a.npz", "a.safetensors"):
        assert golden.compare(recorded, load_arrays(tmp_path / name)[0]).ok


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(1000), b=np.arange(3))
    data = (tmp_path / "a.npz").read_bytes()
    for spoilt in (b"", data[:50], data[: len(data) // 2], b"PK" + data[:99], data.replace(b"NUMPY", b"NUMBY")):
        (tmp_path / "b.npz").write_bytes(spoilt)
        with pytest.raises(NpformerError, match=r"b\.npz: not a readable npz file"):
            load_arrays(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", a=np.array([{"an": "object"}]))
    with pytest.raises(NpformerError, match="not a readable npz file"):
        load_arrays(tmp_path / "c.npz")
    with pytest.raises(NpformerError, match="No such file"):
        load_arrays(tmp_path / "d.npz")


# --- weights --------------------------------------------------------------------------------------------------------


def test_weights_are_recognized_in_both_layouts(model: Model, recorded: golden.Golden, tmp_path: Path) -> None:
    config, tree = load_folder(tiny.folder(tmp_path / "m", model.config.model_type))
    either = [flatten(tree), layout.to_torch(tree, config)]
    for arrays in either:
        comparison = golden.compare(recorded, arrays)
        assert not comparison.rows
        assert not comparison.theirs.unused
        assert len(comparison.theirs.weights) == len(flatten(tree))
        assert check_weights(model, comparison.theirs.weights) == []
    one_in_three = {source.names[0] for source in layout.sources(config).values() if source.part}
    assert set(either[1]) - one_in_three <= set(weight_names(config))


def in_wrong_scales(w: np.ndarray) -> np.ndarray:
    """Rounds w (out, in) to int8 with a scale for each output, and converts it back with a scale for each input."""
    scales = np.abs(w).max(axis=1) / 127
    return np.rint(w / scales[:, None]) * scales


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda w: w.T, r"stored as \(in, out\), but the others as \(out, in\): it is transposed"),
        (lambda w: w + 0.5, "differs by up to 0.5"),
        (lambda w: w * 0, "all zeros"),
        (lambda w: w[:16], r"expected \(32, 32\) or \(32, 32\), got \(16, 32\)"),
        (lambda w: w.astype(np.float16), "rounded to float16"),
        (lambda w: w[[*range(8, 16), *range(8), *range(16, 32)]], "columns of heads 0 and 1 exchanged"),
        (lambda w: w[[*range(24), *range(16, 24)]], "columns of head 3 are those of head 2"),
        (lambda w: w[:, [0, *range(31)]], "rows 1 to 31 are 0 to 30"),
        (lambda w: w * (np.arange(32) < 20), "rows 20 to 31 are 0"),
        (in_wrong_scales, "int8 with the scales of columns applied to rows"),
        (lambda w: w + 0.5 * (np.arange(32) == 3), "differs by up to 0.5 in row 3"),
    ],
)
def test_errors_in_weights_are_described(change: Callable, finding: str) -> None:
    model = tiny.model()
    arrays = layout.to_torch(dict(model.weights), model.config)
    name = "distilbert.transformer.layer.1.attention.k_lin.weight"
    arrays[name] = change(np.array(arrays[name]))
    recorded = golden.record(model, "no")
    found = check_weights(model, golden.compare(recorded, arrays).theirs.weights)
    assert len(found) == 1
    import re

    assert re.search(f"layers.1.attention.key.weight: {finding}", str(found[0])), found


@pytest.mark.parametrize("one", [1, -1])
def test_a_norm_without_the_1_of_1_plus_weight_is_named(one: int) -> None:
    model = tiny.model("gemma2", "causal-lm")
    name = "layers.0.attention_norm.weight"
    theirs = {name: np.asarray(model.weights["layers"][0]["attention_norm"]["weight"] + one)}
    (found,) = check_weights(model, theirs)
    assert str(found) == f"{name}: the correct values {'+' if one > 0 else '-'} 1"
    assert found.cause == "1 + weight of RMSNorm misused"


def test_a_fused_weight_that_is_split_head_by_head_is_named() -> None:
    model, at = tiny.model(), "layers.0.attention."
    weights = layout.flatten(dict(model.weights))
    heads = {name: np.split(weights[f"{at}{name}.weight"], 4, axis=-1) for name in ("query", "key", "value")}
    whole = np.concatenate([part for each in heads.values() for part in each], axis=-1)
    wrong = [np.concatenate(np.split(whole, 12, axis=-1)[i::3], axis=-1) for i in range(3)]
    weights |= dict(zip((f"{at}{name}.weight" for name in heads), wrong, strict=True))
    found = check_weights(model, weights)
    assert {(each.what, each.cause) for each in found} == {
        ("head by head", "fused query, key and value split wrongly"),
    }


def test_a_moved_bias_and_sinusoids_of_another_formula_are_described() -> None:
    model = random_model()
    table, bias = model.weights["encoder"]["embeddings"]["position"]["weight"], "decoder.layers.1.ffn.hidden.bias"
    exponents = np.arange(table.shape[1] // 2) / (table.shape[1] // 2 - 1)
    angles = np.arange(len(table))[:, None] / 1e4**exponents
    wrong = {
        "encoder.embeddings.position.weight": np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(table.shape),
        bias: np.roll(model.weights["decoder"]["layers"][1]["ffn"]["hidden"]["bias"], 1),
    }
    half = table.shape[1] // 2
    assert {str(each) for each in check_weights(model, wrong)} == {
        f"encoder.embeddings.position.weight: exponents i / {half - 1}, not i / {half}",
        f"{bias}: numbers moved by 1",
    }


def test_numbers_of_one_layout_under_the_shape_of_the_other() -> None:
    model = tiny.model()
    weight = model.weights["layers"][0]["ffn"]["hidden"]["weight"]
    wrong = {"layers.0.ffn.hidden.weight": weight.T.reshape(weight.shape)}
    assert list(map(str, check_weights(model, wrong))) == [
        "layers.0.ffn.hidden.weight: values in (out, in) order, but the shape is (in, out)"
    ]


# --- query, key and value as one -------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_in", [True, False])
@pytest.mark.parametrize("place", ["ours", "module", "map", "torch"])
def test_fused_arrays_are_cut(model: Model, recorded: golden.Golden, place: str, out_in: bool) -> None:
    """Outputs are given text by text, and weights in torch's or npformer's layout, under each kind of name.

    The comparison finds exchanged queries and values.
    """
    parts = ("query", "key", "value")
    module = modules(model.config)
    flat, arrays, names = flatten(dict(model.weights)), dict[str, np.ndarray](), dict[str, str]()
    for i in range(model.config.n_layers):
        theirs = next(path for path, stage in module.items() if stage == f"layers.{i}.attention.output")
        if model.config.model_type != "gpt2":  # GPT-2 has no module for the query alone
            theirs = next(path for path, stage in module.items() if stage == f"layers.{i}.attention.query")
        own = f"layers.{i}.attention.qkv"
        path = {"ours": own, "map": f"mine.{i}", "torch": f"{theirs.rpartition('.')[0]}.in_proj"}.get(
            place, f"{theirs.rpartition('.')[0]}.{'c_attn' if model.config.model_type == 'gpt2' else 'Wqkv'}"
        )
        for number in range(len(LENGTHS)):
            each = [recorded.stages[f"layers.{i}.attention.{part}"][number] for part in parts]
            arrays[f"{number}/{path}"] = np.concatenate(each, axis=-1)
        for kind in ("weight", "bias"):
            whole = np.concatenate([flat[f"layers.{i}.attention.{part}.{kind}"] for part in parts], axis=-1)
            name = f"{path}_{kind}" if place == "torch" else f"{path}.{kind}"
            arrays[name] = whole.T if out_in else whole
        if place == "map":
            names |= {path: own, f"{path}.weight": f"{own}.weight", f"{path}.bias": f"{own}.bias"}
    found = golden.compare(recorded, arrays, names)
    assert found.ok
    assert not found.theirs.unused
    assert len(found.theirs.stages) == 3 * model.config.n_layers
    assert check_weights(model, found.theirs.weights) == []
    swapped = {
        name: np.concatenate(np.split(each, 3, axis=-1)[::-1], axis=-1) if "/" in name else each
        for name, each in arrays.items()
    }
    assert golden.compare(recorded, swapped, names).first.stage == "layers.0.attention.query"


def test_the_weights_of_torch_s_own_modules_are_known_by_its_names(tmp_path: Path) -> None:
    folder = golden.suite(tmp_path / "suite", ["transformer-base"]) / "transformer-base"
    model, recorded = npformer.load(folder), golden.load(folder / golden.TINY_FILE)
    tensors = {name: np.array(each) for name, each in read_folder(folder).tensors.items()}
    assert "layers.1.self_attn.in_proj_weight" in tensors
    found = golden.compare(recorded, tensors).theirs
    assert found.unused == []
    computed = {"embeddings.position.weight"}  # sinusoids, which files do not contain
    assert found.weights.keys() == flatten(dict(model.weights)).keys() - computed
    assert check_weights(model, found.weights) == []
    tensors["layers.1.self_attn.in_proj_bias"] = tensors["layers.0.self_attn.in_proj_bias"]
    said = [str(each) for each in check_weights(model, golden.compare(recorded, tensors).theirs.weights)]
    assert said == [
        f"layers.1.attention.{each}.bias: has layers.0.attention.{each}.bias's" for each in ("query", "key", "value")
    ]


def test_a_fused_array_that_is_no_multiple_of_three_is_not_used(recorded: golden.Golden) -> None:
    right = ours(recorded)
    found = golden.compare(recorded, right | {"layers.0.attention.qkv": np.zeros((9, 95), np.float32)})
    assert found.theirs.unused == ["layers.0.attention.qkv"]
