"""Datasets in every format are read and written, and unreadable files are named."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import uuid
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from npformer import NpformerError
from npformer.dataset import map, mapping
from npformer.dataset.formats import Format, format_of
from npformer.dataset.sinks import write
from npformer.dataset.sources import parts, survey
from tests.support.cli_runner import ENVIRONMENT, ROOT

SUFFIXES = (".csv", ".csv.gz", ".tsv.zst", ".jsonl", ".jsonl.gz", ".ndjson.zst", ".parquet", ".arrow", ".feather")


def written(path: Path, table: pa.Table) -> Path:
    write(path, format_of(path), table.schema, [table])
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file, read by other libraries if possible."""
    form = format_of(path)
    if form.kind in ("csv", "tsv", "jsonl"):
        with pa.OSFile(str(path)) as file:
            data = (pa.CompressedInputStream(file, form.compression) if form.compression else file).read().decode()
        if form.kind == "jsonl":
            return [json.loads(line) for line in data.splitlines()]
        return list(csv.DictReader(data.splitlines(keepends=True), delimiter="\t" if form.kind == "tsv" else ","))
    return pa.feather.read_table(path).to_pylist() if form.kind == "arrow" else pa.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize(("suffix", "sink"), list(product(SUFFIXES, (".jsonl", ".parquet"))))
def test_every_format_is_read(suffix, sink, classify, rows, tmp_path):
    """Rows and columns stay in order for parts of any size. A CSV file has only texts, and no nulls."""
    source = written(tmp_path / f"in{suffix}", rows)
    report = map(classify, source, tmp_path / f"out{sink}", column="text", part_rows=7)
    found = read(tmp_path / f"out{sink}")
    is_text = format_of(source).kind in ("csv", "tsv")
    expected = rows.to_pylist()
    if is_text:
        expected = [{name: "" if value is None else str(value) for name, value in row.items()} for row in expected]
    assert [{name: row[name] for name in ("id", "text", "odd")} for row in found] == expected
    assert list(found[0]) == ["id", "text", "odd", "label", "score", "truncated", "error"]
    for row in found:
        if row["text"] is None:
            assert row["error"] == "expected a text, got None"
            assert (row["label"], row["score"], row["truncated"]) == (None, None, None)
        else:
            answer = classify(row["text"])
            assert (row["label"], row["score"], row["truncated"]) == (answer["label"], answer["score"], False)
            assert row["error"] is None
    nulls = 0 if is_text else rows["text"].null_count
    assert (report.rows, report.errors, report.truncated, report.unreadable) == (100, nulls, 0, [])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_is_written(suffix, classify, rows, tmp_path):
    source = written(tmp_path / "in.parquet", rows)
    out = tmp_path / f"out{suffix}"
    map(classify, source, out, column="text", part_rows=7)
    found = read(out)
    assert [row["text"] or None for row in found] == [text or None for text in rows["text"].to_pylist()]
    for row in found:
        if row["label"]:
            assert np.float32(row["score"]) == np.float32(classify(row["text"])["score"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["in.parquet", out.name, f"{out.name}.manifest.jsonl"]
    )


def test_nested_columns_come_through_and_are_json_in_a_csv(classify, tmp_path):
    nested = pa.table(
        {"text": ["a", "b"], "more": [{"x": [1, None]}, None], "raw": [b"ab", None], "bad": [np.nan, 1.0]}
    ).append_column("four", pa.array([b"\xffbcd", None], pa.binary(4)))
    source = written(tmp_path / "in.parquet", nested)
    for name in ("o.parquet", "o.jsonl", "o.csv"):
        map(classify, source, tmp_path / name, column="text")
    kept = pa.parquet.read_table(tmp_path / "o.parquet").select(nested.column_names)
    assert (kept.schema.types, str(kept.to_pylist())) == (nested.schema.types, str(nested.to_pylist()))
    first, second = read(tmp_path / "o.jsonl")
    assert (first["more"], first["raw"], first["bad"]) == ({"x": [1, None]}, "ab", None)
    assert (second["more"], second["raw"], second["bad"]) == (None, None, 1.0)
    first, second = read(tmp_path / "o.csv")
    assert (first["more"], first["raw"], second["more"]) == ('{"x": [1, null]}', '"ab"', "")
    assert (first["four"], second["four"]) == ('"\ufffdbcd"', "")


def test_times_that_python_has_no_object_for_are_written_as_text(classify, tmp_path):
    times = pa.array([0, 1], pa.timestamp("ns", "UTC"))
    source = written(tmp_path / "in.parquet", pa.table({"text": ["a", "b"], "time": times}))
    map(classify, source, tmp_path / "o.jsonl", column="text")
    found = [row["time"] for row in read(tmp_path / "o.jsonl")]
    assert found == ["1970-01-01T00:00:00+00:00", "1970-01-01T00:00:00.000000001+00:00"]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (pa.timestamp("ns"), "1970-01-01T00:00:00.000001", "1970-01-01T00:00:00.000001001"),
        (pa.time64("ns"), "00:00:00.000001", "00:00:00.000001001"),
        (pa.duration("ns"), "0:00:00.000001", "0:00:00.000001001"),
    ],
)
def test_nanoseconds_inside_lists_and_objects_are_kept(kind, first, second, classify, tmp_path):
    """pandas, if installed, would return its own objects, whose texts differ or have fewer digits."""
    times = pa.array([1000, 1001], kind)
    columns = {
        "plain": times,
        "list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), times),
        "object": pa.StructArray.from_arrays([times], ["x"]),
        "map": pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["x", "y"]), times),
    }
    source = written(tmp_path / "in.arrow", pa.table({"text": ["a", "b"], **columns}))
    map(classify, source, tmp_path / "o.jsonl", column="text")
    map(classify, source, tmp_path / "o.csv", column="text")
    for row, cells, text, key in zip(
        read(tmp_path / "o.jsonl"), read(tmp_path / "o.csv"), (first, second), "xy", strict=True
    ):
        assert [row[name] for name in columns] == [text, [text], {"x": text}, [[key, text]]]
        assert [json.loads(cells[name]) for name in ("list", "object")] == [[text], {"x": text}]


