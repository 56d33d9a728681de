"""The workloads of the benchmarks: texts for each row of the table, and random weights of DistilBERT-base's size.

This module does not import torch, so that `profile` and `start` run wherever npformer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.convert import FILES
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.safetensors import write_tensors
from npformer.engine.runtime.packing import Text
from npformer.families import write_config
from npformer.families.distilbert import DISTILBERT
from npformer.model import Model

BASE = DISTILBERT.config(
    "sequence-classification", vocab_size=30522, d_model=768, n_heads=12, n_layers=6, d_ffn=3072, max_length=512,
    labels=("NEGATIVE", "POSITIVE"),
)  # fmt: skip
BUNDLED = "distilbert-sst2"
TEXT = "I love ice cream"


def rows(mixed: int) -> dict[str, list[int]]:
    """Returns the lengths in tokens of each workload's texts, by name. mixed: number of texts in the first workload."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(np.log(27), 0.7, mixed)).round(), 3, 512).astype(int).tolist()
    return {
        f"{mixed} sentences of mixed length": lengths,
        "32 x 128 tokens": [128] * 32,
        "8 x 512 tokens": [512] * 8,
        **{f"one sentence of {length} tokens": [length] for length in (8, 16, 32, 128, 512)},
    }


def random_ids(lengths: Sequence[int], vocab_size: int = BASE.vocab_size) -> list[np.ndarray]:
    """Returns token ids of texts of these lengths, the same in every run."""
    random = np.random.default_rng(len(lengths))
    return [random.integers(1000, vocab_size, length) for length in lengths]


def random_texts(lengths: Sequence[int]) -> list[Text]:
    """Returns the same ids in the form that npformer's model takes."""
    return [Text(ids) for ids in random_ids(lengths)]


def base_weights() -> layout.Tree:
    """Returns random weights of DistilBERT-base's size at the usual initial scale, read-only like loaded weights."""
    random = np.random.default_rng(0)
    flat = {}
    for name, parameter in parameters(BASE).items():
        is_scale = parameter.group.endswith("norm") and parameter.name == "weight"
        flat[name] = random.standard_normal(parameter.shape, dtype=np.float32) * np.float32(0.02) + np.float32(is_scale)
        flat[name].flags.writeable = False
    return layout.unflatten(flat)


def base_model(threads: int) -> Model:
    """Returns a model of DistilBERT-base's size in memory."""
    return Model(BASE, base_weights(), threads=threads)


def write_base(folder: Path, form: str) -> Path:
    """Writes the model as a checkpoint in npformer's own layout or in torch's."""
    import json

    folder.mkdir(parents=True)
    tree = base_weights()
    arrays = layout.stored(tree, BASE) if form == "npformer" else layout.to_torch(tree, BASE)
    name, written = FILES[form]
    write_tensors(folder / name, arrays, {"format": written})
    (folder / "config.json").write_text(json.dumps(write_config(BASE), indent=2), encoding="utf-8")
    return folder
