"""BART's differences from Marian: positions from row 2, a norm of the embeddings, and other default ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder, to_torch
from npformer.checkpoint.safetensors import write_tensors
from npformer.common.errors import NpformerError
from npformer.config import Config, Decoder
from npformer.engine.runtime.packing import Text
from npformer.families import read_config, write_config
from npformer.families.bart import BART
from npformer.training import standard_rates
from tests.support import tiny


def config(**fields: Any) -> Config:
    decoder = Decoder(n_layers=1, n_heads=2, d_ffn=24, vocab_size=40, start_id=2, end_ids=(2,))
    sizes = {"vocab_size": 40, "d_model": 16, "n_heads": 4, "n_layers": 2, "d_ffn": 24, "max_length": 10}
    return BART.config("translation", **{**sizes, "pad_id": 1, "padding_idx": 1, "decoder": decoder, **fields})


def folder(path: Path, **fields: Any) -> Path:
    settings = config(**fields)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(write_config(settings)))
    write_tensors(path / "model.safetensors", to_torch(tiny.weights(settings), settings), {"format": "pt"})
    return path


def test_the_config_is_read_and_written() -> None:
    data = write_config(config(scale_embedding=True))
    assert read_config(data) == config(scale_embedding=True)
    assert (data["max_position_embeddings"], data["architectures"]) == (10, ["BartForConditionalGeneration"])
    assert not {"share_encoder_decoder_embeddings", "decoder_vocab_size"} & data.keys()
    for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
        del data[name]
    read = read_config({**data, "normalize_embedding": True, "extra_pos_embeddings": 2})
    assert (read.pad_id, read.decoder.start_id, read.decoder.end_ids, read.n_positions) == (1, 2, (2,), 12)
    for change, message in (
        ({"normalize_before": True}, "normalize_before: True is not supported; supported: False"),
        ({"normalize_embedding": False}, "normalize_embedding: False is not supported"),
        ({"architectures": ["BartForMaskedLM"]}, "architectures: expected one of"),
    ):
        with pytest.raises(NpformerError, match=message):
            read_config({**data, **change})


def test_a_model_without_a_head_generates_with_its_table(tmp_path: Path) -> None:
    """The model is a BartModel, as in facebook/bart-base: tensor names have no prefix, and the projection is tied."""
    whole, bare = folder(tmp_path / "whole"), folder(tmp_path / "bare")
    data, (_, weights) = json.loads((bare / "config.json").read_text()), load_folder(whole)
    (bare / "config.json").write_text(json.dumps({**data, "architectures": ["BartModel"]}))
    tensors = {name.removeprefix("model."): array for name, array in to_torch(weights, config()).items()}
    write_tensors(
        bare / "model.safetensors",
        {name: array for name, array in tensors.items() if name not in ("lm_head.weight", "final_logits_bias")},
        {"format": "pt"},
    )
    expected = flatten(weights) | {"head.output.bias": np.zeros(40, np.float32)}
    found = flatten(load_folder(bare)[1])
    assert all(np.array_equal(array, expected[name]) for name, array in found.items())
    assert expected.keys() - found.keys() <= {"head.output.bias"}
    (bare / "config.json").write_text(
        json.dumps({**data, "architectures": ["BartModel"], "tie_word_embeddings": False})
    )
    with pytest.raises(NpformerError, match=r"missing: head\.output\.weight \(lm_head\.weight\)"):
        load_folder(bare)


def test_files_survive_a_round_trip_bit_for_bit(tmp_path: Path) -> None:
    made = folder(tmp_path / "torch")
    own = convert(made, tmp_path / "own")
    back = convert(own, tmp_path / "back", to="torch")
    assert (back / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()
    tree = load_folder(own)[1]
    assert tree["encoder"]["embeddings"]["token"]["weight"] is tree["decoder"]["embeddings"]["token"]["weight"]
    assert {"encoder.embeddings.norm.weight", "decoder.embeddings.norm.bias"} < flatten(tree).keys()


def test_positions_begin_at_row_2_and_padding_is_counted(tmp_path: Path) -> None:
    """BART's positions count padding, unlike RoBERTa's. Both stacks normalize the sum of the embeddings."""
    model = npformer.load(folder(tmp_path / "torch"))
    t = npformer.trace(model, ([0, 9, 1, 7, 2], [2, 5, 6]))
    for side, length in (("encoder", 5), ("decoder", 3)):
        tables = model.weights[side]["embeddings"]
        assert np.array_equal(t[f"{side}.embeddings.position"], tables["position"]["weight"][2 : 2 + length])
        total, norm = t[f"{side}.embeddings.sum"].astype("d"), tables["norm"]
        centred = total - total.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        expected = normal * norm["weight"] + norm["bias"]
        np.testing.assert_allclose(t[f"{side}.embeddings.norm"], expected, rtol=0, atol=2e-6)


def test_a_text_generates_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    model = npformer.load(folder(tmp_path / "torch"))
    sources = [np.array([0, 9, 4, 7, 2]), np.array([0, 5, 2]), np.array([0, 8, 8, 9, 30, 31, 2])]
    for settings in ({}, {"num_beams": 3}):
        both = model.generate(sources, max_new_tokens=8, **settings)
        for source, found in zip(sources, both, strict=True):
            (alone,) = model.generate([source], max_new_tokens=8, **settings)
            assert [each.ids.tolist() for each in alone] == [each.ids.tolist() for each in found]


def test_training_drops_the_same_stages_as_transformers() -> None:
    dropped = dict.fromkeys(("*embeddings.norm", "*attention.output", "*ffn.output"), 0.2)
    assert standard_rates(config(), 0.2) == {**dropped, "*attention.weights": 0.2}


def test_a_golden_file_holds_both_sides(tmp_path: Path) -> None:
    model = npformer.load(folder(tmp_path / "torch"))
    pair = (Text(np.array([0, 9, 4, 2])), Text(np.array([2, 5, 6])))
    recorded = golden.record(model, [pair])
    assert {"encoder.embeddings.norm", "decoder.embeddings.norm", "logits"} <= recorded.stages.keys()
