"""A training checkpoint with impossible numbers is refused, and so is a trace that does not match its config."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.golden import compare, load
from npformer.training import HeadLoss, Trainable, Trainer
from npformer.training.optimizer import Adam
from npformer.training.run_folder import TrainingState
from tests.fuzz import corpus, records


@pytest.mark.parametrize(
    "field",
    [
        {"step": "2"}, {"step": -1}, {"right": []}, {"count": True}, {"loss": "0"}, {"seconds": None}, {"loss": np.inf},
        {"history": {}}, {"history": [1]}, {"history": [{"accuracy": 1}]}, {"history": [{"epoch": 0, "accuracy": "x"}]},
        {"right": 10**400}, {"count": 2**63},
    ],
    ids=str,
)  # fmt: skip
def test_a_state_of_other_types_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(npformer.NpformerError, match=next(iter(field))):
        TrainingState(**field)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("m.a", np.zeros((3, 1), np.float32), r"m.a: expected float32 of \(3,\), got float32 of \(3, 1\)"),
        ("m.a", np.zeros(3), r"m.a: expected float32 of \(3,\), got float64 of \(3,\)"),
        ("m.a", np.array([0, np.nan, 0], np.float32), "m.a: expected finite numbers$"),
        ("v.a", np.array([0, -1, 0], np.float32), "v.a: expected finite numbers of at least 0"),
        ("t", np.array([-1]), "t: expected a whole number of at least 0, got -1"),
    ],
)
def test_moments_that_no_training_gives_are_refused(name: str, value: np.ndarray, said: str) -> None:
    adam = Adam({"a": np.zeros(3, np.float32)})
    with pytest.raises(npformer.NpformerError, match=said):
        adam.restore({**adam.state(), name: value})


def written(folder: Path) -> Path:
    """Writes and returns the checkpoint that an interrupted training run leaves in this folder."""
    for name, data in records.state().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder / "training" / "last.safetensors"


def resumed(path: Path) -> list[dict[str, Any]]:
    """Resumes training from a checkpoint, and returns the history."""
    weights = Trainable(corpus.weights(records.config()), records.config())
    run = Trainer(HeadLoss(records.config()), weights, records.RECIPE, path.parent)
    return run.train(records.EXAMPLES, lambda epoch: {"accuracy": 0.5})


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    """NumPy would broadcast one number to a whole weight."""
    path = written(tmp_path)
    arrays, metadata = load_arrays(path)
    name = next(each for each in arrays if each.startswith("w."))
    save_arrays(path, {**arrays, name: arrays[name].ravel()[:1]}, metadata)
    with pytest.raises(npformer.NpformerError, match="expected weights of"):
        resumed(path)


def test_a_training_accepts_a_history_without_scores(tmp_path: Path) -> None:
    path = written(tmp_path)
    arrays, metadata = load_arrays(path)
    state = json.loads(metadata["state"])
    del state["history"][0]["accuracy"]
    save_arrays(path, arrays, {**metadata, "state": json.dumps(state)})
    assert len(resumed(path)) == 3


@pytest.mark.parametrize("odd", ["1" + "0" * 400, '"1"', "true"])
def test_a_history_with_values_other_than_numbers_is_refused(tmp_path: Path, odd: str) -> None:
    path = written(tmp_path)
    arrays, metadata = load_arrays(path)
    state = metadata["state"].replace('"accuracy": 0.5', f'"accuracy": {odd}', 1)
    assert state != metadata["state"]
    save_arrays(path, arrays, {**metadata, "state": state})
    with pytest.raises(npformer.NpformerError, match="history: expected a list of objects with numbers"):
        resumed(path)


def test_a_trace_with_other_numbers_of_logits_and_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(records.trace())
    arrays, metadata = load_arrays(tmp_path / "a.safetensors")
    save_arrays(tmp_path / "b.safetensors", {**arrays, "0/logits": np.ones(5, np.float32)}, metadata)
    with pytest.raises(npformer.NpformerError, match="logits: expected one per label, 2"):
        npformer.Trace.load(tmp_path / "b.safetensors")


@pytest.mark.parametrize(("old", "new"), [('"a"', '"\\ud800"'), ('"logits": 1e-06', '"logits": 1' + "0" * 400)])
def test_a_golden_file_with_impossible_values_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(records.golden())
    arrays, metadata = load_arrays(tmp_path / "a.safetensors")
    assert old in metadata["manifest"]
    save_arrays(tmp_path / "b.safetensors", arrays, {**metadata, "manifest": metadata["manifest"].replace(old, new)})
    with pytest.raises(npformer.NpformerError, match="does not match its manifest"):
        load(tmp_path / "b.safetensors")


def test_numbers_that_are_not_finite_are_shown_without_a_warning(tmp_path: Path) -> None:
    """NumPy would warn when it widens a signalling NaN, and when it computes a mean of infinities."""
    (tmp_path / "golden.safetensors").write_bytes(records.golden())
    signalling = np.frombuffer(bytes.fromhex("0100807f" + "0000807f"), np.float32)
    golden, theirs = load(tmp_path / "golden.safetensors"), {f"{i}/logits": signalling for i in range(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "nan" in str(compare(golden, theirs))
        with npformer.trace() as recorded:
            npformer.tap("scores", np.concatenate([signalling, -signalling]))
        assert "nan" in str(recorded)
