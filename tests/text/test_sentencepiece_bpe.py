"""BPE in a SentencePiece file, as in older folders of Llama, Mistral and Gemma, gives the ids of sentencepiece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npformer.common.errors import NpformerError
from npformer.text.tokenizer import load_tokenizer
from tests.fuzz.protobuf_form import build, parse
from tests.support import tiny
from tests.support.scripts import LINES

sentencepiece = pytest.importorskip("sentencepiece", reason="needs the extra `translate`: sentencepiece")
pytestmark = pytest.mark.extra

SYMBOLS = ["<start_of_turn>", "\n", "\n\n"]
GEMMA = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"split_digits": True, "pad_id": 3}),
    "without bytes": ("llama", {"byte_fallback": False}),
    "gemma": ("gemma", {**GEMMA, "add_dummy_prefix": False, "user_defined_symbols": SYMBOLS}),
}
TEXTS = [
    *LINES,
    "",
    " ",
    "  two  spaces  ",
    "\n\n\na\n",
    "\t",
    "aaaa aaa aaaaaa",
    "    if x:\n        y",
    "1234",
    "你好👍🏽\u200b",
]


def folder(path: Path, **options: Any) -> Path:
    path.mkdir()
    settings = {
        "model_type": "bpe", "vocab_size": 900, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "character_coverage": 0.98,
        "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1, **options,
    }  # fmt: skip
    lines = [line.replace("\0", "") for line in LINES if line.strip()] * 3 + ["    if x:  y   = 1"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path / "tokenizer"), **settings
    )
    (path / "tokenizer.vocab").unlink()
    return path


def load(path: Path, model_type: str = "llama", rows: int = 900) -> Any:
    return load_tokenizer(path, tiny.config(model_type, "causal-lm", vocab_size=rows))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_sentencepiece_s(kind: str, tmp_path: Path) -> None:
    model_type, options = KINDS[kind]
    made = folder(tmp_path / "model", **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(made / "tokenizer.model"))
    ours = load(made, model_type, theirs.get_piece_size())  # no token is added to the pieces of the file
    special = ("<s>", "</s>", "<unk>", "<pad>")
    for text in TEXTS:
        if not any(each in text for each in special):
            assert ours.encode(text).ids == [theirs.bos_id(), *theirs.encode(text)], text
            assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text)).replace(" \u2047 ", ""), (
                text
            )


def test_settings_and_special_tokens(tmp_path: Path) -> None:
    made = folder(tmp_path / "model")
    assert load(made).encode("a</s>").tokens == ["<s>", "▁a", "</s>"]
    (made / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "add_eos_token": True}))
    assert load(made).encode("a").tokens == ["▁a", "</s>"]


def test_files_that_a_tokenizer_json_would_need(tmp_path: Path) -> None:
    for name, options, said in (
        ("spaces", {"remove_extra_whitespaces": True}, "a normalizer that removes spaces: not supported; copy"),
        ("symbols", {"user_defined_symbols": ["NEW"]}, "together with user-defined symbols: not supported"),
        ("charsmap", {"normalization_rule_name": "nmt_nfkc"}, "a character map: not supported; copy tokenizer.json"),
        ("unigram", {"model_type": "unigram"}, "expected a SentencePiece model of type BPE, got unigram"),
    ):
        with pytest.raises(NpformerError, match=rf"tokenizer\.model: .*{said}"):
            load(folder(tmp_path / name, **options))


def test_pieces_that_occur_twice_or_without_an_unknown_one(tmp_path: Path) -> None:
    made = folder(tmp_path / "model")
    path = made / "tokenizer.model"
    content = path.read_bytes()
    first = parse(content)[0][2]
    assert b"<unk>" in first
    for changed in (parse(content)[1:], [*parse(content), parse(content)[-3]]):
        path.write_bytes(build(changed))
        with pytest.raises(NpformerError, match="expected unique pieces, and one of the type UNKNOWN"):
            load(made, rows=1000)
