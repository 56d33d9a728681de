"""The head view in a browser: pointer and keyboard show the array's numbers, for texts, pairs and encoder-decoders."""

from __future__ import annotations

import numpy as np
import pytest

from npformer import view
from tests.browser.arrays import PAIR, SEGMENTS, WORDS, encoder_decoder, weights
from tests.browser.page import Page

LAYERS, HEADS = 3, 5
WEIGHTS = weights(1, LAYERS, HEADS, len(WORDS), len(WORDS))
DOWN, UP, LEFT, RIGHT, END, HOME, SPACE, ESCAPE = (
    "\ue015",
    "\ue013",
    "\ue012",
    "\ue014",
    "\ue010",
    "\ue011",
    " ",
    "\ue00c",
)


def queries(page: Page) -> list:
    return page.all(".from [role=option]")


def keys(page: Page) -> list:
    return page.all(".to [role=option]")


def numbers(page: Page, side: str = "to") -> list[str]:
    """Returns the numbers next to the tokens of one side, without the heads' numbers."""
    return page.js(
        """return [...document.querySelectorAll(arguments[0])]
            .map((option) => option.querySelector("output")?.textContent ?? "");""",
        f".{side} [role=option]",
    )


def shown(array: np.ndarray) -> list[str]:
    return [f"{value:.4f}" for value in array]


def painted(page: Page) -> int:
    """Counts the canvas pixels that are part of a line, once the next frame is drawn."""
    return page.driver.execute_async_script("""const done = arguments[0];
        requestAnimationFrame(() => requestAnimationFrame(() => {
            const canvas = document.querySelector(".lines canvas"), copy = document.createElement("canvas");
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const { data } = context.getImageData(0, 0, copy.width, copy.height);
            done(data.filter((value, i) => i % 4 === 3 && value > 0).length);
        }))""")


def test_lines_reach_the_last_row_of_a_window_that_became_taller(page: Page) -> None:
    """A window becomes taller in full screen, or on a phone that is turned upright."""
    page.show(view.heads(WEIGHTS, tokens=WORDS), height=120)
    before = painted(page)
    page.resize(1280, 900)
    painted(page)  # waits for the next frame
    assert painted(page) > before
    assert page.js("return document.querySelector('.lines canvas').clientHeight") == page.js(
        "return document.querySelector('.lines').clientHeight"
    )


def test_the_lines_of_a_long_text_are_printed_on_one_page(page: Page) -> None:
    """A canvas cannot be split between pages: its second half would cover the tokens of the second page."""
    tokens = [f"word{i}" for i in range(48)]
    page.show(view.heads(weights(1, 1, 2, len(tokens), len(tokens)), tokens=tokens))
    page.js("const { height } = document.querySelector('.sides').getBoundingClientRect(); window.before = height;")
    page.media(kind="print")
    page.js("dispatchEvent(new Event('beforeprint'))")
    boxes = page.js("""const of = (name) => document.querySelector(name).getBoundingClientRect();
        return [".sides", ".lines canvas", ".from [role=option]:last-child"].map(of).map(({ top, bottom }) => [top, bottom])""")
    sides, canvas, last = boxes
    assert page.js("return window.before") > 1000 > sides[1] - sides[0]
    assert canvas[1] == pytest.approx(last[1], abs=2)


def test_one_head_shows_its_weights_next_to_the_other_side(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS, layer=1, heads=[3]))
    for i, token in enumerate(queries(page)):
        page.hover(token)
        assert numbers(page) == shown(WEIGHTS[1, 3, i])
        assert numbers(page, "from") == [""] * len(WORDS)
    for i, token in enumerate(keys(page)):
        page.hover(token)
        assert numbers(page, "from") == shown(WEIGHTS[1, 3, :, i])
    page.rest()
    assert numbers(page) == [""] * len(WORDS)


def test_several_heads_show_the_strongest_and_which_it_is(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS, layer=2))
    page.hover(queries(page)[4])
    assert numbers(page) == shown(WEIGHTS[2, :, 4].max(axis=0))
    assert page.texts(".to .chip") == [str(head) for head in WEIGHTS[2, :, 4].argmax(axis=0)]


