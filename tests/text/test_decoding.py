"""Decoding uses the ids of special tokens, so every version of the tokenizers library gives the same text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from npformer import NpformerError
from npformer.text.safe_tokenizer import SafeTokenizer
from npformer.text.tokenizer import load_tokenizer
from tests.support import tiny


def in_2023(path: Path) -> SafeTokenizer:
    """Returns Llama's tokenizer as Transformers wrote it in 2023. Special tokens are matched after normalization."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "<x>"]
    flags = {**dict.fromkeys(("single_word", "lstrip", "rstrip"), False), "normalized": True}
    space, mark = {"String": " "}, {"String": "▁"}
    described = {
        "version": "1.0",
        "added_tokens": [
            {"id": pieces.index(each), "content": each, "special": each != "<x>", **flags}
            for each in ("<unk>", "<s>", "</s>", "<x>")
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": space, "content": "▁"},
            ],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": mark, "content": " "},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "vocab": {each: i for i, each in enumerate(pieces)},
            "merges": ["▁ a"], "fuse_unk": True,
        },
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(described))
    return load_tokenizer(path, tiny.config("llama", "causal-lm", vocab_size=len(pieces)))


def test_special_tokens_are_left_out_by_their_ids(tmp_path: Path) -> None:
    """tokenizers 0.23 compares a token's normalized text with its text, so it keeps special tokens."""
    tokenizer = in_2023(tmp_path)
    assert [tokenizer.id_to_token(i) for i in (1, 2, 6, 7, 99)] == ["<s>", "</s>", "▁a", "<x>", None]
    assert tokenizer.decode([1, 6, 5, 2]) == "ab"
    assert tokenizer.decode(np.array([6, 5, 7, 2, 99])) == "ab<x>"
    assert tokenizer.decode([1, 6, 5, 2], skip_special_tokens=False) == "<s> ab</s>"
    assert tokenizer.decode_batch([[1, 6], [5, 2]]) == ["a", "b"]
    with pytest.raises(NpformerError, match=r"tokenizer\.json: the tokenizer failed"):
        tokenizer.decode([-1])


def test_tokens_that_are_added_later_are_decoded(tmp_path: Path) -> None:
    tokenizer = in_2023(tmp_path)
    assert tokenizer.decode([8, 4]) == "a"
    tokenizer.add_special_tokens(["<y>"])
    assert (tokenizer.id_to_token(8), tokenizer.decode([8, 4])) == ("<y>", "a")
    assert tokenizer.decode([8, 4], skip_special_tokens=False) == "<y>a"
