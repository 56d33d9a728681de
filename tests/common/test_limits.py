"""The table of limits: an error for a value above a limit names the limit, which an argument or option can raise."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import Limits, NpformerError
from npformer.checkpoint import convert, load_folder, tree
from npformer.checkpoint.archive import load_arrays
from npformer.checkpoint.read import read_folder
from npformer.cli.main import main
from npformer.common.errors import warn
from npformer.families import read_config, write_config
from npformer.interpret import stages
from tests.support import tiny, torch_writer

TABLE = {field.name: field.default for field in fields(Limits)}


def torch_folder(path: Path) -> Path:
    """Writes a tiny model with its weights in a torch.save file."""
    folder = tiny.folder(path)
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    torch_writer.save(folder / "pytorch_model.bin", tensors)
    (folder / "model.safetensors").unlink()
    return folder


def sharded_folder(path: Path) -> Path:
    folder = tiny.folder(path)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = read_folder(tiny.folder(path / "twin")).tensors
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")})
    )
    return folder


def sinusoidal(_: Path) -> Path:
    """Returns the committed folder of a Marian model, whose positions are computed."""
    return Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"


MODELS = {
    "json": (sharded_folder, 100),
    "config": (tiny.folder, 100),
    "header": (tiny.folder, 100),
    "pickle": (torch_folder, 100),
    "directory": (torch_folder, 100),
    "layers": (tiny.folder, 1),
    "labels": (tiny.folder, 1),
    "positions": (sinusoidal, 100),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_above_a_limit_are_refused_by_the_limit_s_name(tmp_path, name):
    make, low = MODELS[name]
    folder = make(tmp_path / "model")
    load_folder(folder)
    with pytest.raises(NpformerError, match=rf"limit `{name}` of {low}; .*Limits\({name}=N\).*--allow {name}=N"):
        load_folder(folder, limits=Limits(**{name: low}))


def test_arrays_have_limits_too(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(1000))
    assert len(load_arrays(tmp_path / "a.npz")[0]["a"]) == 1000
    with pytest.raises(NpformerError, match=r"a\.npz: bytes of its arrays: 8128 is more than the limit `unpacked`"):
        load_arrays(tmp_path / "a.npz", Limits(unpacked=8000))


def test_a_model_without_a_table_of_positions_may_have_any_number_of_them():
    for family in ("modernbert", "nomic_bert"):
        data = write_config(tiny.config(family, "base")) | {"max_position_embeddings": 10**8}
        assert read_config(data).max_length == 10**8


@pytest.mark.parametrize("way", ["generate", "stream"])
@pytest.mark.parametrize(("family", "width"), [("gpt2", 32), ("llama", 16)])  # Llama has two key heads
def test_cached_keys_and_values_have_a_limit(family, width, way):
    model, ids = tiny.model(family, "causal-lm"), np.array([5, 6, 7])
    needed = 2 * model.config.n_layers * width * (3 + 5) * 4
    model.limits = Limits(cache=needed)
    list(getattr(model, way)(ids, max_new_tokens=5))
    model.limits = Limits(cache=needed - 1)
    with pytest.raises(
        NpformerError, match=rf"max_new_tokens 5, num_beams 1: .*{needed} is more than the limit `cache`"
    ):
        list(getattr(model, way)(ids, max_new_tokens=5))


def test_every_way_to_a_model_takes_them(tmp_path, capsys):
    folder = tiny.folder(tmp_path / "model", n_layers=2)
    few, enough = Limits(layers=1), Limits(layers=2)
    for load in (
        npformer.load,
        load_folder,
        read_and_convert(tmp_path),
        lambda *a, **k: npformer.pipeline(None, *a, **k),
    ):
        with pytest.raises(NpformerError, match="layers: 2 is more than the limit `layers`"):
            load(folder, limits=few)
        load(folder, limits=enough)
    assert npformer.load(folder, limits=enough).limits == enough
    assert npformer.pipeline(None, folder, limits=enough).model.limits == enough
    assert npformer.load(folder).limits == Limits()
    for command in (["classify", "-m", str(folder), "hot"], ["trace", "-m", str(folder), "hot"], ["info", str(folder)]):
        assert main([*command, "--allow", "layers=1"]) == 1
        assert "limit `layers` of 1" in capsys.readouterr().err
        assert main([*command, "--allow", "layers=2"]) == 0
        capsys.readouterr()


def read_and_convert(tmp_path):
    count = iter(range(9))
    return lambda folder, limits: convert(folder, tmp_path / f"converted{next(count)}", limits=limits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("layer=3", "--allow: expected one of .*layers.*got 'layer'; did you mean 'layers'"),
        ("layers", "--allow layers: expected a whole number of at least 0, got ''"),
        ("layers=-3", "--allow layers: expected a whole number of at least 0, got '-3'"),
        ("layers=1e9", "--allow layers: expected a whole number"),
    ],
)
def test_invalid_limits_are_refused(given, message):
    with pytest.raises(NpformerError, match=message):
        Limits.parse([given])


def test_a_limit_of_another_type():
    with pytest.raises(NpformerError, match=r"limits\.layers: expected a whole number of at least 0, got 1\.5"):
        Limits(layers=1.5)


def test_limits_are_generous_for_the_largest_checkpoints():
    """The limits are several times as high as 48 wide layers, 250,000 tokens or ImageNet-21k's labels require."""
    config = npformer.Config(
        "bert", "base", vocab_size=250_000, d_model=2560, n_heads=40, n_layers=48, d_ffn=10_240, max_length=512,
        n_token_types=2,
    )  # fmt: skip
    from npformer.checkpoint.tree import sources

    names = [name for source in sources(config).values() for name in source.names]
    entry = '"":{"dtype":"F32","shape":[250000,10240],"data_offsets":[10000000000,10000000000]},'
    assert sum(len(name) + len(entry) for name in names) * 10 < TABLE["header"]
    assert len(names) * 40 * 5 < TABLE["pickle"]
    assert TABLE["layers"] > 48 * 10
    assert TABLE["labels"] > 21_841 * 4


