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

ENTER, ESCAPE, LEFT, UP, RIGHT, DOWN = "\ue007", "\ue00c", "\ue012", "\ue013", "\ue014", "\ue015"
SCORES = "scores = q @ k.mT / math.sqrt(q.shape[-1])"


@pytest.fixture(params=SIZES, ids=["wide", "narrow"])
def page(live: Live, model: Any, request: pytest.FixtureRequest) -> Live:
    width, dark = request.param
    return live.explore({"m": model}, TEXT, at="view=step", width=width, dark=dark)


def line(page: Live) -> str:
    """The current statement."""
    return "".join(page.texts(".code .on")).strip()


def press(page: Live, keys: str) -> None:
    page.js("document.querySelector('.code').focus({ preventScroll: true })")
    page.press(*keys)


def to_scores(page: Live, layer: int) -> None:
    """Goes to a layer's scores with keys alone: to the layer, into its attention, and to the line with the scores."""
    press(page, "l" * (layer + 1) + "ss" + "nn")  # into the layer, into its attention, and two lines further
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
    assert line(page).startswith("context = scaled_dot_product_attention(")  # the name was an argument of this call


def test_a_line_is_changed_by_keys_and_the_page_s_answer_follows(page: Live, model: Any) -> None:
    to_scores(page, 0)
    press(page, "e")
    page.until(lambda: page.js("return document.activeElement.tagName") == "TEXTAREA")
    page.js("document.activeElement.select()")
    page.act(lambda: page.press("scores = q @ k.mT / q.shape[-1]", ENTER))
    assert line(page) == "scores = q @ k.mT / q.shape[-1]"  # the marker does not move
    with edit({"*.scores": lambda scores: scores / math.sqrt(8)}):
        after = dict(each.split() for each in expected(model, TEXT))
    before = expected(model, TEXT)
    shown = dict(each.split(None, 1) for each in page.texts(".page-answer li"))
    for name, number in map(str.split, before):
        was, now = (float(each.rstrip("%")) for each in shown[name].split(" → "))
        assert [was, now] == pytest.approx([float(number[:-1]), float(after[name][:-1])], abs=0.011)
    assert page.outcomes() == before  # the outcomes still come from the engine
    assert [each.strip() for each in page.texts(".code .changed .text")] == ["scores = q @ k.mT / q.shape[-1]"]
    page.act(lambda: page.click(page.one(".change")))
    assert line(page) == SCORES
    assert page.texts(".page-answer li") == before
    assert page.all(".code .changed") == []


def test_an_array_has_the_numbers_before_a_changed_line(page: Live, model: Any) -> None:
    stage = npformer.trace(model, TEXT)["layers.1.attention.scores"]
    to_scores(page, 1)
    page.choose("Token", "3 good")
    page.choose("Head", 2)
    assert not page.all(".numbers .before")
    change_line(page, "scores = q @ k.mT / q.shape[-1]")
    page.until(lambda: page.all(".numbers .before"))
    row = "return [...document.querySelectorAll(arguments[0])].map((each) => Number(each.textContent))"
    with edit({"*.scores": lambda scores: scores / math.sqrt(8)}):
        after = npformer.trace(model, TEXT)["layers.1.attention.scores"]
    np.testing.assert_allclose(page.js(row, ".numbers .before td"), stage[2, 3], atol=6e-5)
    np.testing.assert_allclose(page.js(row, ".numbers .on td"), after[2, 3], atol=6e-5)
    assert page.text(".was").startswith(f"Before the changes: from {stage.min():.4f} to {stage.max():.4f}, mean")
    assert page.fits()
    press(page, "ppppp")  # steps back, over this call's arguments and over earlier layers
    page.act(lambda: page.click(page.one(".change")))
    page.until(lambda: not page.all(".numbers .before, .array .was"))