def test_tokens_kept_by_a_click_stay_and_a_pair_shows_every_head(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS))
    page.click(queries(page)[1])
    page.click(queries(page)[5])
    page.rest()
    assert [option.get_attribute("aria-selected") for option in queries(page)].count("true") == 2
    assert numbers(page) == shown(WEIGHTS[0][:, [1, 5]].max(axis=(0, 1)))
    page.click(queries(page)[5])  # a second click deselects
    page.hover(keys(page)[3])
    assert page.text(".panel h2") == "Every head for this pair"
    assert page.texts(".panel output") == shown(WEIGHTS[0, :, 1, 3])
    page.press(ESCAPE)
    assert numbers(page) == [""] * len(WORDS)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_chosen_tokens_are_named_and_released_by_buttons(page: Page, width: int, dark: bool) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS), width=width, dark=dark)
    place = page.js("return document.querySelector('.from').getBoundingClientRect().top")
    assert page.text(".kept") == "Lines ofall tokens. Click a token to choose it."
    page.click(queries(page)[5])
    page.click(keys(page)[1])
    page.rest()
    assert page.texts(".kept button") == [f"from {WORDS[5]} \u00d7", f"to {WORDS[1]} \u00d7", "All tokens"]
    assert page.js("return document.querySelector('.from').getBoundingClientRect().top") == place
    page.click(queries(page)[5])  # a second click releases the query, and its button disappears
    page.rest()
    assert page.texts(".kept button") == [f"to {WORDS[1]} \u00d7", "All tokens"]
    page.focus(page.one(".kept button"))  # by keyboard
    page.press("\ue007")
    assert page.text(".kept") == "Lines ofall tokens. Click a token to choose it."
    assert page.js("return document.activeElement.dataset.index") == "1"  # the released key keeps the focus
    page.press(" ")
    assert page.texts(".kept button") == [f"to {WORDS[1]} \u00d7", "All tokens"]
    page.focus(page.all(".kept button")[1])
    page.press("\ue007")
    page.rest()
    assert page.all(".tokens [aria-selected=true]") == []
    assert page.js("return document.documentElement.scrollWidth <= innerWidth")


def test_the_panel_lists_the_strongest_links(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS, layer=1, heads=[0, 2]))
    best = np.sort(WEIGHTS[1, [0, 2]].max(axis=0), axis=None)[::-1][:12]
    assert page.texts(".panel output") == shown(best)
    page.hover(queries(page)[6])
    assert page.texts(".panel output") == shown(np.sort(WEIGHTS[1, [0, 2], 6].max(axis=0))[::-1])


def test_a_square_toggles_its_head_and_a_double_click_isolates_it(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS))

    def pressed() -> list[int]:
        return [i for i, square in enumerate(page.all(".square")) if square.get_attribute("aria-pressed") == "true"]

    squares = page.all(".square")
    assert pressed() == [0, 1, 2, 3, 4]
    every = painted(page)
    page.click(squares[2])
    assert pressed() == [0, 1, 3, 4]
    page.double_click(squares[1])
    assert pressed() == [1]
    assert 0 < painted(page) < every
    page.double_click(squares[1])
    assert pressed() == [0, 1, 2, 3, 4]
    page.one(".heads .quiet:last-child").click()
    assert pressed() == []
    assert painted(page) == 0
    page.press("\ue004")  # the key works with no head selected
    page.hover(queries(page)[2])
    assert numbers(page) == [""] * len(WORDS)
    page.one(".heads .quiet").click()
    assert pressed() == [0, 1, 2, 3, 4]


def test_the_layer_chooser(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS, heads=[4]))
    for layer in (2, 0, 1):
        page.choose("Layer", layer)
        page.hover(queries(page)[3])
        page.until(lambda layer=layer: numbers(page) == shown(WEIGHTS[layer, 4, 3]))


