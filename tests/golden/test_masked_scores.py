"""Scores that a port exports with the mask added, or with a term that the softmax cancels, are not a mistake."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from npformer import golden
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from tests.support import tiny

Arrays = dict[str, np.ndarray]
SCORES = "layers.0.attention.scores"


@cache
def recorded() -> tuple[Model, golden.Golden]:
    model, random = tiny.model("llama", "causal-lm"), np.random.default_rng(3)
    return model, golden.record(model, [Text(random.integers(5, 60, length)) for length in (8, 5)])


def right() -> Arrays:
    """The stages of a correct port, with an array for each text."""
    return {f"{i}/{name}": array for name, arrays in recorded()[1].stages.items() for i, array in enumerate(arrays)}


def changed(change: object) -> Arrays:
    """The stages with changed scores in every layer: change(scores, seen), with seen[i, j] if query i sees key j."""
    return {
        name: change(array, np.tri(array.shape[-1], dtype=bool)) if name.endswith("attention.scores") else array  # type: ignore[operator]
        for name, array in right().items()
    }


FORMS = {
    "-inf": lambda scores, seen: np.where(seen, scores, -np.inf),
    "not a number": lambda scores, seen: np.where(seen, scores, np.nan),
    "the lowest float16": lambda scores, seen: np.where(seen, scores, -65504.0),
    "-10000 added": lambda scores, seen: scores + np.where(seen, 0, -1e4),
    "-1e9 added": lambda scores, seen: scores + np.where(seen, 0, -1e9),
    "a term of the query": lambda scores, seen: scores + np.arange(scores.shape[-1])[:, None],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scores_in_another_form_pass_with_a_note(form: object) -> None:
    comparison = golden.compare(recorded()[1], changed(form))
    assert comparison.ok, comparison
    assert SCORES in comparison.missing
    assert f"{SCORES} and 1 more: not compared" in str(comparison).replace("\n  ", " ")


def test_wrong_scores_are_compared_though_the_weights_are_missing() -> None:
    port = changed(lambda scores, seen: 1.1 * scores)
    comparison = golden.compare(recorded()[1], {k: v for k, v in port.items() if not k.endswith("attention.weights")})
    assert comparison.first is not None
    assert comparison.first.stage == SCORES


def test_masked_scores_do_not_hide_a_wrong_mask() -> None:
    """Queries do not see their own token, in masked scores and in weights."""

    def off(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
        earlier = np.tri(len(seen), k=-1, dtype=bool)
        earlier[0, 0] = True
        return np.where(earlier, scores, -np.inf)

    port = changed(off)
    for name in [each for each in port if each.endswith("attention.scores")]:
        e = np.exp(port[name] - port[name].max(-1, keepdims=True))
        port[name.replace("scores", "weights")] = (e / e.sum(-1, keepdims=True)).astype(np.float32)
    model, reference = recorded()
    found = golden.diagnose(reference, port, model)
    assert found.stage == "layers.0.attention.weights"
    assert "mask" in str(found)