def test_an_array_has_the_numbers_before_a_changed_word(live: Live, model: Any) -> None:
    word = {"kind": "word", "at": 2, "word": "good", "to": "news"}
    live.explore({"m": model}, TEXT, state(TEXT, edits=[word]), "view=step&token=3")
    live.until(lambda: live.all(".numbers .before"))
    x = npformer.trace(model, TEXT)["embeddings.norm"][3]
    columns = [int(each) for each in live.texts(".numbers thead th")[1:]]
    found = [float(each) for each in live.texts(".numbers .before td")]
    np.testing.assert_allclose(found, x[columns], atol=6e-5)
    live.open(state(TEXT, edits=[word | {"to": ""}]), "view=step&token=3")
    live.until(lambda: live.text(".array .was") == f"Before the changes: shape (7, {model.config.d_model}).")
    live.open(state(TEXT, edits=[{"kind": "head", "attention": "layers.1.attention", "head": 2}]), "view=step")
    live.until(lambda: live.all(".numbers td"))
    assert not live.all(".array .was")  # this change does not affect the page


def change_line(page: Live, to: str) -> None:
    """Changes the current line by keys alone."""
    press(page, "e")
    page.until(lambda: page.js("return document.activeElement.tagName") == "TEXTAREA")
    page.js("document.activeElement.select()")
    page.act(lambda: page.press(to, ENTER))


@pytest.mark.parametrize(("to", "reason"), [("scores = q @@ k", "invalid syntax"), ("scores = os", "'os': expected a")])
def test_a_refused_line_stays_open_with_the_reason_beside_it(page: Live, model: Any, to: str, reason: str) -> None:
    to_scores(page, 1)
    at = page.one("input[aria-label=Step]").get_attribute("value")
    change_line(page, to)
    editor = page.one(".code .on textarea")
    assert editor.get_attribute("value") == to
    assert reason in page.text(".code .on .problem")
    assert "Enter applies, Escape returns to the line that is in force" in page.text(".code .on .hint")
    assert page.one("input[aria-label=Step]").get_attribute("value") == at
    assert len(page.all(".code li")) > 80  # the page is still there, with its answer
    assert page.texts(".page-answer li") == expected(model, TEXT)
    page.until(lambda: page.js("return document.activeElement") == editor)
    assert page.texts(".applied bdi") == []
    page.press(ESCAPE)
    assert line(page) == SCORES
    change_line(page, to)
    page.until(lambda: page.js("return document.activeElement.tagName") == "TEXTAREA")
    page.js("document.activeElement.select()")
    page.act(lambda: page.press("scores = q @ k.mT", ENTER))
    assert line(page) == "scores = q @ k.mT"


