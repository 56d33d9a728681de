"""In every format, the number of columns is limited, and is counted before arrays are made for the columns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from npformer import NpformerError
from npformer.dataset import jsonl, map, readers, wide
from npformer.dataset.sources import survey
from npformer.dataset.wide import COLUMNS, check_parquet, parquet_elements

KINDS = ("jsonl", "csv", "parquet", "arrow")


def written(path: Path, table: pa.Table) -> Path:
    kind = path.suffix
    if kind == ".parquet":
        pa.parquet.write_table(table, path)
    elif kind == ".arrow":
        pa.feather.write_feather(table, path)
    elif kind == ".csv":
        rows = [table.column_names, *zip(*table.to_pydict().values(), strict=True)]
        path.write_text("".join(",".join(map_of(str, row)) + "\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return path


def map_of(function: Any, values: Any) -> list[Any]:
    return [function(each) for each in values]


def table(count: int) -> pa.Table:
    """Returns a table of `count` columns, one of which has texts."""
    return pa.table({"text": ["ice", "music"], **{f"c{i}": [1, 2] for i in range(count - 1)}})


def test_rows_whose_keys_differ_are_refused_at_the_line_that_has_too_many(tmp_path: Path) -> None:
    """300 rows of 300 keys each, 1.3 MB in all, once used 3 GB and ended with std::bad_alloc."""
    lines = (json.dumps({"text": "ice", **{f"key {i}.{j}": j for j in range(300)}}) for i in range(300))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(
        NpformerError, match=r"a\.jsonl:34: column 'key 33.99': expected at most 10000 columns"
    ) as refused:
        survey(tmp_path / "a.jsonl", 1000)
    assert str(refused.value).endswith("in a list of objects with a key and a value")


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_exact(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "COLUMNS", 20)
    assert survey(written(tmp_path / f"most.{kind}", table(20)), 1000).rows == 2
    with pytest.raises(NpformerError, match=f"more.{kind}.*: expected at most 20 columns and nested fields, got more"):
        survey(written(tmp_path / f"more.{kind}", table(21)), 1000)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_fields_at_any_depth_count(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "COLUMNS", 8)
    deep = {"a": [{"b": {"c": 1, "d": [2]}}]}  # a, its items, b, c, d, d's items and `text`: 7 in all
    rows = [{"text": "ice", **deep}]
    assert survey(written(tmp_path / f"most.{kind}", pa.Table.from_pylist(rows)), 1000).rows == 1
    rows = [{"text": "ice", **deep, "e": [[1]]}]
    with pytest.raises(NpformerError, match="expected at most 8 columns and nested fields, got more"):
        survey(written(tmp_path / f"more.{kind}", pa.Table.from_pylist(rows)), 1000)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_counted_before_pyarrow_reads_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / f"a.{kind}", table(2 * COLUMNS + 2))
    monkeypatch.setattr(readers.pa, "schema", None)
    monkeypatch.setattr(readers.pa.parquet, "ParquetFile", None)
    with pytest.raises(NpformerError, match=f"expected at most {COLUMNS} columns"):
        survey(path, 1000)


@pytest.mark.parametrize("count", [1, 3, 14, 15, 200, 20_000])
def test_the_elements_of_a_parquet_file_are_those_of_its_footer(count: int) -> None:
    stream = io.BytesIO()
    pa.parquet.write_table(pa.table({f"c{i}": pa.array([1]) for i in range(count)}), stream)
    assert parquet_elements(stream) == count + 1  # one more element: the root
    assert stream.tell() == 0


@pytest.mark.parametrize(
    "damage", [b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"PAR1\x15\x02\x19\3\0\0\0PAR1"]
)
def test_a_damaged_footer_is_left_to_pyarrow(damage: bytes) -> None:
    check_parquet(io.BytesIO(damage), Path("a.parquet"))


def test_a_list_of_pairs_can_have_any_keys(classify: Any, tmp_path: Path) -> None:
    """The error for too many columns suggests this form: a list of objects with a key and a value."""
    rows = [{"text": "ice", "keys": [{"key": f"{i}.{j}", "value": j} for j in range(30)]} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map_of(json.dumps, rows)))
    map(classify, tmp_path / "a.jsonl", tmp_path / "out.jsonl", column="text")
    found = map_of(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert map_of(lambda row: row["keys"], found) == map_of(lambda row: row["keys"], rows)


def test_a_duplicate_key_is_found_among_many() -> None:
    """The search counts all names in one pass, because a line may have a million names."""

    class Names(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Names.compared += 1
            return str.__eq__(self, other)

    pairs = [(Names(f"k{i}"), 0) for i in range(2000)]
    with pytest.raises(ValueError, match="duplicate key 'k1999'"):
        jsonl._object([*pairs, (Names("k1999"), 1)])
    assert Names.compared < 20_000
