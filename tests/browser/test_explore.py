"""The explorer in a browser: typing, the views, undoing changes, the address, saving, on wide and narrow windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import Pair, view
from npformer.interpret.answer import outcome_of
from npformer.interpret.edits import edit, without_head, zero
from npformer.interpret.study_inputs import read_inputs
from npformer.view.explorer.parts import SLOW
from tests.browser.live import Live
from tests.support import tiny
from tests.support.explorer_client import state

TEXT, OTHER = "I love good ice cream", "no news is good news"
SIZES = [(1440, False), (390, True)]
MARIAN = Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"
HEAD = {"kind": "head", "attention": "layers.1.attention", "head": 2}
FFN = {"kind": "stage", "stage": "layers.0.ffn.output"}
WORD = {"kind": "word", "at": 1, "word": "love", "to": "hate"}
KINDS = ["heads", "model", "neurons", "stages", "attribution", "logit", "lens", "ablation"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model of each kind: for single texts, for pairs, for next words, and for translation."""
    place = tmp_path_factory.mktemp("models")
    made = {
        "distilbert": tiny.folder(place / "distilbert", "distilbert"),
        "bert": tiny.folder(place / "bert", "bert"),
        "gpt2": tiny.folder(place / "gpt2", "gpt2", "causal-lm"),
        "llama": tiny.folder(place / "llama", "llama", "causal-lm"),
        "marian": MARIAN,
    }
    return {name: npformer.load(folder) for name, folder in made.items()}


def expected(model: Any, text: Any, *edits: Any) -> list[str]:
    """Returns the engine's outcomes with these edits, as the page shows them."""
    with edit(*edits):
        (inputs,) = read_inputs(model, text).inputs
        found = outcome_of(model, inputs, model.run([inputs])[0])
    assert found is not None
    return [f"{name} {share:.2%}" for name, share in found.outcomes]


def after(live: Live) -> list[str]:
    """Returns the outcomes on the page, without notes and without the numbers from before the changes."""
    found = []
    for each in live.outcomes():
        name, _, number = each.removesuffix("mean of the words' probabilities").partition("% → ")
        found.append(f"{name.rpartition(' ')[0]} {number}" if number else name)
    return found


@pytest.mark.parametrize(("width", "dark"), SIZES)
@pytest.mark.parametrize("name", ["distilbert", "gpt2", "llama", "marian"])
def test_the_answer_and_every_view_follow_the_text(
    live: Live, models: dict[str, Any], name: str, width: int, dark: bool
) -> None:
    live.explore({name: models[name]}, TEXT, width=width, dark=dark)
    texts = [TEXT, OTHER]
    for i, kind in enumerate(each for each in KINDS if live.all(f".tabs [data-view={each}]")):
        text = texts[(i + 1) % 2] + " you"[: 4 * (i % 3)]
        live.type(text)
        live.click(live.one(f".tabs [data-view={kind}]"))
        live.until(lambda kind=kind: live.js("return document.body.dataset.view") == kind)
        assert live.texts(".missing") == [], kind
        assert set(after(live)) >= set(expected(models[name], text)), (kind, text)
        assert live.text("#heading")
        assert live.fits()


def test_views_show_the_numbers_of_the_text_that_was_typed(live: Live, models: dict[str, Any]) -> None:
    """The exact weights next to the lines equal the engine's weights for the second text."""
    model = models["distilbert"]
    live.explore({"m": model}, TEXT, at="view=heads&layer=1&head=2&from=2")
    live.type(OTHER)
    weights = npformer.trace(model, OTHER)["layers.1.attention.weights"][2, 2]
    numbers = live.texts(".to [role=option] .number")
    assert [float(each) for each in numbers] == [round(float(each), 4) for each in weights]
    assert live.js("return document.title") == f"Attention heads: {OTHER}"


