"""The page of all views: its content and size, and the view of logit attribution."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import load, view
from npformer.common.errors import NpformerError
from npformer.generation import generate
from npformer.interpret import study_inputs
from npformer.interpret.answer import answer_of
from npformer.interpret.direct_attribution import logit_attribution
from npformer.interpret.edits import edit, without_head
from npformer.interpret.head_effects import head_effects
from npformer.interpret.logit_lens import logit_lens
from npformer.interpret.traces import trace
from npformer.text.inputs import Pair
from npformer.view import page_view
from npformer.view.ablation_view import AblationView
from npformer.view.lens_view import LensView
from npformer.view.neuron_view import BUDGET, NeuronView
from npformer.view.pack import size
from tests.browser.arrays import HOSTILE, WORDS, head_stages, logit_lens_of
from tests.support import tiny
from tests.support.slow import slow_after

TEXT = "I love good ice cream"
ALL = ["heads", "model", "neurons", "stages", "attribution", "logit", "lens", "ablation"]


def kinds(shown: view.PageView) -> list[list[str]]:
    return [[each.kind for each in views] for views in shown.texts]


def test_a_page_has_every_view_of_a_text_as_it_is_alone() -> None:
    model = tiny.model()
    shown = view.page(model, TEXT, layer=1, head=2, methods="gradient")
    assert kinds(shown) == [ALL]
    alone = [
        view.heads(model, TEXT, layer=1, heads=[2]),
        view.model(model, TEXT),
        view.neurons(model, TEXT, layer=1, head=2),
        view.stages(model, TEXT),
        view.attribution(model, TEXT, methods="gradient"),
        view.logit(model, TEXT),
        view.lens(model, TEXT),
        view.ablation(model, TEXT),
    ]
    assert [each.html() for each in shown.texts[0]] == [each.html() for each in alone]
    assert (shown.text(), shown.svg()) == (alone[0].text(), alone[0].svg())
    assert shown.title == "Inside the model: I love good ice cream"


def test_errors_name_the_text_of_several() -> None:
    model = tiny.model()
    for bad, problem in ((3.5, "expected a text, got float"), ("\ud800", "a lone surrogate")):
        with pytest.raises(NpformerError, match=rf"^text\[1\]: .*{problem}"):
            view.page(model, [TEXT, bad], methods="roll-out")
        with pytest.raises(NpformerError, match=rf"^(?!text\[).*{problem}"):
            view.page(model, bad, methods="roll-out")


def test_all_texts_are_read_before_the_views_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The views of a long text take a minute, so an unreadable second text is an error at once."""
    monkeypatch.setattr(page_view, "traced", lambda *_: pytest.fail("the views are computed"))
    with pytest.raises(NpformerError, match=r"^text\[1\]: "):
        view.page(tiny.model(), [TEXT, 3.5])


def test_a_page_of_several_texts_and_of_ids() -> None:
    model = tiny.model("bert", "next-sentence")
    shown = view.page(model, [TEXT, Pair("I love ice", "it is hot")], methods="roll-out")
    assert kinds(shown) == [ALL, ALL]
    ids = trace(model, TEXT).ids
    (views,) = view.page(model, ids.tolist(), methods="roll-out").texts
    assert [each.kind for each in views] == ALL
    assert kinds(view.page(model, list(ids), methods="roll-out")) == [ALL]


@pytest.mark.parametrize(("head", "more"), [("base", []), ("token-classification", ["lens"]), ("masked-lm", [])])
def test_a_page_omits_a_missing_logit(head: str, more: list[str]) -> None:
    assert kinds(view.page(tiny.model("bert", head), TEXT)) == [[*ALL[:-3], *more]]


def test_a_page_of_a_trace_and_of_a_masked_word() -> None:
    assert kinds(view.page(trace(tiny.model(), TEXT))) == [ALL[:-3]]
    assert kinds(view.page(tiny.model("bert", "masked-lm"), "I love [MASK] cream")) == [ALL]


def test_an_impossible_first_selection_is_an_error() -> None:
    with pytest.raises(NpformerError, match="layer=7: expected one of 0, 1"):
        view.page(tiny.model(), TEXT, layer=7)
    with pytest.raises(NpformerError, match="head=9: expected one of 0, 1, 2, 3"):
        view.page(tiny.model(), TEXT, head=9)


