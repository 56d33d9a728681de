"""A run does not change the columns that it copies from input to output."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from npformer.dataset import map, readers
from npformer.dataset.sources import survey

D = decimal.Decimal
LONG = "a text of more than twelve bytes, which a view stores elsewhere"
PLAIN = {
    "null": pa.nulls(2),
    "bool": pa.array([True, None]),
    "int8": pa.array([1, None], pa.int8()),
    "uint64": pa.array([2**64 - 1, None], pa.uint64()),
    "float16": pa.array(np.array([1, 2], np.float16)),
    "string": pa.array(["a", None]),
    "large string": pa.array(["a", None], pa.large_string()),
    "binary": pa.array([b"\xff", None]),
    "large binary": pa.array([b"\xff", None], pa.large_binary()),
    "fixed binary": pa.array([b"ab", None], pa.binary(2)),
    "coded": pa.array(["a", None]).dictionary_encode(),
    "list": pa.array([[1], None]),
    "large list": pa.array([[1], None], pa.large_list(pa.int64())),
    "fixed list": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "date": pa.array([1, None], pa.date32()),
    "time": pa.array([1, None], pa.time64("us")),
    "moment": pa.array([1, None], pa.timestamp("us", "Europe/Paris")),
    "local": pa.array([1, None], pa.timestamp("ms")),
    "span": pa.array([1, None], pa.duration("s")),
    "decimal": pa.array([D("1.1"), None], pa.decimal128(10, 1)),
    "wide decimal": pa.array([D("1.1"), None], pa.decimal256(50, 1)),
}
VIEWS = {
    "string view": pa.array([LONG, None], pa.string_view()),
    "binary view": pa.array([b"\xff", None], pa.binary_view()),
    "list of views": pa.array([[LONG], None], pa.list_(pa.string_view())),
    "object of views": pa.array([{"a": LONG, "b": None}, None], pa.struct([("a", pa.string_view()), ("b", pa.null())])),
    "map of views": pa.array([[("a", LONG)], None], pa.map_(pa.string(), pa.string_view())),
}


def written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".arrow":
        pa.feather.write_feather(table, path)
    else:
        pa.parquet.write_table(table, path)
    return path


def read(path: Path) -> pa.Table:
    return pa.feather.read_table(path) if path.suffix == ".arrow" else pa.parquet.read_table(path)


def passed(columns: dict[str, Any], form: str, task: Any, folder: Path) -> None:
    fields = [pa.field("text", pa.string()), *(pa.field(name, each.type) for name, each in columns.items())]
    table = pa.Table.from_arrays([pa.array(["ice", "music"]), *columns.values()], schema=pa.schema(fields))
    given = read(written(folder / f"in{form}", table))
    map(task, folder / f"in{form}", folder / f"out{form}", column="text", part_rows=1)
    found = read(folder / f"out{form}").select(given.column_names)
    for before, after in zip(given.schema, found.schema, strict=True):
        assert (before.name, before.type) == (after.name, after.type)
    assert found.to_pylist() == given.to_pylist()


@pytest.mark.parametrize("form", [".arrow", ".parquet"])
def test_types_stay(form: str, classify: Any, tmp_path: Path) -> None:
    passed(PLAIN, form, classify, tmp_path)


@pytest.mark.parametrize("form", [".arrow", ".parquet"])
def test_views_stay_views(form: str, classify: Any, tmp_path: Path) -> None:
    if not readers._keeps_views():
        pytest.skip(f"pyarrow {pa.__version__} writes no views of texts to Parquet")
    passed(VIEWS, form, classify, tmp_path)


def test_a_pyarrow_without_views_gives_texts(classify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_keeps_views", lambda: False)
    table = pa.table({"text": ["ice"], "view": pa.array([LONG], pa.string_view())})
    map(classify, written(tmp_path / "in.arrow", table), tmp_path / "out.arrow", column="text")
    assert read(tmp_path / "out.arrow")["view"].type == pa.large_string()


def test_texts_may_be_views(classify: Any, tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["ice", None], pa.string_view())})
    for out in ("out.arrow", "out.csv", "out.jsonl"):
        map(classify, written(tmp_path / "in.arrow", table), tmp_path / out, column="text")
    assert read(tmp_path / "out.arrow")["label"].null_count == 1


def test_files_that_differ_in_views_are_one_dataset(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, kind in (("a", pa.large_string()), ("b", pa.string_view())):
        written(tmp_path / "in" / f"{name}.arrow", pa.table({"text": pa.array(["ice"], kind)}))
    assert survey(tmp_path / "in", 10).schema.types == [pa.large_string()]