def test_a_pair_has_two_fields(live: Live, models: dict[str, Any]) -> None:
    model = models["bert"]
    live.explore({"m": model}, Pair(TEXT, OTHER), width=390)
    assert len(live.all("textarea")) == 2
    live.type("no good news", "0 1")
    assert after(live) == expected(model, Pair(TEXT, "no good news"))
    live.type("the news", "0 0")
    assert after(live) == expected(model, Pair("the news", "no good news"))


def test_typing_quickly_computes_little_and_shows_the_last(live: Live, models: dict[str, Any]) -> None:
    live.explore({"m": models["distilbert"]}, "I")
    letters = " love ice cream news"
    assert len(letters) == 20
    before = live.explorer.computed
    area = live.one("textarea")
    area.send_keys(letters)
    live.until(lambda: live.state()["texts"] == [["I" + letters]])
    live.settle()
    assert live.explorer.computed - before <= 2 * 3  # each answer is followed by the effects of its words and heads
    assert after(live) == expected(models["distilbert"], "I" + letters)


@pytest.mark.parametrize(("width", "dark"), SIZES)
@pytest.mark.parametrize("name", ["distilbert", "gpt2"])
def test_an_outcome_is_explained_by_a_click_until_its_chip_is_removed(
    live: Live, models: dict[str, Any], name: str, width: int, dark: bool
) -> None:
    model = models[name]
    live.explore({"m": model}, TEXT, width=width, dark=dark)
    before = live.texts(".answer .reason li")
    number = int(np.atleast_2d(npformer.trace(model, TEXT)["probabilities"])[-1].argsort()[-2])
    outcome = live.all(".outcome")[1]
    label = outcome.text
    live.focus(outcome)  # with the keyboard
    live.act(lambda: live.press("\ue007"))
    assert live.state()["options"] == {"explained": number}
    assert live.texts(".answer .reason p")[0] in (f"Words for {label}", f"Words against {label}")
    assert f"the log-odds of {label}" in live.text(".units") or f"the log-odds of '{label}'" in live.text(".units")
    scores = view.attribution(model, TEXT, label=number, methods="leave-one-out", progress=False).methods[0].scores
    found = [float(each.rsplit(" ", 1)[1]) for each in live.texts(".answer .reasons:nth-of-type(1) li")]
    assert max(found) == pytest.approx(scores.max(), abs=0.006) or min(found) == pytest.approx(scores.min(), abs=0.006)
    assert live.outcomes()[0] == expected(model, TEXT)[0]  # the explanation does not change the answer
    live.click(live.one(".tabs [data-view=attribution]"))
    live.until(lambda: label in live.text("main .about"))
    live.driver.refresh()
    live.until_ready()
    live.settle()
    assert live.text(".change.explained bdi") == label
    assert live.fits()
    live.click(next(each for each in live.all(".tools button") if each.text == "As Python"))
    live.until(lambda: f"label={number}" in live.text(".program pre"))
    live.press("\ue00c")
    live.act(lambda: live.click(live.one(".change.explained")))
    assert live.texts(".answer .reason li") == before
    assert live.state()["options"] == {}
    live.act(lambda: live.click(live.all(".outcome")[1]))
    live.act(lambda: live.click(live.all(".outcome")[1]))  # a second click returns to the model's own answer
    assert not live.all(".change.explained")


@pytest.mark.parametrize("kind", SLOW)
def test_the_answer_does_not_wait_for_a_view_that_runs_the_model_many_times(
    live: Live, models: dict[str, Any], kind: str
) -> None:
    live.explore({"m": models["distilbert"]}, TEXT, at=f"view={kind}")
    live.js("window.asked = []; const own = fetch; window.fetch = (route, sent) => "
            "(asked.push(JSON.parse(sent.body).parts.join()), own(route, sent))")  # fmt: skip
    live.act(lambda: live.one("textarea").send_keys(" now"))
    assert live.js("return asked.slice(-3)") == ["answer", kind, "reasons"]