def test_years_after_9999_inside_an_object_are_written(classify, tmp_path):
    times = pa.StructArray.from_arrays([pa.array([2**60, 0], pa.timestamp("us"))], ["x"])
    source = written(tmp_path / "in.parquet", pa.table({"text": ["a", "b"], "time": times}))
    map(classify, source, tmp_path / "o.jsonl", column="text")
    first, second = (row["time"]["x"] for row in read(tmp_path / "o.jsonl"))
    assert ("out of range" in first, second) == (True, "1970-01-01T00:00:00")


def test_types_that_other_libraries_write_come_through(classify, tmp_path):
    """Polars writes string views inside structs. A UUID becomes a string in JSON and CSV."""
    ids = [uuid.UUID(int=1), None]
    views = pa.array([{"a": "x", "b": None}, None], pa.struct([("a", pa.string_view()), ("b", pa.null())]))
    known = pa.array([each and each.bytes for each in ids], pa.binary(16)).cast(pa.uuid())
    source = tmp_path / "in.parquet"
    try:
        pa.parquet.write_table(pa.table({"text": ["a", "b"], "in": views, "id": known}), source)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"pyarrow {pa.__version__} writes no views of texts to Parquet: {error}")
    for name in ("o.parquet", "o.jsonl", "o.csv"):
        map(classify, source, tmp_path / name, column="text", part_rows=1)
    assert pa.parquet.read_table(tmp_path / "o.parquet")["in"].to_pylist() == views.to_pylist()
    assert [row["in"] for row in read(tmp_path / "o.jsonl")] == views.to_pylist()
    assert [row["id"] for row in read(tmp_path / "o.jsonl")] == [str(ids[0]), None]
    assert [row["id"] for row in read(tmp_path / "o.csv")] == [str(ids[0]), ""]


