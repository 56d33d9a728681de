"""Prints a trace stage by stage, from token ids to the label: shapes, formulas, and the corners of each array.

Rows show their first and last three columns with four digits, and with an exponent if torch would print an exponent.
`npformer trace` prints this. Printing a `Trace` itself shows a table of means and ranges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret import stages as table
from npformer.interpret.text_parts import has_source_rows
from npformer.interpret.traces import Trace

WIDTH = 80
EDGE = 3  # rows and columns shown at each end
COLUMNS = 2 * EDGE  # maximum number of columns shown without gaps
LABEL = 14  # maximum characters of a row's label, its number and token
_OF_LAYER = re.compile(r"(encoder\.|decoder\.|)layers\.(\d+)\.")
ROWS = 8  # maximum number of rows shown without gaps


def shown_stages(trace: Trace, layer: int | None = None, patterns: Sequence[str] | None = None) -> list[str]:
    """Selects the stages to show: outside the layers, in `layer` (default: 0), and the last layer's output.

    In an encoder-decoder, each stack has its own last layer. With `patterns`, selects the matching stages, only in
    `layer` if given. Raises NpformerError for an unknown layer, or a pattern without matches.
    """
    places = {name: place for name in trace if (place := _layer(name)) is not None}
    of_layer = {name: number for name, (_, number) in places.items()}
    last = max(of_layer.values(), default=-1)
    if layer is not None and not 0 <= layer <= last:
        raise NpformerError(f"layer: expected 0 to {last}, got {layer}")
    if patterns:
        return table.matching(patterns, [name for name in trace if layer is None or of_layer.get(name, layer) == layer])
    outputs = {stack: name for name, (stack, _) in places.items()}.values()  # the last stage of each stack
    return [name for name in trace if name in outputs or of_layer.get(name, layer or 0) == (layer or 0)]


def teardown(trace: Trace, layer: int | None = None, patterns: Sequence[str] | None = None) -> str:
    """Formats the `shown_stages` of the trace of one text, with a line for omitted layers."""
    if trace.ids is None or isinstance(trace.ids, list):
        raise NpformerError("teardown: expected the trace of one text")
    tokens = trace.tokens or [str(each) for each in trace.ids.tolist()]
    blocks = [_tokens(tokens, trace.ids)]
    if trace.key_ids is not None:
        blocks = [f"encoder\n{_tokens(trace.key_tokens or tokens, trace.key_ids)}", f"decoder\n{blocks[0]}"]
    before: dict[str, int] = {}  # stack -> the last layer shown
    for name in shown_stages(trace, layer, patterns):
        stack, number = _layer(name) or ("", -1)
        if number > before.get(stack, -1) and not patterns:
            blocks += _left_out(before.get(stack, -1), number)
            before[stack] = number
        blocks.append(_stage(trace, name, (trace.key_tokens or tokens) if has_source_rows(name) else tokens))
    if trace.label is not None:
        logits = trace["logits"]
        score = f"  {trace['probabilities'][np.argmax(logits)]:.7f}" if "probabilities" in trace else ""
        blocks.append(f"{trace.label}{score}")
    return "\n\n".join(blocks)


def _layer(name: str) -> tuple[str, int] | None:
    """Returns a stage's stack, such as `decoder.`, and layer number; None outside the layers."""
    found = _OF_LAYER.match(name)
    return (found[1], int(found[2])) if found else None


def _left_out(before: int, number: int) -> list[str]:
    """Returns a line for the layers omitted between `before`, the last layer shown (-1 at first), and `number`.

    The selected layer is shown completely; of the model's last layer, only the output is shown.
    """
    first, last = before + 1, number - 1
    parts = [f"layer {first}" if first == last else f"layers {first} to {last}"] if first <= last else []
    parts += [f"layer {number} except its output"] if before >= 0 else []
    return [f"... left out: {', '.join(parts)} (--layer N shows one)"] if parts else []


def _tokens(tokens: Sequence[str], ids: np.ndarray) -> str:
    """Formats numbered tokens above their ids, as many on a line as fit."""
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
    title = f"{name}  {row.shape}  {row.formula}{of_heads}"
    if len(title) > WIDTH:
        title = f"{name}  {row.shape}{of_heads}\n{row.formula}"
    matrix = _matrix(array)
    labels = [f"{i} {token}" for i, token in enumerate(tokens)] if len(matrix) == len(tokens) else [""] * len(matrix)
    return "\n".join([title.rstrip(), *_rows(matrix, labels)])


def corners(array: np.ndarray) -> list[list[float]]:
    """Returns the values of a stage to show: its first and last rows and columns, in head 0 if it has heads."""
    matrix = _matrix(array)
    rows, columns = (_edges(size, most) for size, most in zip(matrix.shape, (ROWS, COLUMNS), strict=True))
    shown: list[list[float]] = matrix[np.ix_(rows, columns)].tolist()
    return shown


def _matrix(array: np.ndarray) -> np.ndarray:
    return array[0] if array.ndim == 3 else array[None] if array.ndim == 1 else array


def _rows(matrix: np.ndarray, labels: Sequence[str]) -> list[str]:
    """Formats a line for each shown row: its label, then its first and last columns."""
    rows, columns = (_edges(size, most) for size, most in zip(matrix.shape, (ROWS, COLUMNS), strict=True))
    form, width = _format(matrix[np.ix_(rows, columns)])
    gap = len(columns) if len(columns) < matrix.shape[1] else 0  # omitted columns are shown as "..."
    room = min(LABEL, WIDTH - len(columns) * (width + 1) - (4 if gap else 0))  # at least 10
    lines = []
    for previous, i in zip([-1, *rows], rows, strict=False):
        if i > previous + 1:
            lines.append("...")
        cells = [f" {matrix[i, j]:>{width}{form}}" for j in columns]
        if gap:
            cells.insert(EDGE, " ...")
        label = labels[i] if len(labels[i]) <= room else labels[i][: room - 1] + "…"
        lines.append(f"{label:<{room}}" + "".join(cells))
    return lines


def _edges(size: int, most: int) -> list[int]:
    return list(range(size)) if size <= most else [*range(EDGE), *range(size - EDGE, size)]


def _format(shown: np.ndarray) -> tuple[str, int]:
    """Returns one format for a stage's numbers. Tiny, huge or widely spread numbers get an exponent, as in torch."""
    sizes = np.abs(shown[shown != 0])
    if sizes.size and (sizes.max() > 1000 * sizes.min() or sizes.max() > 1e8 or sizes.min() < 1e-4):
        return ".3e", 10
    return ".4f", 8
