"""The answer in a browser: the next words at each temperature, and the answer at each layer and without a head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npformer import load, view
from npformer.engine.functions import softmax
from npformer.interpret.head_effects import HeadEffects, head_effects
from npformer.interpret.logit_lens import logit_lens
from npformer.interpret.next_words import MOST, TEMPERATURES
from npformer.interpret.traces import trace
from tests.browser.arrays import logit_lens_of
from tests.browser.page import Page
from tests.support import tiny

TEXT = "I love good ice cream"
NOVEL = "It is a truth universally"
RIGHT, DOWN, ENTER, LEFT = "\ue014", "\ue015", "\ue007", "\ue012"


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"


@pytest.fixture(scope="module")
def causal() -> Any:
    return load("gpt2-austen")


@pytest.fixture(scope="module")
def effects() -> HeadEffects:
    found = head_effects(tiny.model(), TEXT)
    assert found is not None
    return found


def test_a_slider_recomputes_the_softmax_of_the_whole_vocabulary(page: Page, causal: Any) -> None:
    """Checks every step of the temperature slider, and the total probability of the words that are not listed."""
    page.show(view.page(causal, NOVEL, methods="roll-out"))
    logits = np.sort(trace(causal, NOVEL)["logits"][-1].astype(np.float64))[::-1]
    slider = page.one(".temperature input")
    at = TEMPERATURES.index(1.0)
    for keys, moved in (("", 0), (RIGHT, 1), (RIGHT * 4, 4), (LEFT * 14, -14)):
        page.focus(slider)
        page.press(*keys)
        at += moved
        shares = softmax(logits / TEMPERATURES[at])
        page.until(lambda at=at: page.text(".temperature output") == f"{TEMPERATURES[at]:.1f}")
        found = page.texts(".answer .outcomes .number")
        assert found == [percent(each) for each in (*shares[:MOST], shares[MOST:].sum())]
    assert page.texts(".answer .outcomes bdi")[-1] == "all other tokens"


def test_a_classifier_has_no_temperature(page: Page) -> None:
    page.show(view.page(tiny.model(), TEXT, methods="leave-one-out"))
    assert page.all(".temperature") == []


def listed(names: list[str], scores: np.ndarray, sign: int) -> list[str]:
    """Returns the names with the largest scores of this sign, except scores below a tenth of the largest."""
    order = [i for i in np.argsort(-np.abs(scores), kind="stable") if abs(scores[i]) > 0.1 * np.abs(scores).max()]
    return [f"{names[i]} {scores[i]:+.2f}" for i in order if sign * scores[i] > 0][:3]


def test_the_answer_names_the_words_and_heads_that_count_most(page: Page) -> None:
    """A positive number supports the answer, both for words and for heads."""
    shown = view.page(tiny.model(), TEXT, methods="leave-one-out")
    (answer,) = shown.answers
    assert answer is not None
    page.show(shown)
    method = next(each for each in shown.texts[0] if isinstance(each, view.AttributionView)).methods[0]
    heads = [f"layer {effect.layer}, head {effect.head}" for effect in answer.effects]
    falls = np.array([-effect.change for effect in answer.effects])
    for side, sign in (("for", 1), ("against", -1)):
        expected = listed(method.words, method.scores, sign) + listed(heads, falls, sign)
        assert page.texts(f".answer .{side} li") == expected
    name = answer.outcomes[0][0]
    assert page.text(".answer .units") == (
        f"Words: how far the log-odds of {name} fall without the word. "
        f"Heads: how far the log-odds of {name} fall without the head."
    )
    page.click(page.all(".answer .reason a")[0])
    page.until(lambda: page.text("#heading") == "Words that count")


def test_the_answer_marks_the_head_that_is_shown(page: Page) -> None:
    page.show(view.page(tiny.model(), TEXT, methods="leave-one-out"))
    marked = ".answer [aria-current=true]"
    layer, head = page.text(marked).replace("layer ", "").split(", head ")
    choices = page.js("return location.hash")
    assert f"layer={layer}" in choices and f"head={head}" in choices  # noqa: PT018
    page.click(page.all(".square")[(int(head) + 1) % 4])  # two heads are shown
    assert page.all(marked) == []
    other = page.all(".answer [data-head]")[-1]
    name = other.text
    page.click(other)
    page.until(lambda: page.texts(marked) == [name])


def test_a_word_that_is_repeated_has_its_place(page: Page) -> None:
    page.show(view.page(tiny.model(), "good good", methods="leave-one-out"))
    words = page.texts(".answer .placed")
    assert words
    assert set(words) <= {"good1", "good2"}  # numbered as in the other views, where [CLS] is row 0
    assert page.texts(".answer .reason bdi") == ["good"] * len(words)


def test_a_click_on_a_head_switches_it_off(page: Page, effects: HeadEffects) -> None:
    page.show(view.ablation(effects))
    cells = [f"{100 * change:z.2f}" for change in effects.changes.ravel()]
    assert page.texts(".grid button") == ["0" if cell == "0.00" else cell for cell in cells]
    assert page.texts(".panel .outcomes output") == [percent(share) for _, share in effects.whole]
    page.click(page.one("[data-at='1 2']"))
    after = dict(effects.outcomes[1][2])
    assert page.text(".panel h2") == "Without layer 1, head 2"
    assert [cell.get_attribute("data-at") for cell in page.all(".grid [aria-pressed=true]")] == ["1 2"]
    assert page.colour(".grid [aria-pressed=true]", "outlineStyle") == "solid"
    assert dict(zip(page.texts(".panel .outcomes .name"), page.texts(".panel .outcomes output"), strict=True)) == {
        name: f"{percent(share)} → {percent(after[name])}" for name, share in effects.whole
    }
    assert page.js("return location.hash") == "#layer=1&head=2"
    page.press(DOWN, LEFT, ENTER)  # DOWN has no effect in the last layer
    assert page.text(".panel h2") == "Without layer 1, head 1"
    page.press(ENTER)
    assert page.text(".panel h2") == "With all heads"


@pytest.mark.parametrize("dark", [False, True])
def test_a_head_for_the_answer_has_one_colour_in_the_table_its_bar_and_above_the_views(
    page: Page, effects: HeadEffects, dark: bool
) -> None:
    """An orange head supports the answer: without it, the answer is less probable. A blue head opposes the answer."""
    page.show(view.ablation(effects), dark=dark)
    warm = """[...arguments[0]].map((node) => {
        const [r, , b] = getComputedStyle(node).backgroundColor.match(/\\d+/g).map(Number);
        return r > b })"""
    cells = page.all(".grid .part:not(.zero)")
    falls = [float(cell.text) < 0 for cell in cells]
    assert set(falls) == {True, False}
    assert page.js(f"return {warm}", cells) == falls
    bars = page.js(f"return {warm}", page.all(".panel .bar i"))
    assert bars == [number.startswith("-") for number in page.texts(".panel .parts output")]


def test_a_change_of_the_answer_is_said(page: Page, effects: HeadEffects) -> None:
    first, second = (name for name, _ in effects.whole)
    turned = (((second, 0.75), (first, 0.25)), *effects.outcomes[0][1:])
    page.show(view.ablation(HeadEffects(first, 0.5, effects.attentions, effects.changes, (turned,) * 2, effects.whole)))
    assert page.text(".about").endswith("The answer changes without layer 0, head 0 or without layer 1, head 0.")
    assert [each.get_attribute("data-at") for each in page.all(".turns button")] == ["0 0", "1 0"]
    page.click(page.one(".about button"))
    assert page.text(".verdict") == f"The answer changes to {second}."
    page.click(page.one("[data-at='0 1']"))
    assert page.text(".verdict") == f"The answer stays {first}."


def test_the_largest_outputs_of_every_layer(page: Page, causal: Any) -> None:
    shown = view.lens(causal, NOVEL)
    count = len(trace(causal, NOVEL).tokens)
    found = logit_lens(causal, NOVEL, range(count))
    page.show(shown)
    assert page.texts(".grid .token")[count:] == [cell[0] for row in found.words for cell in row]
    assert page.texts(".panel .outcomes:first-of-type .name") == list(found.words[-1][-1])

    def printed(share: float) -> str:
        return f"{100 * share:.{2 if share < 0.1 else 1}f}%"

    def numbers() -> list[str]:
        return page.js("return [...document.querySelector('.panel ol').querySelectorAll('output')].map((o) => o.value)")

    assert numbers() == [printed(share) for share in found.probabilities[-1, -1]]
    page.click(page.one("[data-at='1 2']"))
    page.until(lambda: numbers() == [printed(share) for share in found.probabilities[1, 2]])
    through = page.js("return [...document.querySelectorAll('.panel .layers output')].map((o) => o.value)")
    rows = zip(found.followed_probabilities[:, 2], found.followed_places[:, 2], strict=True)
    assert through == [printed(share) + (f", place {place:,}" if place > 1 else "") for share, place in rows]
    assert page.js("return location.hash") == "#layer=0&at=2"


@pytest.mark.parametrize("chosen", ["", "layer=0&at={0}", "layer=0&at={1}", "at={2}"])
def test_the_chosen_token_of_the_lens_is_in_view(page: Page, causal: Any, chosen: str) -> None:
    shown = view.lens(causal, " ".join([NOVEL] * 3))
    first = shown.found.positions[0]
    page.show(shown, at=chosen.format(first, first + 8, first + 13), width=390)
    page.until(
        lambda: page.js("""
        const edge = (selector) => document.querySelector(selector).getBoundingClientRect();
        const [cell, name, box] = [edge("[aria-pressed='true']"), edge("tbody th"), edge(".scroller")];
        return cell.left >= name.right - 1 && cell.right <= box.right + 1;""")
    )


@pytest.mark.parametrize(
    ("leading", "told"),
    [
        ("abbb", "This answer leads from layer 0 on."),
        ("aaab", "Only the last layer has this answer."),
        ("bbab", "This answer leads at embeddings, layer 0, and again from layer 2 on."),
        ("bbbb", "This answer leads from embeddings on."),
    ],
)
def test_the_layers_at_which_the_answer_leads(page: Page, leading: str, told: str) -> None:
    found = logit_lens_of("ab", layers=3, most=2)
    words = tuple(((each, "ab".replace(each, "")),) * 2 for each in leading)
    page.show(view.lens(replace(found, words=words)))
    assert page.text(".about").endswith(told)


def test_labels_have_their_ranks(page: Page) -> None:
    model = tiny.model()
    found = logit_lens(model, TEXT)
    page.show(view.lens(model, TEXT))
    assert page.texts(".grid .token") == [word for row in found.words for word in row[0]]
    assert "The last layer's answer: " in page.text(".about")
