"""State dicts of torch's modules with npformer's config.json: answers, and errors for bad files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import npformer
from npformer.checkpoint import convert, flatten, load_folder, to_torch
from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.read import read_folder
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.embeddings import sinusoidal_positions
from npformer.engine.multi_head import multi_head_attention
from npformer.engine.packed_attention import PackedAttention
from npformer.families import read_config, torch_nn, write_config
from npformer.model import Seq2Seq
from tests.golden import seq2seq_cases as cases
from tests.support import torch_values
from tests.support.packed import decoder, encoder

pytestmark = pytest.mark.numbers

DATA = Path(__file__).parents[1] / "golden" / "seq2seq"
MODULES = [case for case in cases.TORCH if case != "classifier"]


def result(case: str, dtype: str) -> np.ndarray:
    """Returns the module's output for the golden texts of a case, (T, D)."""
    config, tree = load_folder(DATA / case, dtype)
    x, y = cases.rows("source", cases.LENGTHS).astype(dtype), cases.rows("target", cases.TARGET_LENGTHS).astype(dtype)
    lengths, target_lengths = np.array(cases.LENGTHS), np.array(cases.TARGET_LENGTHS)
    kind, n_heads, activation = config.torch_class, config.n_heads, ACTIVATIONS[config.activation]
    options: dict[str, Any] = {"eps": config.eps, "norm_first": config.norm_first}
    if kind == "nn.MultiheadAttention":
        return multi_head_attention(y, x, PackedAttention(n_heads, target_lengths, lengths, None), tree)
    if kind == "nn.TransformerEncoderLayer":
        return encoder(x, lengths, n_heads, activation, [tree], **options)
    if kind == "nn.TransformerDecoderLayer":
        return decoder(y, target_lengths, x, lengths, n_heads, activation, [tree], **options)
    if kind == "nn.TransformerEncoder":
        return encoder(x, lengths, n_heads, activation, **tree, **options)
    if kind == "nn.TransformerDecoder":
        return decoder(y, target_lengths, x, lengths, n_heads, activation, **tree, **options)
    memory = encoder(x, lengths, n_heads, activation, **tree["encoder"], **options)
    return decoder(y, target_lengths, memory, lengths, n_heads, activation, **tree["decoder"], **options)


@pytest.mark.parametrize("case", MODULES)
def test_a_module_gives_torch_s_numbers(case: str) -> None:
    """The golden values are torch's, from one padded batch with masks. The cases use both formats of torch.save."""
    found = load_file(DATA / case / "stages.safetensors")
    torch32, truth = found["float32/result"], found["float64/result"]
    error = torch_values.errors_in(found)["result"]
    assert torch_values.over_budget(result(case, "float32").ravel(), torch32, truth, error) == ""
    assert np.abs(result(case, "float64").ravel() - truth).max() < 1e-13 * np.abs(truth).max()


def test_every_class_option_and_file_format_has_a_case() -> None:
    configs = [load_folder(DATA / case)[0] for case in MODULES]
    assert {config.torch_class for config in configs} == set(torch_nn.CLASSES)
    for option in ("norm_first", "bias", "final_norm"):
        assert {getattr(config, option) for config in configs} == {True, False}
    assert {config.activation for config in configs} == {"relu", "gelu"}
    starts = {(DATA / case / "pytorch_model.bin").read_bytes()[:2] for case in cases.TORCH}
    assert starts == {b"PK", b"\x80\x02"}


# --- a custom encoder with a classifier ------------------------------------------------------------------------------


def test_the_classifier_of_003_gives_torch_s_numbers() -> None:
    found = load_file(DATA / "classifier" / "stages.safetensors")
    ids = [each.tolist() for each in cases.classifier_ids()]
    answers = {
        dtype: npformer.load(DATA / "classifier", dtype=dtype)(ids).logits.ravel() for dtype in ("float32", "float64")
    }
    torch32, truth, error = found["float32/logits"], found["float64/logits"], torch_values.errors_in(found)["logits"]
    assert torch_values.over_budget(answers["float32"], torch32, truth, error) == ""
    # npformer computes the table of positions in float32 even for a float64 model, as in a checkpoint.
    assert np.abs(answers["float64"] - truth).max() < 1e-6


def test_its_positional_encoder_is_within_torchs_error() -> None:
    found = load_file(DATA / "classifier" / "stages.safetensors")
    for dtype, allowed in (("float32", 2.0**-24), ("float64", 1e-13)):
        ours = sinusoidal_positions(40, 16, np.dtype(dtype).type).ravel()
        assert np.abs(ours - found["float64/positions"]).max() <= allowed
    # torch computes the positions in float32
    assert np.abs(found["float32/positions"] - found["float64/positions"]).max() > 2.0**-24


