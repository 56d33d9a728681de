"""Checks of every view's page: hostile text, no network, notebooks, themes, zoom, printing, and long texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npformer import view
from tests.browser.arrays import (
    HOSTILE,
    PAIR,
    SEGMENTS,
    WORDS,
    head_effects_on,
    head_stages,
    logit_lens_of,
    logit_parts,
    weights,
)
from tests.browser.page import Page
from tests.support import tiny

Make = Callable[[tuple[str, ...]], view.View]


def _stages(tokens: tuple[str, ...]) -> dict[str, np.ndarray]:
    return head_stages(21, length=len(tokens))


VIEWS: dict[str, Make] = {
    "heads": lambda tokens: view.heads(_stages(tokens), tokens=tokens),
    "model": lambda tokens: view.model(_stages(tokens), tokens=tokens),
    "neurons": lambda tokens: view.neurons(_stages(tokens), tokens=tokens),
    "stages": lambda tokens: view.stages(_stages(tokens), tokens=tokens),
    "attribution": lambda tokens: view.attribution(
        _stages(tokens), tokens=tokens, scores={"mine": np.sin(range(len(tokens)))}
    ),
    "logit": lambda tokens: view.logit(logit_parts(tokens)),
    "lens": lambda tokens: view.lens(logit_lens_of(tokens)),
    "ablation": lambda tokens: view.ablation(head_effects_on(tokens)),
    "page": lambda tokens: view.PageView(((VIEWS["neurons"](tokens), VIEWS["heads"](tokens), VIEWS["model"](tokens)),)),
}
every_view = pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
TOKENS = {"heads": ".from .token", "neurons": ".keys .token", "stages": ".chips .token", "attribution": ".word span"}


def seen(token: str) -> str:
    """Returns a token as it is shown: control characters as symbols, lone surrogates and overrides as U+FFFD."""
    pictures = "".join(chr(0x2400 + ord(char)) if ord(char) < 32 else char for char in token)
    return "".join("\ufffd" if char in "\ud800\u202e\u202c" else char for char in pictures) or "\u00a0"


@every_view
def test_hostile_text_is_only_text(page: Page, make: Make) -> None:
    shown = make(HOSTILE)
    page.show(shown)
    title = shown.title.replace("  ", " ").strip()
    assert page.js("return document.title") == title.replace("Inside the model", "Attention, neuron by neuron")
    assert page.js("return document.images.length") == 0
    assert page.js("return document.scripts.length") == 2 + len(page.all("[data-array]"))
    assert page.js("return document.querySelectorAll('main script, main img').length") == 0
    if shown.kind in TOKENS:
        assert page.texts(TOKENS[shown.kind]) == [seen(token) for token in HOSTILE]


def test_hostile_text_in_the_large_map_and_in_tips(page: Page) -> None:
    page.show(VIEWS["model"](HOSTILE))
    page.click(page.one(".thumb"))
    page.until(lambda: page.texts(".names.down .token") == [seen(token) for token in HOSTILE])
    assert page.js("return document.title").startswith("Attention of every head")


def test_right_to_left_words_keep_their_own_direction(page: Page) -> None:
    page.show(VIEWS["heads"](("\u05e9\u05dc\u05d5\u05dd!", "\u202eevil", "plain")))
    assert page.js("return [...document.querySelectorAll('.from bdi')].map((b) => getComputedStyle(b).direction)") == [
        "rtl",
        "ltr",
        "ltr",
    ]
    boxes = [element.rect for element in page.all(".to .place")]
    # a bidirectional override has no effect outside its token
    assert len({round(box["x"] + box["width"] / 2) for box in boxes}) == 1


@every_view
def test_a_screen_reader_gets_names_and_states_and_a_list_of_keys(page: Page, make: Make) -> None:
    page.show(make(WORDS))
    unnamed = page.js("""return [...document.querySelectorAll("button, select, input, [role]:not([role=tooltip], [role=status])")].filter((node) =>
        !(node.ariaLabel || node.closest("label") || node.textContent.trim() || node.hasAttribute("aria-labelledby")))
        .map((node) => node.outerHTML.slice(0, 80))""")
    assert unnamed == []
    states = page.js("""return [...document.querySelectorAll("*")].flatMap((node) =>
        ["hidden", "pressed", "checked", "selected", "current", "multiselectable"]
            .map((name) => node.getAttribute(`aria-${name}`)).filter((value) => value !== null))""")
    assert set(states) <= {"true", "false", "page"}
    page.one(".help summary").click()
    assert len(page.all(".help dt")) == len(page.all(".help dd")) >= 2


@every_view
def test_the_policy_allows_no_network_and_no_other_script(page: Page, make: Make) -> None:
    page.show(make(WORDS))
    policy = page.js("return document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    answer = page.driver.execute_async_script(
        "const done = arguments[0]; fetch('https://example.com/').then(() => done('reached'), () => done('blocked'));"
    )
    assert answer == "blocked"
    lines = page.driver.get_log("browser")  # clears the console
    assert any("Content Security Policy" in line["message"] for line in lines)


def test_several_views_on_one_notebook_page(page: Page) -> None:
    first, second = weights(1, 2, 4, 7, 7), weights(2, 2, 4, 7, 7)
    views = [
        view.heads(first, tokens=WORDS, heads=[1]),
        view.heads(second, tokens=WORDS, heads=[2]),
        VIEWS["model"](WORDS),
    ]
    notebook = page.folder / "notebook.html"
    body = "<hr>".join(each._repr_html_() for each in views)
    notebook.write_text(
        f"<!doctype html><title>notebook</title><style>div {{ color: red }}</style>{body}", encoding="utf-8"
    )
    page.show(notebook, height=2400, wait=False)
    frames = page.all("iframe")
    for frame, array, head in ((frames[0], first, 1), (frames[1], second, 2)):
        page.driver.switch_to.frame(frame)
        page.until_ready()
        page.hover(page.all(".from [role=option]")[3])
        assert page.texts(".to output") == [f"{value:.4f}" for value in array[0, head, 3]]
        assert page.js("try { return parent.document.title } catch (error) { return error.name }") == "SecurityError"
        page.driver.switch_to.default_content()
    page.driver.switch_to.frame(frames[0])
    page.press("\ue00c")
    page.one("#theme").click()
    assert page.js("return document.documentElement.dataset.theme") == "dark"
    page.driver.switch_to.default_content()
    page.driver.switch_to.frame(frames[1])
    assert page.js("return document.documentElement.dataset.theme") == "light"
    page.driver.switch_to.default_content()
    page.driver.switch_to.frame(frames[2])
    page.until_ready()
    page.click(page.one(".thumb"))
    page.until(lambda: page.one("dialog").is_displayed())  # the sandboxed frame opens its own dialog
    page.driver.switch_to.default_content()


@every_view
def test_light_and_dark(page: Page, make: Make) -> None:
    page.show(make(WORDS), dark=True)
    assert page.text("#theme") == "Light theme"
    dark = page.colour("html", "backgroundColor")
    page.one("#theme").click()
    light = page.colour("html", "backgroundColor")
    assert (dark, light) == ("rgb(20, 23, 28)", "rgb(255, 255, 255)")
    page.one("#theme").click()
    assert page.colour("html", "backgroundColor") == dark
    page.media(dark=False)
    page.until(lambda: page.colour("html", "backgroundColor") == light)
    page.js("postMessage('dark', '*')")  # as a page that embeds this page in a frame might do
    page.until(lambda: page.colour("html", "backgroundColor") == dark)
    page.js("postMessage({ theme: 'light' }, '*'); postMessage('other', '*'); postMessage('light', '*')")
    page.until(lambda: page.colour("html", "backgroundColor") == light)


def test_pictures_follow_the_theme(page: Page) -> None:
    page.show(VIEWS["neurons"](WORDS))

    def middle() -> list[int]:
        return page.js("""const copy = document.createElement("canvas");
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(document.querySelector(".strip[data-kind=value] canvas"), 0, 0);
            return [...context.getImageData(0, 0, 1, 1).data];""")

    before = page.until(lambda: middle()[3] and middle())
    page.one("#theme").click()
    page.until(lambda: middle()[3] and middle() != before)


@every_view
def test_at_two_hundred_percent_nothing_runs_off_the_page(page: Page, make: Make) -> None:
    """Checks zoom, which halves the window's size in CSS pixels, and a doubled text size."""
    page.show(make(("[CLS]", "internationalization", *PAIR[1:])), width=640, height=700)
    for width, size in ((640, 16), (1280, 32)):
        page.resize(width, 700)
        page.js("document.documentElement.style.fontSize = `${arguments[0]}px`", size)
        page.until(lambda width=width: page.js("return innerWidth") == width)
        assert page.js("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert (
            page.js("""return [...document.querySelectorAll("h1, button, .token, output")]
            .filter((node) => node.offsetParent && parseFloat(getComputedStyle(node).fontSize) < 11).length""")
            == 0
        )


