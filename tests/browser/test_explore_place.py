"""The explorer in a browser: the layer, head and token that are chosen in one tab are chosen in the others, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from tests.browser.live import Live
from tests.browser.test_explore import SIZES, TEXT
from tests.browser.test_explore_step import SCORES, line, numbers, press, shown_name
from tests.support.explorer_client import state

ENTER, SPACE, RIGHT = "\ue007", " ", "\ue014"
WEIGHTS = "layers.1.attention.weights"


@pytest.fixture(scope="module")
def model() -> Any:
    return npformer.load("distilbert-sst2")


def to(page: Live, view: str) -> None:
    page.click(page.one(f".tabs [data-view={view}]"))
    page.until(lambda: page.js("return document.body.dataset.view") == view)
    page.until(lambda: page.js("return document.querySelector('main').children.length"))


def chosen_option(page: Live, label: str) -> str:
    """Returns the text of the chosen option in the list with this label."""
    return page.js(
        "const field = [...document.querySelectorAll('.controls label.field, .array label.field')].find((each) => "
        "each.textContent.startsWith(arguments[0])); return field.querySelector('select').selectedOptions[0].text",
        label,
    )


def stage_head(page: Live, stage: str) -> str:
    """Returns the number of the head that a stage's card shows."""
    card = f".card[aria-label^='{stage},']"
    page.until(lambda: page.all(f"{card}[data-filled]"))
    return page.js("return document.querySelector(arguments[0]).value", f"{card} select")


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_a_head_chosen_in_heads_opens_in_step_stages_and_neurons(
    live: Live, model: Any, width: int, dark: bool
) -> None:
    live.explore({"m": model}, TEXT, at="view=heads", width=width, dark=dark)
    live.choose("Layer", 3)
    live.js("document.querySelector('.square[data-head=\"5\"]').dispatchEvent(new MouseEvent('dblclick'))")
    to(live, "step")
    live.until(lambda: shown_name(live).startswith("weights (12, 7, 7)"))
    assert live.text(".path").startswith("layer 3 ")
    assert chosen_option(live, "Head") == "5"
    stage = npformer.trace(model, TEXT)["layers.3.attention.weights"][5]
    live.until(lambda: np.allclose(numbers(live), stage, atol=6e-5))
    to(live, "stages")
    assert stage_head(live, "layers.3.attention.weights") == "5"
    assert stage_head(live, "layers.3.attention.scores") == "5"
    assert "stage=layers.3.attention.weights" in live.js("return location.hash")
    to(live, "neurons")
    assert (chosen_option(live, "Layer"), chosen_option(live, "Head")) == ("3", "5")
    to(live, "model")
    live.until(lambda: live.all(".thumb[aria-current=true]"))
    assert live.one(".thumb[aria-current=true]").get_attribute("aria-label") == "Layer 3, head 5"
    assert live.fits()


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_a_layer_and_head_chosen_in_step_by_keys_open_in_the_others(
    live: Live, model: Any, width: int, dark: bool
) -> None:
    live.explore({"m": model}, TEXT, at="view=step", width=width, dark=dark)
    press(live, "lll")
    assert live.text(".path").startswith("layer 2 ")
    to(live, "heads")
    assert chosen_option(live, "Layer") == "2"
    assert len(live.all(".square[aria-pressed=true]")) == 12  # no head was chosen
    to(live, "step")
    press(live, "ssnns")
    assert line(live) == SCORES
    live.until(lambda: shown_name(live).startswith("scores"))
    live.choose("Head", 4)
    to(live, "heads")
    assert [each.text for each in live.all(".square[aria-pressed=true]")] == ["4"]
    live.choose("Layer", 1)
    to(live, "step")
    assert line(live) == SCORES  # the same line in the other layer
    assert live.text(".path").startswith("layer 1 ")
    to(live, "lens")
    live.until(lambda: "layer=1" in live.js("return location.hash"))


