"""Long texts in a browser: rows with large weights are shown, others are folded, and every number can be reached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import view
from npformer.view.head_view import LINES
from tests.browser.arrays import head_stages, weights
from tests.browser.page import Page
from tests.browser.test_heads import painted
from tests.browser.test_one_page import address, at
from tests.support import tiny

LENGTH, KEPT = 300, 24  # number of tokens; number of rows that are not folded
TOKENS = [f"w{i}" for i in range(LENGTH)]
ARRAY = weights(7, 2, 3, LENGTH, LENGTH, sharp=3.0)
ENTER = "\ue007"


def largest(values: np.ndarray) -> list[int]:
    """Returns the indices of the KEPT largest values, in ascending order."""
    return sorted(np.argsort(-values, kind="stable")[:KEPT].tolist())


def places(page: Page, side: str) -> list[int]:
    return [int(place) for place in page.texts(f".{side} .place")]


@pytest.fixture
def heads(page: Page) -> Page:
    return page.show(view.heads(ARRAY, tokens=TOKENS, layer=1, heads=[2]))


def test_the_tokens_with_the_largest_weights_have_rows(heads: Page) -> None:
    for side, axis in (("from", 1), ("to", 0)):
        kept, found = set(largest(ARRAY[1, 2].max(axis=axis))), places(heads, side)
        assert kept <= set(found)  # a single token between two kept tokens is not folded either
        folded = [int(text.split()[1]) for text in heads.texts(f".{side} .fold")]
        assert len(found) + sum(folded) == LENGTH
        assert min(folded) > 1
    assert heads.js("return document.documentElement.scrollHeight") < 2000
    heads.click(heads.all(".square")[0])
    kept = set(largest(np.maximum(ARRAY[1, 0], ARRAY[1, 2]).max(axis=0)))
    assert kept <= set(places(heads, "to"))


def test_on_a_phone_the_rows_fit_a_screen(page: Page) -> None:
    """At least half of a phone's rows are tokens with the largest weights; a folded row may follow each such row."""
    page.show(view.heads(ARRAY, tokens=TOKENS, layer=1, heads=[2]), width=390, height=844)
    assert page.segment(f"Strongest {KEPT // 2}").is_displayed()
    assert KEPT // 2 <= len(places(page, "from")) < KEPT
    assert page.one(".sides").size["height"] < 844


def test_on_a_phone_a_folded_row_of_hundreds_is_one_line(page: Page) -> None:
    array = np.zeros((1, 1, LENGTH, LENGTH), np.float32)
    array[..., :KEPT] = np.arange(1, KEPT + 1) / np.arange(1, KEPT + 1).sum()
    page.show(view.heads(array, tokens=TOKENS), width=390, height=844)
    assert max(int(text.split()[1]) for text in page.texts(".to .fold")) > 100
    cut = "node.scrollHeight > node.clientHeight || node.scrollWidth > node.clientWidth"
    folds = "[...document.querySelectorAll('.tokens .fold')]"
    assert page.js(f"return {folds}.filter((node) => {cut}).map((node) => node.textContent)") == []


def test_lines_to_a_key_that_all_tokens_attend_to_are_not_drawn(page: Page) -> None:
    """Lines to a key that every token attends to would hide the other lines, so they are drawn only on request.

    A button draws them, and the address records the choice.
    """
    array = 0.6 * ARRAY[1, 2:]
    array[..., 5] += 0.4
    page.show(view.heads(array, tokens=TOKENS))
    share = array[0, :, 5].sum() / LENGTH
    assert page.text(".sink") == f"w5 gets {100 * share:.0f}% of the weight; its lines are not drawn."
    assert 5 not in places(page, "to")
    assert "w5" not in {text.split("→")[1] for text in page.texts(".panel .link")}
    page.click(page.one("#sink"))
    assert page.text(".sink") == f"w5 gets {100 * share:.0f}% of the weight."
    assert 5 in places(page, "to")
    assert "w5" in {text.split("→")[1] for text in page.texts(".panel .link")}
    assert "sink=shown" in page.js("return location.hash")
    page.driver.refresh()
    page.until_ready()
    assert page.text("#sink") == "Hide its lines"


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_a_folded_row_opens(heads: Page, by_keyboard: bool) -> None:
    before = places(heads, "to")
    fold = heads.all(".to .fold")[0]
    count = int(fold.text.split()[1])
    if by_keyboard:
        heads.focus(fold)
        heads.press(ENTER)
    else:
        heads.click(fold)
    after = places(heads, "to")
    new = sorted(set(after) - set(before))
    assert new == list(range(new[0], new[0] + count))
    assert heads.js("return document.activeElement.dataset.index") == str(new[0])
    heads.hover(heads.one(f".to [data-index='{new[1]}']"))
    shown = [text for text in heads.texts(".from output") if text]
    assert shown == [f"{ARRAY[1, 2, q, new[1]]:.4f}" for q in places(heads, "from")]


