"""`Effects`: a table of signed numbers with named rows and columns, shown in notebooks as a heat map.

`patching.py` measures effects, `direct_attribution.py` the parts of a logit.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

WIDTH = 80
FOR, AGAINST = "210,113,27", "44,123,189"  # orange and blue, as in the views


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """A table of changes or contributions: `values` (rows, columns), and the names of its rows and columns.

    NaN cells are left empty. `title` describes the numbers. `plain` lists columns that the heat map does not colour
    because their scale differs, such as sums.
    """

    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str = ""
    plain: tuple[str, ...] = ()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        name = max(map(len, self.rows))
        width = max(7, *(min(len(column), 12) + 1 for column in self.columns))
        each = max(1, (WIDTH - name) // width)
        blocks = []
        for start in range(0, len(self.columns), each):
            shown = slice(start, start + each)
            lines = [" " * name + "".join(f"{column[:12]:>{width}}" for column in self.columns[shown])]
            for row, values in zip(self.rows, self.values, strict=True):
                lines.append(
                    (f"{row:<{name}}" + "".join(f"{_cell(value):>{width}}" for value in values[shown])).rstrip()
                )
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)

    def _repr_html_(self) -> str:
        """Returns a heat map: orange for increases, blue for decreases, deeper for larger values."""
        coloured = [column not in self.plain for column in self.columns]
        sizes = np.abs(self.values[:, coloured])
        largest = float(np.nanmax(sizes, initial=0.0)) or 1.0
        head = "".join(f"<th>{escape(column)}</th>" for column in ("", *self.columns))
        body = ""
        for row, values in zip(self.rows, self.values, strict=True):
            cells = ""
            for value, has_colour in zip(values, coloured, strict=True):
                share = abs(value) / largest if has_colour and np.isfinite(value) else 0
                colour = f";background:rgba({AGAINST if value < 0 else FOR},{share:.2f})" if share >= 0.005 else ""
                cells += f"<td style='text-align:right{colour}'>{_cell(value)}</td>"
            body += f"<tr><th style='text-align:left'>{escape(row)}</th>{cells}</tr>\n"
        title = f"<caption style='text-align:left'>{escape(self.title)}</caption>\n" if self.title else ""
        return f"<table>\n{title}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:+z.3f}"
