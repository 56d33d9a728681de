"""Standalone SVG: a sheet for text, lines and heat maps. A heat map is an embedded PNG with one pixel per cell.

Text remains text, in Helvetica, Arial or the reader's sans-serif font. The colours are the light theme's, on a
transparent background.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from npformer.interpret.effects import Effects
from npformer.text.words import printable
from npformer.view.colour import DIVERGING, SEQUENTIAL, ramp

INK, MUTED = "#1b1f26", "#5a6371"


class Sheet:
    """An SVG document under construction."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.width = 0.0
        self.height = 0.0
        self._parts: list[str] = []

    def add(self, tag: str, **attributes: object) -> None:
        """Adds an element without content; underscores in names become hyphens."""
        self._parts.append(f"<{tag}{_attributes(attributes)}/>")

    def text(
        self,
        x: float,
        y: float,
        content: str,
        anchor: str = "start",
        size: float = 13,
        fill: str = INK,
        bold: bool = False,
    ) -> None:
        """Adds a line of text with its baseline at `y`. Markup in the text is escaped."""
        weight = {"font_weight": "600"} if bold else {}
        attributes = _attributes({"x": x, "y": y, "text_anchor": anchor, "font_size": size, "fill": fill, **weight})
        self._parts.append(f"<text{attributes}>{escape(printable(content))}</text>")
        wide = text_width(content, size)
        self._reach(x + (wide if anchor == "start" else wide / 2 if anchor == "middle" else 0), y + size / 2)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **attributes: object) -> None:
        """Adds a filled rectangle."""
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)
        self._reach(x + width, y + height)

    def image(self, x: float, y: float, width: float, height: float, cells: np.ndarray) -> None:
        """Adds a heat map: colours `cells` (rows, columns, 3), stretched over the rectangle without smoothing."""
        self._parts.append(
            f'<image{_attributes({"x": x, "y": y, "width": width, "height": height})} preserveAspectRatio="none" '
            f'style="image-rendering: pixelated" href="{png(cells)}"/>'
        )
        self._reach(x + width, y + height)

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def render(self, margin: float = 12) -> str:
        """Returns the document."""
        width, height = self.width + 2 * margin, self.height + 2 * margin
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="{-margin:g} {-margin:g} {width:g} {height:g}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">\n'
            f"<title>{escape(printable(self.title))}</title>\n{body}\n</svg>\n"
        )


def _attributes(values: dict[str, object]) -> str:
    def written(value: object) -> str:
        return quoteattr(f"{round(value, 2):g}" if isinstance(value, float) else str(value))

    return "".join(f" {name.replace('_', '-')}={written(value)}" for name, value in values.items())


def text_width(content: str, size: float = 13) -> float:
    """Estimates the width of `content`: 0.58 of `size` for each character, `size` for an ideograph."""
    return sum(size if ord(char) > 0x2E80 else 0.58 * size for char in content)


def weight_cells(weights: np.ndarray) -> np.ndarray:
    """Colours weights in 0..1 by their square root, as the page does: (rows, columns, 3)."""
    return _table(SEQUENTIAL["light"])[np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(int)]


def signed_cells(values: np.ndarray, limit: float) -> np.ndarray:
    """Colours signed numbers by sqrt(abs(number) / limit), as the page does: (rows, columns, 3)."""
    size = np.clip(np.abs(values) / (limit or 1.0), 0, 1)
    place = 127.5 + 127.5 * np.where(np.isfinite(values), np.sign(values) * np.sqrt(size), 0.0)
    return _table(DIVERGING["light"])[np.rint(place).astype(int)]


def _table(stops: Sequence[str]) -> np.ndarray:
    return np.array([ramp(tuple(stops), i / 255) for i in range(256)], np.uint8)


def draw_effects(sheet: Sheet, effects: Effects, top: float, decimals: int, sign: int = 1) -> float:
    """Draws a table of numbers on coloured cells, with column names at `top`. Returns the y of its lower edge.

    sign: -1 swaps the colours of positive and negative numbers.
    """
    left = max(text_width(row, 11) for row in effects.rows) + 10
    wide, high = 52.0, 20.0
    coloured = np.array([column not in effects.plain for column in effects.columns])
    limit = float(np.nanmax(np.abs(effects.values[:, coloured]), initial=0.0))
    cells = signed_cells(sign * effects.values, limit)
    for place, column in enumerate(effects.columns):
        sheet.text(left + wide * place + wide - 4, top, column, "end", 11, MUTED)
    for number, (row, values) in enumerate(zip(effects.rows, effects.values, strict=True)):
        y = top + 6 + high * number
        sheet.text(left - 8, y + 14, row, "end", 11, MUTED)
        for place, value in enumerate(values):
            if np.isnan(value):
                continue
            ink = INK
            if coloured[place]:
                ink = draw_cell(sheet, left + wide * place, y, wide, high, cells[number, place])
            sheet.text(left + wide * place + wide - 4, y + 14, f"{value:z.{decimals}f}", "end", 11, ink)
    return top + 6 + high * len(effects.rows)


def draw_cell(sheet: Sheet, x: float, y: float, wide: float, high: float, colour: np.ndarray) -> str:
    """Draws a table cell in the RGB colour `colour` (3,). Returns the colour for text on it."""
    sheet.rect(x, y, wide - 1, high - 1, "#" + bytes(colour.tolist()).hex())
    return "#fff" if colour.mean() < 120 else INK


def png(cells: np.ndarray) -> str:
    """Returns the data URI of an 8-bit RGB PNG (W3C PNG, third edition): no filter, one deflate stream."""
    height, width, _ = cells.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), cells.reshape(height, -1).astype(np.uint8)], axis=1)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
