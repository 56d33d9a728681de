"""Animates points that move from epoch to epoch: a self-contained HTML page, or a GIF (matplotlib, extra `plots`)."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.common.extras import lacks
from npformer.common.files import written_whole

COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b7950b", "#7d3c98", "#566573")
SECONDS = 0.5  # per frame

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>$TITLE</title>
<style>body{font:15px system-ui,sans-serif;max-width:640px;margin:2em auto;padding:0 1em}
canvas{width:100%;border:1px solid #ccc}input{width:70%;vertical-align:middle}i{display:inline-block;width:.8em;
height:.8em;border-radius:50%;margin:0 .3em 0 1em}</style>
<h1>$TITLE</h1><canvas width="1200" height="900" role="img" aria-label="$TITLE"></canvas>
<p><button>Play</button> <input type="range" min="0" value="0" aria-label="frame"> <output></output></p>
<p>$LEGEND</p>
<script>
const data = $DATA, canvas = document.querySelector("canvas"), draw = canvas.getContext("2d");
const range = document.querySelector("input"), button = document.querySelector("button");
let timer = null;
range.max = data.frames.length - 1;
function show(n) {
  range.value = n;
  document.querySelector("output").textContent = data.titles[n];
  draw.clearRect(0, 0, 1200, 900);
  draw.globalAlpha = 0.6;
  data.frames[n].forEach(([x, y], i) => {
    draw.fillStyle = data.colours[data.labels[i]];
    draw.beginPath();
    draw.arc(40 + x * 1120, 860 - y * 820, 7, 0, 7);
    draw.fill();
  });
}
function stop() { clearInterval(timer); timer = null; button.textContent = "Play"; }
range.oninput = () => { stop(); show(+range.value); };
button.onclick = () => {
  if (timer) return stop();
  button.textContent = "Stop";
  timer = setInterval(() => show((+range.value + 1) % data.frames.length), $MILLISECONDS);
};
show(0);
</script></html>
"""


def animate(
    path: str | Path,
    frames: Sequence[np.ndarray],
    labels: Sequence[int],
    names: Sequence[str],
    titles: Sequence[str],
    title: str = "Embeddings by epoch",
) -> None:
    """Writes an .html or .gif file that shows frames (N, 2), each with a title; labels (N,) select the points' colours
    and names.

    Raises NpformerError for a different suffix, frames or labels of the wrong shape, or a GIF without matplotlib.
    """
    path, shapes = Path(path), {np.shape(frame) for frame in frames}
    if shapes != {(len(labels), 2)} or len(titles) != len(frames):
        raise NpformerError(f"animate: expected frames ({len(labels)}, 2) with a title each, got {shapes or 'none'}")
    if not set(labels) <= set(range(len(names))):
        raise NpformerError(f"animate: expected labels 0 ... {len(names) - 1}, got {sorted(set(labels))}")
    stacked = np.stack([np.asarray(frame, float) for frame in frames])
    low, high = stacked.min(axis=(0, 1)), stacked.max(axis=(0, 1))
    scaled = (stacked - low) / np.where(high > low, high - low, 1)
    if path.suffix not in (".html", ".gif"):
        raise NpformerError(f"{path}: expected a file name that ends in .html or .gif")
    with written_whole(path) as partial:
        if path.suffix == ".html":
            partial.write_text(_page(scaled, labels, names, titles, title), encoding="utf-8")
        else:
            _gif(partial, scaled, labels, names, titles)


def _page(frames: np.ndarray, labels: Sequence[int], names: Sequence[str], titles: Sequence[str], title: str) -> str:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    legend = (f'<i style="background:{c}"></i>{html.escape(n)}' for c, n in zip(colours, names, strict=True))
    data = {
        "frames": frames.round(4).tolist(), "labels": [int(each) for each in labels], "colours": colours,
        "titles": list(titles),
    }  # fmt: skip
    filled = {
        "$TITLE": html.escape(title), "$LEGEND": "".join(legend), "$MILLISECONDS": str(round(1000 * SECONDS)),
        "$DATA": json.dumps(data).replace("<", "\\u003c"),
    }  # fmt: skip
    page = PAGE
    for mark, text in filled.items():
        page = page.replace(mark, text)
    return page


def _gif(path: Path, frames: np.ndarray, labels: Sequence[int], names: Sequence[str], titles: Sequence[str]) -> None:
    try:
        from matplotlib.animation import FuncAnimation, PillowWriter
        from matplotlib.figure import Figure
    except ImportError:
        raise lacks("a GIF", "matplotlib", "plots", "; an .html page does not") from None
    figure = Figure(figsize=(6, 4.5))
    axes = figure.subplots()
    wanted = np.asarray(labels)

    def show(n: int) -> list[Any]:
        axes.clear()
        axes.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), xticks=[], yticks=[], title=titles[n])
        for i, name in enumerate(names):
            points = frames[n][wanted == i]
            axes.scatter(points[:, 0], points[:, 1], s=12, alpha=0.6, color=COLOURS[i % len(COLOURS)], label=name)
        axes.legend(loc="upper right")
        return []

    FuncAnimation(figure, show, frames=len(frames)).save(path, writer=PillowWriter(fps=round(1 / SECONDS)))
