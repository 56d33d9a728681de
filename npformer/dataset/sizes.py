"""The sizes of rows, and the division of a file into parts with a maximum number of rows and bytes.

Without Dask, only one part is in memory at a time. The size of a row is the size of its values without dictionary
encoding, so that parts depend only on the rows and not on their encoding in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PART_BYTES = 2**24  # maximum size of a part with more than one row
DEPTH = 48  # maximum nesting of lists and objects in a column; Parquet can read 49 levels of lists, Arrow 63
MISSING = 8  # bytes that count for each list item and each column, in addition to the value's own bytes

BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


class Cuts:
    """Divides a file into parts by row sizes, with at most `rows` rows per part and `limit` rows in total."""

    def __init__(self, rows: int, limit: int | None) -> None:
        self.rows, self.limit = rows, limit
        self._parts: list[int] = []
        self._count = self._bytes = 0

    @property
    def full(self) -> bool:
        return sum(self._parts) + self._count == self.limit

    def add(self, sizes: np.ndarray) -> None:
        """Adds the sizes of the next rows, (N,)."""
        if self.limit is not None:
            sizes = sizes[: self.limit - sum(self._parts) - self._count]
        ends, at, before = np.cumsum(sizes), 0, 0
        while at < len(sizes):
            fitting = int(np.searchsorted(ends, before + PART_BYTES - self._bytes, side="right")) - at
            taken = min(self.rows - self._count, max(fitting, int(not self._count)), len(sizes) - at)
            if taken:
                at += taken
                self._count += taken
                self._bytes += int(ends[at - 1]) - before
                before = int(ends[at - 1])
            if not taken or self._count == self.rows:
                self._end_part()

    def finish(self) -> tuple[int, ...]:
        """Returns the number of rows in each part."""
        self._end_part()
        return tuple(self._parts)

    def _end_part(self) -> None:
        if self._count:
            self._parts.append(self._count)
        self._count = self._bytes = 0


def grouped(items: Iterable[tuple[int, Any]], size: int) -> Iterator[list[Any]]:
    """Groups consecutive items, given as (size, item). Every group except the last has a total of at least `size`."""
    held: list[Any] = []
    total = 0
    for own, item in items:
        held.append(item)
        total += own
        if total >= size:
            yield held
            held, total = [], 0
    if held:
        yield held


def row_sizes(batch: Any) -> np.ndarray:
    """Returns the bytes of each row in a record batch, (N,)."""
    return sum(map(_sizes, batch.columns), np.full(batch.num_rows, MISSING * batch.num_columns))


def depth(kind: Any) -> int:
    """Returns the nesting depth of lists and objects in a type."""
    return 1 + max((depth(kind.field(i).type) for i in range(kind.num_fields)), default=0) if kind.num_fields else 0


def width(kind: Any) -> int:
    """Returns the number of fields in a type, at any depth."""
    return sum((width(kind.field(i).type) for i in range(kind.num_fields)), kind.num_fields)


def _sizes(array: Any) -> np.ndarray:
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = np.append(_sizes(array.dictionary), 0)  # the appended value is the size of a null
        return values[pc.fill_null(array.indices.cast(pa.int64()), len(values) - 1).to_numpy()]
    if pa.types.is_struct(kind):
        return sum((_sizes(array.field(i)) for i in range(kind.num_fields)), np.zeros(len(array), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = np.cumsum(np.append(0, _sizes(array.values) + MISSING))
        return np.diff(ends[array.offsets.to_numpy()])
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
        values = array.values.slice(array.offset * width, len(array) * width)
        return _sizes(values).reshape(len(array), width).sum(axis=1)
    if any(test(kind) for test in BYTES):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy().astype(np.int64)
    try:
        size = kind.bit_width // 8
    except ValueError:  # raised for a type without a fixed width
        size = array.nbytes // max(len(array), 1)
    return np.full(len(array), size)