def test_all_rows_and_the_threshold_are_in_the_address(page: Page) -> None:
    at(page, view.heads(ARRAY, tokens=TOKENS, layer=1, heads=[2]), "layer=1&head=2&rows=all&least=0.2&from=150")
    assert address(page) == "#layer=1&head=2&rows=all&least=0.2&from=150"
    assert places(page, "from") == list(range(LENGTH))
    page.click(page.segment(f"Strongest {KEPT}"))
    assert address(page) == "#layer=1&head=2&least=0.2&from=150"
    assert 150 in places(page, "from")  # a kept token is not folded


def test_a_threshold_leaves_lines_out(heads: Page) -> None:
    before = painted(heads)
    heads.choose("Lines from", "0.5")
    assert 0 < painted(heads) < before


def test_only_the_strongest_lines_of_an_even_head_are_drawn(page: Page) -> None:
    """If all weights exceed a quarter of the largest, drawing all 90,000 lines would take seconds."""
    even = weights(8, 1, 1, LENGTH, LENGTH, sharp=0.1)
    page.show(view.heads(even, tokens=TOKENS))
    drawn = page.js("""const canvas = document.querySelector(".lines canvas");
        return canvas.paths().reduce((sum, path) => sum + path.d.split("M").length - 1, 0);""")
    units = np.sort(np.round(even.ravel() * 10**4))[::-1]
    assert 0 < drawn <= LINES
    assert drawn > LINES - (units == units[LINES]).sum()  # lines of equal weight are all drawn, or all left out


def test_a_short_text_has_no_folded_rows(page: Page) -> None:
    page.show(view.heads(ARRAY[..., :48, :48], tokens=TOKENS[:48]))
    assert page.all(".fold") == []
    assert "Rows" not in page.text(".controls")


def test_the_keys_with_the_largest_weights(page: Page) -> None:
    arrays = head_stages(16, layers=1, heads=2, length=LENGTH, width=8)
    page.show(view.neurons(arrays, tokens=TOKENS, token=5))
    row = arrays["layers.0.attention.weights"][0, 5]
    assert set(largest(row)) <= {int(place) for place in page.texts(".keys .place")}
    fold = page.all(".fold button")[0]
    before, count = len(page.all(".score")), int(fold.text.split()[1])
    page.click(fold)
    assert len(page.all(".score")) == before + count
    page.click(page.segment(f"All {LENGTH}"))
    page.until(lambda: page.texts(".weight output") == [f"{value:.4f}" for value in row])


@pytest.mark.parametrize("width", [1440, 390])
def test_words_wrap_in_lines_and_their_list_is_folded(page: Page, width: int) -> None:
    model: Any = tiny.model(max_length=512)
    page.show(view.attribution(model, "good ice cream " * 100, methods="gradient", steps=1), width=width)
    boxes = page.js("return [...document.querySelectorAll('.word')].map((word) => word.getClientRects()[0].y)")
    assert len(set(boxes)) < len(boxes) / 3  # several words per line
    assert (KEPT if width > 640 else KEPT // 2) <= len(page.all(".list tbody tr:not(.fold)")) < 100
    folded = sum(int(text.split()[1]) for text in page.texts(".fold button"))
    assert folded + len(page.all(".list output")) == len(boxes)
    page.click(page.all(".fold button")[0])
    assert sum(int(text.split()[1]) for text in page.texts(".fold button")) < folded


def test_the_stages_of_a_long_text_open_with_the_embeddings(page: Page) -> None:
    model = tiny.model(max_length=512)
    page.show(view.stages(model, "good ice cream " * 100))
    opened = page.js("return [...document.querySelectorAll('details[id]')].filter((d) => d.open).map((d) => d.id)")
    assert opened == ["embeddings"]
