"""The explorer in a browser: sentences in Step about what a layer does at the chosen token."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.interpret.edits import edit, replace_row
from tests.browser.live import Live
from tests.browser.test_explore import SIZES
from tests.browser.test_explore_place import to
from tests.browser.test_explore_step import SCORES, change_line, press, to_scores

TEXT, NOT = "The film is not bad and the end is good", 4


@pytest.fixture(scope="module")
def model() -> Any:
    return npformer.load("distilbert-sst2")


def note(page: Live, start: str) -> str:
    """Waits for the current state's sentences with this beginning, and returns them."""
    page.until(lambda: page.text(".layer-note").startswith(start) and not page.all(".layer-note.old"))
    return page.text(".layer-note")


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_sentences_say_what_a_layer_does_at_a_token(live: Live, model: Any, width: int, dark: bool) -> None:
    live.explore({"m": model}, TEXT, at="view=step", width=width, dark=dark)
    note(live, "Choose a layer and a token to read here")
    press(live, "llll")
    note(live, "Choose a token to read here")
    live.choose("Token", "4 not")
    said = note(live, "Layer 3 at not")
    stages = npformer.trace(model, TEXT)
    weights = stages["layers.3.attention.weights"][:, NOT].mean(axis=0)
    first = int(weights.argmax())
    assert f"the 12 heads of its attention read {stages.tokens[first]} ({weights[first]:.0%})" in said
    lengths = [
        np.linalg.norm(stages[f"layers.3.{added}"][NOT]) / np.linalg.norm(stages[row][NOT])
        for added, row in (("attention.output", "layers.2.ffn_norm"), ("ffn.output", "layers.3.attention_norm"))
    ]
    assert (
        f"Attention adds a vector {lengths[0]:.2f} times as long as the token's row, the FFN one {lengths[1]:.2f} times"
    ) in said
    shares = []
    for block in ("attention", "ffn"):
        with edit(replace_row(f"layers.3.{block}.output", NOT, np.zeros(model.config.d_model))):
            shares.append(npformer.trace(model, TEXT)["probabilities"].max())
    found = re.findall(r"([\d.]+)% \([+-][\d.]+ in log-odds\) without what", said)
    assert [float(each) for each in found] == pytest.approx([100 * each for each in shares], abs=0.011)
    assert live.fits()


def test_the_sentences_follow_the_layer_the_head_and_the_text(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=heads&layer=3&head=2&from=4")
    to(live, "step")
    assert "Head 2 reads " in note(live, "Layer 3 at not")
    live.focus(live.one("select[aria-label=Token]"))  # by keyboard
    live.press("5")
    note(live, "Layer 3 at bad")
    press(live, "l")
    note(live, "Layer 4 at bad")
    live.type("The film is not good")
    assert "of its attention read" in note(live, "Layer 4 at good")
    live.choose("Token", "\u2013")
    note(live, "Choose a token")


def test_the_sentences_are_of_the_model_without_changed_lines(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=step&token=4")
    to_scores(live, 0)
    before = note(live, "Layer 0 at not")
    change_line(live, SCORES.removesuffix(" / math.sqrt(q.shape[-1])"))
    after = note(live, "Layer 0 at not")
    assert after == f"{before}These sentences ignore the changed lines."


def test_a_translator_and_a_model_without_an_answer(live: Live) -> None:
    model = npformer.load("en-de-multi30k")
    live.explore({"m": model}, "A man is riding a bike.", at="view=step&token=2")
    press(live, "l")
    assert "The encoder reads the source" in note(live, "The encoder")
    press(live, "l" * model.config.encoder.n_layers if hasattr(model.config, "encoder") else "llll")
    said = note(live, "Decoder layer 0 at ")
    assert "the heads of its cross-attention read" in said
    assert "The translation's words have a mean probability of" in said


def test_the_sentences_are_about_the_outcome_that_is_explained(live: Live, model: Any) -> None:
    live.explore({"m": model}, TEXT, at="view=step&layer=3&token=4")
    own = npformer.trace(model, TEXT)["probabilities"]
    other = int(own.argmin())
    live.act(lambda: live.click(live.all(".answer .outcomes button")[1]))
    live.click(live.one(".tabs [data-view=step]"))
    name = model.config.labels[other]
    live.until(lambda: f"{name} has {own.min():.2%}; it would have" in live.text(".layer-note"))
    assert "the answer would be" not in live.text(".layer-note")
