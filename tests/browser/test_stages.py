"""The stage view in a browser: from text to label, with the same shapes, formulas and numbers as the trace."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from npformer import view
from npformer.interpret.traces import trace
from tests.browser.arrays import encoder_decoder
from tests.browser.page import Page
from tests.support import tiny

TEXT = "I love ice cream"
ENTER = "\ue007"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.model("distilbert")


def card(page: Page, names: list[str], name: str) -> str:
    """Opens a stage's layer and shows the stage's numbers; returns the selector of the stage's card."""
    step = names.index(name)
    if "layers." in name:
        layer = name.split(".")[1]
        page.js("document.getElementById(arguments[0]).open = true", f"layer-{layer}")
    selector = f"[data-step='{step}']"
    page.until(lambda: page.all(selector))
    page.js("document.querySelector(arguments[0]).scrollIntoView()", selector)
    page.until(lambda: page.all(f"{selector}[data-filled]"))
    return selector


def test_text_tokens_ids_and_label(page: Page, model: Any) -> None:
    page.show(view.stages(model, TEXT))
    t = trace(model, TEXT)
    assert page.text(".text") == TEXT
    assert page.texts(".chips .token") == t.tokens
    assert page.texts(".chips small") == [str(number) for number in t.ids]
    assert page.texts("#label tbody .token") == ["NEGATIVE", "POSITIVE"]
    assert page.texts("#label td:nth-of-type(1)") == [f"{value:.4f}" for value in t["logits"]]
    assert page.texts("#label .share") == [f"{value:.4f}" for value in t["probabilities"]]
    assert page.text("#label .best .token") == t.label


def test_every_stage_has_its_card_in_order(page: Page, model: Any) -> None:
    t = trace(model, TEXT)
    page.show(view.stages(t))
    page.js("document.querySelectorAll('details').forEach((block) => { block.open = true; })")
    page.until(lambda: len(page.all(".card")) == len(t))
    assert page.js(
        "return [...document.querySelectorAll('.card')].map((c) => c.getAttribute('aria-label').split(',')[0])"
    ) == list(t)
    assert page.texts(".shape") == [str(t[name].shape).replace(",)", ")") for name in t]
    plain = page.js("return [...document.querySelectorAll('.formula')].map((f) => f.textContent.replaceAll(' ', ''))")
    formulas = [t.row(name).formula for name in t]
    assert plain == [re.sub(r"\b([A-Za-z])_|[ ^]", r"\1", each) for each in formulas]


def test_the_name_of_an_array_in_a_formula_keeps_its_underscores(page: Page) -> None:
    t = trace(tiny.model("bert", "token-classification"), TEXT)
    page.show(view.stages(t))
    assert page.text(f"{card(page, list(t), 'embeddings.segment')} .formula") == "S[token_type_ids]"
    assert page.text(f"{card(page, list(t), 'logits')} .formula") == "layers.1.ffn_norm W + b"
    assert page.texts(f"{card(page, list(t), 'layers.0.attention.key')} sub") == ["K", "K"]


def test_corner_numbers_and_the_number_under_the_pointer(page: Page, model: Any) -> None:
    t = trace(model, TEXT)
    page.show(view.stages(t))
    for name in (
        "embeddings.norm", "layers.0.attention.query", "layers.1.ffn.activation", "layers.1.ffn_norm", "pooled",
    ):  # fmt: skip
        array = np.atleast_2d(t[name])
        selector = card(page, list(t), name)
        corner = np.concatenate([array[:, :3], array[:, -3:]], axis=1)
        cells = [cell for cell in page.texts(f"{selector} td") if cell != "…"]
        assert cells == [f"{value:z.4f}" for value in corner.ravel()], name
        row, column = len(array) // 2, array.shape[1] * 2 // 3
        page.hover(page.one(f"{selector} canvas"), (column + 0.5) / array.shape[1], (row + 0.5) / len(array))
        assert page.text(".tip output") == f"{array[row, column]:z.4f}", name
        assert page.text(".tip .where").endswith(f"column {column}"), name


def test_heads_have_a_chooser(page: Page, model: Any) -> None:
    t = trace(model, TEXT)
    page.show(view.stages(t))
    name = "layers.0.attention.weights"
    selector = card(page, list(t), name)
    for head in range(4):
        page.js(
            """const list = document.querySelector(arguments[0] + ' select');
            list.value = arguments[1]; list.dispatchEvent(new Event('change'));""",
            selector,
            str(head),
        )
        assert page.texts(f"{selector} td") == [f"{value:.4f}" for value in t[name][head].ravel()]


def test_ranges_are_of_the_whole_stage(page: Page, model: Any) -> None:
    t = trace(model, TEXT)
    page.show(view.stages(t))
    selector, array = card(page, list(t), "layers.0.ffn.hidden"), t["layers.0.ffn.hidden"].astype(np.float64)
    spread = [array.min(), array.max(), array.mean(), array.std()]
    assert page.texts(f"{selector} .spread dd")[:4] == [f"{value:z.4f}" for value in spread]


