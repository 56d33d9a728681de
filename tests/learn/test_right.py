"""The reference solutions are correct: models agree with npformer's, and gradients with finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer.golden.compare import assert_close
from npformer.learn import right
from npformer.learn.answers import leaves, mapped
from npformer.learn.chapters import EXERCISES
from npformer.learn.chapters.decoder_steps import tiny_decoder
from npformer.learn.chapters.whole_gradient import tiny_weights
from tests.learn.stages import QUESTIONS, Patient


@pytest.fixture(scope="module")
def patient() -> Patient:
    return Patient()


@pytest.mark.parametrize("name", QUESTIONS)
def test_functions_give_the_stages_of_a_model(patient: Patient, name: str) -> None:
    """Each function agrees with its stage of an encoder or a decoder, within the stage's error budget."""
    asked = QUESTIONS[name]
    _, golden = patient.of(asked.causal)
    arrays = patient.answers(name, EXERCISES[name].right)
    assert_close(golden, {asked.stage: arrays})


def test_a_cache_changes_nothing() -> None:
    """The test runs in float64, in which a step and the whole text differ only by rounding."""
    weights = mapped(lambda array: array.astype(np.float64), tiny_decoder())
    ids, caches = np.array([5, 1, 0, 0, 4]), None
    for end in range(1, len(ids) + 1):
        logits, caches = right.decoder_step(ids[end - 1 : end], 2, weights, caches)
        whole, all_caches = right.decoder_step(ids[:end], 2, weights)
        np.testing.assert_allclose(logits, whole, rtol=1e-10)
    for (_, a), (_, b) in zip(leaves(caches), leaves(all_caches), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_gradients_are_those_of_differences() -> None:
    """Central differences in float64 with a step of 1e-6 have an error of about 1e-10."""
    ids, target = np.array([2, 0, 2, 4]), 1
    weights = mapped(lambda array: array.astype(np.float64), tiny_weights(20))
    _, grads = right.loss_and_gradients(ids, target, 2, weights)
    random = np.random.default_rng(1)
    direction = mapped(lambda array: random.normal(size=array.shape), weights)

    def loss(step: float) -> float:
        return float(right.loss_and_gradients(ids, target, 2, moved(weights, direction, step))[0])

    slope = sum(
        float((grad * each).sum()) for (_, grad), (_, each) in zip(leaves(grads), leaves(direction), strict=True)
    )
    assert abs((loss(1e-6) - loss(-1e-6)) / 2e-6 - slope) < 1e-7


def moved(weights: Any, direction: Any, step: float) -> Any:
    if isinstance(weights, dict):
        return {name: moved(each, direction[name], step) for name, each in weights.items()}
    return weights + step * direction


def test_words_are_sampled_with_their_probabilities() -> None:
    """Evenly spaced values of u draw each word in proportion to its probability. top_p keeps the smallest set of words
    that reaches it.
    """
    logits = np.log(np.array([0.05, 0.4, 0.15, 0.3, 0.1]))
    drawn = [right.sample(logits, 1.0, 0.8, (i + 0.5) / 1000) for i in range(1000)]
    assert np.bincount(drawn, minlength=5).tolist() == [0, 471, 176, 353, 0]  # 0.4, 0.15 and 0.3 of 0.85
    assert right.sample(logits, 0.01, 1.0, 0.999) == 1


def test_the_bundled_classifier_is_classified_as_by_the_pipeline() -> None:
    """Float32 rounding in six layers changes a logit by about 1e-5."""
    model = npformer.load("distilbert-sst2")
    ids = np.array([101, 1045, 2293, 3256, 6949, 102])
    [answer] = model.run([npformer.Text(ids)])
    np.testing.assert_allclose(right.classify(ids, 12, model.weights), answer["logits"], atol=1e-4)