def test_a_stage_and_its_head_open_in_the_others_and_after_a_reload(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at=f"view=stages&stage={WEIGHTS}")
    assert stage_head(live, WEIGHTS) == "0"
    select = live.one(f".card[aria-label^='{WEIGHTS},'] select")
    live.focus(select)
    live.press("3")  # by keyboard
    live.until(lambda: stage_head(live, "layers.1.attention.scores") == "3")
    live.driver.refresh()
    live.until_ready()
    live.settle()
    assert stage_head(live, WEIGHTS) == "3"
    to(live, "heads")
    assert chosen_option(live, "Layer") == "1"
    assert [each.text for each in live.all(".square[aria-pressed=true]")] == ["3"]
    to(live, "step")
    assert live.text(".path").startswith("layer 1 ")
    press(live, "l")
    to(live, "stages")
    live.until(lambda: "stage=layers.2.attention.weights" in live.js("return location.hash"))


def test_a_layer_without_a_head_is_opened_in_stages(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=step&step=122")  # in layer 3
    to(live, "stages")
    at = """
    const [block, tabs] = [document.getElementById("layer-3"), document.querySelector(".tabs")];
    return [block.open, block.getBoundingClientRect().top - tabs.getBoundingClientRect().bottom]"""
    live.until(lambda: live.js(at)[0] and 0 <= live.js(at)[1] < 40)
    assert live.all("#layer-3 .card[data-filled]")
    to(live, "neurons")
    assert chosen_option(live, "Layer") == "3"


def test_a_translator_s_cross_attention_is_shared(live: Live) -> None:
    model = npformer.load("en-de-multi30k")
    live.explore({"m": model}, "A man is riding a bike.", at="view=neurons&attention=2&layer=1&head=3")
    to(live, "step")
    live.until(lambda: shown_name(live).startswith("weights (4, "))
    stage = npformer.trace(model, "A man is riding a bike.")["decoder.layers.1.cross_attention.weights"][3]
    live.until(lambda: np.allclose(numbers(live), stage, atol=6e-5))
    to(live, "stages")
    assert stage_head(live, "decoder.layers.1.cross_attention.weights") == "3"
    to(live, "heads")
    assert (chosen_option(live, "Layer"), live.js("return location.hash").count("attention=2")) == ("1", 1)


def test_a_closed_head_of_the_model_stays_chosen(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=model")
    live.focus(live.one(".thumb"))
    live.press(RIGHT, ENTER)
    live.until(lambda: live.js("return document.querySelector('main dialog').open"))
    live.press("\ue00c")
    live.until(lambda: live.all(".thumb[aria-current=true]"))
    to(live, "step")
    assert live.text(".path").startswith("layer 0 ")
    live.until(lambda: shown_name(live).startswith("weights"))
    assert chosen_option(live, "Head") == "1"


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_words_that_occur_twice_have_their_number(live: Live, model: Any, width: int, dark: bool) -> None:
    text = "the film is not the best"
    word = {"kind": "word", "at": 4, "word": "the", "to": "a"}
    live.explore({"m": model}, text, at="view=stages&token=5", width=width, dark=dark)
    assert [each[:4] for each in live.texts(".chips button")][1:6] == ["the1", "film", "is20", "not2", "the5"]
    assert live.texts(".chips [aria-pressed=true] sub") == ["5"]
    to(live, "step")
    press(live, "l" + "ssnns")
    live.until(lambda: shown_name(live).startswith("scores"))
    assert live.texts(".numbers thead th") == ["", "[CLS]", "the1", "film", "is", "not", "the5", "best", "[SEP]"]
    live.until(lambda: live.text(".layer-note strong") == "Layer 0 at the5")
    to(live, "change")
    live.until(lambda: live.all(".word"))
    assert live.texts(".word sub") == ["1", "5"]
    live.open(state(text, edits=[word]), "view=change")
    assert live.texts(".applied bdi") == ["\u201cthe\u201d \u2192 \u201ca\u201d (word 5)"]
    assert live.fits()
