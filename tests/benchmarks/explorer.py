"""Measures the time from a key press to the new picture in `npformer explore`.

    python -m tests.benchmarks.explorer MODEL TEXT [--tab NAME ...]

The command runs as the server, in a separate process. Keys are typed at the end of the text, half a second apart. The
browser measures the time from the event of the key until the frame in which the answer and the open tab show the new
text. The time does not include the words and heads that explain the answer, which come later.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.browser.chromium import chromium
from tests.browser.page import Page

KEYS = 24
WARM = 4  # number of first keys, which are not counted
CLOCK = """
globalThis.pictures = [];
let typed = 0, isBusy = false;
addEventListener("input", () => (typed = performance.now()), true);
new MutationObserver(() => {
  const since = typed, { busy } = document.documentElement.dataset;
  if (isBusy && busy === undefined)
    requestAnimationFrame(() => setTimeout(() => globalThis.pictures.push(performance.now() - since)));
  isBusy = busy !== undefined;
}).observe(document.documentElement, { attributes: true });
const field = document.querySelector("textarea[data-text='0 0']");
field.focus();
field.setSelectionRange(field.value.length, field.value.length);
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the median time from a key to the picture, for each tab.")
    parser.add_argument("model", help="a bundled model or a folder")
    parser.add_argument("text", help="the text at first")
    parser.add_argument("--tab", nargs="+", default=["heads", "stages"], help="tabs to measure (heads stages)")
    args = parser.parse_args()
    browser = chromium()
    try:
        page = Page(browser, Path())
        page.resize(1440, 900)
        for tab in args.tab:
            opened, times = measured(page, args.model, args.text, tab)
            median = statistics.median(times)
            print(f"{tab}: opens in {opened:.2f} s; median {median:.0f} ms, {min(times):.0f} to {max(times):.0f} ms")
    finally:
        browser.quit()


def measured(page: Page, model: str, text: str, tab: str) -> tuple[float, list[float]]:
    """Returns the seconds from the command to an open page, and for each key the milliseconds until the picture."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "npformer", "explore", text, "-m", model, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        page.driver.get(next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line))))
        page.until(lambda: page.all(".answer li") and page.js("return !document.documentElement.dataset.busy"))
        opened = time.perf_counter() - start
        page.click(page.one(f".tabs [data-view={tab}]"))
        time.sleep(1)
        page.js(CLOCK)
        for i in range(KEYS):
            page.press(" " if i % 3 == 2 else "abcdefgh"[i % 8])
            page.until(lambda count=i: page.js("return globalThis.pictures.length") > count)
            time.sleep(0.5)
        return opened, page.js("return globalThis.pictures")[WARM:]
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
