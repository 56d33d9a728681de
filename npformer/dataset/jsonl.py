"""Reads JSON Lines with Python's parser, and infers types that represent every value of a file exactly.

`Seen` collects the values of a column, or of a field in its objects. A value is rejected, with its line and column in
the error, if no type can represent both this value and the earlier values. Numbers with a point or an exponent are
float64, as in most JSON parsers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.dataset.invalid_rows import checked
from npformer.dataset.sizes import DEPTH
from npformer.dataset.wide import check_columns

KEYS = "write keys that differ between rows as values, in a list of objects with a key and a value"
KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
TYPES = {"": pa.null(), "true or false": pa.bool_(), "text": pa.string()}


def objects(lines: Iterable[tuple[int, str]], where: object) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yields the number, the length in characters and the object of each line that is not blank.

    An object with a lone surrogate has the field `PROBLEM`.
    """
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_float=_float, object_pairs_hook=_object)
        except RecursionError:
            raise NpformerError(f"{where}:{number}: nested more than {DEPTH} deep") from None
        except ValueError as error:
            raise NpformerError(f"{where}:{number}: not JSON: {error!s:.200}") from None
        if not isinstance(value, dict):
            raise NpformerError(f"{where}:{number}: expected a JSON object, got {KINDS.get(type(value), 'null')}")
        yield number, len(line), checked(f"{where}:{number}", line, value)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits:.50} is larger than any float64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        raise ValueError(f"duplicate key {shown(next(name for name, count in counted.items() if count > 1))}")
    return found


class Seen:
    """Reads the values of a column or field, and records their kind and the range that their type must represent."""

    def __init__(self, name: str = "", depth: int = 0, root: Seen | None = None) -> None:
        self.name, self.depth, self.kind = name, depth, ""
        self.root, self.width = root or self, 0  # in the root, `width` counts the fields at any depth
        self.fields: dict[str, Seen] = {}
        self.items: Seen | None = None
        self.floats, self.least, self.most = False, 0, 0
        self.exact: tuple[str, int] | None = None  # line and value of the first number beyond 2**53

    def add(self, value: Any, where: str) -> None:
        """Adds a value. Raises NpformerError if no type represents both this value and the earlier ones."""
        if value is None:
            return
        kind = KINDS[type(value)]
        if kind != self.kind:
            if self.kind:
                raise self._refused(where, f"{kind}, but {self.kind} in an earlier row; expected values of one type")
            self.kind = kind
        if kind == "a number":
            self._number(value, where)
        elif kind == "a list":
            if self.items is None:
                self.items = self._inner(f"{self.name}[]", where)
            for each in value:
                self.items.add(each, where)
        elif kind == "an object":
            for name, each in value.items():
                if name not in self.fields:
                    self.fields[name] = self._inner(f"{self.name}.{name}" if self.name else name, where)
                self.fields[name].add(each, where)

    def _number(self, value: float, where: str) -> None:
        if isinstance(value, float):
            self.floats = True
        else:
            if not -(2**63) <= value < 2**64:
                raise self._refused(where, f"{shown(value)} has more than 64 bits; write the column's numbers as texts")
            self.least, self.most = min(self.least, value), max(self.most, value)
            if self.exact is None and abs(value) > 2**53:
                self.exact = where, value
        if self.exact and self._is_float():
            where, value = self.exact
            only = "the only type for all numbers of the column; write them as texts"
            raise self._refused(where, f"{value} is beyond the range of exact whole numbers in float64, {only}")

    def _is_float(self) -> bool:
        return self.floats or (self.least < 0 and self.most >= 2**63)

    def _inner(self, name: str, where: str) -> Seen:
        if self.depth > DEPTH:
            raise self._refused(where, f"nested more than {DEPTH} deep")
        self.root.width += 1
        check_columns(self.root.width, f"{where}: column {shown(self.name or name)}", KEYS)
        return Seen(name, self.depth + 1, self.root)

    def _refused(self, where: str, message: str) -> NpformerError:
        return NpformerError(f"{where}: column {shown(self.name)}: {message}")

    def type(self) -> Any:
        """Returns the type that represents all values."""
        if self.kind == "a number":
            return pa.float64() if self._is_float() else pa.uint64() if self.most >= 2**63 else pa.int64()
        if self.kind == "a list":
            assert self.items is not None
            return pa.list_(self.items.type())
        if self.kind == "an object":
            return pa.struct([(name, each.type()) for name, each in self.fields.items()])
        return TYPES[self.kind]

    def schema(self) -> Any:
        """Returns the columns if the collected values are rows."""
        return pa.schema([(name, each.type()) for name, each in self.fields.items()])