def test_the_walk_by_keyboard_opens_the_next_layer(page: Page, model: Any) -> None:
    t = trace(model, TEXT)
    page.show(view.stages(t))
    page.focus(page.one("#layer-0 summary"))
    names = [name for name in t if name.startswith("layers.0.")]

    def focused() -> str:
        return page.js(
            """const at = document.activeElement, card = at.closest(".card");
            return (card ? card.ariaLabel : at.textContent).split(",")[0];"""
        )

    for name in names[:3]:
        page.press("j")
        assert focused() == name
    page.press("k")
    assert focused() == names[1]
    page.press(*"j" * (len(names) - 1))
    assert focused().startswith("Layer 1")
    page.press("n")
    page.until(lambda: focused() == "layers.1.attention.query")
    page.press("p")
    assert focused().startswith("Layer 1")


def test_the_list_of_sections_leads_to_each(page: Page, model: Any) -> None:
    page.show(view.stages(model, TEXT))
    links = page.all("nav a")
    assert [link.text for link in links] == ["Text and tokens", "Embeddings", "Layer 0", "Layer 1", "Head", "Label"]
    links[3].click()
    assert page.js("return document.getElementById('layer-1').open")
    page.until(lambda: page.all("#layer-1 .card"))
    page.focus(links[4])
    page.press(ENTER)
    page.until(lambda: page.js("return document.activeElement.closest('details').id") == "head")


def test_long_stages_keep_their_ends_and_their_middle(page: Page) -> None:
    tokens, arrays = ["w"] * 300, {}
    for number in range(12):
        arrays[f"layers.{number}.ffn.hidden"] = (
            np.random.default_rng(number).standard_normal((300, 512)).astype(np.float32)
        )
    page.show(view.stages(arrays, tokens=tokens, formulas={"layers.0.ffn.hidden": "mine"}))
    assert "Longer axes show 384 indices" in page.text("#notes")
    assert page.text(".formula") == "mine"
    cells = [cell for cell in page.texts("[data-step='0'] tbody tr:last-child td") if cell != "…"]
    array = arrays["layers.0.ffn.hidden"]
    assert cells == [f"{value:z.4f}" for value in [*array[-1, :3], *array[-1, -3:]]]
    page.hover(page.one("[data-step='0'] canvas"), 200.5 / 384, 172.5 / 300)  # the middle of both axes
    row, column = map(int, re.fullmatch(r"w \((\d+)\), column (\d+)", page.text(".tip .where")).groups())
    assert (row, column) == (pytest.approx(172, abs=1), pytest.approx(3 + 197 * 505 // 377, abs=3))  # of a pixel
    assert page.text(".tip output") == f"{array[row, column]:z.4f}"


def test_source_and_target_of_an_encoder_decoder(page: Page) -> None:
    source, target = ("die", "zeit", "fliegt", "</s>"), ("time", "</s>")
    arrays = encoder_decoder(source, target)
    page.show(view.stages(arrays, tokens=target, key_tokens=source))
    assert page.texts("[data-side=keys] .token") == list(source)
    assert page.texts("[data-side=queries] .token") == list(target)
    page.js("document.getElementById('decoder-layer-0').open = true")
    cross = "[data-step='2']"
    page.until(lambda: page.all(f"{cross}[data-filled]"))
    assert page.texts(f"{cross} thead .token") == list(source)
    assert page.texts(f"{cross} tbody .token") == list(target)


def test_a_pair_and_labels_of_ones_own(page: Page) -> None:
    from npformer.text.inputs import Pair

    page.show(view.stages(tiny.model("bert", "next-sentence"), Pair("I love ice", "it is hot")))
    assert page.texts(".text") == ["I love ice", "it is hot"]
    assert len(page.all(".chips [data-segment='1']")) == 4


def test_a_token_is_chosen_and_its_row_is_always_in_the_tables(page: Page, model: Any) -> None:
    text = " ".join(["I love good ice"] * 5)
    t = trace(model, text)
    page.show(view.stages(model, text))
    selector = card(page, list(t), "layers.0.attention.output")
    rows = f"{selector} .numbers tbody tr"
    assert len(page.all(rows)) == 7
    page.click(page.all(".chips button")[9])
    assert page.texts(f"{selector} tbody .chosen th") == [f"{t.tokens[9]}9"]
    assert len(page.all(rows)) == 9
    value = t["layers.0.attention.output"][9, 0]
    assert float(page.text(f"{selector} tbody .chosen td").replace("\u2212", "-")) == pytest.approx(value, abs=6e-5)
    page.click(page.all(f"{rows} th")[1])
    assert page.js(
        "return [...document.querySelectorAll('.chips [aria-pressed=true]')].map((b) => b.dataset.token)"
    ) == ["1"]
    assert len(page.all(rows)) == 7
