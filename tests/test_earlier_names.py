"""Names of earlier versions, in which the stages gate and up of gated networks were called hidden and gate.

Folders with those names are read; golden files, traces and arrays with them are refused.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.checkpoint.read import OWN_WEIGHTS
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.interpret.traces import Trace, trace
from tests.support import tiny

GATED = ("llama", "modernbert", "mt5")
REFUSED = "ffn.hidden is now ffn.gate, which the activation reads, and ffn.gate is now ffn.up; record the file again"
EARLIER = {"gate": "hidden", "up": "gate"}


def earlier(name: str) -> str:
    """Returns the name of a stage or weight in earlier versions."""
    return re.sub(r"\bffn\.(gate|up)\b", lambda found: f"ffn.{EARLIER[found[1]]}", name)


@pytest.mark.parametrize("keep", [None, "int8"])
@pytest.mark.parametrize("family", GATED)
def test_a_folder_that_an_earlier_version_wrote_has_the_same_weights(tmp_path: Path, family: str, keep) -> None:
    source = tiny.folder(tmp_path / "a", family, "translation" if family == "mt5" else "base", d_model=64)
    folder = convert(source, tmp_path / "b", keep=keep)
    expected = {name: np.array(array) for name, array in flatten(load_folder(folder)[1]).items()}
    tensors, metadata = read_tensors(folder / OWN_WEIGHTS)
    assert (keep == "int8") == any(array.dtype == np.int8 for array in tensors.values())
    written = {earlier(name): np.array(array) for name, array in tensors.items()}
    assert any(name.endswith("ffn.hidden.weight") for name in written)
    write_tensors(folder / OWN_WEIGHTS, written, metadata)
    found = flatten(load_folder(folder)[1])
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("stages", ["*", "*.ffn.gate", "*.ffn.up", "*.ffn_norm"])
def test_a_golden_file_of_an_earlier_version_is_refused(tmp_path: Path, stages: str) -> None:
    """A file without the renamed stages is refused, too, because its hash of the weights depends on the names."""
    recorded = golden.record(tiny.model("llama", "base"), [np.array([5, 6, 7])], stages)
    recorded.save(tmp_path / "g.safetensors")
    assert list(golden.load(tmp_path / "g.safetensors").stages) == list(recorded.stages)
    arrays, metadata = load_arrays(tmp_path / "g.safetensors")
    manifest = json.loads(earlier(metadata["manifest"]))
    del manifest["names"]
    arrays = {earlier(name): array for name, array in arrays.items()}
    save_arrays(tmp_path / "g.safetensors", arrays, {**metadata, "manifest": json.dumps(manifest)})
    with pytest.raises(NpformerError, match=rf"g\.safetensors: .*{REFUSED}"):
        golden.load(tmp_path / "g.safetensors")


@pytest.mark.parametrize("stages", ["*", "*.ffn.gate", "*.ffn.up"])
@pytest.mark.parametrize("has_config", [True, False])
def test_a_trace_of_an_earlier_version_is_refused(tmp_path: Path, stages: str, has_config: bool) -> None:
    path = tmp_path / "t.safetensors"
    recorded = trace(tiny.model("llama", "base"), np.array([5, 6, 7]), stages)
    if not has_config:
        recorded.config = None
    recorded.save(path)
    assert list(Trace.load(path)) == list(recorded)
    arrays, metadata = load_arrays(path)
    description = json.loads(earlier(metadata["description"]))
    del description["names"]
    arrays = {earlier(name): array for name, array in arrays.items()}
    save_arrays(path, arrays, {**metadata, "description": json.dumps(description)})
    if (stages, has_config) == ("*.ffn.gate", False):  # not refused: networks without a gate have ffn.hidden too
        assert list(Trace.load(path)) == ["layers.0.ffn.hidden", "layers.1.ffn.hidden"]
    else:
        with pytest.raises(NpformerError, match=rf"t\.safetensors: .*{REFUSED}"):
            Trace.load(path)


def test_files_of_plain_networks_stay_readable_without_the_version_of_their_names(tmp_path: Path) -> None:
    model, path = tiny.model("bert", "base"), tmp_path / "f.safetensors"
    golden.record(model, [np.array([5, 6, 7])]).save(path)
    _, metadata = load_arrays(path)
    assert "names" not in json.loads(metadata["manifest"])
    assert "layers.0.ffn.hidden" in golden.load(path).stages
    trace(model, np.array([5, 6, 7])).save(path)
    arrays, metadata = load_arrays(path)
    description = json.loads(metadata["description"])
    del description["names"]
    save_arrays(path, arrays, {**metadata, "description": json.dumps(description)})
    assert "layers.0.ffn.hidden" in Trace.load(path)


def test_a_port_s_arrays_with_the_earlier_names_are_refused() -> None:
    recorded = golden.record(tiny.model("llama", "base"), [np.array([5, 6, 7])])
    arrays = {name: each[0] for name, each in recorded.stages.items()}
    assert golden.compare(recorded, arrays).ok
    with pytest.raises(NpformerError, match=REFUSED):
        golden.compare(recorded, {earlier(name): array for name, array in arrays.items()})
