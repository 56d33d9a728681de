"""`map`: runs a task on a dataset, and writes the answer to each row exactly once, even if the run is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from npformer.common.checks import whole
from npformer.common.errors import NpformerError, warn
from npformer.common.files import written_whole
from npformer.common.progress import Count, bar
from npformer.dataset.columns import check_names, schema_of, together
from npformer.dataset.formats import checksum, explained
from npformer.dataset.invalid_rows import refused
from npformer.dataset.manifest import Manifest
from npformer.dataset.sinks import PartTables, Sink, write
from npformer.dataset.sources import Dataset, File, check_text_column, parts, survey
from npformer.dataset.work import Place, answer, check_repeatable, identity, machine, probe
from npformer.tasks.task import Task
from npformer.version import __version__

PART = 8192  # rows per part; an interruption loses the work on one part, seconds to minutes

#: (place, input, results, the worker's probe) for each part, in any order.
Answered = Iterator[tuple[Place, Any, Any, str]]


@dataclass(frozen=True)
class Report:
    """The result of a run, including any interrupted runs that were resumed.

    Parameters
    ----------
    rows : int, number of rows in the output
    errors : int, number of rows without an answer; the column "error" gives the reason
    truncated : int, number of rows with a truncated text
    unreadable : list of str, the error of each input file that could not be read
    """

    rows: int
    errors: int
    truncated: int
    unreadable: list[str]


def map(
    task: Task,
    source: str | Path,
    sink: str | Path,
    *,
    column: str | tuple[str, str],
    limit: int | None = None,
    prefix: str = "",
    part_rows: int = PART,
    client: Any = None,
    progress: bool = False,
) -> Report:
    """Answers every row of a dataset, and writes the columns of the dataset together with columns of answers.

    The same call resumes an interrupted run, and the output has the same bytes as without interruption. Rows are
    streamed, so memory does not grow with the number of rows.

    Parameters
    ----------
    task : Task, made by `npformer.pipeline`
    source : file or folder of files: csv, tsv, jsonl (also .gz, .zst), parquet, arrow, feather
    sink : file of one of these formats, or a folder for parts in Parquet and `_manifest.jsonl`
    column : name of the text column, or names of two columns for pairs, or for questions and contexts
    limit : int, read only this many rows
    prefix : str, prefix of the names of answer columns
    part_rows : int, maximum rows of a part, which is also at most 16 MB; a resumed run computes only unfinished parts
    client : dask.distributed.Client; its workers compute instead of this process
    progress : bool, show a progress bar on stderr

    Returns
    -------
    Report

    Raises
    ------
    NpformerError
        The input is unreadable, lacks the column, or has a column with the name of an answer column; the output belongs
        to another run or is being written; the input, the settings or the model have changed since the run began.

    Examples
    --------
    With a file reviews.parquet that has a column "review"::

        classify = npformer.pipeline("text-classification")
        npformer.dataset.map(classify, "reviews.parquet", "scored.parquet", column="review")
    """
    whole("part_rows", part_rows, 1)
    if limit is not None:
        whole("limit", limit, 1)
    columns = [column] if isinstance(column, str) else list(column)
    check_repeatable(task)
    target = Sink(sink, source)
    with target.locked():
        found = survey(source, part_rows, limit)
        for name in columns:
            check_text_column(found, name)
        check_names(found.schema, schema_of(task), prefix)
        target.check_types(_empty(found.schema, task, prefix).schema)
        header = {
            **identity(task),
            "columns": columns,
            "limit": limit,
            "prefix": prefix,
            "part rows": part_rows,
            "types": {each.name: str(each.type) for each in found.schema},
            "input": [each.identity() for each in found.files],
            "versions": _versions(),
            "machine": machine(),
        }
        run = _Run(task, found, target, columns, prefix, Manifest(target.manifest, header))
        run.go(client, progress)
        return run.report()


def _empty(schema: Any, task: Task, prefix: str) -> Any:
    """Returns an empty table with the columns of the output."""
    return together(schema.empty_table(), schema_of(task).empty_table(), prefix)


def _versions() -> dict[str, str]:
    """Returns the versions of packages that may change the output, except NumPy and its BLAS (see `work.machine`)."""
    import tokenizers

    return {"npformer": __version__, "pyarrow": pa.__version__, "tokenizers": tokenizers.__version__}


@dataclass(frozen=True)
class _Run:
    task: Task
    source: Dataset
    sink: Sink
    columns: list[str]
    prefix: str
    manifest: Manifest

    def go(self, client: Any, progress: bool) -> None:
        """Writes the output, or the parts of it that are missing."""
        names = {self._name((i, k)): (i, k) for i, file in enumerate(self.source.files) for k in self._numbers(file)}
        if not self._is_whole():
            self._make(names, client, progress)
        # The parts of a single file are deleted. If an input file is unreadable, they are kept, because a later run
        # with the repaired file needs them.
        if self.sink.form is not None and not self.source.unreadable:
            for name in names:
                self.sink.part(name).unlink(missing_ok=True)
        self.manifest.finish()

    def _make(self, names: dict[str, Place], client: Any, progress: bool) -> None:
        done = {place for name, place in names.items() if self._is_done(name)}
        self._check_machine(bool(done))
        wanted = self._wanted(done)
        before = sum(self._rows(place) for place in done)
        with bar(self.source.rows, "rows", before, 0, shown=progress) as count:
            answered = self._here(wanted, count) if client is None else self._elsewhere(client, wanted, count)
            for place, inputs, results, bits in answered:
                self._write(place, inputs, results, bits)
        if self.sink.form is not None:
            self._put_together(list(names))

    def report(self) -> Report:
        made = self.manifest.parts.values()
        rows, errors, cut = (sum(each[name] for each in made) for name in ("rows", "errors", "truncated"))
        return Report(rows, errors, cut, self.source.unreadable)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _name(self, place: Place) -> str:
        return "part-{:05}-{:06}".format(*place)

    def _numbers(self, file: File) -> range:
        """Returns the indices of a file's parts. If no file has rows, each file has one empty part, for its columns."""
        return range(len(file.parts) or int(self.source.rows == 0 and not file.error))

    def _rows(self, place: Place) -> int:
        return sum(self.source.files[place[0]].parts[place[1] : place[1] + 1])  # an empty part has no entry in `parts`

    def _is_done(self, name: str) -> bool:
        """Returns whether a part exists and is unchanged."""
        known = self.manifest.parts.get(name)
        return known is not None and checksum(self.sink.part(name)) == known["sha256"]

    def _wanted(self, done: set[Place]) -> Iterator[tuple[Place, Any]]:
        """Yields the unfinished parts. A file without unfinished parts is not read."""
        for i, file in enumerate(self.source.files):
            left = {k for k in self._numbers(file) if (i, k) not in done}
            if left and not file.rows:
                yield (i, 0), self.source.schema.empty_table()
            elif left:
                yield from (((i, k), table) for k, table in parts(file, self.source.schema, left.__contains__))

    def _here(self, wanted: Iterator[tuple[Place, Any]], count: Count) -> Answered:
        for place, inputs in wanted:
            yield place, inputs, answer(self.task, inputs.select(self.columns), place, count), probe()

    def _elsewhere(self, client: Any, wanted: Iterator[tuple[Place, Any]], count: Count) -> Answered:
        from npformer.dataset.cluster import answers

        for place, inputs, results, bits in answers(client, self.task, wanted, self.columns):
            count(inputs.num_rows)
            yield place, inputs, results, bits

    def _write(self, place: Place, inputs: Any, results: Any, bits: str) -> None:
        inputs, results = refused(self.task, inputs, results)
        table = together(inputs, results, self.prefix)
        name = self._name(place)
        path = self.sink.part(name)
        with explained(path), written_whole(path) as partial:
            write(partial, self.sink.part_form, table.schema, [table])
            facts: dict[str, Any] = {
                "rows": table.num_rows,
                "errors": table.num_rows - results["error"].null_count,
                "truncated": sum(chunk.true_count for chunk in results["truncated"].chunks),
                "sha256": checksum(partial),
            }
        if bits != self.manifest.header["machine"]["bits"]:
            facts["bits"] = bits
        self.manifest.add(name, **facts)

    # --- the output file ---------------------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        """Returns whether the output file is complete. Raises NpformerError if this run did not write it."""
        if self.sink.form is None or not self.sink.path.exists():
            return False
        sha256 = checksum(self.sink.path)
        if sha256 not in self.manifest.outputs:
            raise NpformerError(
                f"{self.sink.path}: has changed since a run wrote it, or was not written by a run; remove it to write "
                "it again"
            )
        made = sum(each["rows"] for each in self.manifest.parts.values())
        return sha256 == self.manifest.outputs[-1] and made == self.source.rows

    def _put_together(self, names: list[str]) -> None:
        path = self.sink.path
        assert self.sink.form is not None
        empty = _empty(self.source.schema, self.task, self.prefix)
        tables = PartTables([self.sink.part(name) for name in names])
        with explained(path), written_whole(path) as partial:
            write(partial, self.sink.form, empty.schema, tables)
            self.manifest.set_output(checksum(partial))

    def _check_machine(self, goes_on: bool) -> None:
        first, here = self.manifest.header["machine"], machine()
        if goes_on and first["bits"] != here["bits"]:
            warn(
                f"this run began on a BLAS that adds in a different order ({first['kernels']}; here {here['kernels']})"
                ": the last bits of answers may differ between its parts"
            )