def test_a_refused_line_leaves_the_accepted_one_in_force(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=step")
    to_scores(live, 0)
    change_line(live, "scores = q @ k.mT")
    answer, chips = live.texts(".page-answer li"), live.texts(".applied bdi")
    change_line(live, "scores = q @ k")  # passes the check, but fails when it runs
    assert "ValueError" in live.text(".code .on .problem")
    assert live.one(".code .on textarea").get_attribute("value") == "scores = q @ k"
    assert (live.texts(".page-answer li"), live.texts(".applied bdi")) == (answer, chips)
    assert [each["to"] for each in live.state()["edits"]] == ["scores = q @ k.mT"]
    live.until(lambda: live.js("return document.activeElement.tagName") == "TEXTAREA")
    live.press(ESCAPE)
    assert line(live) == "scores = q @ k.mT"


@pytest.mark.parametrize("first", ["step", "heads"])
def test_a_refused_line_of_the_address_has_a_chip(live: Live, model: Any, first: str) -> None:
    live.explore({"m": model}, TEXT, at="view=step")
    at = 1 + next(i for i, text in enumerate(live.texts(".code .text")) if SCORES in text)
    refused = {"kind": "line", "line": at, "old": SCORES, "to": "scores = os"}
    live.open(state(TEXT, edits=[refused]), f"view={first}")
    names = live.texts(".applied bdi")
    assert len(names) == 1
    if first == "heads":
        assert live.texts(".applied small") == ["Step only"]
        live.click(live.one(".tabs [data-view=step]"))
    live.until(lambda: live.texts(".applied small") == ["Refused"])
    assert live.texts(".applied bdi") == names
    assert live.one(".code .on textarea").get_attribute("value") == "scores = os"
    assert not any("affects only" in each.text for each in live.all(".notice"))
    live.act(lambda: live.click(live.one(".change")))
    assert line(live) == SCORES
    assert live.texts(".applied bdi") == []


INSIDE = """const [inner, outer] = [...arguments].map((at) => document.querySelector(at).getBoundingClientRect());
return inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top && inner.bottom <= outer.bottom"""


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_long_lines_stay_within_their_box(live: Live, model: Any, width: int, dark: bool) -> None:
    live.explore({"m": model}, TEXT, at="view=step")
    at = 1 + next(i for i, text in enumerate(live.texts(".code .text")) if SCORES in text)
    long = {"kind": "line", "line": at, "old": SCORES, "to": SCORES + " + 0" * 30 + " * a" + "longname" * 12}
    live.open(state(TEXT, edits=[long]), "view=step", width=width, dark=dark)
    live.until(lambda: live.texts(".applied small") == ["Refused"])
    assert live.fits()
    for each in (".code .on textarea", ".code .on .problem", ".code .on .hint"):
        assert live.js(INSIDE, each, ".code"), each
    assert live.js(INSIDE, ".change bdi", ".applied")
    assert live.text(".change bdi").endswith("\u2026")
    assert live.js("return document.querySelector('.change small').offsetHeight") < 24  # one line
    live.click(next(each for each in live.all(".tools button") if each.text == "As Python"))
    live.until(lambda: live.js("return document.querySelector('dialog.program').open"))
    assert live.js(INSIDE, ".program pre", "dialog.program")
    assert live.js(
        "const { scrollWidth, clientWidth } = document.querySelector('.program pre'); return scrollWidth > clientWidth"
    )
    assert live.js(
        "const { left, right } = document.querySelector('dialog.program').getBoundingClientRect(); return left >= 0 && right <= innerWidth"
    )
    assert live.fits()


def test_escape_leaves_the_editor_and_its_keys_are_said(page: Live) -> None:
    to_scores(page, 0)
    press(page, "e")
    page.until(lambda: page.js("return document.activeElement.tagName") == "TEXTAREA")
    assert page.text(".code .on .hint") == "Enter applies, Escape leaves."
    page.press(ESCAPE)
    assert line(page) == SCORES


def test_a_changed_line_leaves_the_answer_in_sight(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=step", height=700)
    to_scores(live, 0)
    change_line(live, "scores = q @ k.mT")
    assert live.js("return scrollY") == 0


def scrolled(page: Live) -> float:
    return page.js("return document.querySelector('.code').scrollTop")


def test_the_place_is_kept_after_an_edit_a_text_and_another_tab(page: Live) -> None:
    to_scores(page, 1)
    where, at = page.text(".path"), scrolled(page)
    assert at > 0
    change_line(page, "scores = q @ k.mT")
    assert (page.text(".path"), scrolled(page)) == (where, pytest.approx(at, abs=60))
    page.type("no news")
    assert (page.text(".path"), scrolled(page)) == (where, pytest.approx(at, abs=60))
    page.click(page.one(".tabs [data-view=lens]"))
    page.until(lambda: page.js("return document.body.dataset.view") == "lens")
    page.type("no news is good news")
    page.click(page.one(".tabs [data-view=step]"))
    page.until(lambda: page.text(".path") == where)


def test_lines_are_clicked_and_arrows_step(page: Live) -> None:
    def click(text: str) -> None:
        node = next(each for each in page.all(".code li") if text in each.text)
        page.js("arguments[0].scrollIntoView({ block: 'center' })", node)
        node.find_element("css selector", ".text").click()

    click("scores = q @ k.mT")
    assert line(page) == SCORES
    assert page.text(".path").startswith("layer 0")
    page.js("document.querySelector('.code').focus({ preventScroll: true })")
    page.press(DOWN)
    assert line(page).startswith("weights = ")
    click("scores = q @ k.mT")  # goes to the line in the same call, although the next layer has the line too
    assert page.text(".path").startswith("layer 0")
    page.press(DOWN)
    page.press(RIGHT)
    assert line(page).startswith("return softmax(")
    page.press(LEFT)
    assert line(page) == "return weights @ v"
    page.press(UP)
    assert line(page).startswith("weights = ")
    click("def linear(")
    assert "is not run for this text" in page.text(".side .about")
    assert line(page).startswith("weights = ")


def test_a_layer_is_chosen_and_the_chosen_token_is_marked(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=neurons&layer=1&from=3")
    live.click(live.one(".tabs [data-view=step]"))
    live.until(lambda: live.all(".code .on"))
    live.choose("Layer", 0)
    live.choose("Layer", 1)
    assert live.text(".path").startswith("layer 1 ")
    live.until(lambda: live.texts(".numbers .on th") == ["3 good"])
    press(live, "p")
    assert live.js("return document.querySelector('select[aria-label=Layer]').selectedOptions[0].text") == "0"


def test_the_decisive_head_is_one_click_away(page: Live, model: Any) -> None:
    name = page.text(".answer [data-head]")
    page.click(next(each for each in page.all(".buttons button") if "largest effect" in each.text))
    layer, head = (int(part.split()[1]) for part in name.split(", "))
    assert page.text(".path").startswith(f"layer {layer} ")
    page.until(lambda: shown_name(page).startswith("weights (4, 7, 7)"))
    stage = npformer.trace(model, TEXT)[f"layers.{layer}.attention.weights"][head]
    page.until(lambda: np.allclose(numbers(page), stage, atol=6e-5))


def test_the_current_line_is_in_sight_after_a_look_at_another_tab(page: Live, model: Any) -> None:
    to_scores(page, 1)
    in_sight = """const [line, code] = [".code .on", ".code"].map((each) => document.querySelector(each).getBoundingClientRect());
        return code.top <= line.top && line.top < code.bottom"""
    assert page.js(in_sight)
    page.click(page.one(".tabs [data-view=heads]"))
    page.until(lambda: page.js("return document.body.dataset.view") == "heads")
    page.click(page.one(".tabs [data-view=step]"))
    page.until(lambda: page.js("return document.body.dataset.view") == "step")
    page.until(lambda: page.js(in_sight))


def test_a_link_reopens_the_chosen_head(page: Live, model: Any) -> None:
    stage = npformer.trace(model, TEXT)["layers.0.attention.scores"]
    to_scores(page, 0)
    page.until(lambda: shown_name(page).startswith("scores"))
    page.choose("Head", 3)
    page.until(lambda: np.allclose(numbers(page), stage[3], atol=6e-5))
    link = page.js("return location.href")
    page.driver.get("about:blank")
    page.driver.get(link)
    page.until(lambda: shown_name(page).startswith("scores"))
    page.until(lambda: np.allclose(numbers(page), stage[3], atol=6e-5))


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


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_a_table_has_all_columns_of_a_short_text_and_says_how_many_it_hides(
    live: Live, model: Any, width: int, dark: bool
) -> None:
    live.explore({"m": model}, "I love good ice", at="view=step", width=width, dark=dark)
    live.until(lambda: live.all(".numbers td"))
    columns = [int(each) for each in live.texts(".numbers thead th")[1:]]
    assert (columns[0], columns[-1], len(columns)) == (0, model.config.d_model - 1, 16)
    gaps = np.diff(columns)
    assert gaps.max() - gaps.min() <= 1
    assert live.text(".extent") == f"The table hides {model.config.d_model - 16} of {model.config.d_model} columns."
    live.type("I love good ice cream I love good news you love")
    to_scores(live, 0)
    live.until(lambda: shown_name(live).startswith("scores (4, 13, 13)"))
    assert len(live.texts(".numbers thead th")) == 14
    assert live.text(".extent") == ""
    assert live.fits()
    scrolls = live.js("const { scrollWidth, clientWidth } = document.querySelector('.array .scroller'); "
                      "return [scrollWidth > clientWidth, !!document.querySelector('.array .frame.has-after')]")  # fmt: skip
    assert scrolls[0] == scrolls[1]
    if width == 390:
        assert scrolls[0]
    live.type(" ".join(["I love good ice cream"] * 5))
    live.until(lambda: shown_name(live).startswith("scores (4, 27, 27)"))
    assert live.text(".extent") == "The table hides 11 of 27 columns."
    live.choose("Token", "2 love")
    live.until(lambda: live.text(".numbers .on th") == "2 love")
    assert len(live.texts(".numbers thead th")) in (17, 18)
    assert "love2" in live.texts(".numbers thead th")