def test_the_classifier_is_a_model_like_any_other() -> None:
    model = npformer.load(DATA / "classifier")
    assert model.config.labels == ("negative", "positive")
    assert repr(model) == "<npformer.Model transformer sequence-classification: 3 layers, 4 heads, width 16, float32>"
    ids = [each.tolist() for each in cases.classifier_ids()]
    padded = np.zeros((4, 33), int)
    mask = np.zeros((4, 33), int)
    for row, kept, each in zip(padded, mask, ids, strict=True):
        row[: len(each)], kept[: len(each)] = each, 1
    assert np.array_equal(model(padded, mask).logits, model(ids).logits)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.TORCH)
def test_every_tensor_survives_a_round_trip_bit_for_bit(case: str, tmp_path: Path) -> None:
    stored = read_folder(DATA / case)
    own = convert(DATA / case, tmp_path / "own")
    back = convert(own, tmp_path / "back", to="torch")
    tensors = (
        load_file(back / "model.safetensors") if (back / "model.safetensors").exists() else read_folder(back).tensors
    )
    assert tensors.keys() == stored.tensors.keys()
    assert all(np.array_equal(tensors[name], stored.tensors[name]) for name in tensors)
    config, tree = load_folder(DATA / case)
    assert flatten(tree).keys() == flatten(load_folder(own)[1]).keys()
    assert read_config(write_config(config)) == config
    assert to_torch(tree, config).keys() == stored.tensors.keys()


def test_arrays_cannot_be_written_to() -> None:
    for case in ("transformer", "classifier"):
        assert not any(array.flags.writeable for array in flatten(load_folder(DATA / case)[1]).values())


def folder_of(tmp_path: Path, case: str, **changes: Any) -> Path:
    """Copies a case's folder with a changed config.json; `...` removes a field."""
    folder = tmp_path / "model"
    shutil.copytree(DATA / case, folder)
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    config = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("transformer", {"n_layers": 3}, r"missing: encoder\.layers\.2\.attention\.query\.weight \(encoder\.layers\.2\.self_attn"),
        ("transformer", {"n_layers": 1}, r"unknown: encoder\.layers\.1\.self_attn\.in_proj_weight"),
        ("transformer", {"d_ffn": 25}, r"wrong: encoder\.layers\.0\.ffn\.hidden\.weight \(encoder\.layers\.0\.linear1\.weight\), "
         r"transposed: expected \(16, 25\), got \(16, 24\)"),
        ("transformer", {"bias": False}, r"unknown: encoder\.layers\.0\.self_attn\.in_proj_bias"),
        ("transformer", {"final_norm": False}, r"unknown: encoder\.norm\.weight"),
        ("attention-no-bias", {"bias": True}, r"missing: query\.bias \(in_proj_bias, third 1 of 3\)"),
        ("transformer", {"n_heads": 3}, "n_heads: 3 does not divide d_model 16"),
        ("transformer", {"d_model": ...}, "d_model: missing, but required in config.json of transformer models"),
        ("transformer", {"nhead": 4}, "'nhead': unknown field in config.json of a transformer; known: activation, "),
        ("transformer", {"activation": "mish"}, "activation: expected one of .*got 'mish'"),
        ("transformer", {"architectures": ["nn.LSTM"]}, "torch_class: expected one of nn.Transformer, .*got 'nn.LSTM'"),
        ("transformer", {"positions": "rotary"}, "positions: expected one of .*got 'rotary'"),
        ("transformer", {"eps": 0}, "eps: expected a number above 0"),
        ("transformer", {"norm_first": 1}, "norm_first: expected true or false"),
        ("transformer", {"modules": ["a"]}, "modules: expected an object"),
        ("transformer", {"n_layers": -1}, "n_layers: expected a whole number from 0"),
        ("transformer", {"head": "translation"}, "vocab_size: expected more than 0, because a translation model has a token table"),
        ("decoder", {"head": "translation", "vocab_size": 9}, "head: a translation model needs an encoder and a decoder of at least one layer each, got n_layers"),
        ("transformer", {"head": "sequence-classification", "vocab_size": 9}, "decoder: expected no layers for a sequence-classification model, got 1"),
        ("transformer", {"share_embeddings": True, "vocab_size": 9, "target_vocab_size": 8}, "encoder and decoder share a table"),
        *((case, {"vocab_size": 9}, rf"vocab_size: expected 0, because nn\.{name} has no embeddings .*, got 9; a model that")
          for case, name in (("encoder-layer", "TransformerEncoderLayer"), ("decoder-layer", "TransformerDecoderLayer"),
                             ("attention", "MultiheadAttention"))),
        ("classifier", {"id2label": {"0": "a"}}, r"wrong: head\.output\.weight \(classifier\.fc\.weight\), transposed: "),
        ("classifier", {"modules": {}}, r"missing: embeddings\.token\.weight \(embedding\.weight\)"),
        ("classifier", {"positions": "learned"}, r"missing: embeddings\.position\.weight \(positions\.weight\)"),
    ],
)  # fmt: skip
def test_mismatches_are_errors_with_their_place(
    case: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(NpformerError, match=message):
        load_folder(folder_of(tmp_path, case, **changes))


def test_a_projection_that_is_no_three_in_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "attention")
    tensors = {name: array.copy() for name, array in read_folder(folder).tensors.items()}
    tensors["in_proj_weight"] = tensors["in_proj_weight"][:47]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        NpformerError, match=r"query\.weight \(in_proj_weight, third 1 of 3\), transposed: expected \(16, 16\)"
    ):
        load_folder(folder)


