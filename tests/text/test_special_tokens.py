"""Special tokens that any of a folder's files name are used in chat templates, and are never split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npformer.text.special_tokens import template_tokens
from npformer.text.tokenizer import load_tokenizer
from tests.support import tiny

USUAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # of LlamaTokenizer
CONFIG = tiny.config("bert", vocab_size=len(tiny.VOCABULARY) + 8)


def folder(path: Path, **files: Any) -> Path:
    """Writes a folder with JSON files of these names."""
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("settings", "stated", "expected"),
    [
        ({}, {"bos_token": "<b>"}, {"bos_token": "<b>"}),  # folders of 2023 name them only in special_tokens_map.json
        ({"bos_token": "<a>"}, {"bos_token": {"content": "<b>"}}, {"bos_token": "<b>"}),
        ({"bos_token": "<a>", "added_tokens_decoder": {}}, {"bos_token": "<b>"}, {"bos_token": "<a>"}),
        ({"bos_token": "<a>"}, {"bos_token": None}, {"bos_token": "<a>"}),
        ({"image_token": "<i>"}, {"eos_token": "<e>"}, {"image_token": "<i>", "eos_token": "<e>"}),
        ({"extra_special_tokens": {"image_token": "<i>"}}, {}, {"image_token": "<i>", "additional_special_tokens": ["<i>"]}),
        ({"extra_special_tokens": ["<x>"]}, {}, {"additional_special_tokens": ["<x>"]}),
        (
            {"additional_special_tokens": ["<x>", "<y>"]},
            {"additional_special_tokens": [{"content": "<z>"}, "<x>"]},
            {"additional_special_tokens": ["<x>", "<y>", "<z>"]},
        ),
        ({"tokenizer_class": "LlamaTokenizer", "bos_token": "<b>"}, {}, {**USUAL, "bos_token": "<b>"}),
        ({"tokenizer_class": "LlamaTokenizerFast"}, {"eos_token": "<|im_end|>"}, {**USUAL, "eos_token": "<|im_end|>"}),
    ],
)  # fmt: skip
def test_the_variables_of_a_template(
    settings: dict[str, Any], stated: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    made = folder(tmp_path, tokenizer_config=settings, special_tokens_map=stated)
    assert template_tokens(made) == expected


def test_the_usual_tokens_of_a_folder_without_settings(tmp_path: Path) -> None:
    assert template_tokens(folder(tmp_path, config={"model_type": "mistral"})) == USUAL
    assert template_tokens(folder(tmp_path, config={"model_type": "bert"})) == {}


@pytest.mark.parametrize(
    "named",
    [
        {"special_tokens_map": {"additional_special_tokens": ["<new>"]}},
        {"special_tokens_map": {"pad_token": "<new>"}},
        {"tokenizer_config": {"extra_special_tokens": ["<new>"]}},
        {"tokenizer_config": {"extra_special_tokens": {"image_token": "<new>"}}},
        {"tokenizer_config": {"added_tokens_decoder": {"9999": {"content": "<new>", "special": True}}}},
    ],
)
@pytest.mark.parametrize("is_old", [False, True])
def test_a_named_token_that_the_file_lacks_is_added(named: dict[str, Any], is_old: bool, tmp_path: Path) -> None:
    """As in Transformers, a token that only a settings file names is added, even if there is a tokenizer.json."""
    made = folder(tmp_path, **named)
    if is_old:
        (made / "vocab.txt").write_text("\n".join(tiny.VOCABULARY), encoding="utf-8")
    else:
        tiny.tokenizer().save(str(made / "tokenizer.json"))
    encoding = load_tokenizer(made, CONFIG).encode("ice<new>", add_special_tokens=False)
    assert encoding.tokens == ["ice", "<new>"]
    assert encoding.ids[1] == len(tiny.VOCABULARY)
