"""Reads one file of a dataset as record batches of at most about 16 MB, unless a row or an Arrow batch is larger.

Columns of csv and tsv are texts, so that values stay unchanged (007, 1.50, NA). Columns of jsonl have types that
represent all values (`jsonl.py`). Dictionary encoding is preserved in columns of texts, and removed from other columns.
"""

from __future__ import annotations

import io
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from npformer.common.errors import NpformerError
from npformer.common.files import as_given, csv_rows, open_file
from npformer.dataset.formats import DELIMITERS, KNOWN, Format, explained, format_of
from npformer.dataset.invalid_rows import with_problem
from npformer.dataset.jsonl import objects
from npformer.dataset.sizes import BYTES, MISSING, grouped, width
from npformer.dataset.wide import check_columns, check_parquet, check_schema

BLOCK = 2**20  # size of a batch of text: its characters, plus MISSING for each value
LONGEST = 2**26  # maximum characters in a line or in a CSV cell
ROWS = 2**12  # maximum rows of a batch from Parquet
BATCH = 2**24  # maximum bytes of a batch from Parquet, unless it is a single row
TEXTS = ("STRING", "NONE", "JSON", "ENUM")  # logical types of Parquet that are read without changing their bytes


def form_of(path: Path) -> Format:
    """Returns the format of a file. Raises NpformerError for an unknown suffix."""
    form = format_of(path)
    if form is None:
        raise NpformerError(f"{path}: unknown suffix; supported formats: {KNOWN}")
    return form


def batches(path: Path, schema: Any = None) -> Iterator[Any]:
    """Yields the record batches of a file, the first without rows. A jsonl file is read with the `schema`."""
    form = form_of(path)
    if form.kind in ("jsonl", *DELIMITERS):
        with opened_lines(path) as lines:
            yield from _jsonl(lines, path, schema) if form.kind == "jsonl" else _csv(lines, path, form)
    else:
        with explained(path), open_file(as_given(path)) as file:
            yield from _parquet(file, path) if form.kind == "parquet" else _arrow(file, path)


@contextmanager
def opened_lines(path: Path) -> Iterator[Iterator[tuple[int, str]]]:
    """Yields the numbers and the lines of a text file, with line ends (\\n, \\r\\n or \\r)."""
    compression = form_of(path).compression
    with explained(path), open_file(as_given(path)) as file:
        stream: Any = io.BufferedReader(pa.CompressedInputStream(file, compression)) if compression else file
        with io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text:
            yield _lines(text, path)


def _lines(text: Any, where: Path) -> Iterator[tuple[int, str]]:
    for number in count(1):
        line = text.readline(LONGEST + 1)
        if not line:
            return
        if len(line) > LONGEST:
            raise NpformerError(
                f"{where}:{number}: a line of more than {LONGEST} characters; expected one row per line"
            )
        try:
            line.encode()
        except UnicodeEncodeError:
            raise NpformerError(f"{where}:{number}: not UTF-8") from None
        yield number, line


