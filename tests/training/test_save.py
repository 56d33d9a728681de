"""`save` writes a folder that loads as the same model, and contains the files that its tasks need."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.checkpoint import tree as layout
from npformer.common.errors import NpformerError
from npformer.loading import load_folder
from npformer.training import Trainable, save
from tests.support import seq2seq_models, tiny, writers


def test_a_trained_model_is_saved_with_its_tokenizer(tmp_path: Path) -> None:
    model = npformer.load(tiny.folder(tmp_path / "model"))
    weights = Trainable(model.weights, model.config)
    weights.flat["head.output.bias"][:] += 1
    trained = npformer.Model(model.config, weights.tree, model.folder)
    save(trained, tmp_path / "out")
    config, tree = load_folder(tmp_path / "out")
    assert config == model.config
    flat = layout.flatten(tree)
    assert all(np.array_equal(array, flat[name]) for name, array in layout.flatten(weights.tree).items())
    task = npformer.pipeline("text-classification", tmp_path / "out")
    assert task("it was so hot") == npformer.pipeline("text-classification", trained)("it was so hot")
    with pytest.raises(NpformerError, match="out: already exists; expected a new folder"):
        save(trained, str(tmp_path / "out"))


def test_settings_of_generation_are_saved(tmp_path: Path) -> None:
    folder = writers.folder(tmp_path / "writer", generation={"max_new_tokens": 9})
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    save(npformer.load(folder), tmp_path / "writer-out")
    assert json.loads((tmp_path / "writer-out" / "generation_config.json").read_text())["max_new_tokens"] == 9
    assert (tmp_path / "writer-out" / "chat_template.jinja").exists()


def test_a_translator_is_saved_with_its_vocabularies(tmp_path: Path) -> None:
    folder = seq2seq_models.MARIAN_FILES
    model = seq2seq_models.golden_model("marian-small")
    save(type(model)(model.config, model.weights, folder), tmp_path / "out")
    assert {"source.spm", "target.spm", "vocab.json"} <= {each.name for each in (tmp_path / "out").iterdir()}
    flat = layout.flatten(load_folder(tmp_path / "out")[1])
    assert all(np.array_equal(array, flat[name]) for name, array in layout.flatten(model.weights).items())


def test_a_model_that_cannot_be_saved(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model")
    with pytest.raises(NpformerError, match="expected float32, got bfloat16; load the model without keep"):
        save(npformer.load(folder, keep="bfloat16"), tmp_path / "out")
    with pytest.raises(NpformerError, match="save: "):
        save("distilbert-sst2", tmp_path / "out")
