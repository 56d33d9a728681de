"""Pieces of a SentencePiece file that would take minutes or gigabytes are refused before they are split or merged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from npformer import NpformerError
from npformer.text import legacy_files
from npformer.text.legacy_files import MOST_TRIED
from npformer.text.sentencepiece_file import MOST_CHARACTERS
from npformer.text.tokenizer import load_tokenizer
from tests.fuzz.protobuf_form import BYTES, FLOAT, VARINT, build, varint
from tests.support import tiny

UNKNOWN, CONTROL = varint(2), varint(3)


def model(path: Path, pieces: list[str], name: str = "tokenizer.model", kind: int = 2) -> Path:
    """Writes a folder with a SentencePiece file of these pieces. kind: 1 for unigram, 2 for BPE."""
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    fields: list[Any] = [
        (1, BYTES, build([(1, BYTES, text.encode()), (2, FLOAT, struct.pack("<f", 0.0)), (3, VARINT, each)]))
        for text, each in special
    ]
    for i, text in enumerate(pieces):
        score = struct.pack("<f", -float(i))
        fields.append((1, BYTES, build([(1, BYTES, text.encode()), (2, FLOAT, score)])))
    fields.append((2, BYTES, build([(3, VARINT, varint(kind))])))
    fields.append((3, BYTES, build([(3, VARINT, varint(0)), (4, VARINT, varint(0))])))
    (path / name).write_bytes(build(fields))
    return path


def loaded(path: Path, rows: int, model_type: str = "llama") -> Any:
    head = "causal-lm" if model_type == "llama" else "base"
    return load_tokenizer(path, tiny.config(model_type, head, vocab_size=rows))


def test_pieces_of_pieces(tmp_path: Path) -> None:
    """Pieces of 2 to 1,000 times "a" take 516 KB, and their half a million pairs a third of a billion characters."""
    pieces = ["a" * n for n in range(1, 1001)]
    assert sum(len(each) ** 2 for each in pieces) > MOST_TRIED
    with pytest.raises(NpformerError, match=r"tokenizer\.model: expected at most \d+ characters in the splits"):
        loaded(model(tmp_path, pieces), 1003)
    few = loaded(model(tmp_path, pieces[:40]), 43)
    assert few.encode("a" * 40, add_special_tokens=False).tokens == ["a" * 40]


@pytest.mark.parametrize(
    ("name", "kind", "model_type"), [("tokenizer.model", 2, "llama"), ("sentencepiece.bpe.model", 1, "xlm-roberta")]
)
def test_long_pieces(name: str, kind: int, model_type: str, tmp_path: Path) -> None:
    pieces = [f"{i:05}" * 200 for i in range(MOST_CHARACTERS // 1000 + 1)]
    with pytest.raises(NpformerError, match="expected pieces of at most 8388608 characters in all, got 83"):
        loaded(model(tmp_path, pieces, name, kind), len(pieces) + 10, model_type)


def test_many_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends at the first piece beyond the limit."""
    pieces = ["a" * n for n in range(1, 41)]
    monkeypatch.setattr(legacy_files, "MOST_MERGES", sum(range(40)) - 1)
    with pytest.raises(NpformerError, match="expected at most 779 pairs of pieces that make another piece"):
        loaded(model(tmp_path, pieces), 43)
    monkeypatch.setattr(legacy_files, "MOST_MERGES", sum(range(40)))
    loaded(model(tmp_path, pieces), 43)
