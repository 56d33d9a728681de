"""The attribution view in a browser: marked words with numbers, one measure at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import view
from tests.browser.arrays import WORDS, weights
from tests.browser.page import Page
from tests.support import tiny

TEXT = "I love good ice cream, not hot."
RIGHT, END = "\ue014", "\ue010"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.model("distilbert")


def test_words_numbers_and_every_measure(page: Page, model: Any) -> None:
    shown = view.attribution(model, TEXT)
    page.show(shown)
    left_out, times_input, integrated, rolled = shown.methods
    assert page.text(".texts") == TEXT
    assert page.texts(".word") == ["I", "love", "good", "ice", "cream", ",", "not", "hot", "."]
    assert page.texts(".list output") == [f"{score:z.4f}" for score in left_out.scores]
    assert page.texts(".list td:last-child") == [f"{share:.4f}" for share in left_out.beside[1]]
    heading = page.texts(".list thead th")[-1]
    assert heading.startswith("probability of ")
    assert heading.endswith(" without the word")
    for method in (times_input, integrated):
        page.click(page.segment(method.name))
        assert page.texts(".list output") == [f"{score:z.4f}" for score in method.scores]
        assert page.texts(".word") == ["[CLS]", "i", "love", "good", "ice", "cream", ",", "not", "hot", ".", "[SEP]"]
        assert page.text(".about") == method.about
        assert page.all(".list thead th")[-1].text == "score"  # no column for a second label
        widths = [node.size["width"] for node in page.all(".list .bar i")]
        assert widths == pytest.approx(np.abs(method.scores) / np.abs(method.scores).max() * max(widths), abs=1)
    page.click(page.segment("Attention roll-out"))
    assert page.texts(".list output") == [f"{score:.4f}" for score in rolled.scores]
    assert page.text(".about").endswith("It does not depend on the label.")


def test_pointing_and_the_keyboard_mark_a_word_in_both_places(page: Page, model: Any) -> None:
    shown = view.attribution(model, TEXT)
    page.show(shown)
    page.hover(page.all(".word")[4])
    assert page.texts(".on") == ["cream", page.texts(".list tbody tr")[4]]
    assert page.text(".tip output") == f"{shown.methods[0].scores[4]:z.4f}"
    page.rest()
    assert page.all(".on") == []
    page.focus(page.all(".word")[0])
    page.press(RIGHT, RIGHT)
    assert page.text(".tip output") == f"{shown.methods[0].scores[2]:z.4f}"
    page.press(END)
    assert page.text(".tip output") == f"{shown.methods[0].scores[8]:z.4f}"


@pytest.mark.parametrize(("text", "first"), [("هذا فيلم رائع", "right"), ("ice هذا فيلم", "left")])
def test_the_first_word_is_where_its_script_begins(page: Page, model: Any, text: str, first: str) -> None:
    page.show(view.attribution(model, text))
    places = [node.rect["x"] for node in page.all(".word")]
    assert places == sorted(places, reverse=first == "right")
    page.focus(page.all(".word")[1])
    page.press(RIGHT)
    assert page.js("return document.activeElement.textContent") == text.split()[0 if first == "right" else 2]


def test_the_list_by_size(page: Page, model: Any) -> None:
    shown = view.attribution(model, TEXT)
    page.show(shown)
    page.click(page.segment("By size"))
    scores = sorted(shown.methods[0].scores, key=abs, reverse=True)
    assert page.texts(".list output") == [f"{score:z.4f}" for score in scores]


def test_signs_show_without_colour(page: Page) -> None:
    page.show(
        view.attribution(
            weights(1, 2, len(WORDS), len(WORDS)), tokens=WORDS, scores={"mine": [1, -2, 0.5, 0, 0, -1, 0]}
        )
    )
    assert page.texts(".list output")[:3] == ["1.0000", "-2.0000", "0.5000"]
    styles = [
        word.find_element("css selector", "span").value_of_css_property("border-bottom-style")
        for word in page.all(".word")
    ]
    assert styles == ["solid", "dotted", "solid", "solid", "solid", "dotted", "solid"]
