"""Weights in a mapped file: if the file of a loaded model is changed, the next call raises an error."""

import copy
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.checkpoint import convert, flatten
from npformer.checkpoint.read import OWN_WEIGHTS, read_folder
from npformer.checkpoint.safetensors import write_tensors
from npformer.engine.runtime.mapped import mapped_files
from tests.support import tiny, torch_writer
from tests.support.slow import slow_after

ROOT = Path(__file__).parents[2]
IDS = [[1, 5, 6, 2]]
CHANGED = r"npformer\.safetensors: the file has changed since the model's weights were mapped.*load the model again.*mapped=False"


@pytest.fixture
def own(tmp_path):
    return tiny.folder(tmp_path / "own", own=True)


def shards(path):
    """Returns a folder in torch's layout, with its weights in two files and an index."""
    folder = tiny.folder(path)
    tensors = {name: np.array(array) for name, array in read_folder(folder).tensors.items()}
    (folder / "model.safetensors").unlink()
    places = {name: f"{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        write_tensors(folder / file, {name: tensors[name] for name in tensors if places[name] == file}, {})
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {places}}}'.replace("'", '"'))
    return folder


def pickled(path):
    folder = tiny.folder(path)
    torch_writer.save(folder / "pytorch_model.bin", read_folder(folder).tensors)
    (folder / "model.safetensors").unlink()
    return folder


def test_a_file_that_is_written_again_is_an_error_before_the_next_call(own):
    model = npformer.load(own)
    assert [file.path for file in mapped_files(model.weights)] == [own / OWN_WEIGHTS]
    model(IDS)
    os.utime(own / OWN_WEIGHTS, (0, 0))
    for call in (lambda: model(IDS), lambda: npformer.trace(model, [1, 5, 2]), lambda: classify(model)):
        with pytest.raises(NpformerError, match=CHANGED):
            call()
    npformer.load(own)(IDS)


def classify(model):
    return npformer.pipeline("text-classification", model)("hot")


TRUNCATED = """
import os, sys
import npformer
model = npformer.load(sys.argv[1], mapped=sys.argv[2] == "mapped")
before = model([[1, 5, 6, 2]]).logits
for file in sys.argv[3:]:
    os.truncate(file, 0)
try:
    print((model([[1, 5, 6, 2]]).logits == before).all())
except npformer.NpformerError as error:
    print(error)
"""


def truncated(folder, how="mapped"):
    """Loads a model in a process, truncates its weights file, and returns the process's output."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED, str(folder), how, *map(str, files)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != -signal.SIGBUS
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_mapped_file_that_is_cut_short_ends_no_process(own):
    assert "the file has changed since the model's weights were mapped" in truncated(own)


def test_weights_read_into_memory_depend_on_no_file(own):
    assert truncated(own, "read") == "True"


@pytest.mark.parametrize("make", [tiny.folder, shards, pickled])
def test_weights_in_torch_s_layout_are_copies(tmp_path, make):
    """All tensors are copied, including tables, which need not be transposed."""
    folder = make(tmp_path / "model")
    assert mapped_files(npformer.load(folder).weights) == []


@pytest.mark.parametrize("make", slow_after(1, [shards, pickled, tiny.folder]))
def test_weights_in_torch_s_layout_depend_on_no_file(tmp_path, make):
    assert truncated(make(tmp_path / "model")) == "True"


@pytest.mark.parametrize("make", [tiny.folder, shards, pickled, lambda path: tiny.folder(path, own=True)])
def test_files_that_are_not_mapped_give_the_same_numbers(tmp_path, make):
    folder = make(tmp_path / "model")
    model = npformer.load(folder, mapped=False)
    assert mapped_files(model.weights) == []
    expected = flatten(npformer.load(folder).weights)
    for name, array in flatten(model.weights).items():
        assert np.array_equal(array, expected[name])
        assert not array.flags.writeable


def test_a_mapped_model_is_copied_and_given_to_other_processes(own):
    """A copy gives the same answers and does not need the file. A model whose file has changed cannot be copied."""
    model = npformer.load(own)
    expected = model(IDS).logits
    again, shallow = pickle.loads(pickle.dumps(model)), copy.copy(model)
    assert mapped_files(again.weights) == []
    classify = npformer.pipeline("text-classification", own)
    answer = classify("ice")
    for other in (pickle.loads(pickle.dumps(classify)), copy.deepcopy(classify)):
        assert other("ice") == answer
    os.utime(own / OWN_WEIGHTS, (0, 0))
    assert np.array_equal(again(IDS).logits, expected)
    for call in (lambda: pickle.dumps(model), lambda: copy.deepcopy(model), lambda: shallow(IDS)):
        with pytest.raises(NpformerError, match=CHANGED):
            call()


def test_a_new_file_with_the_same_name_does_not_change_the_model(own, tmp_path):
    """A model keeps its mapped file even if another file is moved to the same path."""
    model = npformer.load(own)
    before = model(IDS).logits
    other = tiny.folder(tmp_path / "other", own=True, seed=1)
    os.replace(other / OWN_WEIGHTS, own / OWN_WEIGHTS)
    assert np.array_equal(model(IDS).logits, before)
    (own / OWN_WEIGHTS).unlink()
    assert np.array_equal(model(IDS).logits, before)


def test_the_working_directory_does_not_matter(own, tmp_path, monkeypatch):
    monkeypatch.chdir(own.parent)
    model = npformer.load("own")
    monkeypatch.chdir(tmp_path.parent)
    os.utime(own / OWN_WEIGHTS, (0, 0))
    with pytest.raises(NpformerError, match=CHANGED):
        model(IDS)


def test_a_translation_model_looks_before_each_step(tmp_path):
    folder = convert(ROOT / "tests/golden/seq2seq/marian-files", tmp_path / "own", dtype="float32")
    model = npformer.load(folder)
    source = npformer.Text(np.array([3, 4, 0]))
    steps = model.stream([3, 4, 0], max_new_tokens=5, num_beams=1)
    next(steps)
    os.utime(folder / OWN_WEIGHTS, (0, 0))
    for call in (lambda: next(steps), lambda: model.encode([source]), lambda: model.generate([[3, 4, 0]])):
        with pytest.raises(NpformerError, match=CHANGED):
            call()
