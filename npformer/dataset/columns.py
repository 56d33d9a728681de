"""The answers of each task as typed columns: one table, task -> the names and types of its columns.

Numbers have the type that the model computes them in, so that nothing of an answer is lost. Every task has two more
columns: whether the text was cut, and the error for which a row has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from npformer.common.checks import unknown
from npformer.common.errors import NpformerError
from npformer.generation.settings import resolve
from npformer.tasks.task import InputError, Task
from npformer.tasks.text_classification import BEST


class Column(NamedTuple):
    """A column of results: its name, its type, its value in an answer, and in a row without one."""

    name: str
    type: Any
    value: Callable[[Any], Any]
    missing: Any = None


def columns_of(task: Task) -> list[Column]:
    """Returns the columns of a task's answers. Raises NpformerError for a task that has none."""
    if task.name not in TABLE:
        raise unknown("task of a dataset", task.name, TABLE)
    return TABLE[task.name](task)


def schema_of(task: Task) -> Any:
    """Returns the schema of a task's results: its columns, `truncated` and `error`."""
    fields = [(each.name, each.type) for each in columns_of(task)]
    return pa.schema([*fields, ("truncated", pa.bool_()), ("error", pa.string())])


def results(task: Task, answers: Sequence[Any]) -> Any:
    """Makes the table of results from answers; an InputError among them is a row of nulls, NaN in a vector, and its
    reason."""
    answered = [not isinstance(each, InputError) for each in answers]
    pairs = list(zip(answered, answers, strict=True))
    arrays = [
        pa.array([column.value(each) if known else column.missing for known, each in pairs], column.type)
        for column in columns_of(task)
    ]
    truncated = pa.array([bool(each.truncated) if known else None for known, each in pairs], pa.bool_())
    errors = pa.array([None if known else each.reason for known, each in pairs], pa.string())
    return pa.Table.from_arrays([*arrays, truncated, errors], schema=schema_of(task))


def together(inputs: Any, results: Any, prefix: str) -> Any:
    """Puts the results' columns, with the prefix before their names, after those of the input."""
    for name, column in zip(results.schema.names, results.columns, strict=True):
        inputs = inputs.append_column(prefix + name, column)
    return inputs


def check_names(inputs: Any, results: Any, prefix: str) -> None:
    """Raises NpformerError if a column of the results has the name of one of the input's."""
    for name in results.names:
        if prefix + name in inputs.names:
            raise NpformerError(
                f"column {prefix + name!r}: the input has one of this name, and so has the result; give a prefix for "
                f"the result's columns, prefix='new_' or --prefix new_"
            )


def _item(name: str) -> Callable[[Any], Any]:
    return lambda answer: answer[name]


def _plain(kind: Any, names: Sequence[str]) -> list[Column]:
    return [Column(name, kind[name], _item(name)) for name in names]


def _float(task: Task) -> Any:
    return pa.from_numpy_dtype(task.model.dtype)


def _classification(task: Task) -> list[Column]:
    kinds = {"label": pa.string(), "score": _float(task)}
    if task.options.top_k == BEST:
        return _plain(kinds, list(kinds))
    return [Column("labels", pa.list_(pa.struct(list(kinds.items()))), list)]


def _zero_shot(task: Task) -> list[Column]:
    def scored(answer: Any) -> list[dict[str, Any]]:
        pairs = zip(answer["labels"], answer["scores"], strict=True)
        return [{"label": label, "score": score} for label, score in pairs]

    return [Column("labels", pa.list_(pa.struct([("label", pa.string()), ("score", _float(task))])), scored)]


def _entities(task: Task) -> list[Column]:
    tokens = task.options.aggregation_strategy == "none"
    fields = [
        ("entity" if tokens else "entity_group", pa.string()),
        ("score", _float(task)),
        *([("index", pa.int32())] if tokens else []),
        ("word", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
    ]
    return [Column("entities", pa.list_(pa.struct(fields)), list)]


def _answers(task: Task) -> list[Column]:
    kinds = {"answer": pa.string(), "score": pa.float64(), "start": pa.int32(), "end": pa.int32()}  # sums in double
    if task.options.top_k == 1:
        return _plain(kinds, list(kinds))
    return [Column("answers", pa.list_(pa.struct(list(kinds.items()))), list)]


def _masks(task: Task) -> list[Column]:
    fields = [("score", _float(task)), ("token", pa.int32()), ("token_str", pa.string()), ("sequence", pa.string())]
    several = pa.list_(pa.list_(pa.struct(fields)))
    return [Column("masks", several, lambda answer: answer if isinstance(answer[0], list) else [answer])]


def _embedding(task: Any) -> list[Column]:
    width = task.collect([]).shape[1]
    # NaN as in .npy files, and not null: before version 26 pyarrow cannot read a vector that is null from Parquet.
    return [Column("embedding", pa.list_(_float(task), width), np.asarray, np.full(width, np.nan, task.model.dtype))]


def _sparse(task: Task) -> list[Column]:
    kinds = {"indices": pa.list_(pa.int32()), "values": pa.list_(_float(task)), "tokens": pa.list_(pa.string())}
    return _plain(kinds, list(kinds))


def _ranking(task: Task) -> list[Column]:
    return _plain({"score": _float(task)}, ["score"])


def _written(name: str, several: str, key: str) -> Callable[[Any], list[Column]]:
    """The column of texts that a task writes under a key of its answers, one or several for each row."""

    def texts(answer: Any) -> list[str]:
        return [each[key] for each in (answer if isinstance(answer, list) else [answer])]

    def columns(task: Any) -> list[Column]:
        if resolve(task.model.folder, task.model.config, task.options.settings).num_return_sequences == 1:
            return [Column(name, pa.string(), lambda answer: texts(answer)[0])]
        return [Column(several, pa.list_(pa.string()), texts)]

    return columns


#: Task -> its columns.
TABLE: dict[str, Callable[[Any], list[Column]]] = {
    "text-classification": _classification,
    "zero-shot-classification": _zero_shot,
    "token-classification": _entities,
    "question-answering": _answers,
    "fill-mask": _masks,
    "sentence-embedding": _embedding,
    "sparse-embedding": _sparse,
    "text-ranking": _ranking,
    **dict.fromkeys(
        ("text-generation", "text2text-generation"), _written("generated_text", "generated_texts", "generated_text")
    ),
    "translation": _written("translation", "translations", "translation_text"),
    "summarization": _written("summary", "summaries", "summary_text"),
}
