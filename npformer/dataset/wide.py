"""The limit on the number of columns of a dataset, which is checked before pyarrow allocates arrays.

A field takes memory in every row, and rows with different keys need a column for each key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npformer.common.errors import NpformerError
from npformer.dataset.sizes import width

COLUMNS = 10_000  # maximum fields of a dataset's rows, at any depth of lists and objects
MAGIC = 4  # the bytes of PAR1, at both ends of a Parquet file, and of the length of the footer, before the last PAR1


def check_columns(count: int, where: object, remedy: str = "write a file with only the columns that you need") -> None:
    """Raises NpformerError for more than COLUMNS columns."""
    if count > COLUMNS:
        raise NpformerError(f"{where}: expected at most {COLUMNS} columns and nested fields, got more; {remedy}")


def check_schema(schema: Any, where: object) -> None:
    """Raises NpformerError if a schema has more than COLUMNS columns and nested fields."""
    check_columns(len(schema) + sum(width(kind) for kind in schema.types), where)


def parquet_elements(file: Any) -> int:
    """Returns the number of schema elements in a Parquet file, or 0 for a footer of an unknown form.

    pyarrow creates all elements when it opens a file. The footer is in Thrift's compact protocol. Its first fields are
    the version, an i32, and the schema, a list of structs that begins with its length.
    """
    file.seek(0, 2)
    size = file.tell()
    file.seek(max(size - 2 * MAGIC, 0))
    footer = int.from_bytes(file.read(MAGIC), "little")
    file.seek(max(size - 2 * MAGIC - footer, 0))
    head = file.read(16)
    file.seek(0)
    if head[:1] != b"\x15":
        return 0
    _, at = _varint(head, 1)
    if head[at : at + 1] != b"\x19" or not head[at + 1 :] or head[at + 1] & 15 != 12:
        return 0
    count = head[at + 1] >> 4
    return count if count < 15 else _varint(head, at + 2)[0]


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Reads a varint, which has seven bits per byte, least significant first. Returns the number and the next index."""
    value, end = 0, start
    while end < len(data):
        value |= (data[end] & 127) << 7 * (end - start)
        end += 1
        if data[end - 1] < 128:
            break
    return value, end


def check_parquet(file: Any, where: Path) -> None:
    """Raises NpformerError if a Parquet file certainly has too many columns, even if every field has two elements."""
    check_columns((parquet_elements(file) - 1) // 2, where)
