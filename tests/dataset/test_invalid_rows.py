"""A row of JSON Lines with a lone surrogate gets an error; the other rows are answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from npformer import NpformerError, pipeline
from npformer.dataset import map
from npformer.dataset.invalid_rows import PROBLEM
from tests.support import tiny

REASON = "a lone surrogate, which is not valid text; it is replaced by U+FFFD"


def rows(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("bad", "column", "kept"),
    [
        (r'{"text": "a \ud800", "x": {"y": ["b"]}}', "text", {"text": "a \ufffd", "x": {"y": ["b"]}}),
        (r'{"text": "a", "x": {"y": ["b\uDFFFc", "\ud83d\ude00"]}}', "x", {"text": "a", "x": {"y": ["b\ufffdc", "\U0001f600"]}}),
    ],
)  # fmt: skip
def test_the_row_gets_an_error(
    bad: str, column: str, kept: dict[str, Any], suffix: str, classify: Any, tmp_path: Path
) -> None:
    good = '{"text": "ice", "x": {"y": ["b"]}}'
    out = tmp_path / f"o.{suffix}"
    report = map(classify, rows(tmp_path / "in.jsonl", good, bad, good, bad), out, column="text", part_rows=3)
    assert (report.rows, report.errors, report.unreadable) == (4, 2, [])
    first, second, third, fourth = read(out)
    assert first == third
    assert first["error"] is None
    assert second == fourth == {**kept, "label": None, "score": None, "truncated": None, "error": f"column {column!r}: {REASON}"}  # fmt: skip
    answers = read_of(classify, [good, good], tmp_path / "plain")
    assert [first, third] == answers  # the other answers keep their bits


def read_of(classify: Any, lines: list[str], folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    map(classify, rows(folder / "in.jsonl", *lines), folder / "o.jsonl", column="text")
    return read(folder / "o.jsonl")


def test_a_vector_of_such_a_row_is_nan(tmp_path: Path) -> None:
    embed = pipeline("sentence-embedding", tiny.folder(tmp_path / "m", "bert", "base"))
    source = rows(tmp_path / "in.jsonl", r'{"text": "\ud800"}', '{"text": "ice"}')
    map(embed, source, tmp_path / "o.parquet", column="text")
    first, second = read(tmp_path / "o.parquet")
    [name] = [each for each, value in second.items() if isinstance(value, list)]
    assert np.isnan(first[name]).all()
    assert np.isfinite(second[name]).all()


def test_names_of_columns(classify: Any, tmp_path: Path) -> None:
    [found] = read_of(classify, [r'{"text": "ice", "a\ud800": 1}'], tmp_path / "a")
    assert (found["a\ufffd"], found["error"]) == (1, f"column 'a\ufffd': {REASON}")
    with pytest.raises(NpformerError, match=r"in\.jsonl:1: duplicate key 'a.', after U\+FFFD replaces"):
        read_of(classify, [r'{"text": "ice", "a\ud800": 1, "a\ud801": 2}'], tmp_path / "b")
    with pytest.raises(NpformerError, match=r"in\.jsonl:1: the key .* is reserved"):
        read_of(classify, [json.dumps({"text": "ice", PROBLEM: "x"})], tmp_path / "c")
    deep = '{"text": "ice", "a": ' + "[" * 900 + r'"\ud800"' + "]" * 900 + "}"
    with pytest.raises(NpformerError, match=r"in\.jsonl:1: .*nested more than \d+ deep"):
        read_of(classify, [deep], tmp_path / "d")
