"""Rows of JSON Lines with lone surrogates, which Arrow columns cannot contain.

A lone surrogate, such as the escape \\ud800 without a second surrogate, is not valid text. It is replaced by U+FFFD,
and the row gets an error instead of an answer. Until then, the column `PROBLEM`, which is added to the
input, stores the reason.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.dataset.columns import results
from npformer.dataset.sizes import DEPTH
from npformer.tasks.task import InputError, Task

PROBLEM = "\0problem"
ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
SURROGATE = re.compile("[\ud800-\udfff]")


def checked(where: str, line: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of a JSON line. Invalid texts are replaced, and the column `PROBLEM` has the reason."""
    if PROBLEM in row:
        raise NpformerError(f"{where}: the key {shown(PROBLEM)} is reserved; rename it")
    if not ESCAPE.search(line):
        return row
    try:
        columns = [name for name, value in row.items() if _replaced([name, value]) != [name, value]]
    except RecursionError:
        raise NpformerError(f"{where}: nested more than {DEPTH} deep") from None
    if not columns:
        return row
    name = SURROGATE.sub("\ufffd", columns[0])
    reason = f"column {shown(name)}: a lone surrogate, which is not valid text; it is replaced by U+FFFD"
    made: dict[str, Any] = _replaced(row)
    if len(made) < len(row):
        raise NpformerError(f"{where}: duplicate key {shown(name)}, after U+FFFD replaces a lone surrogate")
    return {**made, PROBLEM: reason}


def _replaced(value: Any) -> Any:
    """Returns a JSON value with each lone surrogate replaced by U+FFFD."""
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replaced(each) for each in value]
    if isinstance(value, dict):
        return {_replaced(name): _replaced(each) for name, each in value.items()}
    return value


def with_problem(schema: Any) -> Any:
    """Returns the columns of a jsonl file, and `PROBLEM`."""
    return schema.append(pa.field(PROBLEM, pa.string()))


def problems_kept(table: Any, batches: list[Any]) -> Any:
    """Returns the table of these batches, with the column `PROBLEM` if any row has a problem."""
    if not batches or PROBLEM not in batches[0].schema.names:
        return table
    problems = pa.chunked_array([each[PROBLEM] for each in batches], pa.string())
    return table if problems.null_count == len(problems) else table.append_column(PROBLEM, problems)


def refused(task: Task, inputs: Any, answers: Any) -> tuple[Any, Any]:
    """Returns the inputs without the column `PROBLEM`, and the results with an error in each row that has a problem."""
    if PROBLEM not in inputs.schema.names:
        return inputs, answers
    parts, after = [], 0
    for i, reason in enumerate(inputs[PROBLEM].to_pylist()):
        if reason is not None:
            parts += [answers.slice(after, i - after), results(task, [InputError(i, NpformerError(reason))])]
            after = i + 1
    parts.append(answers.slice(after))
    return inputs.drop_columns([PROBLEM]), pa.concat_tables(parts).combine_chunks()
