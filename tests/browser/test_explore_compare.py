"""The explorer's tab `Compare` in a browser: answers, first stage that differs, heads, and the choice of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer.interpret.edits import edit, without_head
from tests.browser.live import Live
from tests.browser.test_explore import HEAD, OTHER, SIZES, TEXT, WORD, after, expected
from tests.support import tiny
from tests.support.explorer_client import state


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model, and a copy with one different weight in its last layer, as after fine-tuning."""
    folder = tiny.folder(tmp_path_factory.mktemp("models") / "model", "distilbert")
    base, tuned = npformer.load(folder), npformer.load(folder)
    tuned.weights["layers"][1]["ffn"]["output"]["bias"] = tuned.weights["layers"][1]["ffn"]["output"]["bias"] + 1
    return {"base": base, "tuned": npformer.Model(tuned.config, tuned.weights, tuned.folder)}


def answers(live: Live, side: int) -> list[str]:
    found = live.all(".answers > div")[side].find_elements("css selector", ".outcomes li")
    return [" ".join(each.text.split()) for each in found]


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_an_edit_is_compared_with_the_unchanged_model(
    live: Live, models: dict[str, Any], width: int, dark: bool
) -> None:
    base = models["base"]
    live.explore({"base": base}, TEXT, state(TEXT, edits=[HEAD]), "view=compare", width=width, dark=dark)
    change = without_head("layers.1.attention.context", 2)
    assert answers(live, 0) == expected(base, TEXT, change)
    assert answers(live, 1) == expected(base, TEXT)
    assert live.text(".stages .first .part-name") == "layers.1.attention.context"
    with edit(change):
        ours = npformer.trace(base, TEXT)["layers.1.ffn_norm"].astype(float)
    other = npformer.trace(base, TEXT)["layers.1.ffn_norm"].astype(float)
    relative = np.sqrt(np.mean((ours - other) ** 2)) / np.sqrt(np.mean(other**2))
    rows = dict(zip(live.texts(".stages .part-name"), live.texts(".stages output"), strict=True))
    assert rows["layers.0.ffn_norm"] == "0"
    assert float(rows["layers.1.ffn_norm"]) == pytest.approx(relative, abs=6e-4)
    assert live.fits()


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_bars_of_stages_share_one_scale(live: Live, models: dict[str, Any], width: int, dark: bool) -> None:
    live.explore({"base": models["base"]}, TEXT, state(TEXT, OTHER), "view=compare", width=width, dark=dark)
    widths = live.js("return [...document.querySelectorAll('.stages .bar i')].map((bar) => bar.offsetWidth)")
    values = [float(each) for each in live.texts(".stages output")]
    full = live.js("return document.querySelector('.stages .bar').clientWidth")
    assert full > 100
    assert max(values) > 1
    assert [round(each) for each in full * np.sqrt(np.array(values) / max(values))] == pytest.approx(widths, abs=2)
    assert widths.count(max(widths)) == values.count(max(values)) == 1


def test_two_texts_and_two_models_are_compared(live: Live, models: dict[str, Any]) -> None:
    live.explore(models, TEXT, state(TEXT, OTHER, edits=[WORD]), "view=compare")
    live.choose("With", "text B in the unchanged model")
    assert answers(live, 1) == expected(models["base"], OTHER)
    live.choose("With", "the model tuned")
    changed = "I hate good ice cream"
    assert (answers(live, 0), answers(live, 1)) == (
        expected(models["base"], changed),
        expected(models["tuned"], changed),
    )
    assert live.text(".stages .first .part-name") == "layers.1.ffn.output"
    live.act(lambda: live.choose("Model", "tuned"))
    assert after(live) == expected(models["tuned"], changed)
    assert live.state()["options"] == {"model": 1}


def test_heads_that_differ_most_open_their_lines(live: Live, models: dict[str, Any]) -> None:
    base = models["base"]
    live.explore({"base": base}, TEXT, state(TEXT, edits=[{**WORD, "to": "like"}]), "view=compare")
    first, second = npformer.trace(base, "I like good ice cream"), npformer.trace(base, TEXT)
    apart = {
        f"layer {i}, head {h}": np.abs(first[name][h] - second[name][h]).sum(axis=-1).mean() / 2
        for i in (0, 1) for name in [f"layers.{i}.attention.weights"] for h in range(4)
    }  # fmt: skip
    names = live.texts(".apart .parts .part-name")
    assert names == sorted(apart, key=lambda name: -apart[name])
    live.click(live.all(".apart .parts .part-name")[0])
    live.until(lambda: live.js("return document.body.dataset.view") == "heads")
    layer, head = (part.split()[1] for part in names[0].split(", "))
    assert f"layer={layer}&head={head}" in live.js("return location.hash")


def test_without_anything_to_compare_the_tab_says_how(live: Live, models: dict[str, Any]) -> None:
    live.explore({"base": models["base"]}, TEXT, at="view=compare")
    assert "Type text B, change the model or a word" in live.text(".compared")
    live.type(OTHER, "1 0")
    assert answers(live, 1) == expected(models["base"], OTHER)
    assert live.js("return document.activeElement.dataset.text") == "1 0"


def test_a_cell_of_a_notebook_shows_the_page(live: Live, models: dict[str, Any], tmp_path: Any) -> None:
    live.explore({"base": models["base"]}, TEXT)
    assert live.explorer is not None
    cell = tmp_path / "cell.html"
    cell.write_text(f"<!doctype html><title>cell</title><link rel=icon href='data:,'>{live.explorer._repr_html_()}")
    live.driver.get(cell.as_uri())
    live.driver.switch_to.frame(0)
    live.until_ready()
    live.settle()
    assert live.outcomes() == expected(models["base"], TEXT)
    live.driver.switch_to.default_content()
    live.driver.get(live.url)