def test_the_first_letter_after_a_pause_is_computed_at_once_and_the_next_ones_together(
    live: Live, models: dict[str, Any]
) -> None:
    live.explore({"m": models["distilbert"]}, TEXT)
    live.js("return new Promise((done) => setTimeout(done, 400))")
    type_ = """const area = document.querySelector("textarea"), own = fetch;
        window.sent ??= [];
        window.fetch = (route, asked) => (sent.push(JSON.parse(asked.body)), own(route, asked));
        for (const letter of arguments[0]) {
            area.value += letter;
            area.dispatchEvent(new InputEvent("input", { bubbles: true }));
        }
        window.fetch = own;
        return sent.map(({ state }) => state.texts[0][0])"""
    typed: list[list[str]] = []
    live.act(lambda: typed.append(live.js(type_, " now")))
    assert typed == [[f"{TEXT} "]]
    assert after(live) == expected(models["distilbert"], f"{TEXT} now")


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_each_change_is_a_chip_that_a_click_undoes(live: Live, models: dict[str, Any], width: int, dark: bool) -> None:
    model = models["distilbert"]
    live.explore({"m": model}, TEXT, state(TEXT, edits=[HEAD, FFN, WORD]), width=width, dark=dark)
    ours, text = [without_head("layers.1.attention.context", 2), zero("layers.0.ffn.output")], "I hate good ice cream"
    assert live.texts(".applied bdi") == ["without layer 1, head 2", "without FFN of layer 0", "“love” → “hate”"]
    assert after(live) == expected(model, text, *ours)
    assert expected(model, TEXT)[0].replace(" ", ", ") in live.text(".was")
    live.act(lambda: live.click(live.all(".change")[0]))
    assert after(live) == expected(model, text, ours[1])
    live.focus(live.all(".change")[1])  # with the keyboard
    live.act(lambda: live.press("\ue007"))
    assert after(live) == expected(model, TEXT, ours[1])
    live.act(lambda: live.click(live.all(".change")[0]))
    assert live.outcomes() == expected(model, TEXT)
    assert not live.all(".was")
    assert live.fits()


def test_a_word_that_is_typed_over_is_no_longer_changed(live: Live, models: dict[str, Any]) -> None:
    live.explore({"m": models["distilbert"]}, TEXT, state(TEXT, edits=[WORD, HEAD]))
    live.type("I like ice cream")
    assert live.texts(".applied bdi") == ["without layer 1, head 2"]


def test_the_address_keeps_the_state_and_reopens_it(live: Live, models: dict[str, Any]) -> None:
    live.explore({"m": models["distilbert"]}, TEXT, at="view=lens")
    live.type(OTHER)
    assert live.state() == state(OTHER)
    changed = live.js("return location.hash")
    assert changed.startswith("#view=lens")
    live.driver.refresh()
    live.until_ready()
    live.settle()
    assert live.outcomes() == expected(models["distilbert"], OTHER)
    live.open(state(TEXT, edits=[HEAD]), "view=model")
    assert live.texts(".applied bdi") == ["without layer 1, head 2"]
    assert live.one("textarea").get_attribute("value") == TEXT
    for wrong in ({"texts": "b"}, {"texts": [[OTHER]], "edits": [1]}):
        live.open(wrong)
        assert live.outcomes() == expected(models["distilbert"], TEXT)
    live.open(state(TEXT, edits=[HEAD | {"kind": "hat"}]))
    assert "state.edits[0]: expected a change with a kind" in live.text(".problem")
    live.act(lambda: live.click(live.one(".change")))
    assert live.outcomes() == expected(models["distilbert"], TEXT)
    assert live.driver.get_log("browser")  # the browser logs the status 400


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_a_link_is_copied_that_reopens_the_page(live: Live, models: dict[str, Any], width: int, dark: bool) -> None:
    live.explore({"m": models["distilbert"]}, TEXT, state(TEXT, edits=[HEAD]), "view=lens", width=width, dark=dark)
    live.js("navigator.clipboard.writeText = async (text) => { window.link = text }")
    button = next(each for each in live.all(".tools button") if each.text == "Copy link")
    assert "while the server runs" in button.get_attribute("title")
    live.focus(button)  # with the keyboard
    live.press("\ue007")
    live.until(lambda: live.text(".tools .copied") == "Copied.")
    link = live.js("return window.link")
    live.driver.get("about:blank")
    live.driver.get(link)
    live.until_ready()
    live.settle()
    assert live.js("return document.body.dataset.view") == "lens"
    assert live.texts(".applied bdi") == ["without layer 1, head 2"]
    live.js("navigator.clipboard.writeText = () => Promise.reject(new Error())")
    live.click(next(each for each in live.all(".tools button") if each.text == "Copy link"))
    live.until(lambda: live.text(".tools .copied") == "The browser does not let this page copy.")
    assert live.fits()


