"""Decoders with `is_causal` False in config.json: encoders that give vectors of texts, such as gte-Qwen2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.families import read_config, write_config
from npformer.pages.find import NOTE
from npformer.plain import run, source
from tests.support import sentence_folders, tiny
from tests.support.one_file import answering

IDS = [5, 6, 7, 8, 9]
#: Columns 0 to 3 of the first row for IDS, from transformers 5.23 with torch 2.13 and the same weights.
FIRST_ROWS = {
    "qwen2": [1.217252, -0.661704, 0.655413, 0.863817],
    "gpt2": [-0.772906, 0.665945, -0.240429, 0.112235],
    "bloom": [0.88636, -0.747687, -1.566581, 0.383748],
    "smollm3": [-1.021965, 0.99346, -2.636537, -0.41297],
}
DECODERS = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gpt_neox",
    "opt",
    "phi3",
    "bloom",
    "smollm3",
    "olmo2",
)


def described(path: Path, model_type: str, head: str = "causal-lm", **fields: Any) -> Path:
    """Writes the folder of a tiny decoder with these fields in its config.json."""
    folder = tiny.folder(path, model_type, head)
    config = json.loads((folder / "config.json").read_text())
    windows = {"sliding_window": None} if model_type in ("mistral", "phi3") else {}
    (folder / "config.json").write_text(json.dumps({**config, **windows, **fields}))
    return folder


@pytest.mark.parametrize("model_type", FIRST_ROWS)
def test_every_token_attends_to_later_tokens_as_in_transformers(model_type: str, tmp_path: Path) -> None:
    model = npformer.load(described(tmp_path, model_type, is_causal=False))
    found = model([IDS]).last_hidden_state[0, 0, :4]
    assert np.allclose(found, FIRST_ROWS[model_type], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", DECODERS)
def test_it_is_read_and_written_without_a_next_token_head(model_type: str, tmp_path: Path) -> None:
    folder = described(tmp_path / "a", model_type, is_causal=False)
    model = npformer.load(folder)
    assert (model.config.head, model.config.causal) == ("base", False)
    first, other = (model([[5, 6, 7, last]]).last_hidden_state[0, 0] for last in (8, 9))
    assert not np.allclose(first, other)
    assert write_config(model.config)["is_causal"] is False
    assert read_config(write_config(model.config)) == model.config
    with pytest.raises(NpformerError, match=r"is_causal: False is only supported for .* head='base'"):
        npformer.load(folder, head="causal-lm")
    assert npformer.load(described(tmp_path / "b", model_type, is_causal=True)).config.head == "causal-lm"


def test_the_vectors_of_a_sentence_folder_use_it(tmp_path: Path) -> None:
    folder = sentence_folders.decoder(tmp_path / "a", "Instruct: ", "qwen2")
    causal = npformer.pipeline("sentence-embedding", folder)("good movie")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    embed = npformer.pipeline("sentence-embedding", folder)
    assert not np.allclose(embed("good movie"), causal)
    alone, *_ = embed(["good movie", "a much longer text about sport"])
    assert np.allclose(alone, embed("good movie"), atol=1e-6)  # padding is not attended to


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gemma3_text", "qwen2"])
def test_a_window_in_both_directions_is_refused(model_type: str, tmp_path: Path) -> None:
    windows = {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 0, "layer_types": None}
    folder = described(tmp_path, model_type, is_causal=False, **windows)
    with pytest.raises(NpformerError, match=r"config\.json: is_causal: False is not supported .* sliding window"):
        npformer.load(folder)


def test_encoders_ignore_it(tmp_path: Path) -> None:
    assert not npformer.load(described(tmp_path, "bert", "base", is_causal=True)).config.causal
    with pytest.raises(NpformerError, match="is_causal: expected true or false, got 'no'"):
        npformer.load(described(tmp_path, "llama", is_causal="no"))


@pytest.mark.parametrize("model_type", DECODERS)
def test_its_page_has_a_mask_that_hides_nothing(model_type: str, tmp_path: Path) -> None:
    """The page says that its mask hides nothing. The page and its standalone file compute the model's rows."""
    model = npformer.load(described(tmp_path / "model", model_type, is_causal=False), dtype="float64")
    text = source(model)
    assert NOTE.strip() in text
    assert "causal_mask" not in text
    rows = model([IDS]).last_hidden_state
    np.testing.assert_allclose(run(model, [IDS]).last_hidden_state, rows, rtol=1e-11, atol=1e-12)
    found = answering(model, IDS, tmp_path)(IDS)["last_hidden_state"]
    np.testing.assert_allclose(found, rows[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("model_type", DECODERS)
def test_the_page_of_a_decoder_is_not_edited(model_type: str, tmp_path: Path) -> None:
    assert source(npformer.load(described(tmp_path, model_type))) == source(model_type)
