"""The explorer's tab `Step` in a browser: lines, functions and layers, arrays, names, and a changed line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.interpret.edits import edit
from tests.browser.live import Live
from tests.browser.test_explore import SIZES, TEXT, expected
from tests.support import tiny
from tests.support.explorer_client import state

ENTER, ESCAPE = "\ue007", "\ue00c"
SCORES = "scores = q @ k.mT / math.sqrt(q.shape[-1])"


@pytest.fixture(params=SIZES, ids=["wide", "narrow"])
def page(live: Live, model: Any, request: pytest.FixtureRequest) -> Live:
    width, dark = request.param
    return live.explore({"m": model}, TEXT, at="view=step", width=width, dark=dark)


def line(page: Live) -> str:
    """The current statement."""
    return "".join(page.texts(".code .on")).strip()


def press(page: Live, keys: str) -> None:
    page.js("document.querySelector('.code').focus()")
    page.press(*keys)


def to_scores(page: Live, layer: int) -> None:
    """Goes to the scores of a layer, by keys alone: next layer, into attention, and there to its line of scores."""
    press(page, "l" * (layer + 1) + "ss" + "nn")  # into the layer and its attention, two lines on
    assert line(page).startswith("context = ")
    press(page, "s")
    assert line(page) == SCORES


def numbers(page: Live) -> np.ndarray:
    page.until(lambda: page.all(".numbers td"))
    rows = page.js(
        "return [...document.querySelectorAll('.numbers tbody tr')].map((row) => "
        "[...row.querySelectorAll('td')].map((cell) => Number(cell.textContent)))"
    )
    return np.array(rows)


def shown_name(page: Live) -> str:
    return page.text(".array h3")


def test_lines_functions_and_layers_are_stepped_through(page: Live) -> None:
    assert line(page).startswith("x = embed(")
    press(page, "s")
    assert line(page).startswith("total = ")
    press(page, "n")
    assert line(page).startswith("return layer_norm(total")
    press(page, "o")
    assert line(page) == "for layer in layers:"
    press(page, "n")
    assert line(page).startswith("x = encoder_layer(")
    assert page.text(".path").startswith("layer 0 · distilbert")
    press(page, "l")
    assert page.text(".path").startswith("layer 1 · distilbert")
    press(page, "p")
    assert line(page) == "for layer in layers:"
    page.click(next(each for each in page.all(".buttons button") if "Next line" in each.text))
    assert line(page).startswith("x = encoder_layer(")
    assert page.fits()


@pytest.mark.parametrize("layer", [0, 1])
def test_the_numbers_of_a_line_are_those_of_the_engine(page: Live, model: Any, layer: int) -> None:
    stage = npformer.trace(model, TEXT)[f"layers.{layer}.attention.scores"]
    to_scores(page, layer)
    page.until(lambda: shown_name(page).startswith("scores (4, 7, 7) float32"))
    np.testing.assert_allclose(numbers(page), stage[0], atol=6e-5)
    page.choose("Head", 2)
    np.testing.assert_allclose(numbers(page), stage[2], atol=6e-5)
    assert page.texts(".numbers tbody th")[:3] == ["0 [CLS]", "1 i", "2 love"]
    assert page.js("const { width, height } = document.querySelector('.array canvas'); return [width, height]") == [
        7,
        7,
    ]


def test_a_click_on_a_name_shows_where_it_came_from(page: Live) -> None:
    to_scores(page, 0)
    press(page, "nn")
    assert line(page) == "return weights @ v"
    page.click(next(each for each in page.all(".code .name") if each.text == "weights"))
    assert line(page) == "weights = masked_softmax(scores, mask)"
    page.until(lambda: shown_name(page).startswith("weights (4, 7, 7)"))
    page.click(next(each for each in page.all(".buttons button") if each.text == "Return"))
    assert line(page) == "return weights @ v"
    page.click(next(each for each in page.all(".code .name") if each.text == "v"))
    assert line(page).startswith("context = scaled_dot_product_attention(")  # it was an argument of this call


def test_a_line_is_changed_by_keys_and_the_page_s_answer_follows(page: Live, model: Any) -> None:
    to_scores(page, 0)
    press(page, "e")
    page.until(lambda: page.js("return document.activeElement.tagName") == "TEXTAREA")
    page.js("document.activeElement.select()")
    page.act(lambda: page.press("scores = q @ k.mT / q.shape[-1]", ENTER))
    assert line(page) == "scores = q @ k.mT / q.shape[-1]"  # the marker stays
    with edit({"*.scores": lambda scores: scores / math.sqrt(8)}):
        after = dict(each.split() for each in expected(model, TEXT))
    before = expected(model, TEXT)
    shown = dict(each.split(None, 1) for each in page.texts(".page-answer li"))
    for name, number in map(str.split, before):
        was, now = (float(each.rstrip("%")) for each in shown[name].split(" → "))
        assert [was, now] == pytest.approx([float(number[:-1]), float(after[name][:-1])], abs=0.011)
    assert page.outcomes() == before  # the engine's
    page.act(lambda: page.click(page.one(".change")))
    assert line(page) == SCORES
    assert page.texts(".page-answer li") == before


def test_a_line_that_is_no_arithmetic_is_refused_with_the_reason(page: Live) -> None:
    to_scores(page, 0)
    press(page, "e")
    page.until(lambda: page.js("return document.activeElement.tagName") == "TEXTAREA")
    page.js("document.activeElement.select()")
    page.act(lambda: page.press("scores = __import__('os')", ENTER))
    assert "'__import__': expected a" in page.text(".missing")
    page.act(lambda: page.click(page.one(".change")))
    assert page.texts(".missing") == []
    assert line(page)


@pytest.mark.parametrize("name", ["gpt2", "llama", "en-de-multi30k"])
def test_other_models_are_stepped_through_to_their_answer(live: Live, name: str, tmp_path: Any) -> None:
    made = npformer.load(name if "-" in name else tiny.folder(tmp_path / "model", name, "causal-lm"))
    text = "A man is riding a bike." if "-" in name else TEXT
    live.explore({name: made}, text, state(text), "view=step")
    press(live, "ln")
    last = live.js("const s = document.querySelector('input[aria-label=Step]'); s.value = s.max;"
                   "s.dispatchEvent(new Event('input')); return Number(s.max)")  # fmt: skip
    assert last > 50
    assert line(live).startswith("return ")
    live.until(lambda: "float32" in shown_name(live))
    names = [each.rpartition(" ")[0] for each in live.texts(".page-answer li")]
    assert names == [each.rpartition(" ")[0] for each in expected(made, text)]
