"""A model folder: which files are read, and errors for files that do not fit together."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from npformer.checkpoint import flatten, load_folder, to_tree
from npformer.checkpoint.read import read_description
from npformer.checkpoint.tied import ties
from npformer.checkpoint.tree import sources, to_torch
from npformer.common.errors import NpformerError, NpformerWarning
from npformer.families import read_config
from tests.support import draw, tiny, torch_writer

ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())
NAME = "BertForSequenceClassification"
CONFIG = ARCHITECTURES[NAME]["config"]
INDEX = {"safetensors": "model.safetensors.index.json", "bin": "pytorch_model.bin.index.json"}


def tensors(seed=0):
    return draw.tensors(ARCHITECTURES[NAME]["tensors"], seed)


def save(path, arrays):
    (torch_writer.save if path.suffix == ".bin" else lambda p, a: safetensors.numpy.save_file(a, p))(path, arrays)


def save_shards(folder, kind, arrays, change=None):
    names = sorted(arrays)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard = f"model-{i + 1:05}-of-00002.{kind}"
        save(folder / shard, {name: arrays[name] for name in part})
        weight_map |= dict.fromkeys(part, shard)
    weight_map |= change or {}
    (folder / INDEX[kind]).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def assert_loads(folder, arrays, dtype=np.float32):
    config, tree = load_folder(folder, dtype)
    assert config == read_config(CONFIG)
    expected = flatten(to_tree(arrays, config, dtype))
    found = flatten(tree)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == dtype
        assert not array.flags.writeable
        assert np.array_equal(array, expected[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_single_file(folder, name, stored, dtype):
    arrays = {key: array.astype(stored) for key, array in tensors().items()}
    save(folder / name, arrays)
    assert_loads(str(folder), arrays, dtype)


@pytest.mark.parametrize("kind", INDEX)
def test_shards(folder, kind):
    save_shards(folder, kind, tensors())
    assert_loads(folder, tensors())


def test_the_order_in_which_files_are_looked_for(folder):
    for seed, name in enumerate(
        ["pytorch_model.bin.index.json", "pytorch_model.bin", INDEX["safetensors"], "model.safetensors"]
    ):
        if name in INDEX.values():
            save_shards(folder, "bin" if "bin" in name else "safetensors", tensors(seed))
        else:
            save(folder / name, tensors(seed))
        assert_loads(folder, tensors(seed))


def test_a_folder_without_weights_lists_the_expected_and_the_existing_files(folder):
    (folder / "tf_model.h5").touch()
    with pytest.raises(NpformerError) as error:
        load_folder(folder)
    assert str(error.value) == (
        f"{folder}: no weights; looked for npformer.safetensors, model.safetensors, model.safetensors.index.json, "
        "pytorch_model.bin, pytorch_model.bin.index.json; found config.json, tf_model.h5"
    )


@pytest.mark.parametrize("path", ["nowhere", "config.json", "nul\0"])
def test_no_folder(folder, path):
    with pytest.raises(NpformerError):
        load_folder(folder / path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected a JSON object, got a list"),
        (b"{}", "model_type: expected one of distilbert, bert, .*got None"),
        (b"9" * 5000, "not JSON"),
    ],
)
def test_config_json(folder, content, message):
    save(folder / "model.safetensors", tensors())
    path = folder / "config.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(NpformerError, match=message) as error:
        load_folder(folder)
    assert str(error.value).startswith(f"{path}: ")


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(NpformerError, match="not a regular file"):
        load_folder(folder)


@pytest.mark.parametrize("dtype", [None, np.int16, "int8", "nonsense", 3])
def test_parameters_are_float32_or_float64(folder, dtype):
    save(folder / "model.safetensors", tensors())
    with pytest.raises(NpformerError, match="dtype: expected float32 or float64"):
        load_folder(folder, dtype)


def test_dtype_by_name(folder):
    save(folder / "model.safetensors", tensors())
    assert flatten(load_folder(folder, "float64")[1])["pooler.bias"].dtype == np.float64


def test_errors_name_the_folder(folder):
    save(folder / "model.safetensors", {"x": np.zeros(1, np.float32)})
    with pytest.raises(
        NpformerError, match=f"^{folder}: the checkpoint does not match its config.json:\n  missing: emb"
    ):
        load_folder(folder)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model."])
def test_the_prefix_of_a_wrapper_is_named(folder, prefix):
    """The file has all missing names, but with a prefix, so the error names the prefix."""
    save(folder / "model.safetensors", {prefix + name: array for name, array in tensors().items()})
    with pytest.raises(NpformerError, match=rf"all names of tensors begin with '{prefix.split('.')[0]}\."):
        load_folder(folder)


@pytest.mark.parametrize(
    ("model_type", "head", "stored"),
    [
        ("gpt2", "causal-lm", "head.output.weight"),
        ("llama", "causal-lm", "head.output.weight"),
        ("bert", "masked-lm", "head.output.weight"),
        ("t5", "translation", "head.output.weight"),
        ("bart", "translation", "decoder.embeddings.token.weight"),
    ],
)
def test_a_table_is_read_from_an_array_that_is_tied_to_it(model_type, head, stored):
    """safetensors.torch.save_model keeps one of the tied arrays, the first in alphabetical order."""
    model = tiny.model(model_type, head, tied=True)
    arrays, places, table = to_torch(model.weights, model.config), sources(model.config), ties(model.config)[stored]
    array = next(arrays.pop(name) for name in places[table].names if name in arrays)
    for name in places[table].names:
        arrays.pop(name, None)
    arrays[next(name for name in places[stored].names if name not in places[table].names)] = array
    found = flatten(to_tree(arrays, model.config))
    for name, expected in flatten(model.weights).items():
        np.testing.assert_array_equal(found[name], expected)


# --- weights that are not read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config: .* quantized with gptq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: .* quantized with fp8"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization: .* quantized with MLX"),
    ],
)
def test_quantized_weights_are_refused_by_the_config_alone(folder, fields, said):
    (folder / "config.json").write_text(json.dumps(CONFIG | fields))
    (folder / "model.safetensors").write_bytes(b"not read")
    with pytest.raises(NpformerError, match=f"^{folder}/config.json: {said} .*use the original model"):
        load_folder(folder)
    with pytest.raises(NpformerError, match=said):
        read_config(CONFIG | fields)


def test_plain_weights_may_have_settings_of_bitsandbytes(folder):
    """Weights that were merged after a fine-tuning with quantized weights keep the settings of bitsandbytes."""
    settings = {"quantization_config": {"load_in_4bit": True, "quant_method": "bitsandbytes"}}
    (folder / "config.json").write_text(json.dumps(CONFIG | settings))
    arrays = tensors()
    save(folder / "model.safetensors", arrays)
    assert_loads(folder, arrays)
    name = "bert.encoder.layer.0.output.dense.weight"
    arrays |= {name: np.zeros((arrays[name].size // 2, 1), np.uint8), f"{name}.absmax": np.zeros(4, np.uint8)}
    save(folder / "model.safetensors", arrays)
    with pytest.raises(NpformerError, match=f"^{folder}: quantization_config: .* quantized with bitsandbytes"):
        load_folder(folder)


def test_an_adapter_is_not_a_model(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/model"}))
    (folder / "adapter_model.safetensors").touch()
    for _ in range(2):  # with and without a config.json
        with pytest.raises(NpformerError, match=f"^{folder}: an adapter for 'owner/model', not a model; merge it"):
            load_folder(folder)
        (folder / "config.json").unlink(missing_ok=True)
    with pytest.raises(NpformerError, match="an adapter for 'owner/model'"):
        read_description(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save(folder / "model.safetensors", tensors())
    with pytest.warns(UserWarning, match=r"adapter_config\.json: the adapter in this folder is not applied"):
        assert_loads(folder, tensors())


# --- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", INDEX)
@pytest.mark.parametrize(
    "shard",
    [
        "../model-00001-of-00002.{kind}",
        "/etc/passwd",
        "{folder}/model-00001-of-00002.{kind}",
        "sub/model-00001-of-00002.{kind}",
        "..\\model-00001-of-00002.{kind}",
        "model\0.{kind}",
        "..",
        "config.json",
        "",
        7,
        ["model-00001-of-00002.{kind}"],
    ],
)
def test_an_index_that_points_out_of_its_folder(folder, kind, shard):
    shard = shard.format(kind=kind, folder=folder) if isinstance(shard, str) else shard
    save_shards(folder, kind, tensors(), {"classifier.weight": shard})
    with pytest.raises(NpformerError, match=rf"index.json: expected names of .{kind} files in the same folder, got"):
        load_folder(folder)


def test_a_shard_that_is_a_link_out_of_the_folder(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save_shards(folder, "safetensors", tensors())
    shard = folder / "model-00001-of-00002.safetensors"
    shard.rename(elsewhere / shard.name)
    shard.symlink_to(elsewhere / shard.name)
    with pytest.raises(
        NpformerError,
        match=r"model-00001-of-00002\.safetensors: a link out of the model folder, to .*copy the folder without links",
    ):
        load_folder(folder)


def test_the_hub_s_cache_links_to_its_blobs(tmp_path):
    """Files are links, as in the hub's cache: models--name/snapshots/<revision>/<file> -> ../../blobs/<hash>."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    save_shards(snapshot, "safetensors", tensors())
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(Path("../../blobs") / str(number))
    assert_loads(snapshot, tensors())


