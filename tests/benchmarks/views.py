"""Measures the size of the views' files and the time to open them, for the table of `README.md` in this folder.

    python -m tests.benchmarks.views

Weights are the softmax of random scores, 12 layers of 12 heads, with the sharpness that makes the file largest. A page
is open when it reports that everything is drawn. The browser measures the time from the start of the navigation, and
the result is the shortest of several times.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from npformer import view
from tests.browser.arrays import weights
from tests.browser.chromium import chromium
from tests.browser.page import Page

LENGTHS = (16, 128, 512)  # tokens
LAYERS = HEADS = 12
SHARP = 2.5  # standard deviation of the scores
#: The browser runs this before the page loads: a page's security policy allows only the page's own script.
CLOCK = """new MutationObserver(() => {
    if (document.documentElement?.dataset.ready) globalThis.openedAfter ??= performance.now();
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] });"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the table of the views' sizes and opening times.")
    parser.add_argument("--times", type=int, default=5, help="how often each page is opened (5)")
    args = parser.parse_args()
    browser = chromium()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for line in table(Page(browser, Path(folder)), args.times):
                print(line, flush=True)
    finally:
        browser.quit()


def table(page: Page, times: int) -> list[str]:
    """Returns the rows in Markdown, one for each length."""
    page.cdp("Page.addScriptToEvaluateOnNewDocument", source=CLOCK)
    lines = [f"| tokens, {LAYERS} x {HEADS} heads | head view | model view |", "| --- | --- | --- |"]
    for length in LENGTHS:
        layers = [weights(layer, HEADS, length, length, sharp=SHARP) for layer in range(LAYERS)]
        tokens = [f"word{i}" for i in range(length)]
        cells = [_cell(page, make(layers, tokens=tokens), times) for make in (view.heads, view.model)]
        lines.append(f"| {length} | {' | '.join(cells)} |")
    return lines


def _cell(page: Page, shown: view.View, times: int) -> str:
    path = shown.save(page.folder / "view.html")
    seconds = []
    for _ in range(times):
        page.show(path)
        seconds.append(page.js("return globalThis.openedAfter") / 1000)
    return f"{path.stat().st_size / 1e6:.2f} MB, opens in {min(seconds):.2f} s"


if __name__ == "__main__":
    main()
