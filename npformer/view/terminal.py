"""Heat maps and bars of plain characters, for a terminal or a log: no colour codes, a fixed width.

Control characters in labels are replaced first, so that a token cannot move the cursor. Each view's `text` uses this
module.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from npformer.text.words import printable

SHADES = ((0.6, "█"), (0.4, "▓"), (0.2, "▒"), (0.05, "░"), (-1.0, " "))
TIMES = "\N{MULTIPLICATION SIGN}"
LEGEND = "░ from 0.05   ▒ 0.2   ▓ 0.4   █ 0.6"
ROWS = 48  # maximum lines of a map; if there are more rows, a line shows several rows


def shade(weight: float) -> str:
    """Returns the character for a weight in 0..1."""
    return next(char for least, char in SHADES if weight >= least)


def columns(text: str) -> int:
    """Counts the columns that `text` takes in a terminal."""
    return sum(map(_column, text))


def _column(char: str) -> int:
    """Returns 0 for a combining mark or a joiner, 2 for a wide character, and 1 for other characters."""
    if unicodedata.combining(char) or char in "\u200b\u200c\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, width: int) -> str:
    """Fits `text` into exactly `width` columns: truncates it with an ellipsis, or pads it with spaces."""
    text = printable(text)
    taken = list(accumulate(map(_column, text), initial=0))
    if taken[-1] > width:
        kept = bisect_right(taken, width - 1) - 1  # leaves room for the ellipsis
        return text[:kept] + "…" + " " * (width - 1 - taken[kept])
    return text + " " * (width - taken[-1])


def heat_map(weights: np.ndarray, rows: Sequence[str], names: Sequence[str], width: int) -> list[str]:
    """Draws `weights` (queries, keys) with a line for each query and numbered columns for the keys.

    A cell is a shade and two digits if there is room, else only a shade. If the map is still too wide or too long, a
    cell shows the largest weight in a block of several tokens, and `legend` states the size of a block.
    """
    label = _label_width(rows, width)
    down, across = _pooling(len(rows), len(names), label, width)
    cells = pool(weights, down, across)
    room = width - label - 1
    cell = 5 if cells.shape[1] * 5 <= room else 2 if cells.shape[1] * 2 <= room else 1
    lines = _header(len(names), across, cell, label, room)
    for i, row in enumerate(cells):
        first, last = i * down, min((i + 1) * down, len(rows)) - 1
        name = f"{first} {rows[first]}" if down == 1 else f"{first}-{last} {rows[first]}"
        lines.append(f"{fit(name, label)} {''.join(_cell(weight, cell) for weight in row)}".rstrip())
    return lines


def legend(rows: Sequence[str], names: Sequence[str], width: int) -> list[str]:
    """Explains the shades of `heat_map`, and the number of tokens per cell."""
    down, across = _pooling(len(rows), len(names), _label_width(rows, width), width)
    return [LEGEND] + ([f"a cell is the largest of {down} {TIMES} {across} weights"] if down * across > 1 else [])


def _label_width(rows: Sequence[str], width: int) -> int:
    return min(max(columns(printable(f"{len(rows)} {name}")) for name in rows), max(10, width // 5))


def _pooling(rows: int, names: int, label: int, width: int) -> tuple[int, int]:
    return -(-rows // ROWS), -(-names // (width - label - 1))


def _header(count: int, across: int, cell: int, label: int, room: int) -> list[str]:
    """Numbers the columns: every cell if the numbers fit, else every tenth cell."""
    blank = " " * (label + 1)
    if cell == 5:
        return [blank + "".join(f"{i:>4} " for i in range(count)).rstrip()]
    line = ""
    for i in range(0, -(-count // across), 10):
        line = line.ljust(i * cell) + str(i * across)
    return [blank + line[:room]]


def _cell(weight: float, width: int) -> str:
    if width < 5:
        return shade(weight) * width
    number = f"{weight:.2f}"
    return f"{shade(weight)}{number if number.startswith('1') else number[1:]:<4}"[:5]


def pool(weights: np.ndarray, down: int, across: int) -> np.ndarray:
    """Returns the maximum of each `down` by `across` block of (..., rows, columns)."""
    pooled = np.maximum.reduceat(weights, np.arange(0, weights.shape[-2], down), axis=-2)
    return np.maximum.reduceat(pooled, np.arange(0, weights.shape[-1], across), axis=-1)


def row_ends(row: np.ndarray, decimals: int = 4) -> str:
    """Prints the first and last three numbers of a row, as NumPy and torch do."""
    numbers = [f"{value:z.{decimals}f}" for value in (row if len(row) <= 6 else [*row[:3], *row[-3:]])]
    return "[" + ", ".join(numbers if len(row) <= 6 else [*numbers[:3], "...", *numbers[3:]]) + "]"


def bar(fraction: float, width: int) -> str:
    """Draws a bar that fills `fraction` of `width`, to an eighth of a character."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
