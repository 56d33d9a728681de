"""Writes a dataset to a file or a folder of parts, with a manifest and a lock.

A folder contains the parts as Parquet files. A single file is assembled from parts at the end. Until then, the parts
are in a folder next to the file. Equal tables give equal bytes, because no format includes a time or a path.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from npformer.common.errors import NpformerError
from npformer.common.locks import LOCK, clear_partial, in_use
from npformer.dataset.formats import DELIMITERS, KNOWN, Format, explained, format_of
from npformer.dataset.readers import plain
from npformer.dataset.sizes import grouped
from npformer.dataset.values import as_list

GROUP = 2**24  # bytes per row group of a Parquet file; smaller groups make files larger and slower to read
ROWS = 256  # number of rows written at a time in text formats


class Sink:
    """The output: `path`, `form` (None for a folder of parts), and the folder `parts`."""

    def __init__(self, given: str | Path, source: str | Path) -> None:
        self.path = Path(given)
        is_folder = self.path.is_dir()
        if str(given) == "-" or (
            self.path.exists() and not is_folder and not (self.path.is_file() and self.path.suffix)
        ):
            raise NpformerError(
                f"{given}: not a regular file or folder, which an interrupted run needs to resume; write to a file "
                "such as out.jsonl first"
            )
        self.form = format_of(self.path)
        if is_folder or str(given).endswith(os.sep) or not self.path.suffix:
            self.form = None
        elif self.form is None:
            raise NpformerError(f"{given}: unknown suffix; supported formats: {KNOWN}; end the name of a folder with /")
        self.parts = self.path if self.form is None else self.path.with_name(f"{self.path.name}.parts")
        beside = self.path.with_name(f"{self.path.name}.manifest.jsonl")
        self.manifest = self.path / "_manifest.jsonl" if self.form is None else beside
        self.part_form = Format("parquet" if self.form is None else "arrow")
        whole, read = self.path.resolve(), Path(source).resolve()
        if whole == read or whole.is_relative_to(read) or read.is_relative_to(whole):
            raise NpformerError(f"{given}: the output overlaps the input {source}; use another output")

    def part(self, name: str) -> Path:
        return self.parts / f"{name}.{self.part_form.kind}"

    def check_new(self) -> None:
        """Raises NpformerError if the output exists and is not from an earlier run."""
        if self.manifest.exists():
            return
        # prefixes of files that may remain from a run that was killed before it wrote a manifest
        begun = (LOCK, f".{self.manifest.name}.")
        taken = self.path.is_dir() and any(not each.name.startswith(begun) for each in self.path.iterdir())
        if taken if self.form is None else os.path.lexists(self.path):
            raise NpformerError(
                f"{self.path}: already exists and was not written by a run that can resume; remove it, or use another "
                "output"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the output for this run, and removes the temporary files of killed runs.

        Raises NpformerError if another run holds the lock.
        """
        with explained(self.path):
            self.check_new()
            self.parts.mkdir(exist_ok=True)
        try:
            with in_use(self.parts):
                clear_partial(self.parts)
                for written in (self.path, self.manifest):
                    clear_partial(written.parent, written.name)
                yield
        finally:
            with suppress(OSError):  # raised if the folder is not empty
                self.parts.rmdir()

    def check_types(self, schema: Any) -> None:
        """Raises NpformerError, before answers are computed, if the format does not support a column."""
        row = pa.Table.from_arrays([pa.nulls(1, each) for each in schema.types], schema=schema)
        for form in filter(None, (self.part_form, self.form)):
            with explained(self.path):
                _write(pa.BufferOutputStream(), form, schema, [row])


# --- writing ---------------------------------------------------------------------------------------------------------


def write(path: Path, form: Format, schema: Any, tables: Iterable[Any]) -> None:
    """Writes tables as one file."""
    file = pa.OSFile(str(path), "wb")
    stream = pa.CompressedOutputStream(file, form.compression) if form.compression else file
    try:
        _write(stream, form, schema, tables)
    finally:
        stream.close()
        file.close()


