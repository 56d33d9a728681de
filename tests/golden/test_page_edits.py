"""Edits of a page explain ports: of a family that npformer runs, and of a page that only this file has."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import ModuleType

import numpy as np
import pytest

from npformer import golden
from npformer.engine.runtime.packing import Text
from npformer.golden.page_edits import Causes, edits_of_model, explain
from npformer.golden.page_edits.solved import number
from npformer.model import Model
from tests.support import tiny
from tests.support.edited_pages import Arrays, edited, run

pytestmark = pytest.mark.numbers

#: A family that npformer has no engine for: tokens are mixed by a decayed sum of the earlier ones.
RETENTION = """
import math
import numpy as np


def linear(x, weight, bias):
    return x @ weight + bias


def unit_norm(x, gain, eps):
    rms = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return x / rms * gain


def decay_mask(length, decay):
    steps = np.arange(length)
    distances = steps[:, None] - steps
    return np.where(distances >= 0, decay ** np.abs(distances), 0.0)


def retention(x, decay, query, key, value):
    q = linear(x, **query)
    k = linear(x, **key)
    v = linear(x, **value)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    kept = scores * decay_mask(len(x), decay)
    mixed = kept @ v
    return mixed


def layer(x, decay, eps, gain, mixer, gate):
    normed = unit_norm(x, gain, eps)
    retained = retention(normed, decay, **mixer)
    opened = np.tanh(linear(normed, **gate))
    output = x + opened * retained
    return output
"""
OF_PAGE = (
    ("q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT / q.shape[-1]"),
    ("distances >= 0", "distances > 0"),
    ("distances >= 0", "distances <= 0"),
    ("scores * decay_mask(len(x), decay)", "scores"),
    ("mixed = kept @ v", "mixed = kept @ k"),
    ("steps[:, None] - steps", "steps - steps[:, None]"),
    ("x + opened * retained", "normed + opened * retained"),
    ("np.tanh(linear(normed, **gate))", "linear(normed, **gate)"),
    (".mean(axis=-1, keepdims=True)", ".sum(axis=-1, keepdims=True)"),
    ("opened * retained", "opened + retained"),
)


def given() -> dict[str, object]:
    random = np.random.default_rng(0)
    groups = {name: {"weight": random.normal(size=(12, 12)), "bias": random.normal(size=12)} for name in "qkvg"}
    mixer = {"query": groups["q"], "key": groups["k"], "value": groups["v"]}
    return {
        "x": random.normal(size=(7, 12)), "decay": 0.9, "eps": 1e-6, "gain": random.normal(size=12), "mixer": mixer,
        "gate": groups["g"],
    }  # fmt: skip


def of_page(old: str, new: str) -> Causes:
    """The causes found for a port of the page with one text replaced."""
    from npformer.golden.page_edits.instrumented import Page

    def layer(page: ModuleType) -> object:
        return page.layer(**given())

    assert RETENTION.count(old) == 1
    port = Page(RETENTION.replace(old, new))
    port.record(layer, frozenset(), "")
    theirs = {name: [array.astype(np.float32)] for name, array in port.stages.items()}
    budgets = {name: 1e-6 * float(np.abs(array).max()) for name, (array,) in theirs.items()}
    return explain(RETENTION, [layer], theirs, budgets, seconds=20)


@pytest.mark.parametrize(("old", "new"), OF_PAGE, ids=[new for _, new in OF_PAGE])
def test_a_page_without_a_family_is_diagnosed_by_edits(old: str, new: str) -> None:
    found = of_page(old, new)
    assert any(new in cause.after for cause in found.causes), found


def test_a_right_port_has_no_wrong_stage() -> None:
    found = of_page("kept @ v", "(kept @ v)")
    assert (found.stage, found.causes) == ("", [])


def test_a_mistake_that_no_edit_makes_is_not_named() -> None:
    found = of_page("kept @ v", "np.sin(3 * kept) @ v[::-1]")
    assert (found.stage, found.causes) == ("mixer.mixed", [])
    assert str(found).startswith("no edit of the page gives your values")


def test_a_search_without_time_says_that_it_was_cut() -> None:
    def layer(page: ModuleType) -> object:
        return page.layer(**given())

    found = explain(RETENTION, [layer], {"mixer.scores": [np.zeros((7, 7))]}, {"mixer.scores": 1e-6}, seconds=0)
    assert found.was_cut
    assert found.cause is None
    assert "the search was cut short" in str(found)


def test_a_cause_that_may_not_be_the_only_one_is_not_stated_alone() -> None:
    found = of_page("mixed = kept @ v", "mixed = kept @ k")
    assert str(found).startswith("this edit of the page gives your values:")
    cut = replace(found, was_cut=True)
    assert cut.cause is None
    assert str(cut).startswith("an edit that gives your values:")


@pytest.mark.parametrize(
    ("factor", "expected"), [(8**-0.5, ("1 / math.sqrt(8)", True)), (0.5, ("0.5", True)), (0.3711, ("0.3711", False))]
)
def test_factors_are_recognised(factor: float, expected: tuple[str, bool]) -> None:
    assert number(factor, [(3, 8)], {}) == expected


#: Family, edit, and the page and line before and after it.
OF_MODELS = [
    ("distilbert", "y + feed_forward(", "x + feed_forward(", "formulas", "y + feed_forward(y, activation, **ffn)"),
    ("distilbert", "q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT / q.shape[-1]", "formulas", "q @ k.mT"),
    ("llama", "activated * linear(x, **up)", "activated + linear(x, **up)", "formulas", "activated * linear(x, **up)"),
    ("llama", "attention_residual + gated", "normed + gated", "llama", "attention_residual + gated_feed_forward("),
]


@cache
def recorded(family: str) -> tuple[Model, golden.Golden]:
    model, random = tiny.model(family), np.random.default_rng(2)
    texts = [Text(random.integers(5, 60, length)) for length in (9, 6)]
    return model, golden.record(model, texts)


def port(family: str, old: str, new: str) -> Arrays:
    return run(*recorded(family), edited((old, new)), padded=False)


@pytest.mark.parametrize(("family", "old", "new", "page", "line"), OF_MODELS, ids=[each[2] for each in OF_MODELS])
def test_the_difference_of_a_models_page(family: str, old: str, new: str, page: str, line: str) -> None:
    model, reference = recorded(family)
    stages = port(family, old, new)
    theirs = {name: [np.asarray(stages[f"{i}/{name}"]) for i in range(2)] for name in reference.stages}
    found = edits_of_model(model, reference.inputs, theirs, reference.budgets, seconds=20)
    assert found.cause is not None, found
    assert (found.cause.page, new in found.cause.after) == (f"npformer/plain/{page}.py", True)
    assert line in found.cause.before


def test_the_diagnosis_shows_the_edit_that_no_known_mistake_explains() -> None:
    model, reference = recorded("distilbert")
    arrays = port("distilbert", "x * (1 + erf(x / math.sqrt(2))) / 2", "x * (2 + erf(x / math.sqrt(2))) / 2")
    found = golden.diagnose(reference, arrays, model)
    assert found.causes == []
    assert found.edits is not None
    assert "+ return (x * (1 + (1 + erf(x / math.sqrt(2)))) / 2).astype(x.dtype)" in str(found)


def test_a_large_model_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npformer.golden.page_edits.of_model.LARGE", 10)
    monkeypatch.setattr("npformer.golden.page_edits.of_model.LARGEST", 10)
    model, reference = recorded("distilbert")
    theirs = {"logits": [array + 1 for array in reference.stages["logits"]]}
    assert edits_of_model(model, reference.inputs, theirs, reference.budgets).tried == 0