def test_equal_arrays_are_in_a_page_once() -> None:
    shown = view.page(tiny.model(), TEXT, methods="roll-out")
    blocks = [block for each in shown.texts[0] for block in each._blocks()]
    page = shown.html()
    stored = re.findall(r'data-array="(\d+)">([^<]*)<', page)
    assert sorted(text for _, text in stored) == sorted({block.text for block in blocks})
    assert len(stored) < len(blocks)  # heads and model views share all arrays, neurons and stages views share some
    (found,) = re.findall(r'id="meta">(.*?)</script>', page)
    (views,) = json.loads(found)["texts"]
    texts = dict(stored)
    for described, made in zip(views, shown.texts[0], strict=True):
        assert {name: texts[str(head["data"])] for name, head in described["arrays"].items()} == {
            block.name: block.text for block in made._blocks()
        }


def test_fewer_numbers_make_a_smaller_file() -> None:
    model = tiny.model()
    large, small = (view.page(model, TEXT, methods="roll-out", numbers=each) for each in (1_000_000, 2_000))
    assert len(small.html()) < len(large.html())
    assert ", evenly spaced" in small.html()


@pytest.mark.slow
def test_the_gallery_is_one_file_under_two_megabytes(tmp_path: Path) -> None:
    """Runs a program from examples/, which the source distribution includes."""
    program = Path(__file__).parents[2] / "examples" / "gallery.py"
    run = [sys.executable, str(program), str(tmp_path / "gallery.html")]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300).stdout
    page = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert "3 texts" in said
    assert len(page.encode()) < 2_000_000
    assert re.findall(r'"kind":"(\w+)","heading"', page) == ALL * 3


# --- neurons ---------------------------------------------------------------------------------------------------------


def names(shown: NeuronView) -> set[str]:
    return {block.name.rsplit(".", 1)[1] for block in shown._blocks()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stages_that_the_page_computes_are_not_stored(dtype: type) -> None:
    assert names(view.neurons(head_stages(1, dtype=dtype), tokens=WORDS)) == {"query", "key", "value"}
    assert names(view.neurons(tiny.model(), TEXT)) == {"query", "key", "value"}


@pytest.mark.parametrize("stage", ["scores", "weights", "context"])
def test_an_edited_stage_is_stored(stage: str) -> None:
    """The page can compute every stage except the edited one."""
    with edit({f"layers.1.attention.{stage}": lambda array: array * np.float32(0.5)}):
        shown = view.neurons(tiny.model(), TEXT)
    stored = [block.name for block in shown._blocks() if block.name.split(".")[2] not in ("query", "key", "value")]
    assert stored == [f"0.1.{stage}"]


def test_masked_scores_are_stored() -> None:
    arrays = head_stages(2, layers=1)
    arrays["layers.0.attention.scores"][:, 1, 4] = -np.inf
    assert names(view.neurons(arrays, tokens=WORDS)) == {"query", "key", "value", "scores", "weights"}


@pytest.mark.parametrize(("length", "layers", "kept"), slow_after(1, [(128, 12, 12), (512, 1, 1)]))
def test_every_layer_of_bert_is_kept_at_128_tokens_and_one_at_512(length: int, layers: int, kept: int) -> None:
    arrays = head_stages(3, layers=1, heads=12, length=length, width=64)
    many = {f"layers.{i}.{name[9:]}": array for i in range(layers) for name, array in arrays.items()}
    shown = view.neurons(many, tokens=["w"] * length)
    parts, blocks = shown._kept
    assert (len(parts[0].numbers), len(parts[0].heads)) == (kept, 12)
    assert size(blocks) <= BUDGET


# --- logit -----------------------------------------------------------------------------------------------------------


def test_the_logit_view_prints_and_draws_its_parts() -> None:
    model = tiny.model()
    found, shown = logit_attribution(model, TEXT), view.logit(model, TEXT)
    assert shown.title == f"What adds up to {found.what}: i love good ice cream"
    text = shown.text()
    assert text.splitlines()[0] == shown.heading
    assert f"{found.ffn[1]:+.3f}" in text
    assert all(f"{value:+.3f}" in text for value in found.words.sum(axis=0))
    assert f"{found.ffn[1]:z.3f}" in shown.svg()
    assert view.logit(found).html() == shown.html()


@pytest.mark.parametrize("head", ["sequence-classification", "causal-lm"])
def test_the_token_of_a_logit_is_said_once(head: str) -> None:
    shown = view.logit(tiny.model("bert" if head.startswith("s") else "gpt2", head), TEXT)
    assert shown._meta()["logits"][0]["about"].count("token") == 1


def test_a_head_for_the_answer_is_orange_in_a_drawing() -> None:
    """Without this head, the answer is less probable: the change is negative."""
    found = head_effects(tiny.model(), TEXT)
    assert found is not None
    changes = np.full_like(found.changes, 0.25)
    changes[0, 0] = -0.5
    drawn = view.ablation(replace(found, changes=changes)).svg()
    colours = re.findall(r'<rect[^>]*fill="#(..)..(..)"', drawn)
    warm = [int(red, 16) > int(blue, 16) for red, blue in colours][-changes.size :]
    assert warm == (changes < 0).ravel().tolist()


def test_the_logit_view_of_hostile_tokens_is_only_text() -> None:
    found = logit_attribution(tiny.model(), TEXT)
    tokens = (*HOSTILE[: len(found.tokens) - 1], "w" * 300)[: len(found.tokens)]
    object.__setattr__(found, "tokens", tokens)
    shown: Any = view.logit(found)
    assert max(map(len, shown.text().splitlines())) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown.text())
    assert shown.html().count("</script>") == shown.html().count("<script")


