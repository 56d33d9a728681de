"""Reads a dataset: a file, or the files of a folder in the order of their names, as record batches of one schema.

`survey` reads everything once, so that a file that cannot be read, columns that differ and a changed input are known
before hours are spent on a model: what it finds identifies the input and says how many rows there are. `parts` then
cuts each file into tables of a fixed number of rows, whichever of them are wanted.

Columns of csv and tsv are texts, so that they come out as they went in (007, 1.50, NA). Columns of jsonl have the types
that fit all their values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from npformer.checks import unknown
from npformer.dataset.formats import DELIMITERS, KNOWN, Format, checksum, explained, format_of
from npformer.errors import NpformerError
from npformer.files import open_file

BLOCK = 2**22  # bytes of text that are parsed at once
LONGEST = 2**26  # most bytes of a line of jsonl


@dataclass(frozen=True)
class File:
    """A file of a dataset: what identifies it, its rows and columns; or the error for which it cannot be read."""

    path: Path
    bytes: int = 0
    sha256: str = ""
    rows: int = 0
    schema: Any = None
    error: str = ""

    def identity(self) -> dict[str, Any]:
        found = {"bytes": self.bytes, "sha256": self.sha256, "rows": self.rows}
        return {"name": self.path.name, **({"error": self.error} if self.error else found)}


@dataclass(frozen=True)
class Source:
    """The files of a dataset and the columns that they share."""

    files: list[File]
    schema: Any

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def unreadable(self) -> list[str]:
        return [each.error for each in self.files if each.error]


def survey(given: str | Path, limit: int | None = None) -> Source:
    """Reads the files once and returns what they are; of `limit` rows, only the files that these are in.

    Raises NpformerError if there is nothing to read, or if the columns of two files differ.
    """
    files: list[File] = []
    left = limit
    for path in _paths(Path(given)):
        if left == 0:
            break
        try:
            found = _surveyed(path, left)
        except NpformerError as error:
            found = File(path, error=str(error))
        left = None if left is None else left - found.rows
        files.append(found)
    readable = [each for each in files if not each.error]
    if not readable:
        raise NpformerError(files[0].error if len(files) == 1 else f"{given}: no file can be read; {files[0].error}")
    return Source(files, _common(readable))


def parts(file: File, schema: Any, rows: int, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    """Yields those parts of a file that are wanted, as (number, table); all have `rows` rows but for the last."""
    held: list[Any] = []
    count = number = left = 0
    left = file.rows
    for batch in _batches(file.path, schema):
        batch = batch.slice(0, left)
        left -= batch.num_rows
        while batch.num_rows:
            taken = batch.slice(0, rows - count)
            batch = batch.slice(taken.num_rows)
            count += taken.num_rows
            held.append(taken)
            if count == rows or not (left or batch.num_rows):
                if wanted(number):
                    yield number, pa.Table.from_batches(held, schema)
                held, count, number = [], 0, number + 1
        if not left:
            break
    if left:
        raise NpformerError(f"{file.path}: has lost {left} of its {file.rows} rows since it was read first")


def _paths(given: Path) -> list[Path]:
    with explained(given):
        if not given.is_dir():
            given.stat()
            return [given]
        found = sorted(each for each in given.iterdir() if not each.name.startswith((".", "_")))
    if not found:
        raise NpformerError(f"{given}: the folder is empty; expected files of {KNOWN}")
    return found


def _surveyed(path: Path, limit: int | None) -> File:
    if path.is_dir():
        raise NpformerError(f"{path}: is a folder; expected files, not folders, in the input's folder")
    form = _form(path)
    with explained(path), open_file(path) as file:
        size, digest = os.fstat(file.fileno()).st_size, checksum(path)
    if not size:
        raise NpformerError(f"{path}: the file is empty")
    schema, rows = _jsonl_schema(path, form, limit) if form.kind == "jsonl" else _count(path, limit)
    return File(path, size, digest, rows if limit is None else min(rows, limit), schema)


def _form(path: Path) -> Format:
    form = format_of(path)
    if form is None:
        raise NpformerError(f"{path}: the suffix says no format that is read: {KNOWN}")
    return form


def _count(path: Path, limit: int | None) -> tuple[Any, int]:
    """Reads a file but for jsonl, and returns its schema and its rows, or `limit` of them."""
    if _form(path).kind == "parquet":
        with explained(path), open_file(path) as file:
            read = pa.parquet.ParquetFile(file)
            return _plain(read.schema_arrow), read.metadata.num_rows
    rows, schema = 0, None
    for batch in _batches(path):
        schema = batch.schema
        rows += batch.num_rows
        if limit is not None and rows >= limit:
            break
    return schema, rows


def _common(files: list[File]) -> Any:
    """Returns the columns that all files have; only types of jsonl, which are found by looking, may be widened."""
    first = files[0]
    for file in files[1:]:
        names, others = set(first.schema.names), set(file.schema.names)
        jsonl = _form(file.path).kind == _form(first.path).kind == "jsonl"
        if names != others and not jsonl:
            lacks, has = sorted(names - others), sorted(others - names)
            told = "; ".join(
                [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has {', '.join(has)} besides"] * bool(has)
            )
            raise NpformerError(f"{file.path}: its columns are not those of {first.path.name}: it {told}")
        for name in names & others:
            one, other = first.schema.field(name).type, file.schema.field(name).type
            if one != other and not jsonl:
                raise NpformerError(f"{file.path}: column {name!r} is {other}, in {first.path.name} it is {one}")
    return first.schema if len(files) == 1 else _widened([each.schema for each in files], files[-1].path)


def check_text_column(source: Source, name: str) -> None:
    """Raises NpformerError if the dataset has no such column, or if it holds no texts."""
    if name not in source.schema.names:
        raise unknown("column", name, source.schema.names)
    kind = source.schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise NpformerError(f"column {name!r}: expected texts, got {kind}")


# --- batches of one file ---------------------------------------------------------------------------------------------


def _batches(path: Path, schema: Any = None) -> Iterator[Any]:
    """Yields a file's record batches, with the columns of `schema` in its order; at least one, for the schema."""
    form = _form(path)
    with explained(path), open_file(path) as file:
        stream = pa.CompressedInputStream(file, form.compression) if form.compression else file
        read = {"parquet": _parquet, "arrow": _arrow, "jsonl": _jsonl}.get(form.kind)
        batches = read(stream, schema) if read else _csv(path, file, stream, form)
        for batch in batches:
            wanted = _plain(batch.schema) if schema is None else schema
            yield batch.select(wanted.names).cast(wanted)