def test_learned_positions_and_positions_kept_as_a_buffer(tmp_path: Path) -> None:
    """The file's positions are used unchanged, with or without a leading axis of 1."""
    folder = folder_of(tmp_path, "classifier", max_length=7)
    table = np.random.default_rng(0).standard_normal((7, 16), dtype=np.float32)
    tensors = {name: array.copy() for name, array in read_folder(folder).tensors.items()}
    config = json.loads((folder / "config.json").read_text())
    for name, array in (("encoder.positional_encoding.pe", table[None]), ("encoder.position.weight", table)):
        modules = {**config["modules"], "embeddings.position": name.removesuffix(".weight")}
        (folder / "config.json").write_text(json.dumps({**config, "modules": modules}))
        save_file({**tensors, name: array}, folder / "model.safetensors")
        assert np.array_equal(load_folder(folder)[1]["embeddings"]["position"]["weight"], table)


def test_a_decoder_without_an_encoder_is_no_translation_model() -> None:
    config, tree = load_folder(DATA / "decoder")
    with pytest.raises(NpformerError, match="Seq2Seq: expected head 'translation', got 'base'"):
        Seq2Seq(config, tree)


def test_config_reads_the_2017_models_too() -> None:
    config = read_config(cases.torch_config("classifier"))
    assert isinstance(config, Config)
    assert (config.positions.table, config.norm_first, config.eps) == ("sinusoidal", False, 1e-5)
    with pytest.raises(NpformerError, match=r"model_type: expected one of .*got 'gopher'"):
        read_config({"model_type": "gopher"})


@pytest.mark.parametrize("case", MODULES)
def test_a_model_that_reads_no_ids_is_not_loaded_as_one(case: str) -> None:
    with pytest.raises(NpformerError, match=r"reads vectors, not token ids; npformer\.checkpoint\.load_folder"):
        npformer.load(DATA / case)


def test_untied_tables_of_marian() -> None:
    """If the tables are not tied, each stack uses its own table and model.shared is ignored, as in Transformers."""
    config = replace(read_config(cases.model_config("marian-small")), shared=True, tied=False)
    flat = {}
    for ours, source in layout.sources(config).items():
        each = parameters(config)[ours]
        shape = each.shape[::-1] if each.transposed else each.shape
        shape = (1, *shape) if ours == "head.output.bias" else shape
        flat[source.names[0]] = cases.model_tensor("marian-small", source.names[0], shape)
    flat["model.shared.weight"] = flat["model.encoder.embed_tokens.weight"] + 1
    tree = layout.to_tree(flat, config, np.dtype(np.float32))
    for side in ("encoder", "decoder"):
        own = flat[f"model.{side}.embed_tokens.weight"]
        assert np.array_equal(tree[side]["embeddings"]["token"]["weight"], own)
    assert np.array_equal(tree["head"]["output"]["weight"], flat["lm_head.weight"].T)


def test_a_tie_between_missing_tables_is_ignored(tmp_path):
    """A config.json may tie tables and a head that the stack does not have."""
    folder = folder_of(tmp_path, "decoder", share_embeddings=True, tie_word_embeddings=True)
    found, expected = flatten(load_folder(folder)[1]), flatten(load_folder(DATA / "decoder")[1])
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