def test_a_page_opens_on_the_head_that_the_answer_depends_on_most() -> None:
    model = tiny.model()
    shown = view.page(model, TEXT, methods="roll-out")
    (answer,) = shown.answers
    assert answer is not None
    effect, first = answer.effects[0], shown.texts[0][0]
    assert (first.layer, first.shown) == (effect.layer, (effect.head,))
    assert answer.outcomes[0][0] in shown.html()
    chosen = view.page(model, TEXT, layer=0, methods="roll-out").texts[0][0]
    assert (chosen.layer, chosen.shown) == (0, (0, 1, 2, 3))


def test_the_effects_of_heads_are_measured() -> None:
    """The page shows the measured change in log-odds without each head, because some estimates have the wrong
    sign."""
    model = tiny.model()
    (answer,) = view.page(model, TEXT, methods="roll-out").answers
    estimated = answer_of(model, TEXT)
    assert answer is not None
    assert estimated is not None
    assert answer.outcomes == estimated.outcomes
    label = int(trace(model, TEXT)["logits"].argmax())

    def odds() -> float:
        logits = trace(model, TEXT)["logits"].astype(np.float64)
        return float(logits[label] - logits[1 - label])

    whole, sizes = odds(), [abs(effect.change) for effect in answer.effects]
    assert len(sizes) == len(estimated.effects)
    assert sizes == sorted(sizes, reverse=True)
    for effect in answer.effects:
        with edit(without_head(f"{effect.attention}.context", effect.head)):
            assert effect.change == pytest.approx(odds() - whole, abs=1e-6)  # allows the rounding of float32 logits


def test_a_trace_and_a_base_model_have_no_answer() -> None:
    assert view.page(trace(tiny.model(), TEXT)).answers == (None,)
    assert view.page(tiny.model("bert", "base"), TEXT, methods="roll-out").answers == (None,)


@pytest.mark.slow
def test_a_page_translates_its_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    translations = []

    def counted(*given: Any, **settings: Any) -> Any:
        translations.append(given)
        return generate(*given, **settings)

    monkeypatch.setattr(study_inputs, "generate", counted)
    shown = view.page(load("en-de-multi30k"), "A man rides a bike.")
    assert len(translations) == 1
    assert shown.answers[0] is not None
    assert shown.answers[0].outcomes[0][0] == "Ein Mann fährt Fahrrad."


# --- lens and ablation -----------------------------------------------------------------------------------------------


def test_of_a_long_text_the_heads_with_the_largest_estimates_are_ablated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    monkeypatch.setattr(page_view, "READ", 1.5 * len(trace(model, TEXT).ids))
    shown = view.page(model, TEXT, methods="roll-out")
    (answer,), found = shown.answers, shown.texts[0][-1]
    assert isinstance(found, AblationView)
    assert answer is not None
    ran = {(found.found.attentions[row], int(head)) for row, head in np.argwhere(np.isfinite(found.found.changes))}
    assert ran == {(effect.attention, effect.head) for effect in answer.effects[:3]}
    assert "only the 3 of 8 heads with the largest estimated effects were ablated" in shown.html()


def test_a_lens_names_its_tokens_as_parts_of_the_whole_text() -> None:
    """Only the rest of the text shows that the last tokens, which are bytes, come from byte-level BPE."""
    found = replace(logit_lens_of(("¿", "Ļ", "other")), positions=(4, 5))
    shown = LensView(found, ("It", "Ġis", "Ġ", "è", "¿", "Ļ"))
    assert shown.names == ("\\xbf", "\\x99")
    assert "read at 5 \\x99" in shown.text()


def test_a_lens_and_an_ablation_can_be_drawn_from_their_results() -> None:
    model = tiny.model()
    for make, found in ((view.lens, logit_lens(model, TEXT)), (view.ablation, head_effects(model, TEXT))):
        shown = make(found)
        assert max(map(len, shown.text().splitlines())) <= 80
        assert "POSITIVE" in shown.html() + shown.text()
    with pytest.raises(NpformerError, match="ablation: expected a model with one answer for a text, got a base model"):
        view.ablation(tiny.model("bert", "base"), TEXT)
