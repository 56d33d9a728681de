"""A translation model's views in a browser: three kinds of attention, with the correct tokens as queries and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npformer import load, view
from npformer.interpret.traces import trace
from npformer.text.words import piece_names
from tests.browser.page import Page

FILES = Path(__file__).parent.parent / "golden" / "seq2seq" / "marian-files"
TEXT = "A dog runs through the snow."


@pytest.fixture(scope="module")
def model() -> Any:
    pytest.importorskip("sentencepiece", reason="the `translate` extra is not installed")
    return load(FILES)


@pytest.mark.parametrize(
    ("title", "queries", "keys", "stage"),
    [
        ("Encoder self-attention", "key_tokens", "key_tokens", "encoder.layers.1.attention.weights"),
        ("Decoder self-attention", "tokens", "tokens", "decoder.layers.1.attention.weights"),
        ("Cross-attention", "tokens", "key_tokens", "decoder.layers.1.cross_attention.weights"),
    ],
)
def test_each_attention_has_its_tokens_and_its_numbers(
    page: Page, model: Any, title: str, queries: str, keys: str, stage: str
) -> None:
    t = trace(model, TEXT)
    page.show(view.heads(model, TEXT, layer=1, heads=[2]))
    page.click(page.segment(title))
    assert page.texts(".from [role=option] .token") == list(piece_names(getattr(t, queries)))
    assert page.texts(".to [role=option] .token") == list(piece_names(getattr(t, keys)))
    expected = [f"{weight:.4f}" for weight in t[stage][2, 3]]
    first, second = piece_names(t.tokens)[:2]
    written = "" if title.startswith("Encoder") else f"A row writes the next word: {first} writes {second}."
    assert page.text(".writes") == written
    page.hover(page.all(".from [role=option]")[3])
    page.until(lambda: page.texts(".to [role=option] output") == expected)


def test_the_walk_has_the_ids_of_both_sides(page: Page, model: Any) -> None:
    t = trace(model, TEXT)
    page.show(view.stages(model, TEXT))
    for side, tokens, ids in (("keys", t.key_tokens, t.key_ids), ("queries", t.tokens, t.ids)):
        assert page.texts(f".chips[data-side='{side}'] .token") == list(piece_names(tokens))
        assert page.texts(f".chips[data-side='{side}'] small") == [str(number) for number in ids]


def test_each_word_of_a_translation_has_its_logit(page: Page, model: Any) -> None:
    shown = view.logit(model, TEXT)
    page.show(shown)
    assert len(shown.words) == len(trace(model, TEXT).ids) - 1
    assert page.text(".about").startswith(f"The parts sum to {shown.found.total:z.4f}; {shown.found.what} is")
    options = page.all(".controls label.field option")
    page.choose("Logit of", options[2].text)
    first = shown.words[2]
    page.until(lambda: page.text(".about").startswith(f"The parts sum to {first.total:z.4f}; {first.what} is"))
    largest = f"{max((*first.ffn.tolist(), *first.heads.sum(axis=-1).ravel().tolist()), key=abs):z.3f}"
    assert largest in page.texts("tbody td")


def test_each_word_of_a_translation_has_the_words_of_its_source(page: Page, model: Any) -> None:
    shown = view.attribution(model, TEXT, steps=2)
    page.show(shown)
    assert page.texts(".list output") == [f"{score:z.4f}" for score in shown.methods[0].scores]
    assert page.texts(".controls option") == ["all words", *(name for name, _ in shown.each_word)]
    name, (left_out, gradient) = shown.each_word[1]
    page.choose("Word of the translation", name.replace("  ", " "))
    page.until(lambda: page.texts(".list output") == [f"{score:z.4f}" for score in left_out.scores])
    assert page.text(".about") == left_out.about
    page.click(page.segment(gradient.name))
    page.until(lambda: page.texts(".list output") == [f"{score:z.4f}" for score in gradient.scores])
    assert page.js("return location.hash") == "#word=2&measure=gradient-input"


@pytest.mark.parametrize("kind", ["heads", "model", "neurons"])
def test_a_translation_opens_on_cross_attention(page: Page, model: Any, kind: str) -> None:
    page.show(getattr(view, kind)(model, TEXT))
    assert page.js("return document.querySelector('.controls [aria-checked=true]').textContent") == "Cross-attention"


def test_a_word_of_a_translation_opens_the_heads_that_read_its_source(page: Page, model: Any) -> None:
    page.show(view.page(model, TEXT, methods="gradient"))
    page.click(page.one(".tabs [data-view=logit]"))
    page.until(lambda: page.all("[aria-label^='Layer 1, source 2']"))
    page.click(page.one("[aria-label^='Layer 1, source 2']"))
    page.until(lambda: "view=heads&attention=2&layer=1&head=2" in page.js("return location.hash"))