@every_view
def test_paper_is_light_and_has_no_buttons(page: Page, make: Make) -> None:
    shown = make(WORDS)
    page.show(shown, dark=True)
    page.js("addEventListener('beforeprint', () => { window.printed = document.documentElement.dataset.theme; })")
    assert page.cdp("Page.printToPDF", printBackground=True)["data"].startswith("JVBERi0")  # %PDF- in base64
    assert page.js("return window.printed") == "light"
    assert page.js("return document.documentElement.dataset.theme") == "dark"
    page.media(kind="print")
    page.until(lambda: page.js("return document.documentElement.dataset.theme") == "light")
    assert not page.one("#theme").is_displayed()
    words = {
        "heads": ".from .token",
        "model": ".thumb",
        "neurons": ".keys .token",
        "stages": ".chips .token",
        "attribution": ".word",
        "logit": ".grid tbody th",
        "lens": ".grid tbody th",
        "ablation": ".grid tbody th",
        "page": ".keys .token",
    }
    assert all(element.is_displayed() for element in page.all(words[shown.kind]))


@pytest.mark.parametrize("kind", ["logit", "lens", "ablation", "neurons"])
def test_a_wide_table_is_printed_whole(page: Page, kind: str) -> None:
    shown = getattr(view, kind)(
        tiny.model("gpt2", "causal-lm", n_heads=16), "I love good ice cream and no bad ice cream so good"
    )
    page.show(shown, width=400)
    assert any(arrow.is_displayed() for arrow in page.all(".more"))
    page.media(kind="print")
    page.until(lambda: not any(arrow.is_displayed() for arrow in page.all(".more")))
    clips = "(node) => getComputedStyle(node).overflowX !== 'visible' && node.scrollWidth > node.clientWidth + 1"
    assert (
        page.js(f"return [...document.querySelectorAll('main div')].filter({clips}).map((node) => node.className)")
        == []
    )


