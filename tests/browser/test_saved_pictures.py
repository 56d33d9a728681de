"""Pictures saved from the page in a browser: every view with its selections, as SVG and PNG."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from npformer import view
from tests.browser.arrays import HOSTILE, head_stages, weights
from tests.browser.page import Page
from tests.browser.test_one_page import ADDRESSES, KINDS, TEXT, at, tab
from tests.browser.test_page import seen
from tests.support import tiny


@pytest.fixture(scope="module")
def shown() -> view.PageView:
    return view.page(tiny.model("distilbert"), TEXT, layer=0)


@pytest.fixture
def saved(page: Page, tmp_path: Path) -> Iterator[Path]:
    """Yields the folder that the browser saves files to."""
    page.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    yield tmp_path
    page.cdp("Browser.setDownloadBehavior", behavior="default")


def picture(page: Page, folder: Path, kind: str, name: str) -> Path:
    """Saves the displayed picture, and waits for the file."""
    # The buttons of an open dialog come last. The dialog covers the page's own buttons.
    buttons = page.all(".tools button, dialog[open] button")
    [button for button in buttons if button.text == f"Save {kind}"][-1].click()

    def found() -> list[Path]:
        return [path for path in folder.glob(f"{name}*.{kind.lower()}") if path.stat().st_size]

    return page.until(lambda: found() and found()[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_is_saved_as_it_is_selected(page: Page, shown: view.PageView, saved: Path, kind: str) -> None:
    at(page, shown, f"view={kind}&{ADDRESSES[kind]}")
    svg = picture(page, saved, "SVG", kind)
    root = ElementTree.parse(svg).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == TEXT
    assert page.text("#heading") in texts[1]
    for name, value in (pair.split("=") for pair in ADDRESSES[kind].split("&")):
        assert f"{name} {value.replace('+', ' ')}" in texts[1]
    standing = " ".join(texts)
    part = "dialog" if kind == "model" else "main"
    outputs = page.js(f"return [...document.querySelectorAll('{part} output')].map((node) => node.textContent)")
    assert all(number in standing for number in outputs)
    images, lines = (list(root.iter(f"{{http://www.w3.org/2000/svg}}{name}")) for name in ("image", "path"))
    assert all(image.get("href").startswith("data:image/png;base64,") for image in images)
    assert bool(lines) == (kind == "heads")
    assert bool(images) == (kind in ("model", "neurons"))  # a small stage is shown as a table
    png = picture(page, saved, "PNG", kind).read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG")
    assert (width, height) == pytest.approx((2 * float(root.get("width")), 2 * float(root.get("height"))), abs=1)


@pytest.mark.parametrize(
    ("kind", "cells"), [("logit", ".part"), ("attribution", ".word, .bar i"), ("neurons", ".score output")]
)
def test_a_picture_has_every_colour(page: Page, shown: view.PageView, saved: Path, kind: str, cells: str) -> None:
    """The colours include the darkest orange, rgb(127, 56, 0), whose blue channel is 0."""
    at(page, shown, f"view={kind}")
    colours = page.js(
        """return [...document.querySelectorAll(arguments[0])].filter((cell) => cell.offsetWidth).map((cell) =>
            getComputedStyle(cell).backgroundColor)""",
        cells,
    )
    root = ElementTree.parse(picture(page, saved, "SVG", kind)).getroot()
    fills = {rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert {"rgb(127, 56, 0)", "rgb(8, 66, 127)"} & set(colours)
    assert set(colours) <= fills


def test_a_picture_has_the_chosen_lines_and_no_others(page: Page, saved: Path) -> None:
    array = np.zeros((1, 2, 2, 2), np.float32)
    array[0, 0] = [[0, 1], [1, 0]]
    array[0, 1] = [[0.5, 0.5], [0.5, 0.5]]
    at(page, view.heads(array, tokens=["one", "two"]), "head=0&from=0")
    root = ElementTree.parse(picture(page, saved, "SVG", "heads")).getroot()
    (line,) = root.iter("{http://www.w3.org/2000/svg}path")
    assert (line.get("stroke-opacity"), line.get("d", "").count("M")) == ("1", 1)


def test_a_picture_of_512_tokens_has_them_all(page: Page, saved: Path) -> None:
    page.show(view.heads(weights(3, 1, 2, 512, 512), tokens=[f"w{i}" for i in range(512)]))
    page.click(page.segment("All 512"))
    root = ElementTree.parse(picture(page, saved, "SVG", "heads")).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [texts.count(f"w{i}") >= 2 for i in range(512)] == [True] * 512
    png = picture(page, saved, "PNG", "heads").read_bytes()
    assert struct.unpack(">II", png[16:24])[1] <= 16_000


def test_hostile_text_is_only_text_on_the_page(page: Page, saved: Path) -> None:
    shown = view.PageView(((
        view.heads(head_stages(2, length=len(HOSTILE)), tokens=HOSTILE),
        view.stages(head_stages(2, length=len(HOSTILE)), tokens=HOSTILE),
    ),))  # fmt: skip
    page.show(shown)
    assert page.texts(".from .token") == [seen(token) for token in HOSTILE]
    assert page.js("return document.querySelectorAll('main script, main img').length") == 0
    for kind in ("heads", "stages"):
        page.click(tab(page, kind))
        ElementTree.parse(picture(page, saved, "SVG", kind))