def test_a_page_is_saved_as_the_offline_file(live: Live, models: dict[str, Any]) -> None:
    live.explore({"m": models["distilbert"]}, TEXT, state(TEXT, edits=[HEAD]))
    live.js(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#saved'; }"
    )
    live.click(next(each for each in live.all(".tools button") if each.text == "Save page"))
    live.until(lambda: live.js("return window.saved"))
    with edit(without_head("layers.1.attention.context", 2)):
        assert live.js("return window.saved") == view.page(models["distilbert"], TEXT).html()


def test_the_state_is_shown_as_python(live: Live, models: dict[str, Any]) -> None:
    live.explore({"distilbert-sst2": models["distilbert"]}, TEXT, state(TEXT, edits=[HEAD]))
    live.click(next(each for each in live.all(".tools button") if each.text == "As Python"))
    live.until(lambda: live.js("return document.querySelector('dialog.program').open"))
    assert 'without_head("layers.1.attention.context", 2),' in live.text("dialog.program pre")
    live.press("\ue00c")
    assert not live.js("return document.querySelector('dialog.program').open")


def test_a_text_that_cannot_be_read_leaves_the_page_usable(live: Live, models: dict[str, Any]) -> None:
    live.explore({"m": models["distilbert"]}, TEXT, state(TEXT, edits=[HEAD | {"head": 9}]))
    assert "expected a head from 0 to 3, got 9" in live.text(".problem")
    live.act(lambda: live.click(live.one(".change")))
    assert not live.one(".problem").is_displayed()
    assert live.outcomes() == expected(models["distilbert"], TEXT)


def test_views_that_are_gone_listen_no_more(live: Live, models: dict[str, Any]) -> None:
    """After twenty texts, a change of the theme redraws no more than after the first text."""
    live.explore({"m": models["distilbert"]}, TEXT)
    for i in range(20):
        live.type(f"the news {i}")
    live.js("window.drawn = 0; const own = CanvasRenderingContext2D.prototype.scale;"
            "CanvasRenderingContext2D.prototype.scale = function (...at) { window.drawn += 1; own.apply(this, at); }")  # fmt: skip
    live.click(live.one("#theme"))
    live.js("return new Promise((done) => setTimeout(done, 200))")
    assert live.js("return window.drawn") <= 2


def test_the_end_of_the_server_is_told(live: Live, models: dict[str, Any]) -> None:
    live.explore({"m": models["distilbert"]}, TEXT)
    live.close()
    area = live.one("textarea")
    area.send_keys(" now")
    live.until(lambda: "The server has ended" in live.text(".problem"))
    assert live.js("return document.documentElement.dataset.stale") == "yes"  # the answer belongs to the previous text
    live.until(lambda: live.js("return getComputedStyle(document.querySelector('.answer')).opacity") == "0.6")
    assert live.driver.get_log("browser")  # the browser logs the refused connection
