"""A family that is defined outside the library, by one table, can be read, run, traced and trained.

The family is BERT with different names. Positions begin at row 2, special tokens are `<s>` and `</s>`, and there is no
table of token types. So its weights fit a DistilBERT, which must compute the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import families, golden
from npformer.checkpoint import convert, load_folder, module_path
from npformer.checkpoint import tree as layout
from npformer.checkpoint.safetensors import write_tensors
from npformer.config import Config, Positions
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from npformer.training import Dropout, Example, HeadLoss, Trainable, gradients, standard_rates
from npformer.training.start import start
from tests.support import tiny

NEWCOMER = families.EncoderTable(
    model_type="newcomer",
    constants={"positions": Positions(first=2), "pooler": "relu"},
    special_tokens={"unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>"},
    pair="cls $A sep sep $B sep",
    sizes={
        "vocab_size": "words", "d_model": "wide", "n_heads": "heads", "n_layers": "deep", "d_ffn": "inner",
        "max_length": "places",
    },
    activation="act",
    architectures={
        "NewcomerModel": "base",
        "NewcomerForSequenceClassification": "sequence-classification",
        "NewcomerForTokenClassification": "token-classification",
        "NewcomerForQuestionAnswering": "question-answering",
        "NewcomerForMaskedLM": "masked-lm",
        "NewcomerForMultipleChoice": "multiple-choice",
    },
    prefix="new.",
    encoder={
        "embeddings.token": "new.words",
        "embeddings.position": "new.places",
        "embeddings.norm": "new.first_norm",
        "layers.*.attention.query": "new.blocks.*.q",
        "layers.*.attention.key": "new.blocks.*.k",
        "layers.*.attention.value": "new.blocks.*.v",
        "layers.*.attention.output": "new.blocks.*.o",
        "layers.*.attention_norm": "new.blocks.*.norm_1",
        "layers.*.ffn.hidden": "new.blocks.*.up",
        "layers.*.ffn.output": "new.blocks.*.down",
        "layers.*.ffn_norm": "new.blocks.*.norm_2",
    },
    heads={
        "base": {},
        "sequence-classification": {"pooler": "top.dense", "head.output": "top.out"},
        "token-classification": {"head.output": "top"},
        "question-answering": {"head.output": "spans"},
        "masked-lm": {"head.hidden": "lm.dense", "head.norm": "lm.norm", "head.output": "lm.words"},
        "multiple-choice": {"pooler": "top.dense", "head.output": "top.out"},
    },
    stages={"new.blocks.*.act": "layers.*.ffn.activation"},
    read={"sequence-classification": "layers.*.ffn_norm pooled"},
    supported={"masked-lm": {"act": "gelu"}},
)  # fmt: skip
HEADS = list(NEWCOMER.heads)
SPECIAL = {"[UNK]": "<unk>", "[SEP]": "</s>", "[PAD]": "<pad>", "[CLS]": "<s>", "[MASK]": "<mask>"}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(families.FAMILIES, "newcomer", NEWCOMER)
    yield
    layout._recent_sources.cache_clear()


def config(head: str) -> Config:
    labels = tiny.LABELS.get(head, ())
    sizes = {"vocab_size": len(tiny.VOCABULARY), "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ffn": 64}
    return NEWCOMER.config(head, **sizes, max_length=30, labels=labels)


def folder(path: Path, head: str, kind: str = "model.safetensors") -> Path:
    """Writes a checkpoint as another library would: with its own names, weights as (out, in), and a vocabulary."""
    settings = config(head)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(families.write_config(settings)))
    write_tensors(path / kind, layout.to_torch(tiny.weights(settings), settings), {"format": "pt"})
    pieces = [SPECIAL.get(piece, piece) for piece in tiny.VOCABULARY]
    (path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def twin(model: Model) -> Model:
    """Returns a DistilBERT with the same weights, but without the first two rows of the position table."""
    flat = layout.stored(dict(model.weights), model.config)
    flat["embeddings.position.weight"] = flat["embeddings.position.weight"][2:]
    settings = replace(model.config, model_type="distilbert", positions=Positions())
    return Model(settings, layout.own_to_tree(flat, settings))


@pytest.mark.parametrize("head", HEADS)
def test_config_and_weights_survive_a_round_trip(head: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "new", head)
    described = json.loads((path / "config.json").read_text())
    assert (described["places"], described["wide"]) == (32, 32)
    read, tree = load_folder(path)
    assert read == config(head)
    assert tree["embeddings"]["position"]["weight"].shape == (32, 32)
    assert module_path(read, "layers.1.ffn.hidden") == ("" if head == "base" else "new.") + "blocks.1.up"
    back = convert(convert(path, tmp_path / "own"), tmp_path / "back", to="torch")
    assert (back / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("head", HEADS)
def test_every_head_gives_the_numbers_of_the_same_weights_elsewhere(head: str, tmp_path: Path) -> None:
    model = npformer.load(folder(tmp_path / "new", head))
    ids = np.random.default_rng(0).integers(0, 200, (2, 3, 9) if head == "multiple-choice" else (3, 30))
    ours, theirs = model(ids), twin(model)(ids)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(npformer.NpformerError, match="expected at most 30 tokens, got 31"):
        model(np.zeros((1, 1, 31) if head == "multiple-choice" else (1, 31), int))


def test_its_tokenizer_has_its_own_special_tokens(tmp_path: Path) -> None:
    tokenizer = npformer.load(folder(tmp_path / "new", "base")).tokenizer
    assert tokenizer.encode("I love it").tokens == ["<s>", "i", "love", "it", "</s>"]
    pair = tokenizer.encode("it", "is zzz")
    assert pair.tokens[:5] == ["<s>", "it", "</s>", "</s>", "is"]
    assert set(pair.type_ids) == {0}


def test_tasks_answer(tmp_path: Path) -> None:
    for head, task, text in (
        ("sequence-classification", "text-classification", "I love it"),
        ("masked-lm", "fill-mask", "I <mask> it"),
        ("token-classification", "token-classification", "I love it"),
    ):
        assert npformer.pipeline(task, folder(tmp_path / head, head))(text)
    with pytest.warns(UserWarning, match="42 tokens, cut to 30"):
        npformer.pipeline("text-classification", tmp_path / "sequence-classification")("it " * 40)


def test_it_is_traced_with_the_names_of_its_modules(tmp_path: Path) -> None:
    model = npformer.load(folder(tmp_path / "new", "sequence-classification"))
    found = npformer.trace(model, "I love it")
    assert found.tokens == ["<s>", "i", "love", "it", "</s>"]
    assert found.row("layers.0.ffn.activation").huggingface == "new.blocks.0.act"
    assert found.row("layers.1.attention.query").huggingface == "new.blocks.1.q"
    assert found.label in ("NEGATIVE", "POSITIVE")


def test_tiny_golden_files_and_their_diagnosis(tmp_path: Path) -> None:
    golden.tiny(tmp_path / "tiny", "newcomer")
    model, recorded = npformer.load(tmp_path / "tiny"), golden.load(tmp_path / "tiny" / golden.TINY_FILE)
    right = npformer.trace(model, recorded.texts)
    by_module = {
        f"{i}/{right.row(name).huggingface or name}": each for name in right for i, each in enumerate(right.texts(name))
    }
    assert golden.compare(recorded, by_module).ok
    wrong = npformer.trace(Model(replace(model.config, activation="gelu_tanh"), model.weights), recorded.texts)
    arrays = {f"{i}/{name}": each for name in wrong for i, each in enumerate(wrong.texts(name))}
    assert golden.diagnose(recorded, arrays, model).mistake == "tanh GELU for erf"


def test_fine_tuning(tmp_path: Path) -> None:
    """A new head on the encoder, trained with dropout, has the same gradients as on a DistilBERT with equal weights."""
    settings, tree, kept = start(folder(tmp_path / "new", "base"), ("no", "yes", "perhaps"))
    assert (settings.model_type, settings.labels, kept) == ("newcomer", ("no", "yes", "perhaps"), False)
    examples = [Example(Text(np.arange(5 + i)), i % 3) for i in range(6)]
    rates = standard_rates(settings, 0.5)
    assert rates == {
        "embeddings.norm": 0.5, "layers.*.attention.output": 0.5, "layers.*.ffn.output": 0.5, "*attention.weights": 0.5,
        "layers.1.ffn_norm": 0.5, "pooled": 0.5,
    }  # fmt: skip

    def batch(model: Model) -> dict[str, Any]:
        objective = HeadLoss(model.config)
        return gradients(
            objective, Trainable(model.weights, model.config), examples, edit=lambda i: Dropout(rates, i)
        ).flat

    model = Model(settings, tree)
    ours, theirs = batch(model), batch(twin(model))
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"embeddings.token.weight", "embeddings.position.weight"}:
        assert np.array_equal(ours[name], theirs[name]), name
    place = "embeddings.position.weight"
    assert np.array_equal(ours[place].ids, theirs[place].ids + 2)
    assert np.array_equal(ours[place].values, theirs[place].values)


def test_unsupported_options_are_refused() -> None:
    with pytest.raises(npformer.NpformerError, match=r"head: expected one of base, .*got 'next-sentence'"):
        families.read_config(families.write_config(config("base")), "next-sentence")
    with pytest.raises(npformer.NpformerError, match="places: expected a whole number from 3"):
        families.read_config({**families.write_config(config("base")), "places": 2})


def test_a_setting_that_one_head_supports_in_part_is_no_matter_to_the_others() -> None:
    described = {**families.write_config(config("masked-lm")), "act": "relu"}
    assert families.read_config(described, "base").activation == "relu"
    with pytest.raises(npformer.NpformerError, match="act: 'relu' is not supported; supported: 'gelu'"):
        families.read_config(described)
