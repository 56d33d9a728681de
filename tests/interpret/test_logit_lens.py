"""The logit lens, compared with the last norm and the head on the hidden states of each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax
from npformer.engine.norms.layernorm import LayerNorm
from npformer.interpret.logit_lens import LogitLens, logit_lens
from npformer.interpret.metric import label_name
from npformer.interpret.study_inputs import pair_of
from npformer.interpret.traces import trace
from tests.support import tiny

TEXT = "I love [MASK] cream"


@pytest.mark.parametrize("layer", [-1, 0, 1])
def test_logits_of_a_layer_are_the_heads_for_its_hidden_states(layer: int) -> None:
    model = tiny.model("gpt2", "causal-lm", dtype=np.float64)
    found, recorded = logit_lens(model, TEXT, most=3), trace(model, TEXT)
    row = recorded["embeddings.sum" if layer < 0 else f"layers.{layer}.ffn_residual"][-1]
    logits = LayerNorm(1e-5)(row, **model.weights["norm"]) @ model.weights["head"]["output"]["weight"]
    numbers = np.argsort(-logits)[:3]
    assert found.numbers[layer + 1, 0].tolist() == numbers.tolist()
    np.testing.assert_allclose(found.logits[layer + 1, 0], logits[numbers], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.probabilities[layer + 1, 0], softmax(logits)[numbers], rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", [None, 7])
def test_an_output_is_followed_through_the_layers(label: int | None) -> None:
    """By default, the lens follows the last row's answer at each position. Places count from 1."""
    model = tiny.model("gpt2", "causal-lm", dtype=np.float64)
    logits = logit_lens(model, TEXT, positions=[1, 4], most=10_000, label=label)
    whole = [dict(zip(cell.tolist(), shares, strict=True)) for cell, shares in _cells(logits)]
    numbers = [label] * 2 if label is not None else logits.numbers[-1, :, 0].tolist()
    expected = np.reshape([shares[numbers[i % 2]] for i, shares in enumerate(whole)], (3, 2))
    np.testing.assert_array_equal(logits.followed_probabilities, expected)
    places = [cell.tolist().index(numbers[i % 2]) + 1 for i, (cell, _) in enumerate(_cells(logits))]
    assert logits.followed_places.tolist() == np.reshape(places, (3, 2)).tolist()
    assert logits.followed == tuple(label_name(model, each, 10_000) for each in numbers)


def _cells(found: LogitLens) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the numbers and probabilities of each row at each position."""
    return [pair for pairs in zip(found.numbers, found.probabilities, strict=True) for pair in zip(*pairs, strict=True)]


@pytest.mark.parametrize(
    ("family", "head", "positions"),
    [
        ("bert", "masked-lm", (3,)),
        ("gpt2", "causal-lm", (-1,)),
        ("bert", "token-classification", range(6)),
        ("bart", "sequence-classification", None),
        ("deberta-v2", "sequence-classification", None),
    ],
)
def test_the_last_layer_gives_the_models_own_answer(family: str, head: str, positions: Any) -> None:
    model = tiny.model(family, head, dtype=np.float64)
    found, logits = logit_lens(model, TEXT), trace(model, TEXT)["logits"]
    rows = logits[None] if positions is None else logits[list(positions)]
    np.testing.assert_allclose(found.logits[-1], -np.sort(-rows)[:, :5], rtol=0, atol=1e-12)
    assert len(found.rows) == len(found.words) == 3
    assert len(found.tokens) == len(rows)


def test_the_lens_of_a_translation_has_the_words_that_follow_each_token() -> None:
    model = npformer.load("en-de-multi30k")
    pair = pair_of(model, "A man rides a bike.")[0]
    found = logit_lens(model, pair)
    assert found.numbers[-1, :-1, 0].tolist() == pair[1].ids[1:].tolist()
    assert found.words[-1][1][0] == "Mann"
    assert logit_lens(model, "A man rides a bike.", positions=np.flatnonzero([0, 1])).words[-1] == (found.words[-1][1],)


@pytest.mark.parametrize("head", ["base", "question-answering", "multiple-choice"])
def test_a_model_without_labels_or_words_is_refused(head: str) -> None:
    with pytest.raises(NpformerError, match=f"logit_lens: expected a model with labels or words, got a {head} model"):
        logit_lens(tiny.model("bert", head), TEXT)


def test_errors_name_the_argument() -> None:
    words = tiny.model("bert", "masked-lm")
    with pytest.raises(NpformerError, match="no masked word; pass positions="):
        logit_lens(words, "I love ice cream")
    with pytest.raises(NpformerError, match="logit_lens: position: expected a token's number, 0 to 5"):
        logit_lens(words, TEXT, positions=[9])
    with pytest.raises(NpformerError, match="positions: expected at least one token index"):
        logit_lens(words, TEXT, positions=[])
    with pytest.raises(NpformerError, match="most: expected a whole number of at least 1, got 0"):
        logit_lens(words, TEXT, positions=[1], most=0)
    with pytest.raises(NpformerError, match="logit_lens: label='nothing': expected"):
        logit_lens(words, TEXT, label="nothing")
    with pytest.raises(NpformerError, match="positions: omit it"):
        logit_lens(tiny.model("bert"), TEXT, positions=[0])
    with pytest.raises(NpformerError, match="expected one text"):
        logit_lens(words, [TEXT, TEXT])
