"""The benchmarks' figures as text: for each workload, times in milliseconds and ratios to other engines' times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PEERS = ("torch", "ONNX Runtime", "CTranslate2")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table for terminals and pages: the first column aligned left, the others right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join([cells[0].ljust(widths[0]), *others]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *(line(row) for row in rows)])


def peers_table(rows: Sequence[dict[str, Any]]) -> str:
    """Formats npformer's time and rate, the lower bounds, and npformer's time divided by each peer's."""
    head = ["work", "npformer", "GFLOP/s", "x @ W alone", "rate of it", "read weights", *PEERS]
    return markdown(head, [_peers_row(row) for row in rows])


def _peers_row(row: dict[str, Any]) -> list[str]:
    engines, own = row["engines"], row["engines"]["npformer"]["seconds"]
    bare, reading = engines["x @ W alone"]["seconds"], engines["reading the weights"]["seconds"]
    peers = [f"{milliseconds(engines[name]['seconds'])} {own / engines[name]['seconds']:.2f}x" for name in PEERS]
    return [
        row["work"],
        milliseconds(own),
        f"{row['operations']['products'] / own / 1e9:.0f}",
        milliseconds(bare),
        f"{bare / own:.0%}",
        milliseconds(reading),
        *peers,
    ]


def milliseconds(seconds: float) -> str:
    """Formats a number to three significant digits."""
    value = seconds * 1e3
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def progress(row: dict[str, Any]) -> str:
    """Formats a finished row: each engine's minimum time and setup, and the largest difference between logits."""
    engines = "; ".join(
        f"{name} {milliseconds(each['seconds'])}" + (f" ({each['setup']})" if each["setup"] else "")
        for name, each in row["engines"].items()
    )
    return f"{row['work']}: logits differ by at most {max(row['logits_apart'].values()):.1e}\n  {engines}"


def notes(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the text below the table: what its columns mean, and figures that are the same for all rows."""
    apart = max(max(row["logits_apart"].values()) for row in rows)
    bandwidth = max(row["bytes_per_second"] for row in rows)
    return (
        f"npformer's logits and the other engines' differ by at most {apart:.1e}.\n"
        "GFLOP/s: the operations in npformer's products x @ W, divided by its total time.\n"
        f"Weights: {rows[0]['weight_bytes'] / 1e6:.0f} MB, read at {bandwidth / 1e9:.0f} GB/s at best.\n"
        "Other engines: their time, and npformer's time divided by it."
    )
