"""A translation's words explained by the source's words: finite differences, completeness, and results by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.interpret.integrated_gradients import slope
from npformer.interpret.source_attribution import by_source, each_word_by_source, written
from npformer.interpret.study_inputs import pair_of
from tests.support.seq2seq_models import random_model

TEXT = "A man rides a bike."


@pytest.mark.parametrize("position", [None, 0, 2])
def test_the_gradient_is_that_of_central_differences(position: int | None) -> None:
    model = random_model("float64", n_layers=1)
    pair = (Text([5, 6, 9, 0]), Text([499, 7, 8, 11]))
    explained, h = written(model, pair[1], position), 1e-5
    here, random = slope(model, [pair], explained), np.random.default_rng(2)
    for _ in range(5):
        way = random.standard_normal(here.rows.shape)
        ends = [slope(model, [pair], explained, here.rows + sign * h * way).values[0] for sign in (1, -1)]
        np.testing.assert_allclose((here.gradient * way).sum(), (ends[0] - ends[1]) / (2 * h), rtol=0, atol=1e-7)


def test_the_target_is_the_log_odds_of_the_words_as_written() -> None:
    model = npformer.load("en-de-multi30k", dtype="float64")
    pair = pair_of(model, TEXT)[0]
    logits, ids = model.run([pair])[0]["logits"], pair[1].ids[1:]
    shares = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))[np.arange(len(ids)), ids]
    odds = np.log(shares / (1 - shares))
    assert slope(model, [pair], written(model, pair[1], None)).values[0] == pytest.approx(odds.mean(), rel=1e-9)
    assert slope(model, [pair], written(model, pair[1], 2)).values[0] == pytest.approx(odds[2], rel=1e-9)
    named = [re.findall("'(.*)' after token", written(model, pair[1], at).what)[0] for at in range(len(ids))]
    assert named == ["Ein", "Mann", "fährt", "Fahrrad", "."]


def test_leaving_out_a_word_takes_its_pieces_from_the_source() -> None:
    model = npformer.load("en-de-multi30k")
    pair = pair_of(model, TEXT)[0]
    (found,) = by_source(model, pair, 1, ["leave-one-out"])
    explained = written(model, pair[1], 1)
    odds = [
        explained.of(model.run([each])[0]["logits"][1:2])[0]
        for each in (pair, (Text(pair[0].ids[[0, 2, 3, 4, 5, 6]]), pair[1]))
    ]
    assert found.scores[1] == odds[0] - odds[1]
    assert found.words[:4] == ["A", "man", "rides", "a"]
    assert len(found.words) == len(found.scores) == 5
    (groups,) = by_source(model, pair, 1, ["leave-one-out"], group=3)
    assert groups.words == ["A man rides", "a bike."]
    assert (found.places, groups.places) == ((0, 1, 2, 3, 4), (0, 3))


def test_integrated_gradients_are_complete() -> None:
    model = npformer.load("en-de-multi30k", dtype="float64")
    (found,) = by_source(model, TEXT, 3, ["integrated"], steps=60)
    error = float(re.findall(r"off by (\S+)\.$", found.about)[0])
    assert error < 0.05 * np.abs(found.scores).sum()
    assert "from a text of <pad>" in found.about


def test_a_word_is_explained_most_by_the_one_that_it_translates() -> None:
    model = npformer.load("en-de-multi30k")
    for method in by_source(model, TEXT, 3):
        assert "bike" in method.words[int(method.scores.argmax())]


def test_a_position_outside_the_translation_is_an_error() -> None:
    model = npformer.load("en-de-multi30k")
    with pytest.raises(NpformerError, match="attribution: position: expected a token's number, 0 to"):
        by_source(model, TEXT, 99)


def test_each_word_has_the_scores_that_it_has_alone() -> None:
    model = npformer.load("en-de-multi30k")
    pair = pair_of(model, TEXT)[0]
    every = each_word_by_source(model, pair)
    assert len(every) == len(pair[1].ids) - 1
    for position in (0, 2):
        alone = by_source(model, pair, position, ["leave-one-out", "gradient"])
        for found, expected in zip(every[position], alone, strict=True):
            assert (found.name, found.about, found.words) == (expected.name, expected.about, expected.words)
            np.testing.assert_array_equal(found.scores, expected.scores)
