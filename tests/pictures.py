"""The pictures of the views in README.md, `docs/` and `examples/`: screenshots of the current pages.

    python -m tests.pictures

It rewrites `examples/images/view-*.png`; `recording.py` makes the recording. It requires chromium and
`pip install ".[plots]" --group browser`. Look at the pictures before you commit them.
"""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path

import npformer
from npformer import view
from tests.browser.chromium import chromium
from tests.browser.page import Page

IMAGES = Path(__file__).parents[1] / "examples" / "images"
REVIEW = "The plot is thin, but the acting is wonderful"
NOVEL = "It is a truth universally acknowledged, that a single man in possession of a good"
WIDTH = 1120
#: Name -> bundled model, text, the choices in the page's address, and the height in pixels.
PICTURES = {
    "view-page": ("distilbert-sst2", REVIEW, "", 700),
    "view-words": ("distilbert-sst2", REVIEW, "view=attribution", 620),
    "view-ablation": ("distilbert-sst2", REVIEW, "view=ablation", 700),
    "view-lens": ("gpt2-austen", NOVEL, "view=lens", 700),
}


def main() -> None:
    browser = chromium()
    try:
        with tempfile.TemporaryDirectory() as folder:
            page = Page(browser, Path(folder))
            for name, (model, text, choices, height) in PICTURES.items():
                shown = view.page(npformer.load(model), text).save(page.folder / "view.html")
                page.show(shown, width=WIDTH, height=height)
                page.driver.get(f"{shown.as_uri()}#{choices}")
                page.driver.refresh()
                page.until_ready()
                write(
                    IMAGES / f"{name}.png", base64.b64decode(page.cdp("Page.captureScreenshot", format="png")["data"])
                )
    finally:
        browser.quit()


def write(path: Path, screenshot: bytes) -> None:
    """Writes a picture with a palette of 256 colours, which takes a third of the screenshot's bytes."""
    from PIL import Image

    Image.open(io.BytesIO(screenshot)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(
        path, optimize=True
    )
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