@pytest.mark.parametrize("kind", INDEX)
def test_an_index_that_disagrees_with_its_shards(folder, kind):
    first, second = (f"model-0000{i}-of-00002.{kind}" for i in (1, 2))
    save_shards(folder, kind, tensors(), {min(tensors()): second})
    with pytest.raises(NpformerError, match=f"'{min(tensors())}' is also in {first}|is not in {second}"):
        load_folder(folder)
    save_shards(folder, kind, tensors())
    (folder / second).unlink()
    with pytest.raises(NpformerError, match=f"the shard {second} is missing"):
        load_folder(folder)


@pytest.mark.parametrize("kind", INDEX)
def test_an_invalid_index_entry_that_is_not_needed_is_ignored(folder, kind):
    """An index may still list the tensors of a removed head. No entry may lead to a file outside the folder."""
    first = f"model-00001-of-00002.{kind}"
    odd = [(first, f"'extra' is not in {first}"), (f"gone.{kind}", f"the shard gone.{kind} is missing")]
    odd += [
        (each, rf"expected names of \.{kind} files in the same folder") for each in (f"../{first}", 7, None, ["x"], "")
    ]
    for shard, said in odd:
        save_shards(folder, kind, tensors(), {"extra": shard})
        with pytest.warns(NpformerWarning, match=f"{said}.*; the model does not need it"):
            assert_loads(folder, tensors())


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["x"]}, {"weight_map": None}])
def test_an_index_without_a_map(folder, index):
    (folder / INDEX["safetensors"]).write_text(json.dumps(index))
    with pytest.raises(NpformerError, match="weight_map: expected an object"):
        load_folder(folder)


def test_another_head_of_the_same_checkpoint(folder):
    save(folder / "model.safetensors", tensors())
    config, tree = load_folder(folder, head="base")
    assert config.head == "base"
    assert "head" not in tree
    with pytest.raises(NpformerError, match=r"head: expected one of .*got 'poet'"):
        load_folder(folder, head="poet")
