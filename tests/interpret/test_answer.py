"""A model's answer with its probability, and the first-order effect of each head on this probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer import Pair, edit, pipeline
from npformer.interpret.answer import ModelAnswer, answer_of
from npformer.interpret.metric import metric_of
from npformer.interpret.study_inputs import pair_of, texts_of
from tests.support import tiny

TEXT = "I love [MASK] cream"
FRACTION = 1e-5  # fraction of a head's output to remove; the error is about the square of the fraction


def scaled(head: int) -> Any:
    """Returns an edit that removes a small fraction of a head's output."""

    def change(context: np.ndarray) -> np.ndarray:
        context = context.copy()
        context[..., head, :, :] *= 1 - FRACTION
        return context

    return change


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("distilbert", "sequence-classification"),
        ("bert", "masked-lm"),
        ("gpt2", "causal-lm"),
        ("deberta-v2", "sequence-classification"),
    ],
)
def test_an_effect_is_the_derivative_of_taking_a_head_away(family: str, head: str) -> None:
    model = tiny.model(family, head, dtype=np.float64)
    check_effects(model, answer_of(model, TEXT), texts_of(model, TEXT)[0][0])


def test_so_it_is_of_a_translation() -> None:
    model = npformer.load("en-de-multi30k", dtype="float64")
    check_effects(model, answer_of(model, "A man rides a bike."), pair_of(model, "A man rides a bike.")[0])


def check_effects(model: Any, found: ModelAnswer | None, text: Any) -> None:
    assert found is not None
    assert [abs(each.change) for each in found.effects] == sorted(
        (abs(each.change) for each in found.effects), reverse=True
    )
    (before,) = model.run([text])
    metric = metric_of(model, None, None, before, text)
    assert metric.what == found.metric
    for effect in found.effects[:3]:
        with edit({f"{effect.attention}.context": scaled(effect.head)}):
            (after,) = model.run([text])
        slope = (metric.of(after) - metric.of(before)) / FRACTION
        assert slope == pytest.approx(effect.change, rel=1e-3, abs=1e-8)


def test_outcomes_are_the_tasks_answers() -> None:
    model = npformer.load("distilbert-sst2")
    found = answer_of(model, "I love ice cream")
    expected = pipeline("text-classification", model, top_k=None)("I love ice cream")
    assert found is not None
    assert [name for name, _ in found.outcomes] == [each["label"] for each in expected]
    assert [share for _, share in found.outcomes] == pytest.approx([each["score"] for each in expected], rel=1e-6)


def test_words_come_without_a_tokenizers_marks() -> None:
    model = npformer.load("gpt2-austen")
    found = answer_of(model, "It is a truth universally")
    assert found is not None
    assert found.about == "next token"
    assert not any("Ġ" in word for word, _ in found.outcomes)
    assert found.metric == f"the logit of '{found.outcomes[0][0]}' at token 7"


@pytest.mark.parametrize(
    "head", ["base", "token-classification", "question-answering", "multiple-choice", "replaced-token"]
)
def test_a_model_without_one_answer_for_the_text_has_none(head: str) -> None:
    given = Pair("who", "the act") if head == "question-answering" else "the act"
    assert answer_of(tiny.model("electra", head), given) is None


def test_without_a_masked_word_there_is_no_answer() -> None:
    assert answer_of(tiny.model("bert", "masked-lm"), "I love ice cream") is None


def test_a_translation_is_explained_by_cross_attention() -> None:
    model = npformer.load("en-de-multi30k")
    found = answer_of(model, "A man rides a bike.")
    assert found is not None
    assert found.outcomes[0][0] == pipeline("translation", model)("A man rides a bike.")["translation_text"]
    assert all(".cross_attention" in each.attention for each in found.effects)
