"""Features of RoBERTa, XLM-RoBERTa and CamemBERT: positions begin after the padding id, and a classifier reads `<s>`.

The three families share one table, so each test runs for one of them, in turn.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import golden
from npformer.checkpoint import convert, flatten, to_torch, to_tree
from npformer.common.errors import NpformerError
from npformer.config import Positions
from npformer.engine.activations import gelu
from npformer.engine.runtime.packing import Text
from npformer.families import distinct_encoders, read_config, write_config
from npformer.model import Model
from npformer.training import Example, HeadLoss, Trainable, gradients, standard_rates
from tests.support import tiny

NAMES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())
SPECIAL = {"[UNK]": "<unk>", "[SEP]": "</s>", "[PAD]": "<pad>", "[CLS]": "<s>", "[MASK]": "<mask>"}


@pytest.fixture(params=NAMES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def described(family: str, head: str = "Model", **changes: Any) -> dict[str, Any]:
    return {**ARCHITECTURES[NAMES[family] + head]["config"], **changes}


def places(model: Model, ids: list[int]) -> list[int]:
    """Returns the rows of the position table for a text's tokens."""
    table = model.weights["embeddings"]["position"]["weight"]
    rows = npformer.trace(model, [np.array(ids)])["embeddings.position"]
    return [int(np.flatnonzero((table == row).all(axis=1))[0]) for row in rows]


# --- positions -------------------------------------------------------------------------------------------------------


def test_positions_begin_after_padding_s_and_padding_is_not_counted(family: str) -> None:
    model = tiny.model(family, "base")
    assert places(model, [0, 9, 9, 2]) == [2, 3, 4, 5]
    assert places(model, [0, 1, 9, 1, 1, 2]) == [2, 1, 3, 1, 1, 4]
    other = tiny.model(family, "base", pad_id=7, padding_idx=7, positions=Positions(first=8, skips_padding=True))
    assert places(other, [0, 1, 7, 2]) == [8, 9, 7, 10]


def test_the_table_has_rows_for_a_text_and_the_offset(family: str) -> None:
    read = read_config(described(family, max_position_embeddings=514))
    assert (read.max_length, read.n_positions, read.positions.first, read.pad_id) == (512, 514, 2, 1)
    read = read_config(described(family, pad_token_id=5))
    assert (read.max_length, read.n_positions, read.positions.first, read.padding_idx) == (4, 10, 6, 5)
    written = write_config(read)
    assert (written["max_position_embeddings"], written["pad_token_id"]) == (10, 5)
    assert read_config(written) == read
    without = described(family)
    del without["pad_token_id"]
    assert read_config(without) == read_config(described(family))
    for change, message in (
        ({"max_position_embeddings": 2}, "max_position_embeddings: expected a whole number from 3"),
        ({"max_position_embeddings": 7, "pad_token_id": 6}, "max_position_embeddings: expected a whole number from 8"),
        ({"pad_token_id": None}, "pad_token_id: expected a whole number"),
        ({"pad_token_id": -1}, "pad_token_id: expected a whole number"),
    ):
        with pytest.raises(NpformerError, match=message):
            read_config(described(family, **change))


@pytest.mark.parametrize("head", ["base", "sequence-classification", "masked-lm"])
def test_a_text_has_the_same_bits_alone_and_padded_on_either_side(head: str) -> None:
    model = tiny.model("roberta", head)
    random = np.random.default_rng(0)
    texts = [np.r_[0, random.integers(5, 200, length), 2] for length in (7, 3, 0)]
    texts[0][4] = 1  # padding inside a text
    width = max(map(len, texts))
    sides = ["right"] if head == "sequence-classification" else ["right", "left"]  # the head reads the first column
    for side in sides:
        room = [(0, width - len(text)) if side == "right" else (width - len(text), 0) for text in texts]
        ids = np.array([np.pad(text, each, constant_values=1) for text, each in zip(texts, room, strict=True)])
        mask = np.array([np.pad(np.ones(len(t), int), each) for t, each in zip(texts, room, strict=True)])
        answers = model(ids, mask)
        for i, text in enumerate(texts):
            for name, alone in model(text[None]).items():
                found = answers[name][i]
                if name in ("last_hidden_state", "logits") and head != "sequence-classification":
                    found = found[mask[i] == 1]
                if name != "pooler_output" or side == "right":
                    assert np.array_equal(found, alone[0]), (side, name)


def test_the_padding_token_and_its_position_are_not_trained() -> None:
    model = tiny.model("roberta", "sequence-classification")
    examples = [Example(Text(np.array([0, 9, 1, 8, 2])), 0)]
    flat = gradients(HeadLoss(model.config), Trainable(model.weights, model.config), examples).flat
    assert list(flat["embeddings.token.weight"].ids) == [0, 2, 8, 9]
    assert list(flat["embeddings.position.weight"].ids) == [2, 3, 4, 5]


# --- texts and heads -------------------------------------------------------------------------------------------------


def test_the_model_has_one_token_type(family: str) -> None:
    model = tiny.model(family, "base", n_token_types=1)
    assert not model.config.reads_token_types
    with pytest.raises(NpformerError, match=r"token_type_ids: 1 of text 0 is outside the token types, 0 ... 0"):
        model([[0, 9, 2]], token_type_ids=[[0, 1, 0]])


