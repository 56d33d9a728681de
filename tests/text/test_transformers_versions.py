"""Differences between transformers 4 and 5: one test for each row of docs/reference/transformers-versions.md.

transformers 4.57 and 5.23 gave the tokens in the comments.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import npformer
from npformer.common.other_libraries import TRANSFORMERS_VERSIONS
from npformer.generation.settings import resolve
from npformer.loading import REPOSITORY
from npformer.text.tokenizer import load_tokenizer
from tests.support import tiny
from tests.support.cli_runner import run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "transformers-versions.md"
PIECES = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "▁b"]


def llama(path: Path, **settings: object) -> Path:
    """Writes the tokenizer of an older Llama folder, which adds a space before a text."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    space, mark = {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    described = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": PIECES[i], "special": True, **flags} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [space, mark]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {each: i for i, each in enumerate(PIECES)}, "merges": ["▁ a", "▁ b"]},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(described))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **settings}))
    return path


def tokens(path: Path, text: str) -> list[str]:
    config = tiny.config("llama", "causal-lm", vocab_size=len(PIECES))
    return list(load_tokenizer(path, config).encode(text).tokens)


def test_spaces_around_special_tokens_of_llama(tmp_path: Path) -> None:
    path = llama(tmp_path)
    assert tokens(path, "a</s>b") == ["<s>", "▁a", "</s>", "▁b"]  # version 5: ... b
    assert tokens(path, "a </s> b") == ["<s>", "▁a", "▁", "</s>", "▁", "▁b"]  # version 5: ... </s> ▁b


def test_the_start_and_end_tokens_that_the_settings_ask_for(tmp_path: Path) -> None:
    assert tokens(llama(tmp_path, add_eos_token=True), "a") == ["<s>", "▁a", "</s>"]  # version 5: <s> ▁a
    assert tokens(llama(tmp_path, add_bos_token=False), "a") == ["▁a"]  # version 5: <s> ▁a
    assert tokens(llama(tmp_path), "a") == ["<s>", "▁a"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": True}
    assert tokens(llama(tmp_path, **settings), "a") == ["<s>", "▁a"]


def test_the_normalizer_of_roberta_s_file(tmp_path: Path) -> None:
    """test_tokenizer.py compares the ids of such a file."""
    path = tmp_path / "tokenizer.json"
    tiny.tokenizer().save(str(path))
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "normalizer": {"type": "Lowercase"}}))
    config = tiny.config("roberta", vocab_size=len(tiny.VOCABULARY))
    assert load_tokenizer(tmp_path, config).encode("ICE", add_special_tokens=False).tokens == ["ice"]


def test_the_end_token_of_config_json(tmp_path: Path) -> None:
    """In both versions, a generation_config.json without eos_token_id means that no token ends a text."""
    path = tiny.folder(tmp_path / "m", "llama", "causal-lm", end_ids=(2,))
    config = npformer.load(path).config
    for content in ({}, {"bos_token_id": 1}, {"eos_token_id": None}):
        (path / "generation_config.json").write_text(json.dumps(content))
        assert resolve(path, config, {}).end_ids == (2,)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert resolve(path, config, {}).end_ids == (3, 4)


def test_the_labels_of_zero_shot_classification(tmp_path: Path) -> None:
    path = tiny.folder(tmp_path / "m", "bert", labels=("contradiction", "neutral", "entailment"))
    data = json.loads((path / "config.json").read_text())
    expected = npformer.pipeline("zero-shot-classification", path)("ice", ["sport", "music"])
    data["label2id"] = {"entailment": 0, "neutral": 1, "contradiction": 2}
    (path / "config.json").write_text(json.dumps(data))
    with pytest.warns(npformer.NpformerWarning, match="the id of entailment is 0 in label2id, but 2 in id2label; using id2label; see https://github.com") as caught:  # fmt: skip
        found = npformer.pipeline("zero-shot-classification", path)("ice", ["sport", "music"])
    assert found == expected
    assert len(caught) == 1


def test_the_page_is_named_by_info(tmp_path: Path) -> None:
    assert f"{REPOSITORY}/blob/main/docs/reference/{PAGE.name}" == TRANSFORMERS_VERSIONS
    page = PAGE.read_text(encoding="utf-8")
    for subject in ("RoBERTa", "add_eos_token", "spaces around special tokens", "generation_config.json", "label2id"):
        assert subject in page
    code, output, _ = run("info", "distilbert-sst2", "--json")
    assert code == 0
    assert TRANSFORMERS_VERSIONS in json.loads(output)["Transformers"]
