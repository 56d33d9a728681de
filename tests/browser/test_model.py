"""The model view in a browser: every thumbnail responds to the pointer and the keyboard, and can be enlarged."""

from __future__ import annotations

import numpy as np

from npformer import view
from tests.browser.arrays import PAIR, SEGMENTS, WORDS, encoder_decoder, weights
from tests.browser.page import Page

LAYERS, HEADS = 3, 4
WEIGHTS = weights(7, LAYERS, HEADS, len(WORDS), len(WORDS))
DOWN, UP, LEFT, RIGHT, ENTER, ESCAPE = "\ue015", "\ue013", "\ue012", "\ue014", "\ue007", "\ue00c"


def thumb(page: Page, layer: int, head: int) -> object:
    return page.one(f".thumb[data-layer='{layer}'][data-head='{head}']")


def tip(page: Page) -> list[str]:
    return [page.text(".tip .where"), *page.texts(".tip .token"), page.text(".tip output")]


def strongest(array: np.ndarray) -> tuple[int, int]:
    query, key = divmod(int(array.argmax()), array.shape[1])
    return query, key


def test_every_head_of_every_layer_is_drawn(page: Page) -> None:
    page.show(view.model(WEIGHTS, tokens=WORDS))
    assert len(page.all(".thumb")) == LAYERS * HEADS
    page.until(lambda: len(page.all(".thumb[data-drawn]")) == LAYERS * HEADS)


def test_pointing_at_a_thumbnail_shows_the_weight_under_the_pointer(page: Page) -> None:
    page.show(view.model(WEIGHTS, tokens=WORDS))
    size = len(WORDS)
    for layer, head, query, key in ((0, 0, 0, 0), (2, 1, 5, 2), (1, 3, 6, 6), (2, 3, 1, 4)):
        page.hover(thumb(page, layer, head), (key + 0.5) / size, (query + 0.5) / size)
        weight = f"{WEIGHTS[layer, head, query, key]:.4f}"
        expected = [f"Layer {layer}, head {head}", WORDS[query], WORDS[key], weight]
        page.until(lambda expected=expected: tip(page) == expected)
    page.rest()
    page.until(lambda: not page.one(".tip").is_displayed())


def test_the_grid_by_keyboard_announces_each_head_s_strongest_link(page: Page) -> None:
    page.show(view.model(WEIGHTS, tokens=WORDS))
    page.focus(thumb(page, 0, 0))
    page.press(RIGHT, RIGHT, DOWN, LEFT)
    query, key = strongest(WEIGHTS[1, 1])
    expected = ["Layer 1, head 1, strongest", WORDS[query], WORDS[key], f"{WEIGHTS[1, 1, query, key]:.4f}"]
    page.until(lambda: tip(page) == expected)


def test_a_click_shows_a_head_large_and_the_arrows_walk_its_cells(page: Page) -> None:
    page.show(view.model(WEIGHTS, tokens=WORDS))
    page.click(thumb(page, 2, 1))
    page.until(lambda: page.text("#detail-title") == "Layer 2, head 1")
    query, key = strongest(WEIGHTS[2, 1])

    def reading() -> list[str]:
        return [*page.texts(".reading .token"), page.text(".reading output")]

    def at(query: int, key: int, layer: int = 2, head: int = 1) -> list[str]:
        return [WORDS[query], WORDS[key], f"{WEIGHTS[layer, head, query, key]:.4f}"]

    page.hover(page.one("#detail-title"))
    page.hover(page.one(".matrix canvas"), 2.5 / len(WORDS), 4.5 / len(WORDS))
    assert reading() == at(4, 2)
    page.press(DOWN, LEFT, LEFT, LEFT, UP, UP)
    assert reading() == at(3, 0)
    assert page.texts(".names.down .token") == list(WORDS)
    page.press("n")
    page.until(lambda: page.text("#detail-title") == "Layer 2, head 2")
    page.press("u")
    page.until(lambda: page.text("#detail-title") == "Layer 1, head 2")
    query, key = strongest(WEIGHTS[1, 2])
    page.until(lambda: reading() == at(query, key, 1, 2))
    page.one("[aria-label='Next layer']").click()
    page.until(lambda: page.text("#detail-title") == "Layer 2, head 2")
    page.press(ESCAPE)
    assert not page.one("dialog").is_displayed()
    assert page.js("return document.activeElement.dataset.head") == "2"  # the focus returns to the last head shown


def test_enter_opens_a_head(page: Page) -> None:
    page.show(view.model(WEIGHTS, tokens=WORDS))
    page.focus(thumb(page, 0, 0))
    page.press(DOWN, ENTER)
    page.until(lambda: page.text("#detail-title") == "Layer 1, head 0")


def test_filters_and_whole_words(page: Page) -> None:
    array = weights(8, 2, 2, len(PAIR), len(PAIR))
    page.show(view.model(array, tokens=PAIR, token_type_ids=SEGMENTS))
    page.click(page.segment("B→A"))
    page.hover(thumb(page, 1, 0), 0.01, 0.99)  # a query and a key: the last token of B and the first of A
    page.until(lambda: tip(page)[1:] == ["[SEP]", "[CLS]", f"{array[1, 0, 8, 0]:.4f}"])
    page.click(page.segment("Whole words"))
    page.hover(thumb(page, 1, 1), 0.99, 0.99)
    page.until(lambda: tip(page)[1:] == ["[SEP]", "[SEP]", f"{array[1, 1, 8, 3]:.4f}"])


def test_cross_attention_is_not_square(page: Page) -> None:
    source, target = ("die", "zeit", "fliegt", "gern", "</s>"), ("time", "flies", "</s>")
    arrays = encoder_decoder(source, target)
    page.show(view.model(arrays, tokens=target, key_tokens=source))
    page.click(page.segment("Cross-attention"))
    page.hover(thumb(page, 0, 2), 3.5 / 5, 1.5 / 3)
    weight = arrays["decoder.layers.0.cross_attention.weights"][2, 1, 3]
    page.until(lambda: tip(page)[1:] == ["flies", "gern", f"{weight:.4f}"])
