"""The explorer's tab `Write` in a browser: sliders that move the bars, words that are appended, beams as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.engine.functions import softmax
from npformer.generation import generate
from npformer.generation.processors import narrow
from npformer.generation.settings import Settings
from npformer.interpret.study_inputs import read_inputs
from tests.browser.live import Live
from tests.browser.test_explore import SIZES, after, expected
from tests.support import tiny

TEXT = "I love good"
LEFT, RIGHT, HOME = "\ue012", "\ue014", "\ue011"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("models")
    return {
        name: npformer.load(tiny.folder(place / name, name, "causal-lm") if name in ("gpt2", "llama") else name)
        for name in ("gpt2", "llama", "gpt2-austen", "en-de-multi30k")
    }


def shares(model: Any, text: str, **settings: Any) -> list[float | None]:
    """Returns the engine's shares of the twenty words with the largest logits; None if sampling excludes a word."""
    (inputs,) = read_inputs(model, text).inputs
    logits = model.run([inputs])[0]["logits"][-1:].astype(np.float64)
    scores = logits.copy()
    narrow(scores, Settings(start_id=0, **{"top_k": 0, **settings}))
    order = np.argsort(-logits[0], kind="stable")[:20]
    found = softmax(scores)[0][order].tolist()
    return [share if np.isfinite(scores[0][i]) else None for share, i in zip(found, order, strict=True)]


def bars(live: Live) -> list[float | None]:
    """Returns the shares of the words that the page shows."""
    texts = live.texts(".bars output")[:-2]
    return [None if each == "\N{EN DASH}" else float(each[:-1]) / 100 for each in texts]


def agree(live: Live, ours: list[float | None]) -> None:
    assert [each is None for each in bars(live)] == [each is None for each in ours]
    np.testing.assert_allclose([each or 0 for each in bars(live)], [each or 0 for each in ours], atol=6e-5)


def slide(live: Live, label: str, keys: str) -> None:
    live.focus(live.one(f".controls-row [aria-label='{label}']"))
    live.press(*keys)


@pytest.mark.parametrize(("width", "dark"), SIZES)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_sliders_move_the_bars_as_the_engine_samples(
    live: Live, models: dict[str, Any], name: str, width: int, dark: bool
) -> None:
    model = models[name]
    live.explore({name: model}, TEXT, at="view=write", width=width, dark=dark)
    agree(live, shares(model, TEXT))
    slide(live, "Temperature", LEFT * 5)
    agree(live, shares(model, TEXT, temperature=0.5))
    slide(live, "Top-k", HOME + RIGHT * 7)
    agree(live, shares(model, TEXT, temperature=0.5, top_k=7))
    slide(live, "Top-p", LEFT * 14)
    agree(live, shares(model, TEXT, temperature=0.5, top_k=7, top_p=0.3))
    assert bars(live)[6] is None
    assert live.fits()


def test_one_temperature_is_shown_in_the_tab_and_above_the_views(live: Live, models: dict[str, Any]) -> None:
    """The slider above the views is hidden in the tab, and shows the temperature that was chosen there."""
    live.explore({"gpt2": models["gpt2"]}, TEXT, at="view=write")
    assert not live.one(".answer .temperature").is_displayed()
    slide(live, "Temperature", LEFT * 5)
    live.click(live.one(".tabs [data-view='heads']"))
    live.settle()
    live.until(lambda: live.one(".answer .temperature").is_displayed())
    assert live.text(".answer .temperature output") == "0.5"


def test_a_click_appends_a_word_and_is_taken_back(live: Live, models: dict[str, Any]) -> None:
    model, text = models["gpt2-austen"], "It is a truth"
    live.explore({"gpt2-austen": model}, text, at="view=write")
    cache = live.text(".about")
    first = live.texts(".bars .part-name")[0]
    live.act(lambda: live.click(live.all(".bars .part-name")[0]))
    longer = live.one("textarea").get_attribute("value")
    assert longer.startswith(text)
    assert longer[len(text) :].strip() == first.removeprefix("##")
    assert set(after(live)) >= set(expected(model, longer))
    tokens = [int(each.partition("Cache: ")[2].split()[0]) for each in (cache, live.text(".about"))]
    assert tokens[1] == tokens[0] + 1
    agree(live, shares(model, longer))
    live.act(lambda: live.click(next(each for each in live.all(".controls-row button") if each.text == "Take back")))
    assert live.one("textarea").get_attribute("value") == text
    assert live.text(".about") == cache


def test_words_are_written_by_chance_among_those_that_are_kept(live: Live, models: dict[str, Any]) -> None:
    """With top-k 1, each of the ten words is the one with the largest logit."""
    model, text = models["gpt2-austen"], "It is a truth"
    live.explore({"gpt2-austen": model}, text, at="view=write")
    slide(live, "Top-k", HOME + RIGHT)
    live.click(next(each for each in live.all(".controls-row button") if each.text == "Write 10"))
    (inputs,) = read_inputs(model, text).inputs
    ids = inputs.ids.tolist()
    for _ in range(10):
        ids.append(int(model.run([npformer.Text(np.array(ids))])[0]["logits"][-1].argmax()))
    whole = model.tokenizer.decode(ids)
    live.until(lambda: live.js("return document.querySelector('textarea').value") == whole)
    live.settle()
    live.act(lambda: live.click(next(each for each in live.all(".controls-row button") if each.text == "Take back")))
    assert live.one("textarea").get_attribute("value") == text


def test_writing_ends_at_the_length_of_the_model(live: Live, models: dict[str, Any]) -> None:
    model = models["gpt2"]
    most = model.config.max_length
    live.explore({"gpt2": model}, " ".join("a" * (most - 3)), at="view=write")
    live.act(lambda: live.click(live.all(".bars .part-name")[0]))
    buttons = [each for each in live.all(".controls-row button, .bars .part-name") if each.text != "Take back"]
    assert not any(each.is_enabled() for each in buttons)
    assert live.text("main .notice").startswith("The text has the maximum length")


def test_the_beams_of_a_translator_are_a_tree(live: Live, models: dict[str, Any]) -> None:
    model, text = models["en-de-multi30k"], "A man is riding a bike."
    live.explore({"en-de-multi30k": model}, text, at="view=write", width=390)
    (source, _) = read_inputs(model, text).inputs[0]
    (beams,) = generate(model, [source], num_beams=5, num_return_sequences=5)
    assert live.texts(".beams bdi") == [model.tokenizer.decode(each.ids.tolist()) for each in beams]
    assert len(live.all(".tree small")) == 5
    assert len(live.all(".tree .beam-token")) < sum(len(each.ids) for each in beams)  # equal beginnings are drawn once
    assert live.fits()


def test_a_classifier_has_no_tab_to_write(live: Live, tmp_path: Path) -> None:
    live.explore({"m": npformer.load(tiny.folder(tmp_path / "model", "distilbert"))}, TEXT)
    assert "Write" not in live.texts(".tabs a")