def test_everything_works_by_keyboard(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS, heads=[1]))
    page.focus(page.one(".from [tabindex='0']"))
    page.press(DOWN, DOWN)
    assert numbers(page) == shown(WEIGHTS[0, 1, 2])
    assert page.text(".spoken").startswith("flies to ")
    page.press(SPACE, END)
    assert numbers(page) == shown(np.maximum(WEIGHTS[0, 1, 2], WEIGHTS[0, 1, 6]))
    page.press(RIGHT, HOME)
    assert page.texts(".panel output") == shown(WEIGHTS[0, 1, 2, :1])  # the query stays selected; the key is focused
    page.press(ESCAPE, LEFT, UP)
    assert numbers(page) == shown(WEIGHTS[0, 1, 0])
    page.focus(page.all(".square")[1])
    page.press(RIGHT, RIGHT, "o")
    assert [s.get_attribute("aria-pressed") for s in page.all(".square")] == ["false"] * 3 + ["true", "false"]
    page.press(LEFT, SPACE)
    assert page.all(".square")[2].get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize(("name", "seen", "looked_at"), [("A→A", 0, 0), ("A→B", 0, 1), ("B→A", 1, 0), ("B→B", 1, 1)])
def test_the_filters_of_a_pair(page: Page, name: str, seen: int, looked_at: int) -> None:
    array, token_type_ids = weights(2, 2, 3, len(PAIR), len(PAIR)), np.array(SEGMENTS)
    page.show(view.heads(array, tokens=PAIR, token_type_ids=SEGMENTS, heads=[2]))
    assert len(queries(page)) == len(keys(page)) == len(PAIR)
    page.click(page.segment(name))
    across = [token for token, segment in zip(PAIR, SEGMENTS, strict=True) if segment == looked_at]
    assert page.texts(".to .token") == across
    page.hover(queries(page)[1])
    row = np.flatnonzero(token_type_ids == seen)[1]
    assert numbers(page) == shown(array[0, 2, row, token_type_ids == looked_at])


def test_one_text_has_no_filter(page: Page) -> None:
    page.show(view.heads(WEIGHTS, tokens=WORDS))
    assert page.all(".segmented") == []


def test_word_pieces_are_merged_on_request(page: Page) -> None:
    array = weights(3, 2, 3, len(PAIR), len(PAIR))
    page.show(view.heads(array, tokens=PAIR, heads=[1]))
    page.click(page.segment("Whole words"))
    page.until(lambda: page.texts(".to .token")[6:] == ["likely", "[SEP]"])
    page.hover(queries(page)[6])
    merged = (array[0, 1, 6] + array[0, 1, 7]) / 2
    expected = [*merged[:6], merged[6] + merged[7], merged[8]]
    page.until(lambda: numbers(page) == shown(np.array(expected)))
    page.click(page.segment("Pieces"))
    page.until(lambda: len(queries(page)) == len(PAIR))


def test_words_can_be_asked_for_at_once(page: Page) -> None:
    page.show(view.heads(weights(3, 2, 3, len(PAIR), len(PAIR)), tokens=PAIR, words=True))
    assert page.texts(".from .token")[6] == "likely"
    assert page.segment("Whole words").get_attribute("aria-checked") == "true"


def test_encoder_decoder_and_cross_attention(page: Page) -> None:
    source, target = ("die", "zeit", "fliegt", "</s>"), ("time", "flies", "</s>")
    arrays = encoder_decoder(source, target)
    page.show(view.heads(arrays, tokens=target, key_tokens=source, layer=1, heads=[0]))
    for title, name, rows, columns in (
        ("Cross-attention", "decoder.layers.1.cross_attention.weights", target, source),
        ("Decoder self-attention", "decoder.layers.1.attention.weights", target, target),
        ("Encoder self-attention", "encoder.layers.1.attention.weights", source, source),
    ):
        page.click(page.segment(title))
        assert page.texts(".from .token") == list(rows)
        assert page.texts(".to .token") == list(columns)
        page.hover(queries(page)[1])
        expected = shown(arrays[name][0, 1])  # the layer and heads stay selected
        page.until(lambda expected=expected: numbers(page) == expected)


def test_forty_heads_have_forty_colours(page: Page) -> None:
    page.show(view.heads(weights(4, 40, 4, 4), tokens=list("abcd")))
    colours = [square.value_of_css_property("background-color") for square in page.all(".square")]
    assert len(set(colours)) == 40


def test_even_attention_explains_why_no_line_is_drawn(page: Page) -> None:
    page.show(view.heads(np.full((2, 30, 30), 1 / 30, np.float32), tokens=["w"] * 30))
    assert page.one(".hint").text == "No weight here reaches 0.05. Point at a token for its weights."
    page.hover(queries(page)[0])
    page.until(lambda: not page.one(".hint").is_displayed())
    assert numbers(page) == ["0.0333"] * 30
