"""Valid golden files, traces and training states for the corpus. They have the structure that npformer writes, but
drawn numbers, because computed numbers differ between machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

import npformer
from npformer.config import Config
from npformer.families import write_config
from npformer.golden.format import FORMAT, VERSION
from npformer.interpret.traces import FORMAT as TRACE
from npformer.model import Model
from npformer.training.losses import Example, HeadLoss
from npformer.training.run_folder import FORMAT as TRAINING
from npformer.training.run_folder import identity
from npformer.training.trainable import Trainable
from npformer.training.trainer import Recipe
from tests.fuzz import corpus
from tests.fuzz.draw import Draw

IDS = [np.array([2, 5, 6, 7, 3]), np.array([2, 8, 3])]
RECIPE = Recipe(epochs=2, batch_size=2, learning_rate=1e-3)
EXAMPLES = [Example(npformer.Text(ids), target=i % 2) for i, ids in enumerate([*IDS, *IDS])]


def config() -> Config:
    return corpus.encoder_config("distilbert", "sequence-classification")


@cache
def stages() -> dict[str, list[np.ndarray]]:
    """Returns the stages of a model for the ids IDS, by name, filled with drawn numbers."""
    recorded = npformer.trace(Model(config(), corpus.weights(config()), threads=1), IDS)
    return {
        name: [_drawn(f"{i}/{name}", each.shape) for i, each in enumerate(recorded.texts(name))] for name in recorded
    }


def _drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.frombuffer(Draw(name).bytes(count), np.uint8).reshape(shape) / 256).astype(np.float32)


def golden() -> bytes:
    arrays: dict[str, np.ndarray] = {f"{i}/ids": ids for i, ids in enumerate(IDS)}
    for name, each in stages().items():
        for i, array in enumerate(each):
            arrays |= {f"{i}/{name}": array, f"{i}/float64/{name}": array.astype(np.float64)}
    manifest = {
        "model": "tiny", "config": write_config(config()), "weights_sha256": "0" * 64, "versions": {"npformer": "0", "numpy": "0"},
        "tokens": [["a"] * len(ids) for ids in IDS], "stages": list(stages()), "budgets": dict.fromkeys(stages(), 1e-6),
    }  # fmt: skip
    return _file(arrays, {"format": FORMAT, "version": VERSION, "manifest": json.dumps(manifest)})


def theirs() -> dict[str, np.ndarray]:
    """Returns another program's arrays for the golden file, some of which are wrong."""
    kept = [name for name in stages() if name.startswith("layers.0") or name == "logits"]
    arrays = {f"{i}/{name}": array for name in kept for i, array in enumerate(stages()[name])}
    return arrays | {
        "0/ids": IDS[0],
        "distilbert.transformer.layer.0.attention.q_lin.weight": np.ones((8, 8), np.float32),
    }


def trace() -> bytes:
    arrays = {f"{i}/{name}": array for name, each in stages().items() for i, array in enumerate(each)}
    arrays |= {f"{i}/ids": ids for i, ids in enumerate(IDS)}
    described = {
        "config": write_config(config()), "tokens": [["a"] * len(ids) for ids in IDS], "segments": [[0] * len(ids) for ids in IDS],
        "stages": list(stages()),
    }  # fmt: skip
    return _file(arrays, {"format": TRACE, "description": json.dumps(described)})


def state() -> dict[str, bytes]:
    """Returns the folder of a training run that was stopped after its first epoch."""
    weights = Trainable(corpus.weights(config()), config())
    arrays: dict[str, np.ndarray] = {f"w.{name}": array for name, array in weights.flat.items()}
    arrays |= {f"{moment}.{name}": np.zeros_like(array) for moment in "mv" for name, array in weights.flat.items()}
    rows = [{"epoch": i, "accuracy": 0.5, "loss": 0.7, "train_accuracy": 0.5, "seconds": 0.0} for i in (0, 1)]
    described = {"step": 2, "loss": 0.0, "right": 0, "count": 0, "seconds": 0.0, "history": rows}
    this = identity(RECIPE, HeadLoss(config()), weights, EXAMPLES, ())
    metadata = {"format": TRAINING, "run": this, "state": json.dumps(described)}
    return {
        "training/last.safetensors": _file(arrays | {"t": np.array([2])}, metadata),
        "training/best.safetensors": _file(weights.flat, {"format": TRAINING, "step": "2"}),
    }


def _file(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    made = []
    for name, array in arrays.items():
        made.append(corpus.of_array(name, array.astype(np.int64) if array.dtype.kind in "iu" else array))
    return corpus.safetensors(made, metadata)
