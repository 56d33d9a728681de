"""The views outside a browser: text for a terminal, SVG for papers, files, notebook cells, colours, and attribution."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import view
from npformer.common.errors import NpformerError
from npformer.interpret.attribution import Target
from npformer.interpret.traces import trace
from npformer.text.inputs import Pair
from npformer.view import colour, terminal
from tests.browser.arrays import (
    HOSTILE,
    PAIR,
    WORDS,
    encoder_decoder,
    head_effects_on,
    head_stages,
    logit_lens_of,
    logit_parts,
    weights,
)
from tests.support import tiny
from tests.support.slow import slow_after


def luminance(shade: str) -> float:
    """Returns the relative luminance as WCAG 2.2 defines it, 0 for black and 1 for white."""
    parts = [value / 255 for value in colour.channels(shade)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio as WCAG 2.2 defines it, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def every_view(tokens: tuple[str, ...]) -> list[view.View]:
    arrays = head_stages(5, length=len(tokens))
    return [
        view.heads(arrays, tokens=tokens),
        view.heads(arrays, tokens=tokens, heads=[1]),
        view.model(arrays, tokens=tokens),
        view.neurons(arrays, tokens=tokens, layer=1, head=2, token=1),
        view.stages(arrays, tokens=tokens),
        view.attribution(arrays, tokens=tokens, scores={"mine": np.sin(range(len(tokens)))}),
        view.logit(logit_parts(tokens)),
        view.lens(logit_lens_of((*tokens, "other"))),
        view.ablation(head_effects_on((*tokens, "other"))),
    ]


# --- terminal --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", slow_after(6, [1, 2, 7, 12, 40, 130, 512]))
def test_a_line_never_passes_eighty_columns(length: int) -> None:
    for shown in (
        every_view(tuple(f"word{i}" for i in range(length)))
        if length > 1
        else [view.heads(np.ones((1, 1)), tokens=["a"])]
    ):
        lines = shown.text().splitlines()
        assert max(map(terminal.columns, lines)) <= 80
        if shown.kind in ("heads", "model"):
            assert len(lines) <= 70
        assert str(shown) == shown.text()


def test_hostile_tokens_cannot_move_the_cursor() -> None:
    for shown in every_view(HOSTILE):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", shown.text())
        assert max(map(terminal.columns, shown.text().splitlines())) <= 80


def test_a_short_text_prints_its_weights() -> None:
    array = np.zeros((1, 2, 3, 3), np.float32)
    array[0, 1] = [[0.98, 0.02, 0], [0.25, 0.5, 0.25], [0, 0, 1]]
    assert view.heads(array, tokens=["I", "love", "it"], heads=[1]).text(40) == "\n".join(
        [
            "Self-attention, layer 0, head 1",
            "rows attend to columns",
            "",
            "          0    1    2",
            "0 I    █.98  .02  .00",
            "1 love ▒.25 ▓.50 ▒.25",
            "2 it    .00  .00 █1.00",
            "",
            terminal.LEGEND,
            "",
            "strongest links",
            "  2 it → 2 it        1.0000",
            "  0 I → 0 I          0.9800",
            "  1 love → 1 love    0.5000",
            "  1 love → 0 I       0.2500",
            "  1 love → 2 it      0.2500",
        ]
    )


def test_a_long_text_is_pooled_with_a_note() -> None:
    text = view.heads(weights(1, 2, 300, 300), tokens=[f"w{i}" for i in range(300)], heads=[0]).text()
    assert "a cell is the largest of 7 × 5 weights" in text  # noqa: RUF001
    assert "\n7-13 w7" in text


def test_wide_characters_count_two_columns() -> None:
    assert terminal.columns("我é") == 3
    assert terminal.fit("我我我", 5) == "我我…"
    assert terminal.fit("e\u0301", 3) == "e\u0301  "
    assert [terminal.bar(share, 2) for share in (0, 0.5, 0.6, 1, 2)] == ["", "█", "█▎", "██", "██"]


def test_the_neuron_view_prints_scores_and_weights() -> None:
    arrays = head_stages(5)
    text = view.neurons(arrays, tokens=WORDS, layer=1, head=2, token=3).text()
    for i, word in enumerate(WORDS):
        score, share = (arrays[f"layers.1.attention.{name}"][2, 3, i] for name in ("scores", "weights"))
        assert re.search(rf"^{i} {re.escape(word)} .* {score:.4f} +{share:.4f}", text, re.M)


def test_the_stage_view_prints_every_stage_and_the_label() -> None:
    model = tiny.model()
    t = trace(model, "I love it")
    text = view.stages(model, "I love it").text()
    assert text.count("attention.weights") == 2
    assert f"[{t['embeddings.sum'][0, 0]:.4f}, " in text
    assert f"{t.label}" in text.split("Label")[1]


# --- SVG -------------------------------------------------------------------------------------------------------------


def test_svg_is_well_formed_and_shows_every_token_as_text() -> None:
    for shown in every_view(HOSTILE):
        root = ElementTree.fromstring(shown.svg())
        texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        if shown.kind in ("heads", "neurons"):
            assert any("</script>" in text for text in texts)
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_svg_has_a_line_for_each_weight_above_the_threshold() -> None:
    array = weights(6, 4, 7, 7)
    root = ElementTree.fromstring(view.heads(array, tokens=WORDS, heads=[1, 2]).svg())
    paths = list(root.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == int((array[[1, 2]] >= 0.05).sum())
    assert {path.get("stroke") for path in paths} == {colour.head_colours(4)["light"][h] for h in (1, 2)}


def test_cross_attention_draws_too() -> None:
    source, target = ("die", "zeit", "fliegt", "</s>"), ("time", "</s>")
    for make in (view.heads, view.model):
        shown = make(encoder_decoder(source, target), tokens=target, key_tokens=source)
        ElementTree.fromstring(shown.svg())
        assert "Encoder self-attention" in shown.text()


# --- files and cells -------------------------------------------------------------------------------------------------


def test_save_replaces_the_file_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, path = view.heads(weights(1, 7, 7), tokens=WORDS), tmp_path / "view.html"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(NpformerError, match=r"view\.html: cannot be written: disk"):
        shown.save(path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["view.html"]
    monkeypatch.undo()
    assert shown.save(str(path)) == path
    assert path.read_text(encoding="utf-8") == shown.html()


def test_a_page_has_no_addresses_and_no_markup_from_tokens() -> None:
    for shown in every_view(HOSTILE):
        page = shown.html()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")|//cdn|@import|url\(", page)
        assert "<img" not in page
        assert page.count("</script>") == page.count("<script")
        assert "default-src 'none'" in page


def test_a_notebook_cell_is_one_frame_that_may_run_scripts_and_save_pictures() -> None:
    cell = view.heads(weights(1, 7, 7), tokens=WORDS)._repr_html_()
    assert re.match(
        r'<iframe sandbox="allow-scripts allow-downloads" title="[^"]*" style="[^"]*" srcdoc="[^"<>]*"></iframe>$', cell
    )


def test_a_view_names_itself_and_two_pages_are_equal() -> None:
    shown = view.heads(weights(1, 7, 7), tokens=WORDS)
    assert repr(shown).startswith("<npformer view: Attention heads: time flies like an arrow; print()")
    assert shown.html() == shown.html() == view.heads(weights(1, 7, 7), tokens=WORDS).html()


# --- colours ---------------------------------------------------------------------------------------------------------

PAGES = {"light": "#ffffff", "dark": "#14171c"}


@pytest.mark.parametrize("count", [1, 8, 12, 16, 32, 64, 128])
def test_heads_have_distinct_and_visible_colours(count: int) -> None:
    for theme, colours in colour.head_colours(count).items():
        assert len(set(colours)) == count
        assert min(contrast(each, PAGES[theme]) for each in colours) >= 3  # WCAG 2.2, 1.4.11
        if count > 1:
            places = np.array([_oklab(each) for each in colours])
            apart = min(np.linalg.norm(places[:i] - places[i], axis=1).min() for i in range(1, count))
            assert apart >= (0.05 if count <= 16 else 0.02 if count <= 64 else 0.01)  # 0.02 is just visible


def _oklab(value: str) -> np.ndarray:
    """Returns the coordinates of a colour in Oklab (Ottosson 2020), by the inverse of the conversion in colour.py."""
    channels = np.array(colour.channels(value)) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    to_lms = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.array(to_lab) @ np.cbrt(np.array(to_lms) @ linear)


# Linear RGB as people with the two most common kinds of colour blindness see it (Vienot, Brettel and Mollon 1999).
PROTANOPE = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPE = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", [np.eye(3), PROTANOPE, DEUTERANOPE], ids=["full", "protanope", "deuteranope"])
def test_the_signed_scale_keeps_its_signs_apart_for_every_eye(theme: str, eye: np.ndarray) -> None:
    def seen(value: str) -> np.ndarray:
        channels = np.array(colour.channels(value)) / 255
        linear = np.clip(
            eye @ np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4), 0, 1
        )
        rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
        return _oklab("#" + "".join(f"{round(255 * c):02x}" for c in rgb))

    stops = colour.DIVERGING[theme]
    for i in range(3):
        assert np.linalg.norm(seen(stops[i]) - seen(stops[-1 - i])) > 0.1
    lightness = [seen(stop)[0] for stop in stops]
    away = -1 if theme == "light" else 1
    # contrast grows from the middle to each side
    assert all(away * (lightness[i] - lightness[i + 1]) > 0 for i in range(3))
    assert all(away * (lightness[i + 1] - lightness[i]) > 0 for i in range(3, 6))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_scale_of_weights_reads_in_grey(theme: str) -> None:
    values = [luminance(stop) for stop in colour.SEQUENTIAL[theme]]
    assert values == sorted(values, reverse=theme == "light")


# --- attribution -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.model("distilbert")


def test_leaving_a_word_out_is_the_difference_of_two_runs(model: Any) -> None:
    shown = view.attribution(model, "I love ice cream!", label="NEGATIVE")
    method = shown.methods[0]
    assert method.words == ["I", "love", "ice", "cream", "!"]
    texts = [
        "I love ice cream!",
        " love ice cream!",
        "I  ice cream!",
        "I love  cream!",
        "I love ice !",
        "I love ice cream",
    ]
    runs = [trace(model, text) for text in texts]
    odds = [float(t["logits"][0]) - float(t["logits"][1]) for t in runs]
    np.testing.assert_allclose(method.scores, odds[0] - np.array(odds[1:]), rtol=0, atol=1e-6)  # float32 logits
    np.testing.assert_allclose(method.beside[1], [t["probabilities"][0] for t in runs[1:]], rtol=1e-6)


def test_the_answer_is_explained_unless_a_label_is_named(model: Any) -> None:
    text = "I love ice cream"
    label = trace(model, text).label
    assert np.array_equal(
        view.attribution(model, text).methods[0].scores, view.attribution(model, text, label=label).methods[0].scores
    )
    by_number = view.attribution(model, text, label=model.config.labels.index(label))
    assert np.array_equal(view.attribution(model, text).methods[0].scores, by_number.methods[0].scores)


def test_more_words_than_one_batch(model: Any) -> None:
    text = " ".join(["love"] * 40)
    assert view.attribution(model, text).methods[0].scores.shape == (40,)


def test_a_pair_leaves_words_of_both_texts_out() -> None:
    method = view.attribution(tiny.model("bert", "next-sentence"), Pair("I love ice", "it is hot")).methods[0]
    assert method.words == ["I", "love", "ice", "it", "is", "hot"]
    assert [[piece for piece, n in text if n is not None] for text in method.texts] == [
        ["I", "love", "ice"],
        ["it", "is", "hot"],
    ]


def test_log_odds_of_three_labels() -> None:
    logits = np.array([[1.0, 2.0, -1.0]])
    share = np.exp(2.0) / np.exp(logits).sum()
    np.testing.assert_allclose(Target("", (1,), False).of(logits), np.log(share / (1 - share)), rtol=1e-14)


@pytest.mark.parametrize(
    ("problem", "labels"), [("multi_label_classification", ("a", "b", "c")), ("regression", ("score",))]
)
def test_independent_labels_and_regression_use_the_output_itself(problem: str, labels: tuple[str, ...]) -> None:
    model = tiny.model("distilbert", labels=labels, problem_type=problem)
    method = view.attribution(model, "I love it", label=0).methods[0]
    logits = [trace(model, text, "logits")["logits"][0] for text in ("I love it", "I  it")]
    assert method.scores[1] == pytest.approx(float(logits[0]) - float(logits[1]), abs=1e-6)
    assert (method.beside is None) == (problem == "regression")


def test_roll_out_multiplies_the_layers() -> None:
    array = weights(9, 3, 4, len(PAIR), len(PAIR), dtype=np.float64)
    (method,) = view.attribution(array, tokens=PAIR, token=2).methods
    eye = np.eye(len(PAIR))
    first, second, third = ((layer.mean(axis=0) + eye) / 2 for layer in array)
    row = (third @ second @ first)[2]
    expected = [*row[:6], row[6] + row[7], row[8]]
    np.testing.assert_allclose(method.scores, expected, rtol=1e-14)
    assert method.scores.sum() == pytest.approx(1)
    assert method.words[6] == "likely"


def test_a_model_without_labels_for_texts_gets_roll_out_alone() -> None:
    shown = view.attribution(tiny.model("bert", "masked-lm"), "I love it")
    assert [method.name for method in shown.methods] == ["Attention roll-out"]