def test_types_of_jsonl_fit_all_lines_of_all_files(classify, tmp_path):
    """A column's type fits all lines: integers and floats, fields that appear late, and texts that look like times."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(
        '\ufeff{"text": "a", "n": 1, "t": "2024-01-01", "d": [{"u": 1}]}\n\n', "utf-8"
    )
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "b", "n": 1.5, "t": "x"}\n{"text": null, "late": "z"}')
    map(classify, tmp_path / "in", tmp_path / "o.parquet", column="text")
    kept = pa.parquet.read_table(tmp_path / "o.parquet").to_pylist()
    names = ("text", "n", "t", "d", "late")
    assert [tuple(row[name] for name in names) for row in kept] == [
        ("a", 1.0, "2024-01-01", [{"u": 1}], None),
        ("b", 1.5, "x", None, None),
        (None, None, None, None, "z"),
    ]


def test_blocks_of_text_end_anywhere(classify, rows, tmp_path, monkeypatch):
    """Lines and cells may extend across several blocks of any size."""
    for suffix, block in product((".jsonl", ".jsonl.gz"), (1, 2, 50, 999)):
        source = written(tmp_path / f"in{suffix}", rows)
        monkeypatch.setattr("npformer.dataset.readers.BLOCK", block)
        found = survey(source, 7)
        (file,) = found.files
        tables = [table for _, table in parts(file, found.schema, lambda number: True)]
        assert pa.concat_tables(tables).select(rows.column_names).to_pylist() == rows.to_pylist()
        assert {len(table) for table in tables[:-1]} == {7}
        tables = dict(parts(file, found.schema, {3, 14}.__contains__))
        assert tables[3].to_pylist() == rows.slice(21, 7).to_pylist()
        assert tables[14].to_pylist() == rows.slice(98, 2).to_pylist()


def test_arrow_streams_dictionaries_and_joined_gzips(classify, rows, tmp_path):
    coded = rows.set_column(1, "text", rows["text"].dictionary_encode())
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, coded.schema) as writer:
        writer.write_table(coded, max_chunksize=9)
    written(tmp_path / "whole.jsonl", rows)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:50])) + gzip.compress(b"".join(lines[50:])))
    for name in ("a.arrow", "b.jsonl.gz"):
        map(classify, tmp_path / name, tmp_path / f"{name}.parquet", column="text")
        kept = pa.parquet.read_table(tmp_path / f"{name}.parquet").select(rows.column_names)
        assert kept.to_pylist() == rows.to_pylist()


def test_texts_that_are_not_utf_8_are_rows_with_an_error(classify, tmp_path):
    raw = pa.array([b"ice", b"\xff\xfe", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    inside = pa.StructArray.from_arrays([text], ["x"])
    source = written(tmp_path / "in.parquet", pa.table({"text": text, "inside": inside}))
    for name in ("o.parquet", "o.jsonl"):
        assert map(classify, source, tmp_path / name, column="text").errors == 2
    first, second, _ = read(tmp_path / "o.jsonl")
    assert [first["inside"], second["inside"]] == [{"x": "ice"}, {"x": "\ufffd\ufffd"}]
    assert (first["text"], first["error"]) == ("ice", None)
    assert (second["text"], second["error"]) == ("��", "expected a text, got bytes; decode them first")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_row_of_a_csv_is_kept(end, classify, tmp_path):
    """Blank lines are rows only in a file with a single column. Cells may have quoted line ends and null characters."""
    (tmp_path / "in.csv").write_bytes(end.join(["\ufefftext", "a", "", '"b\nc"', '""', "\0", "", ""]).encode())
    (tmp_path / "two.csv").write_bytes(end.join(["", "text,x", "a,1", "", '"b\r\nc",', ""]).encode())
    map(classify, tmp_path / "in.csv", tmp_path / "o.jsonl", column="text")
    assert [row["text"] for row in read(tmp_path / "o.jsonl")] == ["a", "", "b\nc", "", "\0", ""]
    map(classify, tmp_path / "two.csv", tmp_path / "t.jsonl", column="text")
    assert [(row["text"], row["x"]) for row in read(tmp_path / "t.jsonl")] == [("a", "1"), ("b\r\nc", "")]


def test_links_that_the_user_names_are_followed(classify, rows, tmp_path):
    """Links to files and folders, and links in folders, are followed. The name of the link determines the format."""
    (tmp_path / "data" / "blobs").mkdir(parents=True)
    blob = written(tmp_path / "data" / "blobs" / "a.parquet", rows).rename(tmp_path / "data" / "blobs" / "12ab")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "one.parquet").symlink_to(blob)
    (tmp_path / "folder").symlink_to(tmp_path / "parts")
    for number, source in enumerate((tmp_path / "parts" / "one.parquet", tmp_path / "parts", tmp_path / "folder")):
        assert map(classify, source, tmp_path / f"{number}.csv", column="text").rows == 100
    blob.unlink()
    with pytest.raises(NpformerError, match=r"one\.parquet: No such file or directory"):
        map(classify, tmp_path / "folder", tmp_path / "o.csv", column="text")


# --- unreadable files ------------------------------------------------------------------------------------------------

BAD = {
    "empty.csv": (b"", "the file is empty"),
    "twice.csv": (b"text,text\na,b\n", "duplicate column 'text'"),
    "ragged.csv": (b"text,x\na,b\nc\n", r"ragged.csv:3: expected 2 columns \(text, x\), got 1"),
    "long.csv": (b'text,x\n"a\n",b\n"c\n",d,e\n', r"long.csv:4: expected 2 columns \(text, x\), got 3"),
    "unclosed.csv": (b'text,x\na,b\n"c,d\ne,f\n', "unclosed.csv:3: expected a closing quote within"),
    "swallowing.csv": (b'text,x\n"a,b\nc,"d"\n', "swallowing.csv:3: ',' expected after '\"'"),
    "lines.csv": (b"\n\n", "no header line with column names"),
    "utf16.csv": ("text\na\n".encode("utf-16"), "utf16.csv:1: not UTF-8"),
    "latin.csv": ("text\nnaïve\n".encode("latin-1"), "latin.csv:2: not UTF-8"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "broken.jsonl:2: not JSON"),
    "texts.jsonl": (b'{"text": "a"}\n\n"b"\n', "texts.jsonl:3: expected a JSON object, got text"),
    "types.jsonl": (
        b'{"text": "a"}\n{"text": 1}\n',
        "types.jsonl:2: column 'text': a number, but text in an earlier row",
    ),
    "cut.jsonl.gz": (gzip.compress(b'{"text": "abcdefgh"}\n' * 99)[:-20], "runcated"),
    "not.parquet": (b"PAR1 no parquet at all PAR1", "arquet"),
    "not.arrow": (b"ARROW1 no arrow at all", "not.arrow: "),
    "a.txt": (b"text", "unknown suffix; supported formats: csv, tsv"),
    "no.csv": (None, "No such file or directory"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_read_is_named(name, classify, tmp_path):
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(NpformerError, match=message) as raised:
        map(classify, tmp_path / name, tmp_path / "out.parquet", column="text")
    assert str(raised.value).startswith(str(tmp_path / name))
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("column", ["text", "list", "coded"])
def test_places_outside_of_an_arrow_file_are_refused(column, classify, tmp_path):
    """Offsets of texts and lists, and dictionary indices, are refused if they are out of range."""
    marked = 123_456_789
    array = {
        "text": pa.array(["x" * 3, "y"]),
        "list": pa.array([[1, 2, 3], [4]]),
        "coded": pa.DictionaryArray.from_arrays(pa.array([3, 0], pa.int32()), ["a", "b", "c", "d"]),
    }[column]
    source = written(tmp_path / "in.arrow", pa.table({"text": ["a", "b"], "x": array}))
    three, data = (3).to_bytes(4, "little"), source.read_bytes()
    place = data.index(three + (0 if column == "coded" else 4).to_bytes(4, "little"))
    source.write_bytes(data[:place] + marked.to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(NpformerError, match=r"in\.arrow: ") as raised:
        map(classify, source, tmp_path / "o.parquet", column="text")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz", ".parquet", ".arrow"])
def test_a_file_that_changes_while_it_is_read_is_refused(suffix, change, classify, rows, tmp_path, monkeypatch):
    """A changed file is refused, because reading lost pages of a mapped file is fatal. Removed files stay readable."""
    source = written(tmp_path / f"in{suffix}", rows)
    answer = mapping.answer

    def changing(task, texts, place, tick):
        if place[1] == 1:
            if change == "gone":
                source.unlink()
            else:
                os.truncate(source, 0 if change == "shorter" else source.stat().st_size + 9)
        return answer(task, texts, place, tick)

    monkeypatch.setattr(mapping, "answer", changing)
    size = source.stat().st_size
    if change == "gone":
        assert map(classify, source, tmp_path / "o.csv", column="text", part_rows=7).rows == len(rows)
        return
    now = 0 if change == "shorter" else size + 9
    with pytest.raises(NpformerError, match=rf"in{suffix}: has {now} bytes, but had {size} when it was first read$"):
        map(classify, source, tmp_path / "o.csv", column="text", part_rows=7)


def test_an_error_stays_short_however_long_a_column_s_name(classify, tmp_path):
    written(tmp_path / "in.csv", pa.table({"a" * 10_000: ["a"]}))
    for asked in ("text", "b" * 10_000):
        with pytest.raises(NpformerError, match="column") as raised:
            map(classify, tmp_path / "in.csv", tmp_path / "o.csv", column=asked)
        assert len(str(raised.value)) <= 2000


def test_an_error_is_one_line_with_any_column_name(classify, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_text('text,"x\ny"\na,b\n')
    with pytest.raises(NpformerError, match=r"'z' is not known\. Known: text, x\\ny$"):
        map(classify, source / "a.csv", tmp_path / "o.csv", column="z")
    (source / "b.csv").write_text('text,"z\nz"\na,b\n')
    with pytest.raises(NpformerError, match=r"it lacks x\\ny; also has z\\nz$"):
        map(classify, source, tmp_path / "o.csv", column="text")
    (source / "b.csv").write_text('text,"x\ny"\na\n')
    (source / "a.csv").unlink()
    with pytest.raises(NpformerError, match=r"b\.csv:3: expected 2 columns \(text, x\\ny\), got 1$"):
        map(classify, source, tmp_path / "o.csv", column="text")


def test_a_folder_without_files_or_with_other_columns_is_refused(classify, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "_SUCCESS").touch()
    with pytest.raises(NpformerError, match="the folder is empty"):
        map(classify, source, tmp_path / "o.csv", column="text")
    written(source / "a.csv", pa.table({"text": ["a"], "x": ["b"]}))
    written(source / "b.csv", pa.table({"text": ["a"], "y": ["b"]}))
    with pytest.raises(NpformerError, match=r"b\.csv: its columns differ from those of a\.csv: it lacks x; also has y"):
        map(classify, source, tmp_path / "o.csv", column="text")
    written(source / "b.parquet", pa.table({"text": ["a"], "x": [1]}))
    (source / "b.csv").unlink()
    with pytest.raises(NpformerError, match=r"b\.parquet: column 'x' is int64, but string in a\.csv"):
        map(classify, source, tmp_path / "o.csv", column="text")


def test_the_suffix_determines_the_format():
    names = {
        "a.csv": Format("csv"),
        "a.b.TSV.GZ": Format("tsv", "gzip"),
        "a.parquet.gz": None,
        "a.gz": None,
        "csv": None,
    }
    assert {name: format_of(Path(name)) for name in names} == names


def test_a_table_without_rows_keeps_its_columns(classify, tmp_path):
    (tmp_path / "in.csv").write_text("id,text\n")
    for name in ("o.parquet", "o.csv", "folder"):
        assert map(classify, tmp_path / "in.csv", tmp_path / name, column="text").rows == 0
    assert (tmp_path / "o.csv").read_text() == '"id","text","label","score","truncated","error"\n'
    assert pa.parquet.read_table(tmp_path / "folder").schema == pa.parquet.read_table(tmp_path / "o.parquet").schema


PEAK = """
import sys, npformer, npformer.dataset
task = npformer.pipeline("text-classification", sys.argv[1], threads=1)
npformer.dataset.map(task, *sys.argv[2:], column="text", part_rows=100)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("sink", ["out", "out.parquet"])
def test_memory_does_not_grow_with_the_rows(sink, model, tmp_path):
    """For inputs of 40 and 160 MB, peak memory differs by less than 60 MB, which allocators may not have freed."""
    schema = pa.schema([("text", pa.string()), ("bytes", pa.binary())])
    peaks = []
    for count in (10, 40):
        with pa.parquet.ParquetWriter(tmp_path / f"{count}.parquet", schema, compression="none") as writer:
            for _ in range(count):
                writer.write_table(pa.table([["ice"] * 100, [os.urandom(40_000) for _ in range(100)]], schema=schema))
        (tmp_path / f"{count}").mkdir()
        command = [sys.executable, "-c", PEAK, model, tmp_path / f"{count}.parquet", tmp_path / f"{count}" / sink]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, check=True)
        peaks.append(int(done.stdout) / 1e3)
    assert peaks[1] - peaks[0] < 60, peaks
