"""The start and end tokens that tokenizer_config.json requests override tokenizer.json, as in transformers 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

import npformer
from npformer import NpformerError
from npformer.text.tokenizer import load_tokenizer
from tests.support import byte_level, chatters, tiny

NAMES = {"bos_token": byte_level.END, "eos_token": byte_level.STOP}
BOS, EOS = chatters.END, chatters.STOP


def folder(path: Path, settings: dict[str, Any], single: str = "") -> Path:
    """Writes a Llama with a tokenizer.json. single: the special tokens that the file adds to a text."""
    made = chatters.folder(path / "m", "llama")
    tokenizer = byte_level.tokenizer(ends=False)
    special = [(byte_level.END, BOS), (byte_level.STOP, EOS)]
    if single:
        tokenizer.post_processor = processors.TemplateProcessing(single.split(), special_tokens=special)
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({**NAMES, **settings}))
    return made


def added(path: Path) -> tuple[bool, bool]:
    """Returns whether the tokenizer puts the start token before a text, and the end token after it."""
    ids = load_tokenizer(path, tiny.config("llama", "causal-lm", vocab_size=byte_level.N_TOKENS)).encode("ab").ids
    assert len(ids) == 2 + (ids[0] == BOS) + (ids[-1] == EOS)
    return ids[0] == BOS, ids[-1] == EOS


BEGUN, WHOLE = f"{byte_level.END} $A", f"{byte_level.END} $A {byte_level.STOP}"


@pytest.mark.parametrize(
    ("single", "settings", "expected"),
    [
        (BEGUN, {"add_bos_token": True, "add_eos_token": True}, (True, True)),  # as in e5-mistral-7b-instruct
        (BEGUN, {"add_eos_token": True, "add_bos_token": None}, (True, True)),
        (BEGUN, {"add_bos_token": False}, (False, False)),
        (BEGUN, {"add_bos_token": False, "add_eos_token": True}, (False, True)),
        (BEGUN, {}, (True, False)),
        (WHOLE, {"add_eos_token": False}, (True, False)),
        (WHOLE, {"add_bos_token": True}, (True, False)),  # add_eos_token is False by default
        (WHOLE, {"add_eos_token": None}, (True, True)),
        (WHOLE, {}, (True, True)),  # a folder saved by transformers 5
        ("", {"add_bos_token": True}, (True, False)),
        ("", {}, (False, False)),
    ],
)
@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer", None])
def test_the_settings_override_the_file(
    name: str | None, single: str, settings: dict[str, Any], expected: tuple[bool, bool], tmp_path: Path
) -> None:
    assert added(folder(tmp_path, {"tokenizer_class": name, **settings}, single)) == expected


def test_gpt_neox_adds_neither_by_default(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "GPTNeoXTokenizerFast", "add_eos_token": True}
    assert added(folder(tmp_path, settings, BEGUN)) == (False, True)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2TokenizerFast"])
def test_other_classes_ignore_the_settings(name: str, tmp_path: Path) -> None:
    settings = {"tokenizer_class": name, "add_bos_token": False, "add_eos_token": True}
    assert added(folder(tmp_path, settings, BEGUN)) == (True, False)


def test_a_pair_has_them_around_both_texts(tmp_path: Path) -> None:
    path = folder(tmp_path, {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}, BEGUN)
    encoding = npformer.load(path).tokenizer.encode("a", "b")
    assert encoding.ids == [BOS, encoding.ids[1], EOS, BOS, encoding.ids[4], EOS]
    assert encoding.type_ids == [0, 0, 0, 1, 1, 1]


def test_the_last_token_is_pooled_with_the_end_token(tmp_path: Path) -> None:
    """The vectors of e5-mistral are the vectors of the end token."""
    model = npformer.load(folder(tmp_path, {"add_eos_token": True}, BEGUN))
    ids = npformer.load(folder(tmp_path / "plain", {}, BEGUN)).tokenizer.encode("ice cream").ids
    trace = npformer.trace(model, "ice cream")
    assert trace.ids.tolist() == [*ids, EOS]
    np.testing.assert_array_equal(trace["norm"], npformer.trace(model, [*ids, EOS])["norm"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"add_eos_token": "yes"}, "tokenizer_config.json: add_eos_token: expected true or false, got 'yes'"),
        ({"add_eos_token": True, "eos_token": "<none>:"}, "must not begin with $ or contain :"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(NpformerError) as caught:
        npformer.load(folder(tmp_path, settings, BEGUN)).tokenizer.encode("a")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "ends"), [("PreTrainedTokenizerFast", 0), ("TokenizersBackend", 0), ("BertTokenizer", 1), (None, 1)]
)
def test_a_class_of_no_family_adds_no_special_tokens_to_a_file_without_a_template(
    name: str | None, ends: int, tmp_path: Path
) -> None:
    """As in Transformers, because users train such tokenizers, and their models, without [CLS] and [SEP]."""
    folder = tiny.folder(tmp_path, "bert", "base")
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, "post_processor": None}))
    settings = {} if name is None else {"tokenizer_class": name}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(folder, tiny.config("bert", "base"))
    before, after = ["[CLS]"] * ends, ["[SEP]"] * ends
    assert tokenizer.encode("good movie").tokens == [*before, "good", "movie", *after]
    pair = tokenizer.encode("good", "ice cream")
    assert pair.tokens == [*before, "good", *after, "ice", "cream", *after]
    assert pair.type_ids == [0] * (1 + 2 * ends) + [1] * (2 + ends)
    assert tokenizer.num_special_tokens_to_add(True) == 3 * ends
