"""The neuron view in a browser: from a query and the keys to the output, every number equals NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from npformer import view
from tests.browser.arrays import WORDS, head_stages
from tests.browser.page import Page
from tests.support import tiny

WIDTH = 8
DOWN, RIGHT, ENTER, END = "\ue015", "\ue014", "\ue007", "\ue010"


def chain(page: Page) -> dict[str, str]:
    """Returns the numbers in the tooltip, by name."""
    names, numbers = page.texts(".chain dt"), page.texts(".chain dd")
    return dict(zip(names, numbers, strict=True))


def printed(value: np.floating) -> str:
    return f"{value:z.4f}"


def expected(arrays: dict[str, np.ndarray], layer: int, head: int, token: int, key: int, d: int) -> dict[str, str]:
    a = {name.rsplit(".", 1)[1]: array[head] for name, array in arrays.items() if f"layers.{layer}." in name}
    q, k, v = a["query_heads"][token, d], a["key_heads"][key, d], a["value_heads"][key, d]
    return {
        "query": printed(q), "key": printed(k), "query × key": printed(q * k),  # noqa: RUF001
        "value": printed(v), "weight × value": printed(a["weights"][token, key] * v),  # noqa: RUF001
        "output": printed(a["context"][token, d]),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_weights_and_every_step_of_a_dimension(page: Page, dtype: type) -> None:
    arrays = head_stages(11, dtype=dtype)
    page.show(view.neurons(arrays, tokens=WORDS, layer=1, head=2, token=4))
    scores, shares = arrays["layers.1.attention.scores"][2, 4], arrays["layers.1.attention.weights"][2, 4]
    assert page.texts(".score output") == [printed(value) for value in scores]
    assert page.texts(".weight output") == [printed(value) for value in shares]
    for kind in ("key", "product", "value"):
        for key, d in ((0, 0), (3, 5), (6, 7)):
            cell = page.one(f".strip[data-kind='{kind}'][data-key='{key}'] canvas")
            page.hover(cell, (d + 0.5) / WIDTH)
            assert page.text(".tip .where") == f"dimension {d}"
            assert chain(page) == expected(arrays, 1, 2, 4, key, d)
    page.hover(page.one(".strip[data-kind='output'] canvas"), 2.5 / WIDTH)
    context = arrays["layers.1.attention.context"][2, 4, 2]
    assert chain(page) == {
        "query": printed(arrays["layers.1.attention.query_heads"][2, 4, 2]),
        "output": printed(context),
    }


def test_choosing_layer_head_and_token(page: Page) -> None:
    arrays = head_stages(12)
    page.show(view.neurons(arrays, tokens=WORDS))

    def showing(layer: int, head: int, token: int) -> bool:
        scores = arrays[f"layers.{layer}.attention.scores"][head, token]
        return page.texts(".score output") == [printed(value) for value in scores]

    assert showing(0, 0, 0)
    page.choose("Layer", 1)
    page.until(lambda: showing(1, 0, 0))
    page.choose("Head", 2)
    page.until(lambda: showing(1, 2, 0))
    page.choose("From", "3 like")
    page.until(lambda: showing(1, 2, 3))
    page.all(".keys th")[5].click()  # uses the clicked token as the query
    page.until(lambda: showing(1, 2, 5))


def test_the_table_by_keyboard(page: Page) -> None:
    arrays = head_stages(13)
    page.show(view.neurons(arrays, tokens=WORDS, token=2))
    page.focus(page.one("tr[tabindex='0']"))
    page.press(DOWN, DOWN, RIGHT, RIGHT, RIGHT)
    assert chain(page) == expected(arrays, 0, 0, 2, 1, 3)
    assert page.text(".spoken").startswith("dimension 3: query ")
    page.press(END)
    assert chain(page) == expected(arrays, 0, 0, 2, 1, WIDTH - 1)
    page.press(ENTER)
    page.until(lambda: page.text(".from .token") == WORDS[1])


def test_masked_scores_print_as_numpy_prints_them(page: Page) -> None:
    arrays = head_stages(14, layers=1)
    arrays["layers.0.attention.scores"][0, 1, 4] = -np.inf
    page.show(view.neurons(arrays, tokens=WORDS, token=1))
    assert page.texts(".score output")[4] == "-inf"


@pytest.mark.parametrize("family", ["distilbert", "bert"])
def test_a_model_and_a_text(page: Page, family: str) -> None:
    from npformer.interpret.traces import trace

    model, text = tiny.model(family), "I love ice cream"
    page.show(view.neurons(model, text, layer=1, head=3, token=2))
    t = trace(model, text)
    assert page.texts(".keys .token") == t.tokens
    assert page.texts(".score output") == [printed(value) for value in t["layers.1.attention.scores"][3, 2]]


def test_a_long_text_reports_the_omitted_tokens(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npformer.view.neuron_view.BUDGET", 600_000)
    arrays = head_stages(15, layers=3, heads=8, length=160, width=16)
    page.show(view.neurons(arrays, tokens=["w"] * 160, layer=1, head=5))
    assert "the file has only layer 1 of 3" in page.text("#notes")
    page.click(page.segment("All 160"))
    page.until(lambda: len(page.all(".score")) == 160)
    scores = arrays["layers.1.attention.scores"][5, 0]
    assert page.texts(".score output") == [printed(value) for value in scores]
    assert len(page.all(".strip[data-drawn]")) < 300  # of 482 strips, only those near the window are drawn
