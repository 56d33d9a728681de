"""A trace as text to read: stage by stage, shapes, formulas and corner values, from token ids to the label.

The order and the numbers shown are those of a reader's own notebook: of each row the first and last three columns,
rounded as torch prints them. `npformer trace` prints this; `Trace` itself prints as a table of means and ranges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npformer import stages as table
from npformer.errors import NpformerError
from npformer.tracing import Trace

WIDTH = 80
EDGE = 3  # rows and columns shown at either end
COLUMNS = 2 * EDGE  # columns up to which all are shown
LABEL = 14  # room for a row's number and token
ROWS = 8  # rows up to which all are shown


def shown_stages(trace: Trace, layer: int | None = None, patterns: Sequence[str] | None = None) -> list[str]:
    """The stages of a trace to show: those outside of the layers, one layer's (the first), and the last one's output.

    patterns: show what matches one of them instead, of that layer or of all.
    Raises NpformerError for a layer the model does not have, or a pattern that matches nothing.
    """
    of_layer = {name: int(name.split(".")[1]) for name in trace if name.startswith("layers.")}
    last = max(of_layer.values(), default=-1)
    if layer is not None and not 0 <= layer <= last:
        raise NpformerError(f"layer {layer}: the model has layers 0 to {last}")
    if patterns:
        return table.matching(patterns, [name for name in trace if layer is None or of_layer.get(name, layer) == layer])
    output = f"layers.{last}.ffn_norm"
    return [name for name in trace if name == output or of_layer.get(name, layer or 0) == (layer or 0)]


def teardown(trace: Trace, names: Sequence[str] | None = None) -> str:
    """The trace of one text from ids to label, stage by stage; names: `shown_stages` unless given."""
    if trace.ids is None or isinstance(trace.ids, list):
        raise NpformerError("teardown: expected the trace of one text")
    tokens = trace.tokens or [str(each) for each in trace.ids.tolist()]
    names = shown_stages(trace) if names is None else names
    blocks = [_tokens(tokens, trace.ids), *(_stage(trace, name, tokens) for name in names)]
    if trace.label is not None:
        logits = trace["logits"]
        score = f"  {trace['probabilities'][np.argmax(logits)]:.7f}" if "probabilities" in trace else ""
        blocks.append(f"{trace.label}{score}")
    return "\n\n".join(blocks)


def _tokens(tokens: Sequence[str], ids: np.ndarray) -> str:
    """Numbered tokens over their ids, as many side by side as fit."""
    lines, start = [], 0
    cells = [(str(i), token, str(number)) for i, (token, number) in enumerate(zip(tokens, ids.tolist(), strict=True))]
    widths = [max(map(len, cell)) + 2 for cell in cells]
    while start < len(cells):
        end, used = start + 1, 6 + widths[start]
        while end < len(cells) and used + widths[end] <= WIDTH:
            used += widths[end]
            end += 1
        for title, row in zip(("", "token", "id"), range(3), strict=True):
            shown = zip(cells[start:end], widths[start:end], strict=True)
            lines.append(f"{title:<6}" + "".join(f"{cell[row]:>{width}}" for cell, width in shown))
        start = end
    return "\n".join(lines)


def _stage(trace: Trace, name: str, tokens: Sequence[str]) -> str:
    array, row = trace[name], trace.row(name)
    of_heads = f"; head 0 of {len(array)}" if array.ndim == 3 else ""
    title = f"{name}  {row.shape}  {row.stage.formula}{of_heads}"
    matrix = _matrix(array)
    labels = [f"{i} {token}" for i, token in enumerate(tokens)] if len(matrix) == len(tokens) else [""] * len(matrix)
    return "\n".join([title.rstrip(), *_rows(matrix, labels)])


def corners(array: np.ndarray) -> list[list[float]]:
    """The values that are shown of a stage: first and last rows and columns, of head 0 where there are heads."""
    matrix = _matrix(array)
    rows, columns = (_edges(size, most) for size, most in zip(matrix.shape, (ROWS, COLUMNS), strict=True))
    shown: list[list[float]] = matrix[np.ix_(rows, columns)].tolist()
    return shown


def _matrix(array: np.ndarray) -> np.ndarray:
    return array[0] if array.ndim == 3 else array[None] if array.ndim == 1 else array


def _rows(matrix: np.ndarray, labels: Sequence[str]) -> list[str]:
    """A line a row that is shown: its label, its first and last columns."""
    rows, columns = (_edges(size, most) for size, most in zip(matrix.shape, (ROWS, COLUMNS), strict=True))
    form, width = _format(matrix[np.ix_(rows, columns)])
    gap = (
        len(columns) if len(columns) < matrix.shape[1] else 0
    )  # where columns are left out, "..." stands in the middle
    room = min(LABEL, WIDTH - len(columns) * (width + 1) - (4 if gap else 0))
    lines = []
    for previous, i in zip([-1, *rows], rows, strict=False):
        if i > previous + 1:
            lines.append("...")
        cells = [f" {matrix[i, j]:>{width}{form}}" for j in columns]
        if gap:
            cells.insert(EDGE, " ...")
        label = f"{i}" if room < LABEL else labels[i] if len(labels[i]) <= room else labels[i][: room - 1] + "…"
        lines.append(f"{label:<{room}}" + "".join(cells))
    return lines


def _edges(size: int, most: int) -> list[int]:
    return list(range(size)) if size <= most else [*range(EDGE), *range(size - EDGE, size)]


def _format(shown: np.ndarray) -> tuple[str, int]:
    """How torch prints such numbers: with an exponent where they are small, large, or far apart."""
    sizes = np.abs(shown[shown != 0])
    if sizes.size and (sizes.max() > 1000 * sizes.min() or sizes.max() > 1e8 or sizes.min() < 1e-4):
        return ".4e", 11
    return ".4f", 8
