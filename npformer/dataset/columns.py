"""The answers of tasks as typed columns, defined by `Task.columns`.

Scores and vectors have the model's dtype, so that answers are exact. Every table of answers has two more columns:
"truncated" is true for a truncated text, and "error" is the reason if a row has no answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.tasks.task import InputError, Task


def schema_of(task: Task) -> Any:
    """Returns the schema of a task's results: its columns, `truncated` and `error`.

    Raises NpformerError for a task whose answers do not fit into columns.
    """
    columns = task.columns()
    if not columns:
        raise NpformerError(f"{task.name}: its answers do not fit into the columns of a dataset")
    fields = [(name, _type(kind, task.model.dtype, f"{task.name}: column {name!r}")) for name, kind in columns.items()]
    return pa.schema([*fields, ("truncated", pa.bool_()), ("error", pa.string())])


def _type(kind: Any, dtype: Any, where: str) -> Any:
    """Returns pyarrow's type for a column in `Task.columns`. where: the task and the column, for errors."""
    if isinstance(kind, dict):
        return pa.struct([(name, _type(each, dtype, f"{where}, field {name!r}")) for name, each in kind.items()])
    if isinstance(kind, list | tuple):
        return pa.list_(_type(kind[0], dtype, where), *kind[1:])
    types = {str: pa.string(), int: pa.int32(), float: pa.float64(), np.floating: pa.from_numpy_dtype(dtype)}
    if kind not in types:
        raise NpformerError(f"{where}: expected one of the types that `Form` lists, got {shown(kind)}")
    return types[kind]


def results(task: Task, answers: Sequence[Any]) -> Any:
    """Makes the table of results. An InputError becomes a row of nulls (NaN in vectors) with the reason."""
    schema = schema_of(task)
    known = [None if isinstance(each, InputError) else each for each in answers]
    rows = [None if each is None else task.row(each) for each in known]
    arrays = [
        pa.array([_missing(kind) if row is None else row[name] for row in rows], kind)
        for name, kind in zip(schema.names[:-2], schema.types, strict=False)
    ]
    truncated = pa.array([None if each is None else bool(each.truncated) for each in known], pa.bool_())
    errors = pa.array([each.reason if isinstance(each, InputError) else None for each in answers], pa.string())
    return pa.Table.from_arrays([*arrays, truncated, errors], schema=schema)


def _missing(kind: Any) -> Any:
    """Returns the value for a row without an answer: null, or a vector of NaN, as in .npy files.

    Missing vectors are NaN instead of null, because pyarrow before version 26 cannot read null vectors from Parquet.
    """
    if not pa.types.is_fixed_size_list(kind):
        return None
    return [math.nan] * kind.list_size


def together(inputs: Any, results: Any, prefix: str) -> Any:
    """Appends the columns of results, with prefixed names, to the columns of the input."""
    for name, column in zip(results.schema.names, results.columns, strict=True):
        inputs = inputs.append_column(prefix + name, column)
    return inputs


def check_names(inputs: Any, results: Any, prefix: str) -> None:
    """Raises NpformerError if the input has a column with the name of a result column."""
    for name in results.names:
        if prefix + name in inputs.names:
            raise NpformerError(
                f"column {prefix + name!r}: both the input and the result have this column; use a prefix for the "
                f"result's columns, prefix='new_' or --prefix new_"
            )