@pytest.mark.parametrize("kind", [NpformerError, lambda message: NpformerError(NpformerError(message))])
def test_messages_stay_short_with_long_names(kind):
    error = str(kind("weights.bin: " + "x" * 10**6 + ": expected (2, 2)"))
    assert len(error) <= 1000
    assert error.startswith("weights.bin: xxx")
    assert error.endswith("xxx: expected (2, 2)")
    lines = str(kind("\n".join(["y" * 5000] * 10**4)))
    assert len(lines) < 101 * 1001
    assert str(kind("short")) == "short"
    assert str(kind("a line\n" * 90)) == "a line\n" * 90


def test_no_warning_is_long_either():
    with pytest.warns(UserWarning, match=r"^x{700} \.\.\. x{290}$") as caught:
        warn("x" * 10**6)
    assert len(str(caught[0].message)) <= 1000


def test_a_name_of_a_tensor_of_any_length(tmp_path):
    folder = tiny.folder(tmp_path / "model")
    header = json.dumps({"n" * 10**6: {"dtype": "F32", "shape": [3], "data_offsets": [0, 9]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))
    with pytest.raises(NpformerError) as caught:
        npformer.load(folder)
    assert len(str(caught.value)) < 1000


def test_a_model_made_by_hand_has_limits():
    model = tiny.model("bert")
    assert model.limits == Limits()


def test_the_cache_of_configs_is_bounded():
    """A cache keeps few configs, because a config of 70 kB can need megabytes of computed tables."""
    model = tiny.model("bert").config
    for depth in range(1, 20):
        config = replace(model, n_layers=depth)
        assert stages.modules(config)["bert.encoder.layer.0.output.dense"] == "layers.0.ffn.output"
    assert max(stages.module_runs.cache_info().currsize, tree._recent_sources.cache_info().currsize) <= 4