def _plain(schema: Any) -> Any:
    """The schema with simple types, and without metadata, which may describe other columns."""
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise ValueError(f"several columns have the name {min(twice)!r}")
    return pa.schema([pa.field(each.name, _simple(each.type)) for each in schema])


def _simple(kind: Any) -> Any:
    """The type without dictionaries and views, which not every format has."""
    if pa.types.is_dictionary(kind):
        return _simple(kind.value_type)
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)


def _parquet(stream: Any, _: Any) -> Iterator[Any]:
    file = pa.parquet.ParquetFile(stream, buffer_size=BLOCK, pre_buffer=False)
    return file.iter_batches(batch_size=4096, use_threads=False)


def _arrow(stream: Any, _: Any) -> Iterator[Any]:
    """Reads both forms: files, which begin with ARROW1, and streams, as the `datasets` library writes them."""
    magic = stream.read(6)
    stream.seek(0)
    if magic != b"ARROW1":
        reader = pa.ipc.open_stream(stream)
        yield pa.RecordBatch.from_pylist([], reader.schema)
        yield from reader
        return
    reader = pa.ipc.open_file(stream)
    yield pa.RecordBatch.from_pylist([], reader.schema)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _csv(path: Path, file: Any, stream: Any, form: Format) -> Iterator[Any]:
    delimiter = DELIMITERS[form.kind]
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = pa.csv.ReadOptions(use_threads=False, block_size=BLOCK)
    names = pa.csv.open_csv(stream, read, parse).schema.names
    convert = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    file.seek(0)
    stream = pa.CompressedInputStream(file, form.compression) if form.compression else file
    reader = pa.csv.open_csv(stream, read, parse, convert)
    yield pa.RecordBatch.from_pylist([], reader.schema)
    yield from reader


def _jsonl(stream: Any, schema: Any) -> Iterator[Any]:
    for first, block in _blocks(stream):
        yield from _parsed(first, block, schema).to_batches()


def _jsonl_schema(path: Path, form: Format, limit: int | None) -> tuple[Any, int]:
    """Reads a jsonl file, and returns the schema that fits all its rows, and their number."""
    rows, schemas = 0, {}
    with explained(path), open_file(path) as file:
        stream = pa.CompressedInputStream(file, form.compression) if form.compression else file
        for first, block in _blocks(stream):
            table = _parsed(first, block)
            rows += table.num_rows
            schemas[str(table.schema)] = table.schema
            if limit is not None and rows >= limit:
                break
    return _widened(list(schemas.values()), path), rows


def _widened(schemas: list[Any], path: Path) -> Any:
    """Returns the columns of all schemas, of types that fit all of them."""
    timeless = [pa.schema([pa.field(each.name, _timeless(each.type)) for each in schema]) for schema in schemas]
    try:
        return pa.unify_schemas(timeless, promote_options="permissive")
    except pa.ArrowException as error:
        raise NpformerError(f"{path}: a column holds values of several types: {error}") from None


def _timeless(kind: Any) -> Any:
    """The type without times: pyarrow takes them for texts that look like times, which are to stay as they are."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_timeless(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _timeless(each.type)) for each in kind])
    return kind


def _blocks(stream: Any) -> Iterator[tuple[int, bytes]]:
    """Yields whole lines in blocks, with the number of lines before each."""
    lines, rest = 0, b""
    while True:
        read = stream.read(BLOCK)
        block, end, after = (rest + read).rpartition(b"\n") if read else (rest, b"", b"")
        if len(after) > LONGEST:
            raise ValueError(f"line {lines + 1} has more than {LONGEST} bytes; expected a JSON object a line")
        rest = after
        if block.strip():
            yield lines, block.removeprefix(b"\xef\xbb\xbf") if lines == 0 else block
        lines += block.count(b"\n") + len(end)
        if not read:
            return


def _parsed(first: int, block: bytes, schema: Any = None) -> Any:
    read = pa.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    how = {} if schema is None else {"explicit_schema": schema, "unexpected_field_behavior": "ignore"}
    try:
        return pa.json.read_json(pa.BufferReader(block), read, pa.json.ParseOptions(**how))
    except pa.ArrowException as error:
        for number, line in enumerate(block.split(b"\n"), first + 1):
            try:
                whole = isinstance(json.loads(line), dict) if line.strip() else True
            except ValueError as why:
                raise ValueError(f"line {number}: not JSON: {why}") from None
            if not whole:
                raise ValueError(f"line {number}: expected a JSON object") from None
        raise ValueError(f"after line {first}: {error}") from None
