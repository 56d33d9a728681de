"""Features of ALBERT: layers that share weights, and tables that are always projected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, load_folder, to_torch, to_tree
from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.read import OWN_WEIGHTS
from npformer.checkpoint.safetensors import read_tensors
from npformer.common.errors import NpformerError
from npformer.config import Sharing
from npformer.families import read_config, write_config
from npformer.model import Model
from npformer.training import Trainable, standard_rates
from npformer.training.start import write_model
from tests.support import tiny

ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())
LAYERS = "albert.encoder.albert_layer_groups"


def described(name: str = "Model", **changes: Any) -> dict[str, Any]:
    return {**ARCHITECTURES[f"Albert{name}"]["config"], **changes}


def places(**fields: int) -> list[tuple[int, int]]:
    config = tiny.config("albert", **fields)
    return [config.group_of(layer) for layer in range(config.n_layers)]


def test_a_layer_has_the_weights_of_its_group() -> None:
    """As in published models, twelve layers share one group. Other models may have several groups of unequal sizes."""
    assert places(n_layers=12) == [(0, 0)] * 12
    assert places(n_layers=5, sharing=Sharing(3)) == [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0)]
    assert places(n_layers=6, sharing=Sharing(2, 2)) == [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert places(n_layers=2, sharing=Sharing(2)) == [(0, 0), (1, 0)]


def test_the_config_is_read_and_written() -> None:
    read = read_config(described(num_hidden_layers=3, num_hidden_groups=2, inner_group_num=2))
    assert (read.n_layers, read.sharing) == (6, Sharing(2, 2))
    written = write_config(read)
    assert [written[name] for name in ("num_hidden_layers", "num_hidden_groups", "inner_group_num")] == [3, 2, 2]
    assert read_config(written) == read
    data = described()
    for name in ("num_hidden_groups", "inner_group_num", "hidden_act"):
        del data[name]
    read = read_config(data)
    assert (read.sharing, read.activation, read.pooler) == (Sharing(), "gelu_tanh", "tanh")
    for change, message in (
        ({"num_hidden_groups": 3}, "num_hidden_groups: expected a whole number from 1 to 2"),
        ({"num_hidden_groups": 0}, "num_hidden_groups: expected a whole number from 1"),
        ({"inner_group_num": 0}, "inner_group_num: expected a whole number from 1"),
        ({"inner_group_num": 10**6}, "layers"),
    ):
        with pytest.raises(NpformerError, match=message):
            read_config(described(**change))
    with pytest.raises(NpformerError, match=r"^n_layers: 5 is not a multiple of sharing.layers 2"):
        tiny.config("albert", n_layers=5, sharing=Sharing(1, 2))


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    """Shared weights are stored once in memory, in both kinds of files, and among the trained weights."""
    fields = {"n_layers": 6, "sharing": Sharing(2, 2)}
    folder = tiny.folder(tmp_path / "torch", "albert", **fields)
    own = convert(folder, tmp_path / "own")
    stored, theirs = read_tensors(own / OWN_WEIGHTS)[0], read_tensors(folder / "model.safetensors")[0]
    for each in (folder, own):
        config, tree = load_folder(each)
        layers = [layer["ffn"]["hidden"]["weight"] for layer in tree["layers"]]
        assert [next(i for i, one in enumerate(layers) if one is layer) for layer in layers] == [0, 1, 0, 1, 4, 5]
        weights = Trainable(tree, config)
        assert weights.flat.keys() == stored.keys()
        weights.flat["layers.0.ffn.hidden.weight"][2, 3] = 7
        assert weights.tree["layers"][2]["ffn"]["hidden"]["weight"][2, 3] == 7
    assert {name.split(".")[1] for name in stored if name.startswith("layers.")} == {"0", "1", "4", "5"}
    groups = {tuple(name.split(".")[3:6:2]) for name in theirs if name.startswith(LAYERS)}
    assert groups == {("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")}
    back = convert(own, tmp_path / "back", to="torch")
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_shared_layers_that_differ_in_a_file_are_both_used() -> None:
    """If npformer's own files declare layers as shared but store different weights, each layer uses its own."""
    config = tiny.config("albert")
    flat = dict(layout.stored(tiny.weights(config), config))
    name = "layers.1.ffn.output.bias"
    other = flat["layers.0.ffn.output.bias"] + 1
    tree = layout.own_to_tree({**flat, name: other}, config)
    assert np.array_equal(flatten(tree)[name], other)
    assert layout.stored(tree, config).keys() == flat.keys() | {name}