def conform(batches: list[Any], schema: Any) -> Any:
    """Combines record batches into a table with this schema, and reduces dictionaries to the values that occur."""
    columns = []
    for field in schema:
        chunks = [_cast(each[field.name], _plain(field.type)) for each in batches]
        whole = pa.chunked_array(chunks, _plain(field.type)).combine_chunks()  # always a single chunk
        columns.append(whole.dictionary_encode() if pa.types.is_dictionary(field.type) else _cast(whole, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(array: Any, kind: Any) -> Any:
    if array.type == kind:
        return array
    if pa.types.is_nested(kind):  # as a copy, because pyarrow cannot cast a slice with a field of nulls
        array = pa.concat_arrays([array])
    return array.cast(kind)


def carried(schema: Any) -> Any:
    """Returns the schema with supported types and without metadata, which may not describe the output's columns."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise ValueError(f"duplicate column {min(twice)!r}")
    return pa.schema([pa.field(each.name, _carried(each.type)) for each in schema])


def plain(schema: Any) -> Any:
    """Returns the schema without dictionaries and views."""
    return pa.schema([pa.field(each.name, _plain(each.type)) for each in schema])


def _carried(kind: Any) -> Any:
    """Returns the type. Only the type of a column of texts keeps its dictionary encoding."""
    is_coded = pa.types.is_dictionary(kind) and any(test(_plain(kind)) for test in BYTES)
    return pa.dictionary(pa.int32(), _plain(kind)) if is_coded else _decoded(kind)


def _decoded(kind: Any) -> Any:
    """Returns the type without dictionaries. Keeps views only if this version of pyarrow supports them everywhere."""
    if not _keeps_views():
        return _plain(kind)
    return _decoded(kind.value_type) if pa.types.is_dictionary(kind) else _inside(kind, _decoded)


@lru_cache(1)
def _keeps_views() -> bool:
    """Returns whether pyarrow can write views of texts to Parquet, and convert texts to views."""
    try:
        empty = pa.table({"": pa.array([], pa.large_string()).cast(pa.string_view())})
        pa.parquet.write_table(empty, io.BytesIO())
    except (pa.ArrowException, AttributeError):
        return False
    return True


def _plain(kind: Any) -> Any:
    """Returns the type without dictionaries and views, which some formats do not support."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind)) or _inside(kind, _plain)


def _inside(kind: Any, changed: Callable[[Any], Any]) -> Any:
    """Applies a function to the types nested in a type."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(changed(each.type)) for each in kind])
    for test, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if test(kind):
            return make(kind.value_field.with_type(changed(kind.value_type)))
    return kind


# --- formats ---------------------------------------------------------------------------------------------------------


def _parquet(file: Any, where: Path) -> Iterator[Any]:
    check_parquet(file, where)
    read = pa.parquet.ParquetFile(file, buffer_size=BLOCK, pre_buffer=False)
    check_schema(read.schema_arrow, where)
    yield pa.RecordBatch.from_pylist([], read.schema_arrow)
    leaves = [read.schema.column(i) for i in range(len(read.schema))]
    texts = [each.path for each in leaves if each.physical_type == "BYTE_ARRAY" and each.logical_type.type in TEXTS]
    coded = pa.parquet.ParquetFile(
        file, metadata=read.metadata, read_dictionary=texts, buffer_size=BLOCK, pre_buffer=False
    )
    for index in range(read.num_row_groups):
        rows = max(min(BATCH // max(_row_bytes(coded, index, texts), 1), ROWS), 1)
        yield from read.iter_batches(batch_size=rows, row_groups=[index], use_threads=False)


def _row_bytes(coded: Any, index: int, texts: list[str]) -> int:
    """Estimates the maximum bytes of a row in a row group, with the repeated texts that dictionaries store once."""
    group = coded.metadata.row_group(index)
    total = group.total_byte_size // max(group.num_rows, 1)
    for chunk in map(group.column, range(group.num_columns)):
        if chunk.path_in_schema in texts and any("DICTIONARY" in each for each in chunk.encodings):
            one = {"batch_size": 1, "row_groups": [index], "columns": [chunk.path_in_schema], "use_threads": False}
            with suppress(pa.ArrowException):  # raised for extension types and for damaged data
                for batch in islice(coded.iter_batches(**one), 1):
                    total += _longest(batch.column(0)) * -(-chunk.num_values // group.num_rows)
    return total


def _longest(array: Any) -> int:
    """Returns the bytes of the longest text in the dictionaries of an array."""
    if pa.types.is_dictionary(array.type):
        return pc.max(pc.binary_length(array.dictionary)).as_py() or 0
    if pa.types.is_struct(array.type):
        return max(map(_longest, array.flatten()), default=0)
    return _longest(array.values) if hasattr(array, "values") else 0


def _arrow(file: Any, where: Path) -> Iterator[Any]:
    """Reads both formats of Arrow: files, which begin with ARROW1, and streams, as written by the `datasets` library.

    The file is memory-mapped, so a batch takes no memory before its rows are used.
    """
    mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if mapped[:6].to_pybytes() != b"ARROW1":
        reader = pa.ipc.open_stream(mapped)
        check_schema(reader.schema, where)
        yield pa.RecordBatch.from_pylist([], reader.schema)
        yield from map(_checked, reader)
        return
    reader = pa.ipc.open_file(mapped)
    check_schema(reader.schema, where)
    yield pa.RecordBatch.from_pylist([], reader.schema)
    yield from (_checked(reader.get_batch(index)) for index in range(reader.num_record_batches))


def _checked(batch: Any) -> Any:
    """Checks that offsets and dictionary indices stay within a batch. The bytes of texts are not checked."""
    for column in batch.columns:
        column.view(_as_bytes(column.type)).validate(full=True)
    return batch


def _as_bytes(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _as_bytes(kind.value_type), kind.ordered)
    return {"string": pa.binary(), "large_string": pa.large_binary()}.get(str(kind)) or _inside(kind, _as_bytes)


def _csv(lines: Iterable[tuple[int, str]], where: Path, form: Format) -> Iterator[Any]:
    rows = (values for _, values in csv_rows(lines, where, LONGEST, delimiter=DELIMITERS[form.kind]))
    names = next(rows, None)
    if names is None:
        raise NpformerError(f"{where}: no header line with column names")
    check_columns(len(names), where)
    schema = pa.schema([(name, pa.string()) for name in names])
    yield pa.RecordBatch.from_pylist([], schema)
    for block in grouped(((sum(map(len, values), MISSING * len(values)), values) for values in rows), BLOCK):
        arrays = [pa.array(column, pa.string()) for column in zip(*block, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _jsonl(lines: Iterable[tuple[int, str]], where: Path, schema: Any) -> Iterator[Any]:
    nulls = MISSING * width(pa.struct(list(schema)))  # every field takes memory in every row
    schema = with_problem(schema)
    yield pa.RecordBatch.from_pylist([], schema)
    for block in grouped(((size + nulls, row) for _, size, row in objects(lines, where)), BLOCK):
        yield pa.RecordBatch.from_struct_array(pa.array(block, pa.struct(list(schema))))
