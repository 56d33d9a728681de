"""A table with one row per stage: a `Table`, which can be printed, shown as HTML, or converted for JSON.

`Trace.table` returns a `Table`. `teardown.py` prints the values of the stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from npformer.config import Config
from npformer.engine.descriptions.stage import Stage
from npformer.interpret import stages

NUMBERS = ("mean", "std", "min", "max")
COLUMNS = {  # field of `StageSummary` -> title of its column, in order
    "name": "stage",
    "shape": "shape",
    "formula": "formula",
    "function": "made by",
    **{number: number for number in NUMBERS},
    "huggingface": "Hugging Face",
    "transformerlens": "TransformerLens",
}
WIDTHS = {"name": 31, "shape": 12}  # widths of columns in printed text


@dataclass(frozen=True)
class StageSummary:
    """One stage: its shape, formula, function, names in other libraries, and statistics."""

    name: str
    shape: str  # the shape for one text, or the number of texts if their shapes differ
    formula: str
    function: str  # module and name of the function, without `npformer.`
    huggingface: str  # the module that outputs the stage, or "" without one
    transformerlens: str
    mean: float
    std: float
    min: float
    max: float


@np.errstate(over="ignore", invalid="ignore")  # the statistics of non-finite values are nan and inf
def summary(name: str, arrays: Sequence[np.ndarray], config: Config | None) -> StageSummary:
    """Summarizes a stage from its arrays, one for each text."""
    shapes = list(dict.fromkeys(str(array.shape).replace(",)", ")") for array in arrays))
    flat = np.concatenate([array.ravel() for array in arrays]).astype(np.float64, copy=False)
    if not flat.size:
        flat = np.array([math.nan])
    stage = stages.of(name, config) or Stage(name, "", "", "")
    return StageSummary(
        name,
        shapes[0] if len(shapes) == 1 else f"{len(arrays)} texts",
        stage.formula,
        stage.function,
        stages.module(config, name) if config else "",
        stage.hook,
        *(float(number) for number in (flat.mean(), flat.std(), flat.min(), flat.max())),
    )


@dataclass(frozen=True)
class Table:
    """A table of stages with some of the columns in `COLUMNS`."""

    rows: Sequence[StageSummary]
    columns: Sequence[str] = tuple(COLUMNS)

    def __str__(self) -> str:
        titles = [f"{COLUMNS[name]:>8}" if name in NUMBERS else COLUMNS[name] for name in self.columns]
        lines = [titles, *([cell.replace(", ", ",") for cell in cells] for cells in self._cells())]
        return "\n".join(map(self._line, lines))

    def _line(self, cells: Sequence[str]) -> str:
        """Formats a row, with numbers on the next line if the name and shape are too wide."""
        above, line, start = "", "", 0  # start: the column of the next cell's first character
        for name, cell in zip(self.columns, cells, strict=True):
            if name in NUMBERS and len(line) > start:
                above, line = f"{line[:-1]}\n", ""
            line = f"{line:<{start}}{cell} "
            start += WIDTHS.get(name, len(cell)) + 1
        return above + line[:-1]

    def _repr_html_(self) -> str:
        def cells(tag: str, texts: Sequence[str]) -> str:
            return "".join(f"<{tag} style='text-align:left'>{escape(text)}</{tag}>" for text in texts)

        head = cells("th", [COLUMNS[name] for name in self.columns])
        body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in self._cells())
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"

    def records(self) -> list[dict[str, Any]]:
        """Returns a dict for each row, for JSON; empty names become None."""
        given = [{name: getattr(row, name) for name in self.columns} for row in self.rows]
        return [{name: None if value == "" else value for name, value in row.items()} for row in given]

    def _cells(self) -> list[list[str]]:
        """Formats each row, with one number format for the whole table."""
        form = _format([getattr(row, name) for row in self.rows for name in NUMBERS])
        return [
            [f"{getattr(row, name):{form if name in NUMBERS else ''}}" for name in self.columns] for row in self.rows
        ]


def _format(numbers: Sequence[float]) -> str:
    """Returns one format, 8 characters wide, for a table's numbers: four decimals, fewer if they are large."""
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    digits = len(f"{largest:.0f}")
    return f"8.{min(4, 6 - digits)}f" if digits <= 6 else "8.1e"
