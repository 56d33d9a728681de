"""Tokens without a row in the embedding table: the model loads, and only texts with such a token are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer import NpformerError
from npformer.text.tokenizer import load_tokenizer
from npformer.text.tokenizer_checks import spare
from tests.support import tiny

ROWS = len(tiny.VOCABULARY)
CONFIG = tiny.config("bert", vocab_size=ROWS)


def with_a_token(path: Path, form: str) -> Path:
    """Writes a folder with a tokenizer that has one more token, with the id ROWS, in one of several forms."""
    new = {"id": ROWS, "content": "<new>", "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    data = json.loads(tiny.tokenizer().to_str())
    if form == "added":
        data["added_tokens"].append({**new, **flags})
    elif form == "in the vocabulary":
        data["model"]["vocab"]["<new>"] = ROWS
        data["added_tokens"].append({**new, **flags})
    elif form == "settings":
        (path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<new>"}))
    if form.startswith("vocab.txt"):
        last = {"vocab.txt": "<new>", "vocab.txt, blank": ""}[form]
        (path / "vocab.txt").write_text("\n".join([*tiny.VOCABULARY, last]) + "\n", encoding="utf-8")
    else:
        (path / "tokenizer.json").write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("form", ["added", "in the vocabulary", "settings"])
def test_only_a_text_with_such_a_token_is_refused(form: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(with_a_token(tmp_path, form), CONFIG)
    assert tokenizer.token_to_id("<new>") == ROWS
    assert tokenizer.encode("ice cream").tokens == ["[CLS]", "ice", "cream", "[SEP]"]
    said = f"'<new>' with the id {ROWS}, but the embedding table of the model has {ROWS} rows"
    for call in (
        lambda: tokenizer.encode("ice <new>"),
        lambda: tokenizer.encode("ice", "<new>"),
        lambda: tokenizer.encode_batch(["ice", "a <new>"]),
        lambda: tokenizer.encode("<new>" + " ice" * 8000),
    ):
        with pytest.raises(NpformerError) as caught:
            call()
        assert said in str(caught.value)


@pytest.mark.parametrize("form", ["vocab.txt", "vocab.txt, blank"])
def test_a_vocabulary_with_one_line_more_than_rows(form: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(with_a_token(tmp_path, form), CONFIG)
    assert tokenizer.encode("ice cream").tokens == ["[CLS]", "ice", "cream", "[SEP]"]
    assert tokenizer.get_vocab_size() == ROWS + 1


def test_a_task_answers_the_other_texts(tmp_path: Path) -> None:
    made = with_a_token(tiny.folder(tmp_path / "m", "bert"), "added")
    classify = npformer.pipeline("text-classification", made)
    assert classify("ice cream")["label"] in tiny.LABELS["sequence-classification"]
    with pytest.raises(NpformerError, match=r"the token '<new>' with the id"):
        classify("<new>")
    assert classify("ice cream")["label"]


def changed(path: Path, **parts: Any) -> Path:
    (path / "tokenizer.json").write_text(json.dumps({**json.loads(tiny.tokenizer().to_str()), **parts}))
    return path


def test_a_special_token_around_each_text_needs_a_row(tmp_path: Path) -> None:
    ends = {"type": "BertProcessing", "sep": ["<new>", ROWS], "cls": ["[CLS]", 2]}
    with pytest.raises(NpformerError, match=rf"sep: expected a whole number from 0 to {ROWS - 1}, got {ROWS}"):
        load_tokenizer(changed(tmp_path, post_processor=ends), CONFIG)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join([each for each in tiny.VOCABULARY if each != "[SEP]"]))
    with pytest.raises(NpformerError, match=f"a special token has the id {ROWS - 1}, but .* {ROWS - 1} rows"):
        load_tokenizer(tmp_path, tiny.config("bert", vocab_size=ROWS - 1))


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(tiny.VOCABULARY), encoding="utf-8")
    few = next(rows for rows in range(ROWS, 0, -1) if rows + spare(rows) < ROWS)
    load_tokenizer(tmp_path, tiny.config("bert", vocab_size=few + 1))
    with pytest.raises(NpformerError, match="the tokenizer belongs to a different model"):
        load_tokenizer(tmp_path, tiny.config("bert", vocab_size=few))
