"""The explorer's tab `Change` in a browser: each kind of change is made by pointer and by keyboard, and undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.interpret.edits import add, replace_row, scale, scale_head, without_head, zero
from tests.browser.live import Live
from tests.browser.test_explore import OTHER, SIZES, TEXT, after, expected
from tests.support import tiny
from tests.support.explorer_client import state

ENTER, LEFT, RIGHT, DOWN = "\ue007", "\ue012", "\ue014", "\ue015"
CONTEXT = "layers.1.attention.context"


@pytest.fixture(params=SIZES, ids=["wide", "narrow"])
def page(live: Live, model: Any, request: pytest.FixtureRequest) -> Live:
    width, dark = request.param
    return live.explore({"m": model}, TEXT, state(TEXT, OTHER), "view=change", width=width, dark=dark)


def cell(page: Live, at: str) -> Any:
    return page.one(f"[data-at='{at}']")


def click(page: Live, at: str) -> None:
    """Clicks a cell, after scrolling to it if necessary."""
    page.js("arguments[0].scrollIntoView({ block: 'center', inline: 'center' })", cell(page, at))
    page.act(cell(page, at).click)


def test_a_click_removes_a_head_and_another_puts_it_back(page: Live, model: Any) -> None:
    click(page, "1 2")
    assert after(page) == expected(model, TEXT, without_head(CONTEXT, 2))
    assert page.texts(".applied bdi") == ["without layer 1, head 2"]
    assert cell(page, "1 2").get_attribute("aria-pressed") == "true"
    shown = [" ".join(each.split()) for each in page.texts(".panel .outcomes li")]
    before = dict(each.split() for each in expected(model, TEXT))
    assert shown == [f"{name} {before[name]} → {number}" for name, number in map(str.split, after(page))]
    click(page, "1 2")
    assert page.outcomes() == expected(model, TEXT)
    assert page.fits()


@pytest.mark.parametrize(
    ("at", "stage"), [("0 4", "layers.0.attention.output"), ("1 5", "layers.1.ffn.output")], ids=["attention", "ffn"]
)
def test_a_click_removes_a_layer_s_attention_or_ffn(page: Live, model: Any, at: str, stage: str) -> None:
    click(page, at)
    assert after(page) == expected(model, TEXT, zero(stage))


def test_a_drag_or_the_slider_scales_a_head(page: Live, model: Any) -> None:
    target = cell(page, "1 1")
    page.js("arguments[0].scrollIntoView({ block: 'center', inline: 'center' })", target)
    page.act(lambda: page._actions().click_and_hold(target).move_by_offset(20, 0).release().perform())
    assert page.texts(".applied bdi") == ["layer 1, head 1 × 2"]  # noqa: RUF001
    assert after(page) == expected(model, TEXT, scale_head(CONTEXT, 1, 2.0))
    slider = page.one(".panel input[type=range]")
    page.focus(slider)
    for _ in range(2):
        page.act(lambda: page.press(LEFT))
    assert after(page) == expected(model, TEXT, scale_head(CONTEXT, 1, 1.9))


def test_the_keyboard_alone_changes_and_undoes(page: Live, model: Any) -> None:
    page.focus(cell(page, "0 0"))
    page.press(DOWN, RIGHT)
    page.act(lambda: page.press(ENTER))
    assert after(page) == expected(model, TEXT, without_head(CONTEXT, 1))
    assert page.js("return document.activeElement.dataset.at") == "1 1"
    page.act(lambda: page.press(ENTER))
    assert page.outcomes() == expected(model, TEXT)


TAB, SHIFT = "\ue004", "\ue008"
ACTIVE = "return document.activeElement.dataset.at ?? null"


def test_each_grid_is_one_tab_stop(page: Live) -> None:
    page.focus(page.all(".words button")[-1])
    page.press(TAB)
    assert page.js(ACTIVE) == "0 0"
    page.press(*[RIGHT] * 4, DOWN)  # past the heads to the attention block, then down to the next layer
    assert page.js(ACTIVE) == "1 4"
    page.act(lambda: page.press(ENTER))
    assert page.js(ACTIVE) == "1 4"
    page.press(TAB)
    assert page.js("return document.activeElement.dataset.text") == "1 0"
    page.press(TAB)
    assert page.js(ACTIVE) == "1000 0"
    page._actions().key_down(SHIFT).send_keys(TAB, TAB).key_up(SHIFT).perform()
    assert page.js(ACTIVE) == "1 4"
    assert len(page.all(".grid [data-at]:not([tabindex='-1'])")) == 2


@pytest.mark.parametrize("kind", ["ablation", "lens"])
def test_the_grids_of_other_tabs_are_one_tab_stop(live: Live, model: Any, kind: str) -> None:
    live.explore({"m": model}, TEXT, at=f"view={kind}")
    stops = ".grid [data-at]:not([tabindex='-1'])"
    live.until(lambda: len(live.all(stops)) == 1)
    first = live.one(stops).get_attribute("data-at")
    live.focus(live.one(stops))
    live.press(DOWN if kind == "ablation" else "\ue013")
    assert live.js(ACTIVE) != first
    live.press(ENTER)
    live.until(lambda: live.js("return document.activeElement.ariaPressed") == "true")
    assert len(live.all(stops)) == 1


@pytest.mark.parametrize(
    ("button", "text"),
    [("Mask", "I love [MASK] ice cream"), ("Delete", "I love ice cream"), ("", "I love bad ice cream")],
)
def test_a_word_is_masked_deleted_or_replaced(page: Live, model: Any, button: str, text: str) -> None:
    page.click(cell(page, "word 0 2"))
    if button:
        page.act(lambda: page.click(next(each for each in page.all(".word-tools button") if each.text == button)))
    else:
        page.act(lambda: page.press("bad", ENTER))
    assert after(page) == expected(model, text)
    assert page.one("textarea").get_attribute("value") == TEXT
    page.click(cell(page, "word 0 2"))
    page.act(lambda: page.click(next(each for each in page.all(".word-tools button") if each.text == "Put back")))
    assert page.outcomes() == expected(model, TEXT)


def test_rows_and_the_direction_of_a_second_text(page: Live, model: Any) -> None:
    first, second = npformer.trace(model, TEXT)["layers.1.ffn_norm"], npformer.trace(model, OTHER)["layers.0.ffn_norm"]
    click(page, "1000 3")
    row = replace_row("layers.0.ffn_norm", 3, second[3])
    assert after(page) == expected(model, TEXT, row)
    other = npformer.trace(model, "the news")["layers.1.ffn_norm"]
    click(page, "1000 3")
    page.type("the news", "1 0")
    slider = page.one("input[aria-label^='Factor of the direction']")
    page.focus(slider)
    page.act(lambda: page.press(RIGHT, RIGHT))
    direction = other.mean(axis=0) - first.mean(axis=0)
    assert after(page) == expected(model, TEXT, add("layers.1.ffn_norm", 0.5 * direction))
    assert not np.array_equal(first, other)
    page.act(lambda: page.click(page.one(".change")))
    assert page.outcomes() == expected(model, TEXT)


@pytest.mark.parametrize("name", ["gpt2", "llama", "en-de-multi30k"])
def test_other_models_are_changed_in_the_same_way(live: Live, name: str, tmp_path: Path) -> None:
    folder = name if "-" in name else tiny.folder(tmp_path / "model", name, "causal-lm")
    model = npformer.load(folder)
    text = "A man is riding a bike." if "-" in name else TEXT
    live.explore({name: model}, text, at="view=change")
    block = "decoder.layers.0.cross_attention" if "-" in name else "layers.1.attention"
    at = live.texts(".grid tbody th").index(
        "cross-attention of decoder layer 0" if "-" in name else "layer 1"
    )  # fmt: skip
    click(live, f"{at} 1")
    assert set(after(live)) >= set(expected(model, text, without_head(f"{block}.context", 1)))
    assert live.texts(".missing") == []
    live.act(lambda: live.click(live.one(".change")))
    assert set(after(live)) >= set(expected(model, text))


def test_a_drag_across_many_answers_ends_with_the_last_factor(page: Live, model: Any) -> None:
    slider_of = cell(page, "0 5")
    page.js("arguments[0].scrollIntoView({ block: 'center', inline: 'center' })", slider_of)
    page.act(slider_of.click)
    slider = page.one(".panel input[type=range]")
    page.focus(slider)
    page.act(lambda: page.press(*[RIGHT] * 10))
    page.until(lambda: after(page) == expected(model, TEXT, scale("layers.0.ffn.output", 0.5)))
    assert page.js("return document.activeElement.type") == "range"