def test_tables_as_wide_as_the_layers_are_projected_too() -> None:
    config = read_config(described(embedding_size=6))
    assert (config.d_model, config.table_width) == (6, 6)
    assert "embeddings.project.weight" in parameters(config)
    assert write_config(config)["embedding_size"] == 6
    assert "encoder.embedding_hidden_mapping_in.weight" in to_torch(tiny.weights(config), config)


def test_a_model_for_pre_training_is_read_as_its_masked_word_head() -> None:
    """The sentence-order head and the pooler cause no warning, which pytest would raise as an error."""
    config = read_config(described("ForPreTraining"))
    assert config.head == "masked-lm"
    tensors = to_torch(tiny.weights(config), config)
    more = {
        "sop_classifier.classifier.weight": np.zeros((2, 6), np.float32),
        "sop_classifier.classifier.bias": np.zeros(2, np.float32),
        "albert.pooler.weight": np.zeros((6, 6), np.float32),
        "albert.pooler.bias": np.zeros(6, np.float32),
        "albert.embeddings.position_ids": np.arange(8)[None],
        "predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"],
        "predictions.decoder.bias": tensors["predictions.bias"],
    }
    found, expected = flatten(to_tree({**tensors, **more}, config)), flatten(to_tree(tensors, config))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)
    base = to_tree({**tensors, **more}, read_config(described("ForPreTraining"), "base"))
    assert base.keys() == {"embeddings", "layers", "pooler"}


def test_the_order_of_sentences_is_read_and_cannot_be_written(tmp_path: Path) -> None:
    """Transformers has no class for this head alone, and a config.json without a class means a different model."""
    config = read_config(described("ForPreTraining"), "next-sentence")
    assert (config.n_outputs, config.pooler) == (2, "tanh")
    model = Model(config, tiny.weights(config))
    assert model([[3, 1, 4], [1, 5, 9]]).logits.shape == (2, 2)
    message = "head: cannot be written, because Transformers has no class for albert with only a next-sentence head"
    for write in (
        lambda: write_config(config),
        lambda: write_model(tmp_path / "model", {}, config, dict(model.weights)),
        lambda: npformer.trace(model, [3, 1, 4]).save(tmp_path / "trace.safetensors"),
        lambda: golden.record(model, [3, 1, 4]).save(tmp_path / "golden.safetensors"),
    ):
        with pytest.raises(NpformerError, match=message):
            write()
    assert not list(tmp_path.iterdir())


def test_the_masked_word_head_has_the_layers_activation() -> None:
    assert read_config(described("ForMaskedLM", hidden_act="relu")).activation == "relu"


def test_special_tokens_surround_a_text(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", "albert", "base")
    (folder / "tokenizer.json").unlink()
    pieces = [{"[UNK]": "<unk>", "[PAD]": "<pad>"}.get(piece, piece) for piece in tiny.VOCABULARY]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    pair = npformer.load(folder).tokenizer.encode("I love", "it")
    assert (pair.tokens, pair.type_ids) == (["[CLS]", "i", "love", "[SEP]", "it", "[SEP]"], [0, 0, 0, 0, 1, 1])


def test_training_drops_the_same_stages_as_transformers() -> None:
    always = dict.fromkeys(("embeddings.norm", "layers.*.attention.output", "*attention.weights"), 0.2)
    for head, more in {
        "sequence-classification": {"pooled": 0.1},
        "token-classification": {"layers.1.ffn_norm": 0.1},
        "next-sentence": {"pooled": 0.1},
        "multiple-choice": {"pooled": 0.1},
        "question-answering": {},
    }.items():
        assert standard_rates(tiny.config("albert", head), 0.2) == always | more
