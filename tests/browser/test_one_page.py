"""The page of all views in a browser: tabs, links between views, selections in the address, and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import view
from npformer.interpret.direct_attribution import logit_attribution
from npformer.interpret.traces import trace
from tests.browser.arrays import WORDS, weights
from tests.browser.page import Page
from tests.support import tiny

TEXT = "I love good news about good ice cream"  # tokens 3 and 6 are "good"
KINDS = ["heads", "model", "neurons", "stages", "attribution", "logit", "lens", "ablation"]
#: For each view, the part of an address with every selection that the view keeps in it.
ADDRESSES = {
    "heads": "layer=1&head=2&from=3+6",
    "model": "layer=1&head=3&from=2&to=5",
    "neurons": "layer=1&head=3&from=6",
    "stages": "stage=layers.1.attention.weights&head=2",
    "attribution": "measure=integrated-gradients&order=size",
    "logit": "from=3",
    "lens": "layer=0",
    "ablation": "layer=1&head=2",
}
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.model("distilbert")


@pytest.fixture(scope="module")
def shown(model: Any) -> view.PageView:
    return view.page(model, TEXT, layer=0)


def address(page: Page) -> str:
    return page.js("return location.hash")


def tab(page: Page, kind: str) -> Any:
    return page.one(f".tabs [data-view={kind}]")


def at(page: Page, shown: view.View, words: str, **size: Any) -> None:
    """Opens the address of the page with these selections."""
    page.show(shown, words, **size)


def look(page: Page, part: str) -> list[Any]:
    """Returns the visible selections: the state of every control, and the texts of this part of the page."""
    return page.js(
        """const all = (selector) => [...document.querySelectorAll(selector)];
        return [
        all(`.controls select, ${arguments[0]} select`).map((list) => list.value),
        all("[aria-checked], [aria-pressed], [aria-selected]").map((node) =>
            [node.ariaChecked, node.ariaPressed, node.ariaSelected]),
        document.querySelector("dialog")?.open, document.querySelector(arguments[0])?.innerText]""",
        part,
    )


# --- tabs and the address --------------------------------------------------------------------------------------------


def test_every_view_has_its_tab_and_keeps_its_choices(page: Page, shown: view.PageView) -> None:
    page.show(shown)
    assert page.texts(".tabs a") == ["Heads", "Model", "Neurons", "Stages", "Words", "Logit", "Lens", "Ablate"]
    page.choose("Layer", 1)
    page.until(lambda: address(page) == "#view=heads&layer=1")
    for kind, made in zip(KINDS, shown.texts[0], strict=True):
        page.click(tab(page, kind))
        page.until(lambda kind=kind: address(page).startswith(f"#view={kind}"))
        assert page.text("#heading") == made.heading
        assert page.text("h1") == TEXT  # without [CLS] and [SEP]
        assert page.js("return document.title") == f"{made.heading}: {TEXT}"
        assert "[" not in made.heading
        assert [link.get_attribute("data-view") for link in page.all(".tabs [aria-current=page]")] == [kind]
    page.click(tab(page, "heads"))
    assert address(page) == "#view=heads&layer=1"


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_and_a_reload_keep_every_choice(page: Page, shown: view.PageView, kind: str, model: Any) -> None:
    words = f"view={kind}&{ADDRESSES[kind]}"
    step = list(trace(model, TEXT)).index("layers.1.attention.weights")
    part = f"[data-step='{step}']" if kind == "stages" else "main"
    at(page, shown, f"view={kind}")
    plain = look(page, part)
    at(page, shown, words)
    assert address(page) == f"#{words}"
    first = look(page, part)
    assert first != plain
    page.driver.refresh()
    page.until_ready()
    assert (address(page), look(page, part)) == (f"#{words}", first)


def test_choices_are_written_into_the_address_as_they_are_made(page: Page, shown: view.PageView) -> None:
    page.show(shown)
    page.double_click(page.all(".square")[2])
    page.click(page.all(".from [role=option]")[5])
    page.click(page.all(".to [role=option]")[1])
    assert address(page) == "#view=heads&layer=0&head=2&from=5&to=1"
    page.press("\ue00c")
    page.click(page.all(".square")[0])
    assert address(page) == "#view=heads&layer=0&head=0+2"
    page.click(page.all(".square")[0])
    page.click(page.all(".square")[2])
    assert address(page) == "#view=heads&layer=0&head=none"
    page.click(tab(page, "neurons"))
    page.choose("Head", 3)
    page.until(lambda: address(page) == "#view=neurons&layer=0&head=3&from=0")
    page.click(tab(page, "attribution"))
    page.click(page.segment("By size"))
    assert address(page) == "#view=attribution&order=size"
    page.click(tab(page, "logit"))
    page.click(page.segment("Words"))
    assert address(page) == "#view=logit&parts=words"
    page.click(tab(page, "stages"))
    page.click(page.one(".card h3"))
    assert address(page) == "#view=stages&stage=embeddings.token&head=3"


def test_the_browsers_back_leads_to_the_view_before(page: Page, shown: view.PageView) -> None:
    page.show(shown)
    page.choose("Layer", 1)
    page.click(tab(page, "neurons"))
    page.until(lambda: page.all(".chain, .keys"))
    page.driver.back()
    page.until(lambda: page.text("#heading") == "Attention heads")
    assert address(page) == "#view=heads&layer=1"
    page.driver.forward()
    page.until(lambda: page.text("#heading") == "Attention, neuron by neuron")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("view=hats", "#view=heads&layer=0"),
        ("view=heads&layer=9&head=77&from=-1&show=01&tokens=letters", "#view=heads&layer=0"),
        ("view=neurons&layer=x&head=4&from=99", "#view=neurons&layer=0&head=0&from=0"),
        ("view=stages&stage=nothing&head=1", "#view=stages"),
        ("view=model&layer=1&head=9", "#view=model"),
        ("view=attribution&measure=magic&order=odd", "#view=attribution"),
        ("view=logit&from=99", "#view=logit"),
        ("%E0%A4%A", "#view=heads&layer=0"),
    ],
)
def test_invalid_choices_in_an_address_are_ignored(page: Page, shown: view.PageView, words: str, kept: str) -> None:
    at(page, shown, words)
    assert address(page) == kept


def test_a_single_view_keeps_its_choices_too(page: Page) -> None:
    array = weights(1, 3, 5, len(WORDS), len(WORDS))
    at(page, view.heads(array, tokens=WORDS), "layer=2&head=4&from=3")
    assert page.texts(".to output") == [f"{value:.4f}" for value in array[2, 4, 3]]
    assert page.all(".tabs")[0].is_displayed() is False
    assert address(page) == "#layer=2&head=4&from=3"


def test_several_texts(page: Page, model: Any) -> None:
    page.show(view.page(model, [TEXT, "I love ice"], methods="roll-out"))
    page.click(tab(page, "stages"))
    assert page.text(".text") == TEXT
    page.choose("Text", "I love ice")
    page.until(lambda: page.text(".text") == "I love ice")
    assert address(page) == "#view=stages&text=1"
    page.driver.refresh()
    page.until_ready()
    assert page.text(".text") == "I love ice"
    page.click(tab(page, "heads"))
    page.until(lambda: page.texts(".from .token") == ["[CLS]", "i", "love", "ice", "[SEP]"])


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_head_of_the_model_view_opens_in_the_others(page: Page, shown: view.PageView, model: Any) -> None:
    array = trace(model, TEXT)["layers.1.attention.weights"]
    at(page, shown, "view=model&layer=1&head=3&from=2&to=5")
    page.click(page.one("[data-opens=heads]"))
    page.until(lambda: address(page) == "#view=heads&layer=1&head=3&from=2")
    assert page.texts(".to output") == [f"{value:.4f}" for value in array[3, 2]]
    page.driver.back()
    page.until(lambda: page.text("#detail-title") == "Layer 1, head 3" and page.one("dialog").is_displayed())
    page.click(page.one("[data-opens=neurons]"))
    page.until(lambda: address(page) == "#view=neurons&layer=1&head=3&from=2")
    assert page.texts(".weight output") == [f"{value:.4f}" for value in array[3, 2]]
    page.click(page.one("[data-opens=heads]"))
    page.until(lambda: address(page) == "#view=heads&layer=1&head=3&from=2")
    page.click(page.one("#to-neurons"))
    page.until(lambda: page.text("#heading") == "Attention, neuron by neuron")


def test_a_head_of_the_logit_view_opens_its_lines(page: Page, shown: view.PageView) -> None:
    at(page, shown, "view=logit")
    page.click(page.one("[aria-label^='Layer 1, head 2']"))
    page.until(lambda: address(page) == "#view=heads&layer=1&head=2&from=0")


def test_a_head_leads_to_the_answer_without_it(page: Page, shown: view.PageView) -> None:
    at(page, shown, "view=heads&layer=1&head=2")
    page.click(page.one("#to-ablation"))
    page.until(lambda: address(page) == "#view=ablation&layer=1&head=2")
    assert page.text(".panel h2") == "Without layer 1, head 2"
    page.click(page.one("[data-opens=heads]"))
    page.until(lambda: address(page) == "#view=heads&layer=1&head=2")


def test_a_view_alone_has_no_links_to_others(page: Page, model: Any) -> None:
    at(page, view.model(model, TEXT), "layer=1&head=3")
    assert page.all("[data-opens]") == []
    at(page, view.heads(model, TEXT), "head=1")
    assert page.all("#to-neurons") == []


# --- the logit view --------------------------------------------------------------------------------------------------


def test_the_logit_view_has_every_number(page: Page, model: Any) -> None:
    found = logit_attribution(model, TEXT)
    page.show(view.logit(model, TEXT))

    def cells() -> list[str]:
        return [cell for cell in page.texts("tbody td:not(.lens)") if cell]

    def printed(values: np.ndarray) -> list[str]:
        texts = (f"{value:z.3f}" for value in values.ravel() if not np.isnan(value))
        return ["0" if text == "0.000" else text for text in texts]

    assert cells() == printed(found.by_layer().values)
    assert page.texts(".lens .token") == list(found.lens_labels)
    page.choose("Read from", "3 good")
    page.until(lambda: cells() == printed(found.heads[:, :, 3]))
    page.click(page.segment("Words"))
    page.until(lambda: cells() == printed(found.by_word().values))
    assert page.texts("tbody th .token") == list(found.tokens)


def test_the_largest_parts_of_a_logit_are_listed(page: Page, model: Any) -> None:
    found = logit_attribution(model, TEXT)
    page.show(view.logit(model, TEXT))
    table = found.by_layer()
    parts = table.values[:, [column not in table.plain for column in table.columns]]
    largest = sorted(parts[np.isfinite(parts)].tolist(), key=abs, reverse=True)[:10]
    assert page.texts(".panel output") == [f"{value:+.3f}" for value in largest]
    page.click(page.segment("Words"))
    sums = sorted(found.words.sum(axis=0).tolist(), key=abs, reverse=True)[:10]
    page.until(lambda: page.texts(".panel output") == [f"{value:+.3f}" for value in sums])


# --- words -----------------------------------------------------------------------------------------------------------


def test_repeated_words_are_numbered(page: Page, shown: view.PageView) -> None:
    at(page, shown, "view=heads&head=1&from=3")
    assert page.texts(".panel .placed sub").count("3") >= 8  # the lines begin at the first "good"
    assert {"3", "6"} == set(page.texts(".panel .placed sub"))
    at(page, shown, "view=attribution")
    assert page.texts(".list .placed") == ["good3", "good6"] or page.texts(".list .placed") == ["good2", "good5"]
    at(page, shown, "view=model&layer=0&head=0")
    assert page.texts(".names.down .placed") == ["good3", "good6"]
    at(page, shown, "view=stages&stage=layers.0.attention.weights")
    assert "good6" in page.texts(".card .placed")


# --- phones ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_phones_width_is_enough(page: Page, shown: view.PageView, kind: str) -> None:
    for words in (f"view={kind}", f"view={kind}&{ADDRESSES[kind]}"):
        at(page, shown, words, **PHONE)
        assert page.js("return document.documentElement.scrollWidth") <= 360
        cut = page.js("""const scrolls = (node) => node.closest(".scroller, .table, .grid");
            return [...document.querySelectorAll("h1, h2, button, select, .tabs a, .field, output, canvas")]
                .filter((node) => node.offsetParent && !scrolls(node))
                .filter((node) => { const box = node.getBoundingClientRect(); return box.left < 0 || box.right > 360; })
                .map((node) => node.outerHTML.slice(0, 80))""")
        assert cut == []
        tops = {round(link.rect["y"]) for link in page.all(".tabs a")}
        assert len(tops) == 1  # all tabs are on one line


@pytest.mark.parametrize("kind", ["logit", "neurons"])
def test_a_phone_shows_that_a_table_continues(page: Page, shown: view.PageView, kind: str) -> None:
    at(page, shown, f"view={kind}", **PHONE)
    before, after = page.one(".more.before"), page.one(".more.after")
    page.until(after.is_displayed)
    assert not before.is_displayed()
    page.click(after)
    page.until(before.is_displayed)
    page.js("const box = document.querySelector('.scroller'); box.scrollTo({ left: box.scrollWidth })")
    page.until(lambda: not after.is_displayed())


def test_every_head_of_twelve_is_in_a_phones_width(page: Page) -> None:
    page.show(view.model(weights(1, 2, 12, 7, 7), tokens=WORDS), **PHONE)
    boxes = [thumb.rect for thumb in page.all(".thumb")]
    assert max(box["x"] + box["width"] for box in boxes) <= 360
    assert min(box["width"] for box in boxes) >= 20


# --- notebooks and long texts ----------------------------------------------------------------------------------------


def test_a_page_in_a_notebook_has_tabs_and_no_address(page: Page, shown: view.PageView) -> None:
    notebook = page.folder / "notebook.html"
    notebook.write_text(f"<!doctype html><title>notebook</title>{shown._repr_html_()}", encoding="utf-8")
    page.show(notebook, height=1200, wait=False)
    page.driver.switch_to.frame(page.one("iframe"))
    page.until_ready()
    page.click(tab(page, "neurons"))
    page.until(lambda: page.text("#heading") == "Attention, neuron by neuron")
    page.driver.switch_to.default_content()
    assert address(page) == ""


def test_512_tokens_in_every_view(page: Page) -> None:
    model = tiny.model(max_length=512)
    shown = view.page(model, "good ice cream " * 170, methods=["gradient", "roll-out"])
    t = trace(model, "good ice cream " * 170)
    assert len(t.tokens) == 512
    at(page, shown, "view=neurons&layer=1&head=2&from=300&rows=all")
    scores = t["layers.1.attention.scores"][2, 300].astype(np.float64)
    found = [float(number) for number in page.texts(".score output")]
    assert found == pytest.approx(scores, abs=1e-4)
    page.click(tab(page, "stages"))
    page.until(lambda: page.all("[data-step='0'][data-filled]"))
    page.hover(page.one("[data-step='0'] canvas"), 0.5, 0.5)
    assert 250 <= int(page.text(".tip .where").split("(")[1].split(")")[0]) <= 262  # a row in the middle of the text
    page.click(tab(page, "model"))
    page.until(lambda: len(page.all(".thumb[data-drawn]")) == 8)
    page.click(tab(page, "attribution"))
    assert len(page.all(".word")) == 512
    page.click(tab(page, "logit"))
    page.until(lambda: page.all("tbody tr"))


# --- the answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [{}, PHONE])
def test_the_answer_is_above_the_views_and_links_to_its_heads(page: Page, model: Any, size: dict[str, int]) -> None:
    shown = view.page(model, TEXT, methods="roll-out")
    (answer,) = shown.answers
    page.show(shown, **size)
    outcome, share = answer.outcomes[0]
    assert page.texts(".answer .outcomes li")[0].split() == [*outcome.split(), f"{share:.2%}"]
    first, second = answer.effects[:2]
    assert address(page).endswith(f"layer={first.layer}") or f"layer={first.layer}&" in address(page)
    name = f"layer {second.layer}, head {second.head}"
    page.click(next(link for link in page.all(".answer .reason a") if link.text == name))
    page.until(lambda: f"layer={second.layer}&head={second.head}" in address(page))
    assert page.js("return document.documentElement.scrollWidth <= innerWidth")


def test_a_trace_has_no_answer(page: Page, model: Any) -> None:
    page.show(view.page(trace(model, TEXT)))
    assert not page.one(".answer").is_displayed()