def test_special_tokens_surround_a_text_and_a_pair(family: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", family, "base", n_token_types=1)
    (folder / "tokenizer.json").unlink()
    pieces = [SPECIAL.get(piece, piece) for piece in tiny.VOCABULARY]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = npformer.load(folder).tokenizer
    assert tokenizer.encode("I love it").tokens == ["<s>", "i", "love", "it", "</s>"]
    pair = tokenizer.encode("I love", "it is")
    assert pair.tokens == ["<s>", "i", "love", "</s>", "</s>", "it", "is", "</s>"]
    assert set(pair.type_ids) == {0}


def test_the_classifier_reads_the_first_token_through_a_tanh(family: str) -> None:
    model = tiny.model(family, "sequence-classification")
    t = npformer.trace(model, [np.array([0, 9, 8, 2])])
    first, weights = t["layers.1.ffn_norm"][0], model.weights
    pooled = np.tanh(first @ weights["pooler"]["weight"] + weights["pooler"]["bias"])
    logits = pooled @ weights["head"]["output"]["weight"] + weights["head"]["output"]["bias"]
    np.testing.assert_allclose(t["logits"], logits, rtol=1e-5, atol=1e-6)
    assert t.row("pooler").huggingface == "classifier.dense"
    assert t.row("layers.1.attention.query").huggingface == "roberta.encoder.layer.1.attention.self.query"


@pytest.mark.parametrize("act", ["relu", "gelu_new"])
def test_the_masked_word_head_always_has_gelu(family: str, act: str) -> None:
    config = read_config(described(family, "ForMaskedLM", hidden_act=act))
    assert (write_config(config)["hidden_act"], config.below_head) == (act, "gelu")
    t = npformer.trace(Model(config, tiny.weights(config)), [np.array([0, 9, 8, 2])])
    assert np.array_equal(t["head.activation"], gelu(t["head.hidden"]))
    assert not np.array_equal(t["layers.0.ffn.activation"], gelu(t["layers.0.ffn.hidden"]))
    assert t.row("head.activation").function == "activations.gelu" != t.row("layers.0.ffn.activation").function


def test_the_activation_of_the_layers_in_the_head_is_a_mistake_that_is_named(family: str) -> None:
    model = tiny.model(family, "masked-lm", activation="relu")
    texts = [Text(np.random.default_rng(0).integers(5, model.config.vocab_size, length)) for length in (30, 9)]
    found = npformer.trace(Model(replace(model.config, head_activation=""), dict(model.weights)), texts)
    arrays = {f"{i}/{name}": array for name in found for i, array in enumerate(found.texts(name))}
    diagnosis = golden.diagnose(golden.record(model, texts), arrays, model)
    assert (diagnosis.stage, diagnosis.mistake) == ("head.activation", "wrong activation"), str(diagnosis)
    assert "the layers' activation in the head" in str(diagnosis)


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_published_masked_language_model_is_read_whole(family: str) -> None:
    """The checkpoint has a pooler, position ids, the tied projection, its bias under two names, and a class name."""
    config = read_config(described(family, "ForMaskedLM", type_vocab_size=1, layer_norm_eps=1e-5))
    tensors = to_torch(tiny.weights(config), config)
    assert {"lm_head.bias"} == {name for name in tensors if name.endswith("bias") and name.count(".") == 1}
    published = {
        **tensors,
        "roberta.embeddings.position_ids": np.arange(10)[None],
        "roberta.pooler.dense.weight": np.zeros((6, 6), np.float32),
        "roberta.pooler.dense.bias": np.zeros(6, np.float32),
        "lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"],
        "lm_head.decoder.bias": tensors["lm_head.bias"],
    }
    found, expected = flatten(to_tree(published, config)), flatten(to_tree(tensors, config))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)
    base = to_tree(published, read_config(described(family, "ForMaskedLM", type_vocab_size=1), "base"))
    assert base.keys() == {"embeddings", "layers", "pooler"}
    del published["roberta.pooler.dense.weight"], published["roberta.pooler.dense.bias"]
    base = to_tree(published, read_config(described(family, "ForMaskedLM", type_vocab_size=1), "base"))
    assert base.keys() == {"embeddings", "layers"}


def test_the_three_are_one_model_under_three_names(tmp_path: Path) -> None:
    assert set(NAMES) & set(distinct_encoders()) == {"roberta"}
    ids, answers = np.array([[0, 9, 1, 7, 2]]), set()
    for family in NAMES:
        folder = tiny.folder(tmp_path / family, family, "token-classification", pad_id=1)
        named = json.loads((folder / "config.json").read_text())
        assert (named["model_type"], named["architectures"]) == (family, [f"{NAMES[family]}ForTokenClassification"])
        converted = convert(folder, tmp_path / f"{family}-own")
        answers |= {npformer.load(each)(ids)["logits"].tobytes() for each in (folder, converted)}
    assert len(answers) == 1


# --- training, golden files ------------------------------------------------------------------------------------------


def test_training_drops_the_same_stages_as_transformers(family: str) -> None:
    stages = ("embeddings.norm", "layers.*.attention.output", "layers.*.ffn.output", "*attention.weights")
    always = dict.fromkeys(stages, 0.2)
    for head, more in {
        "sequence-classification": {"layers.1.ffn_norm": 0.2, "pooled": 0.2},
        "token-classification": {"layers.1.ffn_norm": 0.2},
        "multiple-choice": {"pooled": 0.2},
        "question-answering": {},
    }.items():
        assert standard_rates(tiny.config(family, head), 0.2) == always | more