def _write(stream: Any, form: Format, schema: Any, tables: Iterable[Any]) -> None:
    if form.kind == "jsonl":
        _write_jsonl(stream, tables)
    elif form.kind in DELIMITERS:
        _write_csv(stream, DELIMITERS[form.kind], schema, tables)
    elif form.kind == "parquet":
        with pa.parquet.ParquetWriter(stream, schema) as writer:
            for some in grouped(((table.nbytes, table) for table in tables), GROUP):
                writer.write_table(pa.concat_tables(some).unify_dictionaries())
    else:
        coded = {each.name: _values(tables, each) for each in schema if pa.types.is_dictionary(each.type)}
        with pa.ipc.new_file(stream, schema) as writer:
            for table in tables:
                writer.write_table(_coded(table, coded))


class PartTables:
    """The tables of several parts in Arrow's format, which are read again in each iteration."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Any]:
        for path in self.paths:
            with pa.OSFile(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for index in range(reader.num_record_batches):
                    yield pa.Table.from_batches([reader.get_batch(index)])


def _values(tables: Iterable[Any], field: Any) -> Any:
    """Returns the union of a column's dictionaries, because Arrow's file format has one dictionary per column."""
    values = pa.array([], field.type.value_type)
    for table in tables:
        for chunk in table[field.name].chunks:
            if not chunk.dictionary.equals(values):
                values = pc.unique(pa.concat_arrays([values, chunk.dictionary]))
    return values


def _coded(table: Any, dictionaries: dict[str, Any]) -> Any:
    for index, field in enumerate(table.schema):
        if field.name in dictionaries:
            values = dictionaries[field.name]
            chunks = [
                pa.DictionaryArray.from_arrays(pc.index_in(each.dictionary, values).take(each.indices), values)
                for each in table[field.name].chunks
            ]
            table = table.set_column(index, field, pa.chunked_array(chunks, field.type))
    return table


def _write_csv(stream: Any, delimiter: str, schema: Any, tables: Iterable[Any]) -> None:
    """Writes csv. Bytes, lists, vectors and other nested values become JSON."""
    schema = plain(schema)
    texts = {each.name for each in schema if any(test(each.type) for test in AS_TEXT)}
    flat = pa.schema([(each.name, pa.string() if each.name in texts else each.type) for each in schema])
    with pa.csv.CSVWriter(stream, flat, write_options=pa.csv.WriteOptions(delimiter=delimiter)) as writer:
        for batch in _batches(tables):
            columns = [
                pa.array(list(map(_cell, as_list(batch[each.name]))), pa.string())
                if each.name in texts
                else batch[each.name].cast(each.type)
                for each in schema
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=flat))


def _is_extension(kind: Any) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


#: Types that pyarrow's CSV writer does not support.
AS_TEXT = (
    pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, _is_extension,
)  # fmt: skip


def _cell(value: Any) -> str | None:
    """Returns the text of a value in a csv file: JSON, but texts and UUIDs without quotes."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, uuid.UUID) else _json(value)


def _write_jsonl(stream: Any, tables: Iterable[Any]) -> None:
    for batch in _batches(tables):
        rows = zip(*(as_list(column) for column in batch.columns), strict=True)
        for row in rows:
            stream.write(f"{_json(dict(zip(batch.schema.names, row, strict=True)))}\n".encode())


def _batches(tables: Iterable[Any]) -> Iterator[Any]:
    """Splits tables into batches of at most ROWS rows, because Python objects take much more memory than tables."""
    for table in tables:
        yield from table.to_batches(max_chunksize=ROWS)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_text)
    except ValueError:  # raised for NaN and infinity, which JSON does not allow
        return json.dumps(_finite(value), ensure_ascii=False, default=_as_text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_text(value: Any) -> str:
    """Converts values without a JSON type to text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta | uuid.UUID):
        return str(value)
    raise NpformerError(f"a value of type {type(value).__name__} cannot be written as JSON; write parquet or arrow")
