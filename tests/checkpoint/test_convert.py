"""`convert`: bit-exact round trips, loading without a copy, and no half-written files after errors."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from npformer.checkpoint import convert, flatten, load_folder
from npformer.checkpoint.convert import COMPANIONS
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.read import OWN_WEIGHTS
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.engine.runtime.narrow import BFLOAT16
from npformer.families import write_config
from tests.families.test_families import ARCHITECTURES, MORE_THAN_A_HEAD, random_checkpoint
from tests.support import torch_writer
from tests.support.slow import slow_after


def model_folder(path, name="DistilBertForSequenceClassification", dtype=np.float32, kind="safetensors"):
    """Writes a folder as Hugging Face does, including all the other files of a model."""
    _, tensors = random_checkpoint(name)
    tensors = {key: array.astype(dtype) for key, array in tensors.items()}
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**ARCHITECTURES[name]["config"], "torch_dtype": "float32"}))
    if kind == "bin":
        torch_writer.save(path / "pytorch_model.bin", tensors)
    else:
        safetensors.numpy.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    for companion in COMPANIONS:
        (path / companion).parent.mkdir(exist_ok=True)
        (path / companion).write_text("[]" if companion == "modules.json" else f"content of {companion}")
    (path / "training_args.bin").write_text("not a companion")
    return path


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


#: One architecture of each family, and every head of BERT.
QUICK = {
    *{each["config"]["model_type"]: name for name, each in reversed(ARCHITECTURES.items())}.values(),
    *(name for name in ARCHITECTURES if name.startswith("Bert")), *MORE_THAN_A_HEAD,
}  # fmt: skip


@pytest.mark.parametrize("name", slow_after(len(QUICK), sorted(ARCHITECTURES, key=lambda name: name not in QUICK)))
def test_a_round_trip_keeps_every_bit(tmp_path, name):
    source = model_folder(tmp_path / "a", name)
    convert(source, tmp_path / "b")
    convert(tmp_path / "b", tmp_path / "c", to="torch")
    before, after = (safetensors.numpy.load_file(folder / "model.safetensors") for folder in (source, tmp_path / "c"))
    left_out = before.keys() - after.keys()
    if name in MORE_THAN_A_HEAD:  # only the first head is converted
        left_out -= {key for key in left_out if key.startswith(MORE_THAN_A_HEAD[name])}
    assert not left_out
    for key, array in after.items():
        assert array.dtype == before[key].dtype
        assert array.tobytes() == before[key].tobytes()
    a, b, c = (load_folder(tmp_path / each) for each in "abc")
    assert a[0] == b[0] == c[0]
    for other in (b, c):
        found = flatten(other[1])
        assert all(np.array_equal(array, found[key]) for key, array in flatten(a[1]).items())


def test_half_precision_stays_as_it_is_or_is_asked_for(tmp_path):
    source = model_folder(tmp_path / "a", dtype=np.float16, kind="bin")
    for dtype, stored in (
        (None, np.float16),
        ("float16", np.float16),
        ("float32", np.float32),
        ("float64", np.float64),
    ):
        folder = convert(source, tmp_path / str(dtype), dtype=dtype)
        arrays, _ = read_tensors(folder / OWN_WEIGHTS)
        assert {array.dtype for array in arrays.values()} == {np.dtype(stored)}
        assert json.loads((folder / "config.json").read_text()).get("dtype") == dtype
        found, expected = flatten(load_folder(folder)[1]), flatten(load_folder(source)[1])
        assert all(np.array_equal(array, expected[key]) for key, array in found.items())


def test_bfloat16_keeps_its_bits(tmp_path):
    source = model_folder(tmp_path / "a")
    arrays, _ = read_tensors(source / "model.safetensors")
    brains = {key: (array.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16) for key, array in arrays.items()}
    write_tensors(source / "model.safetensors", brains, {"format": "pt"})
    convert(source, tmp_path / "b")
    convert(tmp_path / "b", tmp_path / "c", to="torch")
    after, _ = read_tensors(tmp_path / "c" / "model.safetensors")
    assert after.keys() == brains.keys()
    assert all(after[key].dtype == BFLOAT16 and after[key].tobytes() == brains[key].tobytes() for key in brains)
    widened, _ = read_tensors(convert(source, tmp_path / "d", dtype="float16") / OWN_WEIGHTS)
    assert widened["pooler.bias"].dtype == np.float16


def test_a_number_too_large_for_float16(tmp_path):
    config, tensors = random_checkpoint("DistilBertModel")
    tensors["embeddings.LayerNorm.bias"] = np.full(config.d_model, 1e5, np.float32)
    (tmp_path / "a").mkdir()
    safetensors.numpy.save_file(tensors, tmp_path / "a" / "model.safetensors")
    (tmp_path / "a" / "config.json").write_text(json.dumps(write_config(config)))
    with pytest.raises(NpformerError, match=r"embeddings\.norm\.bias: contains a number that is too large for float16"):
        convert(tmp_path / "a", tmp_path / "b", dtype="float16")
    assert os.listdir(tmp_path) == ["a"]


def test_a_converted_folder_is_complete_and_loads_without_a_copy(tmp_path):
    source = model_folder(tmp_path / "a")
    folder = convert(str(source), str(tmp_path / "b"))
    assert folder == tmp_path / "b"
    assert set(files(folder)) == {"config.json", OWN_WEIGHTS, *COMPANIONS}
    assert all(files(folder)[name] == files(source)[name] for name in COMPANIONS)
    kept, written = (json.loads((each / "config.json").read_text()) for each in (source, folder))
    assert written == {**kept, "architectures": ["DistilBertForSequenceClassification"]}
    with safetensors.safe_open(folder / OWN_WEIGHTS, "np") as file:
        assert file.metadata().keys() == {"format", "finite", "sha256"}
        assert (file.metadata()["format"], file.metadata()["finite"]) == ("npformer", "true")
    _, tree = load_folder(folder)
    for array in flatten(tree).values():
        assert not array.flags.owndata
        assert not array.flags.writeable
        assert array.flags.aligned
    assert np.shares_memory(tree["pooler"]["bias"], array_of_the_whole_file(tree["pooler"]["bias"]))


def array_of_the_whole_file(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return np.frombuffer(array, np.uint8)


def test_the_folder_is_as_open_as_the_user_s_others(tmp_path):
    folder = convert(model_folder(tmp_path / "a"), tmp_path / "b")
    assert folder.stat().st_mode == (tmp_path / "a").stat().st_mode


def test_a_converted_file_with_a_name_too_many(tmp_path):
    folder = convert(model_folder(tmp_path / "a"), tmp_path / "b")
    arrays, metadata = read_tensors(folder / OWN_WEIGHTS)
    write_tensors(tmp_path / "new", {**arrays, "extra": arrays["pooler.bias"]}, metadata)
    os.replace(tmp_path / "new", folder / OWN_WEIGHTS)
    with pytest.warns(UserWarning, match="unknown: extra"):
        load_folder(folder)


@pytest.mark.parametrize("to", ["npformer", "torch"])
def test_existing_files_are_not_changed(tmp_path, to):
    source = model_folder(tmp_path / "a")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = files(tmp_path)
    for destination in (source, tmp_path / "file", tmp_path / "link", tmp_path, Path("/")):
        with pytest.raises(NpformerError, match=f"^{destination}: already exists; expected a new folder"):
            convert(source, destination, to)
    assert files(tmp_path) == before


@pytest.mark.parametrize("arguments", [{"to": "onnx"}, {"dtype": "int8"}, {"dtype": "bfloat16"}])
def test_arguments(tmp_path, arguments):
    with pytest.raises(NpformerError, match="expected one of"):
        convert(model_folder(tmp_path / "a"), tmp_path / "b", **arguments)
    assert os.listdir(tmp_path) == ["a"]


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_for_the_weights(tmp_path):
    """A write error leaves no file behind. Here a limit of 1 kB per file causes the error."""
    model_folder(tmp_path / "a")
    code = (
        "import resource; from npformer.checkpoint import convert\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); convert('a', 'b')"
    )
    command = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    error = run.stderr.splitlines()[-1]
    assert error.startswith("npformer.common.errors.NpformerError: b: cannot be written: ")
    assert "File too large" in error
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("where", ["os.fsync", "shutil.copyfileobj", "os.rename"])
def test_a_full_disk(tmp_path, monkeypatch, where):
    source = model_folder(tmp_path / "a")
    monkeypatch.setattr(where, full)
    with pytest.raises(NpformerError, match=f"^{tmp_path / 'b'}: cannot be written: No space left on device"):
        convert(source, tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


def test_interrupted(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    source = model_folder(tmp_path / "a")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


def test_no_place_to_write_to(tmp_path):
    source = model_folder(tmp_path / "a")
    with pytest.raises(NpformerError, match="cannot be written: No such file or directory"):
        convert(source, tmp_path / "none" / "b")
    with pytest.raises(NpformerError, match="cannot be written: Not a directory"):
        convert(source, source / "config.json" / "b")


def test_a_bad_source_leaves_nothing(tmp_path):
    source = model_folder(tmp_path / "a")
    (source / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(NpformerError, match="not a valid safetensors file"):
        convert(source, tmp_path / "b")
    with pytest.raises(NpformerError, match="No such file"):
        convert(tmp_path / "none", tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux's /proc")
def test_loading_takes_the_memory_of_the_weights_once(tmp_path):
    """The peak exceeds the float32 weights by at most a quarter, because the file's pages are freed during copying."""
    config, _ = random_checkpoint("DistilBertModel", vocab_size=40_000, dim=512, hidden_dim=2048)
    from npformer.checkpoint import tree as layout

    shapes = parameters(config)
    tree = layout.unflatten({name: np.ones(each.shape, np.float32) for name, each in shapes.items()})
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text(json.dumps(write_config(config)))
    code = (
        "import sys; import numpy as np; from npformer.checkpoint import load_folder, flatten\n"
        "status = lambda: open('/proc/self/status').read()\n"
        "peak = lambda: 1024 * int(status().partition('VmHWM:')[2].split()[0])  # ru_maxrss begins with this process's\n"
        "before = peak(); tree = load_folder(sys.argv[1], np.float64)[1]\n"
        "print((peak() - before) / sum(array.nbytes for array in flatten(tree).values()))\n"
    )
    write_tensors(tmp_path / "a" / "model.safetensors", layout.to_torch(tree, config), {"format": "pt"})
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "a"], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 1.25
