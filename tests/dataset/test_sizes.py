"""Memory does not grow with the width of rows in any format, and dictionaries stay dictionaries."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from npformer.dataset import map
from npformer.dataset import sizes as module
from npformer.dataset.readers import batches, carried
from npformer.dataset.sizes import Cuts, row_sizes
from npformer.dataset.sources import survey
from tests.dataset.conftest import files_in
from tests.dataset.test_files import read, written
from tests.support.cli_runner import ENVIRONMENT, ROOT

PEAK = """
import sys, npformer, npformer.dataset
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
task = npformer.pipeline("text-classification", sys.argv[1], threads=1)
task("ice cream")
before = peak()
npformer.dataset.map(task, *sys.argv[2:], column="text")
print(peak() - before)
"""
WIDE, ROWS = 100_000, 2500  # bytes per text, and number of rows: 250 MB in all


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """Returns a folder with a table of wide texts in each format."""
    folder = tmp_path_factory.mktemp("wide")
    texts = pa.array([f"{i} " * (WIDE // 2) for i in range(3)])
    coded = pa.DictionaryArray.from_arrays(pa.array([i % 3 for i in range(ROWS)], pa.int8()), texts)
    table = pa.table({"text": ["ice"] * ROWS, "wide": coded})
    pa.feather.write_feather(table, folder / "coded.arrow")
    pa.parquet.write_table(table, folder / "coded.parquet")
    pa.parquet.write_table(table, folder / "pages.parquet", store_schema=False)
    nested = table.set_column(1, "wide", pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype=np.int32), coded))
    pa.parquet.write_table(nested, folder / "nested.parquet", store_schema=False)
    for name in ("plain.jsonl", "plain.csv.zst", "plain.arrow"):
        written(folder / name, table.cast(pa.schema([("text", pa.string()), ("wide", pa.large_string())])))
    return folder


@pytest.mark.parametrize(
    ("name", "sink"),
    [
        ("coded.arrow", "o.arrow"),
        ("coded.arrow", "o.csv"),
        ("coded.parquet", "o.parquet"),
        ("pages.parquet", "out"),
        ("pages.parquet", "o.jsonl"),
        ("nested.parquet", "o.parquet"),
        ("plain.jsonl", "o.arrow"),
        ("plain.csv.zst", "o.jsonl"),
        ("plain.arrow", "o.parquet"),
    ],
)
def test_memory_does_not_grow_with_the_width_of_rows(name, sink, wide, model, tmp_path):
    """For 250 MB of rows, memory grows by up to 180 MB for copies of a part; the test allows 220 MB."""
    command = [sys.executable, "-c", PEAK, model, wide / name, tmp_path / sink]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=True)
    mapped = (wide / name).stat().st_size / 1e6 if name.endswith("arrow") else 0  # pages that the system can reclaim
    assert int(done.stdout) / 1e3 - mapped < 220


@pytest.mark.parametrize(
    ("suffix", "sink"), list(product(("arrow", "parquet"), ("arrow", "parquet", "jsonl", "csv", "")))
)
def test_a_dictionary_stays_a_dictionary(suffix, sink, classify, rows, tmp_path):
    """The column of texts is a dictionary, in which one value is rare and one is missing. Parts have 7 rows."""
    values = [*rows["text"].to_pylist(), "rare", None]
    coded = pa.array(values).dictionary_encode()
    halves = [coded.slice(0, 50), pa.array(values[50:]).dictionary_encode()]
    table = pa.table({"id": range(len(values)), "text": pa.chunked_array(halves, coded.type)})
    source, out = tmp_path / f"in.{suffix}", tmp_path / (f"o.{sink}" if sink else "out")
    if suffix == "arrow":
        with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    else:
        pa.parquet.write_table(table, source, row_group_size=30)
    map(classify, source, out, column="text", part_rows=7)
    if sink in ("jsonl", "csv"):
        assert [row["text"] or None for row in read(out)] == [text or None for text in values]
        return
    kept = pa.feather.read_table(out) if sink == "arrow" else pa.parquet.read_table(out)
    assert kept["text"].to_pylist() == values
    assert kept["text"].type == pa.dictionary(pa.int32(), pa.string())
    assert all(len(chunk.dictionary) <= len({*values}) for chunk in kept["text"].chunks)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "arrow", "parquet"])
def test_batches_of_any_size_give_the_same_parts(suffix, rows, classify, tmp_path, monkeypatch):
    source = written(tmp_path / f"in.{suffix}", pa.concat_tables([rows] * 5))
    monkeypatch.setattr(module, "PART_BYTES", 1000)
    made = []
    for size in (2**20, 100, 1):
        monkeypatch.setattr("npformer.dataset.readers.BLOCK", size)
        monkeypatch.setattr("npformer.dataset.readers.ROWS", size)
        monkeypatch.setattr("npformer.dataset.sources.SLICE", size)
        (tmp_path / f"{size}").mkdir()
        map(classify, source, tmp_path / f"{size}" / "out", column="text", part_rows=40)
        made.append(files_in(tmp_path / f"{size}"))
    assert made[0] == made[1] == made[2]
    counts = [pa.parquet.read_metadata(path).num_rows for path in sorted((tmp_path / "1" / "out").glob("*.parquet"))]
    assert sum(counts) == 500
    assert 1 < max(counts) < 40


def test_nested_texts_of_parquet_are_read_across_its_groups(classify, tmp_path):
    table = pa.table({"text": ["ice"] * 99, "x": [[{"a": "b" * (i % 5)}] * (i % 3) for i in range(99)]})
    pa.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=41)
    map(classify, tmp_path / "in.parquet", tmp_path / "o.parquet", column="text", part_rows=10)
    assert pa.parquet.read_table(tmp_path / "o.parquet")["x"].to_pylist() == table["x"].to_pylist()


def test_parts_end_by_rows_or_by_bytes(monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", 100)
    sizes = np.array([10, 10, 10, 95, 5, 300, 1, 1, 99, 2])
    for step in (1, 3, 10):
        cuts = Cuts(3, 9)
        for at in range(0, len(sizes), step):
            cuts.add(sizes[at : at + step])
        assert cuts.finish() == (3, 2, 1, 2, 1)
        assert cuts.full


def test_the_size_of_a_row_is_that_of_its_values():
    """Slices and dictionaries do not change the size of a row. A missing value counts as its column's fixed size."""
    lists = pa.array([["ab", "c"], None, [], ["defg"]])
    table = pa.table(
        {
            "text": ["a", "bcd", None, "ä"],
            "coded": pa.array(["xyz", None, "xyz", ""]).dictionary_encode(),
            "list": lists,
            "struct": pa.StructArray.from_arrays([lists, pa.array([1, 2, 3, 4])], ["a", "b"]),
            "fixed": pa.array([["a", "b"], ["cc", "d"], ["", ""], ["ee", "ff"]], pa.list_(pa.string(), 2)),
            "map": pa.array([[("k", 1)], None, [], [("key", 2)]], pa.map_(pa.string(), pa.int64())),
            "none": pa.nulls(4),
        }
    )
    expected = np.array(
        [1 + 3 + 19 + 27 + 2 + 17, 3 + 0 + 0 + 8 + 3 + 0, 0 + 3 + 0 + 8 + 0 + 0, 2 + 0 + 12 + 20 + 4 + 19]
    )
    (batch,) = table.to_batches()
    assert (row_sizes(batch) == expected + 7 * module.MISSING).all()
    assert (row_sizes(batch.slice(1, 2)) == expected[1:3] + 7 * module.MISSING).all()


def test_values_without_text_count_towards_a_batch(tmp_path):
    """Empty cells, and fields that a row lacks, also use memory."""
    (tmp_path / "a.csv").write_text("a,b\n" + ",\n" * 200_000)
    lines = [f'{{"x": {{"f{i}": 1}}}}\n' for i in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(lines * 30))
    schema = survey(tmp_path / "a.jsonl", 1000).schema
    for name, rows in (("a.csv", 2**16), ("a.jsonl", 433)):
        assert max(each.num_rows for each in batches(tmp_path / name, schema)) <= rows
    assert survey(tmp_path / "a.jsonl", 10_000).files[0].parts[0] < 7500


def test_a_table_of_many_columns_is_read_in_seconds(tmp_path):
    names = [f"c{i}" for i in range(40_000)]
    with pytest.raises(ValueError, match="duplicate column 'c5'"):
        carried(pa.schema([(name, pa.string()) for name in [*names, "c7", "c5"]]))
