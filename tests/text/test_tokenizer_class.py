"""The class of a tokenizer decides how its files are read. A class that npformer lacks is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npformer.common.errors import NpformerError
from npformer.text.tokenizer import load_tokenizer
from npformer.text.tokenizer_class import FILE, MERGES_OF_WORDS, SETTINGS, VOCABULARY
from tests.fuzz import corpus
from tests.golden.make_tokenizer import CASES, write_folder
from tests.support import tiny

CONFIG = tiny.config("bert", vocab_size=len(tiny.VOCABULARY) + 8)
SPM = corpus.unigram()["sentencepiece.bpe.model"]
JAPANESE = {
    "tokenizer_class": "BertJapaneseTokenizer",
    "word_tokenizer_type": "mecab",
    "subword_tokenizer_type": "character",
}
KOBERT = {"auto_map": {"AutoTokenizer": ["tokenization_kobert.KoBertTokenizer", None]}}


def folder(path: Path, settings: dict[str, Any], **files: Any) -> Path:
    """Writes a folder with a vocab.txt and these settings. files: further files, with _ for a dot in the name."""
    content = {name.replace("_", ".", 1): each for name, each in files.items()}
    return write_folder(path / "model", {SETTINGS: settings, **content})


def refused(path: Path, config: Any = CONFIG) -> str:
    with pytest.raises(NpformerError) as caught:
        load_tokenizer(path, config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (JAPANESE, "tokenizer_class: 'BertJapaneseTokenizer' is not supported"),
        ({**JAPANESE, "tokenizer_class": None}, "word_tokenizer_type: 'mecab' is not supported; supported: 'basic'"),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type: 'character' is not supported"),
        (KOBERT, "'tokenization_kobert.KoBertTokenizer' is not supported: auto_map: the class is the checkpoint's own"),
        ({"auto_map": ["own.Tokenizer", None]}, "'own.Tokenizer' is not supported: auto_map"),
        ({**KOBERT, "tokenizer_class": "BertTokenizer"}, "KoBertTokenizer' is not supported"),
        ({"tokenizer_class": "KoBertTokenizer"}, "reads vocab.txt like BertTokenizer, DistilBertTokenizer"),
        ({"tokenizer_class": "BertweetTokenizer"}, "'BertweetTokenizer' is not supported"),
        ({"tokenizer_class": "RoFormerTokenizerFast"}, "'RoFormerTokenizer' is not supported"),
        ({"tokenizer_class": 3}, "tokenizer_class: expected the name of a class, got 3"),
    ],
)
def test_a_class_that_splits_texts_in_another_way_is_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    message = refused(folder(tmp_path, settings))
    assert f"{SETTINGS}: " in message
    assert said in message


def test_the_class_may_be_named_in_the_config_of_the_model(tmp_path: Path) -> None:
    """Transformers also reads config.json if tokenizer_config.json names no class."""
    named = {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}
    path = write_folder(tmp_path / "model", {"config.json": named})
    (path / VOCABULARY).write_text("\n".join(tiny.VOCABULARY), encoding="utf-8")
    assert "config.json: tokenizer_class: 'BertJapaneseTokenizer' is not supported" in refused(path)
    (path / SETTINGS).write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    assert load_tokenizer(path, CONFIG).encode("東京", add_special_tokens=False).tokens == ["[UNK]", "京"]


def test_a_python_class_does_not_read_a_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(tiny.tokenizer().to_str())
    (tmp_path / SETTINGS).write_text(json.dumps(JAPANESE))
    assert "'BertJapaneseTokenizer' is not supported" in refused(tmp_path)
    (tmp_path / SETTINGS).write_text(json.dumps({"tokenizer_class": "SomeNewTokenizer", **KOBERT}))
    assert load_tokenizer(tmp_path, CONFIG).encode("ice").tokens == ["[CLS]", "ice", "[SEP]"]  # needs no class


def test_merges_next_to_a_vocabulary_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, {})
    (path / MERGES_OF_WORDS).write_text("i c 1\n")
    assert f"{MERGES_OF_WORDS}: merges next to a vocab.txt" in refused(path, tiny.config("roberta", vocab_size=400))


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "LayoutLMTokenizer"])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_a_roberta_model_may_have_the_tokenizer_of_bert(name: str, model_type: str, tmp_path: Path) -> None:
    """The published folders of klue/roberta have this tokenizer."""
    config = tiny.config(model_type, vocab_size=len(tiny.VOCABULARY) + 8)
    tokens = load_tokenizer(folder(tmp_path, {"tokenizer_class": name}), config).encode("ice cream").tokens
    assert tokens == ["[CLS]", "ice", "cream", "[SEP]"]


@pytest.mark.parametrize(
    ("model_type", "name", "file", "special", "tokens"),
    [
        ("roberta", "T5Tokenizer", "spiece.model", {}, ["▁ice", "</s>"]),  # rinna/japanese-roberta-base
        ("bert", "XLMRobertaTokenizer", "sentencepiece.bpe.model", {}, ["<s>", "▁ice", "</s>"]),  # multilingual-e5
        ("bert", "AlbertTokenizer", "spiece.model", {"unk_token": "<unk>"}, ["[CLS]", "▁ice", "[SEP]"]),
    ],
)
def test_the_file_of_the_named_class_is_read(
    model_type: str, name: str, file: str, special: dict[str, str], tokens: list[str], tmp_path: Path
) -> None:
    """A tokenizer of a different class would read the vocab.txt next to this file."""
    path = folder(tmp_path, {"tokenizer_class": name, **special})
    (path / file).write_bytes(SPM)
    assert load_tokenizer(path, tiny.config(model_type, vocab_size=400)).encode("ice").tokens == tokens


def test_other_files_of_a_class_that_is_not_theirs(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "merges", {**CASES["merges"], SETTINGS: {"tokenizer_class": "CLIPTokenizer"}})
    assert "npformer reads merges.txt like GPT2Tokenizer" in refused(path, tiny.config("roberta", vocab_size=300))
    (tmp_path / "spiece.model").write_bytes(SPM)
    (tmp_path / SETTINGS).write_text(json.dumps({"tokenizer_class": "XLNetTokenizer"}))
    assert "npformer reads spiece.model like AlbertTokenizer, T5Tokenizer" in refused(tmp_path)


def test_pieces_of_sentencepiece_in_a_vocab_txt_are_refused(tmp_path: Path) -> None:
    """monologg/kobert has such pieces, but names no tokenizer class. WordPiece would read every word as [UNK]."""
    pieces = [*tiny.SPECIAL, "!", "▁", "▁한국", "어", "▁모델", "을"]
    path = folder(tmp_path, {"do_lower_case": False}, vocab_txt="\n".join(pieces))
    expected = (
        "expected pieces of WordPiece, which continue a word with ##, got pieces of SentencePiece such as '▁모델'"
    )
    assert f"{path / VOCABULARY}: {expected}" in refused(path)
    made = tiny.tokenizer()
    made.model = type(made.model)({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    made.save(str(path / FILE))  # as BertTokenizerFast writes it
    assert f"{path / FILE}: {expected}" in refused(path)


@pytest.mark.parametrize("pieces", [["▁", "ice"], ["▁ice", "##s"]])
def test_wordpiece_may_have_the_mark_of_sentencepiece(pieces: list[str], tmp_path: Path) -> None:
    path = folder(tmp_path, {}, vocab_txt="\n".join([*tiny.SPECIAL, *pieces]))
    assert load_tokenizer(path, CONFIG).encode(pieces[0]).tokens == ["[CLS]", pieces[0], "[SEP]"]
