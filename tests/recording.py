"""Records `npformer explore` for README.md and `docs/`: a real run in a browser, as an animated picture.

    python -m tests.recording

It rewrites `examples/images/explore.webp`, and has the same requirements as `tests/pictures.py`. Look at the picture
before you commit it.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import npformer
from tests.browser.chromium import chromium
from tests.browser.live import Live
from tests.pictures import IMAGES

SIZE = {"width": 1040, "height": 780}
TEXT = "The plot is thin"
TYPED = (", but", " the acting", " is wonderful")
OLD, NEW = "scores = q @ k.mT / math.sqrt(q.shape[-1])", "scores = q @ k.mT / q.shape[-1]"
SHORT, LONG = 700, 1800  # duration of a frame in milliseconds
LARGEST = 500_000  # bytes


class Recorder:
    """The frames of a run: screenshots with the pointer where it clicked, and the duration of each frame."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.frames: list[tuple[Any, int]] = []

    def frame(self, shown_for: int, at: tuple[float, float] | None = None) -> None:
        """Takes a screenshot. at: where the pointer is drawn."""
        from PIL import Image, ImageDraw

        self.live.js("return new Promise((done) => setTimeout(done, 400))")  # waits until transitions end
        taken = base64.b64decode(self.live.cdp("Page.captureScreenshot", format="png")["data"])
        image = Image.open(io.BytesIO(taken)).convert("RGB")
        if at is not None:
            x, y = at
            ImageDraw.Draw(image).ellipse((x - 11, y - 11, x + 11, y + 11), outline="#c8461b", width=4)
        self.frames.append((image, shown_for))

    def click(self, element: Any, act: Callable[[Any], None] | None = None) -> None:
        """Shows the pointer on an element and clicks it."""
        self.live.js("arguments[0].scrollIntoView({ block: 'nearest', inline: 'nearest' })", element)
        box = self.live.js("const { x, y, width, height } = arguments[0].getBoundingClientRect();"
                           "return [x + width / 2, y + height / 2]", element)  # fmt: skip
        self.frame(SHORT, tuple(box))
        (act or Live.click.__get__(self.live))(element)

    def save(self, path: Path) -> None:
        images, times = zip(*self.frames, strict=True)
        images[0].save(path, save_all=True, append_images=images[1:], duration=times, loop=0, quality=60, method=6)
        print(f"{path.name}: {len(images)} frames, {sum(times) / 1000:.0f} s, {path.stat().st_size / 1000:.0f} kB")
        assert path.stat().st_size < LARGEST


def record(live: Live) -> Recorder:
    """Types a text, removes the most decisive head, steps to its weights, and changes a line of the page."""
    recorder = Recorder(live)
    live.explore({"distilbert-sst2": npformer.load("distilbert-sst2")}, TEXT, at="view=change", **SIZE)
    recorder.frame(LONG)
    text = TEXT
    for more in TYPED:
        text += more
        live.type(text)
        recorder.frame(SHORT)
    live.js("document.activeElement.blur()")
    layer, head = (each.split()[1] for each in live.text(".answer [data-head]").split(", "))
    recorder.click(live.one(f"[data-at='{layer} {head}']"), lambda cell: live.act(cell.click))
    recorder.frame(LONG)
    recorder.click(live.one(".change"), lambda chip: live.act(chip.click))
    tab = live.one(".tabs [data-view=step]")
    recorder.click(tab, lambda link: link.click())
    live.until(lambda: live.all(".code .on"))
    recorder.click(next(each for each in live.all(".buttons button") if "largest effect" in each.text))
    live.until(lambda: live.text(".array h3").startswith("weights"))
    recorder.frame(LONG)
    scores = next(each for each in live.all(".code li .text") if OLD in each.text)
    recorder.click(scores, live.double_click)
    live.until(lambda: live.js("return document.activeElement.tagName") == "TEXTAREA")
    live.js("document.activeElement.select()")
    live.press(NEW)
    recorder.frame(LONG)
    live.act(lambda: live.press("\ue007"))
    recorder.frame(2 * LONG)
    return recorder


def main() -> None:
    browser = chromium()
    try:
        with tempfile.TemporaryDirectory() as folder:
            live = Live(browser, Path(folder))
            try:
                record(live).save(IMAGES / "explore.webp")
            finally:
                live.close()
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
