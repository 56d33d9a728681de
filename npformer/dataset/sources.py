"""Reads a dataset, which is a file or the files of a folder sorted by name, as tables with the same schema.

`survey` reads everything once, to find unreadable files, different columns and changed input before the model runs for
hours. It returns the identity of each file and divides the file into parts (`sizes.py`). `parts` then reads the
requested parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from npformer.common.checks import listed, shown, unknown
from npformer.common.errors import NpformerError
from npformer.common.files import as_given, open_file
from npformer.dataset.formats import KNOWN, checksum, explained
from npformer.dataset.invalid_rows import PROBLEM, problems_kept
from npformer.dataset.jsonl import Seen, objects
from npformer.dataset.readers import batches, carried, conform, form_of, opened_lines, plain
from npformer.dataset.sizes import DEPTH, MISSING, Cuts, depth, row_sizes

SLICE = 2**12  # number of rows that are measured at a time


@dataclass(frozen=True)
class File:
    """A file of a dataset: identity, rows in each part, and columns, or the error raised when reading the file."""

    path: Path
    bytes: int = 0
    sha256: str = ""
    parts: tuple[int, ...] = ()
    schema: Any = None
    error: str = ""

    @property
    def rows(self) -> int:
        return sum(self.parts)

    def identity(self) -> dict[str, Any]:
        found = {"bytes": self.bytes, "sha256": self.sha256, "rows": self.rows}
        return {"name": self.path.name, **({"error": self.error} if self.error else found)}


@dataclass(frozen=True)
class Dataset:
    """The files of a dataset and their common columns."""

    files: list[File]
    schema: Any

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def unreadable(self) -> list[str]:
        return [each.error for each in self.files if each.error]


def survey(given: str | Path, part_rows: int, limit: int | None = None) -> Dataset:
    """Reads the files once and describes them. With a `limit`, reads only files with some of the first `limit` rows.

    Raises NpformerError if no file can be read, or if the columns of two files differ.
    """
    files: list[File] = []
    seen = Seen()  # collects the types in all jsonl files
    left = limit
    for path in _paths(Path(given)):
        if left == 0:
            break
        tried = copy.deepcopy(seen)
        try:
            found = _surveyed(path, part_rows, left, tried)
            seen = tried
        except NpformerError as error:
            found = File(path, error=str(error))
        left = None if left is None else left - found.rows
        files.append(found)
    readable = [each for each in files if not each.error]
    if not readable:
        raise NpformerError(files[0].error if len(files) == 1 else f"{given}: no file can be read; {files[0].error}")
    return Dataset(files, _common(readable))


def parts(file: File, schema: Any, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    """Yields the requested parts of a file as (number, table)."""
    stream = batches(file.path, schema)
    batch = next(stream)
    for number, left in enumerate(file.parts):
        held = []
        _check_size(file)
        while left:
            if not batch.num_rows:
                batch = next(stream, None)
                if batch is None:
                    missing = left + sum(file.parts[number + 1 :])
                    raise NpformerError(
                        f"{file.path}: has lost {missing} of its {file.rows} rows since it was first read"
                    )
            taken = batch.slice(0, left)
            batch, left = batch.slice(taken.num_rows), left - taken.num_rows
            if wanted(number):
                held.append(taken)
        if wanted(number):
            with explained(file.path):
                table = problems_kept(conform(held, schema), held)
            yield number, table


def _check_size(file: File) -> None:
    """Raises NpformerError if the size of a file changed, because reading past the end of a mapped file is fatal."""
    with suppress(FileNotFoundError):  # a deleted file stays readable while it is open
        size = file.path.stat().st_size
        if size != file.bytes:
            raise NpformerError(f"{file.path}: has {size} bytes, but had {file.bytes} when it was first read")


def _paths(given: Path) -> list[Path]:
    with explained(given):
        if str(given) == "-" or (given.exists() and not given.is_dir() and not given.is_file()):
            raise NpformerError(
                f"{given}: not a regular file or folder; a dataset is read twice, so save it to a file first"
            )
        if not given.is_dir():
            given.stat()
            return [given]
        found = sorted(each for each in given.iterdir() if not each.name.startswith((".", "_")))
    if not found:
        raise NpformerError(f"{given}: the folder is empty; expected files of {KNOWN}")
    return found


def _surveyed(path: Path, part_rows: int, limit: int | None, seen: Seen) -> File:
    if path.is_dir():
        raise NpformerError(f"{path}: is a folder; expected only files in the input's folder")
    form = form_of(path)
    with explained(path):
        size = path.stat().st_size
        with open_file(as_given(path)):  # raises an error if the path is not a regular file
            digest = checksum(path)
        if not size:
            raise NpformerError(f"{path}: the file is empty")
        cuts = Cuts(part_rows, limit)
        if form.kind == "jsonl":
            _look(path, seen, cuts)
            schema = seen.schema()
        else:
            schema = _measure(path, cuts)
    return File(path, size, digest, cuts.finish(), schema)


def _look(path: Path, seen: Seen, cuts: Cuts) -> None:
    """Infers the types of a jsonl file, and divides the file into parts."""

    def sizes(rows: Iterator[tuple[int, int, Any]]) -> Iterator[int]:
        for number, size, row in rows:
            row.pop(PROBLEM, None)
            seen.add(row, f"{path}:{number}")
            yield size + MISSING * seen.width

    with opened_lines(path) as lines:
        found = sizes(islice(objects(lines, path), cuts.limit))
        while len(some := np.fromiter(islice(found, SLICE), np.int64)):
            cuts.add(some)


def _measure(path: Path, cuts: Cuts) -> Any:
    """Finds the schema of a file that is not jsonl, and divides the file into parts."""
    schema = None
    for batch in batches(path):
        if schema is None:
            schema = carried(batch.schema)
            for field in schema:
                if depth(field.type) > DEPTH:
                    raise NpformerError(f"{path}: column {shown(field.name)}: nested more than {DEPTH} deep")
        for at in range(0, batch.num_rows, SLICE):
            cuts.add(row_sizes(batch.slice(at, SLICE)))
        if cuts.full:
            break
    return schema


def _common(files: list[File]) -> Any:
    """Returns the common schema of all files. The last jsonl file's types represent the values of all jsonl files."""
    jsonl = [each for each in files if form_of(each.path).kind == "jsonl"]
    first, *others = [*jsonl[-1:], *(each for each in files if each not in jsonl)]
    fields = {each.name: each for each in first.schema}
    plain_types = dict(zip(first.schema.names, plain(first.schema).types, strict=True))
    for file in others:
        lacks, has = sorted({*fields} - {*file.schema.names}), sorted({*file.schema.names} - {*fields})
        if lacks or has:
            differences = [f"lacks {listed(lacks):.200}"] * bool(lacks) + [f"also has {listed(has):.200}"] * bool(has)
            raise NpformerError(
                f"{file.path}: its columns differ from those of {first.path.name}: it {'; '.join(differences)}"
            )
        for field in plain(file.schema):
            if field.type != plain_types[field.name]:
                where, expected = f"{file.path}: column {shown(field.name)}", plain_types[field.name]
                raise NpformerError(f"{where} is {field.type}, but {expected} in {first.path.name}")
            # Apart from encodings and views, the types are equal. If these differ, the plain type is used.
            if file.schema.field(field.name).type != fields[field.name].type:
                fields[field.name] = field
    return pa.schema([fields[name] for name in dict.fromkeys([*files[0].schema.names, *fields])])


def check_text_column(source: Dataset, name: str) -> None:
    """Raises NpformerError if the dataset has no such column, or if the column does not contain text."""
    if name not in source.schema.names:
        raise unknown("column", name, source.schema.names)
    kind = plain(source.schema).field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise NpformerError(f"column {name!r}: expected texts, got {kind}")