def test_the_printed_head_view_has_all_its_lines(page: Page) -> None:
    page.show(view.heads(weights(3, 1, 90, 90), tokens=["w"] * 90), height=600)
    page.click(page.segment("All 90"))
    page.js("addEventListener('beforeprint', () => { window.printed = document.querySelector('canvas').height; })")
    page.cdp("Page.printToPDF")
    assert page.js("return window.printed") == 90 * 26


def looks_like_a_trained_model(layers: int, heads: int, length: int) -> list[np.ndarray]:
    """Returns weights as uneven as a trained model's: about half of each row on a few tokens, the rest spread out."""
    return [weights(layer, heads, length, length, sharp=3.0) for layer in range(layers)]


@pytest.mark.parametrize("kind", ["heads", "model"])
def test_twelve_by_twelve_heads_at_128_tokens(page: Page, kind: str) -> None:
    array = looks_like_a_trained_model(12, 12, 128)
    shown = getattr(view, kind)(array, tokens=[f"w{i}" for i in range(128)])
    path = shown.save(page.folder / "view.html")
    assert path.stat().st_size < 1_500_000
    page.show(path)
    # the page sets this mark once, when it is drawn
    assert page.js("return performance.getEntriesByName('ready').length") == 1
    if kind == "heads":
        page.click(page.segment("All 128"))
        page.hover(page.all(".from [role=option]")[90])
        assert page.texts(".to output") == [f"{value:.3f}" for value in array[0][:, 90].max(axis=0)]
    else:
        page.hover(page.all(".thumb")[12 * 11 + 5], 0.7, 0.3)
        page.until(lambda: page.text(".tip .where") == "Layer 11, head 5")
        query, key = (int(token[1:]) for token in page.texts(".tip .token"))
        assert (query / 128, key / 128) == pytest.approx((0.3, 0.7), abs=0.05)  # pixels, of 88
        assert page.text(".tip output") == f"{array[11][5, query, key]:.3f}"


def test_512_tokens_stay_usable(page: Page) -> None:
    array = looks_like_a_trained_model(2, 12, 512)
    page.show(view.heads(array, tokens=[f"w{i}" for i in range(512)], layer=1))
    page.click(page.segment("All 512"))
    canvas = page.one(".lines canvas").size
    assert canvas["height"] <= 900  # at most the height of the window, whatever the length of the text
    page.focus(page.one(".from [tabindex='0']"))
    page.press("\ue010")
    assert page.texts(".to output") == [f"{value:.3f}" for value in array[1][:, 511].max(axis=0)]
    page.js("""[480, 3, 200, 90, 401].forEach((i) => {
        const option = document.querySelectorAll(".from [role=option]")[i];
        option.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    });""")
    assert page.texts(".to output") == [f"{value:.3f}" for value in array[1][:, 401].max(axis=0)]


def test_512_tokens_in_the_model_view(page: Page) -> None:
    array = looks_like_a_trained_model(2, 12, 512)
    page.show(view.model(array, tokens=[f"w{i}" for i in range(512)]))
    page.until(lambda: len(page.all(".thumb[data-drawn]")) == 24)
    page.click(page.all(".thumb")[17])
    page.until(lambda: page.text("#detail-title") == "Layer 1, head 5")
    assert page.text(".reading output") == f"{array[1][5].max():.3f}"


def test_a_pair_reads_the_same_in_a_file_with_spaces(page: Page, tmp_path: Path) -> None:
    path = view.heads(weights(5, 2, 9, 9), tokens=PAIR, token_type_ids=SEGMENTS).save(tmp_path / "a view of #1.html")
    page.show(path)
    assert page.texts(".from .token") == list(PAIR)
