"""Next words at a temperature: the softmax of all logits, computed from the largest logits and the sum of the rest."""

from __future__ import annotations

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax
from npformer.interpret.next_words import TEMPERATURES, next_words
from npformer.interpret.traces import trace
from tests.support import tiny

TEXT = "I love ice"


@pytest.mark.parametrize("temperature", [TEMPERATURES[0], 1.0, TEMPERATURES[-1]])
@pytest.mark.parametrize("most", [1, 5, 10_000])  # 10,000 exceeds the vocabulary
def test_probabilities_are_the_softmax_of_all_logits(temperature: float, most: int) -> None:
    model = tiny.model("gpt2", "causal-lm")
    found, logits = next_words(model, TEXT, most), trace(model, TEXT)["logits"][-1].astype(np.float64)
    every = np.sort(softmax(logits / temperature))[::-1]
    shares, others = found.probabilities(temperature)
    np.testing.assert_allclose(shares, every[:most], rtol=1e-12)  # the terms are added in a different order
    assert others == pytest.approx(every[most:].sum(), rel=1e-12, abs=0)
    assert found.words[0] == model.tokenizer.id_to_token(int(logits.argmax())).removeprefix("Ġ")


def test_a_part_of_a_word_is_marked() -> None:
    assert next_words(npformer.load("gpt2-austen"), "It is a truth univers", 1).words == ("##ally",)


def test_impossible_questions_are_errors() -> None:
    with pytest.raises(NpformerError, match="expected a causal-lm model, got a sequence-classification model"):
        next_words(tiny.model(), TEXT)
    model = tiny.model("gpt2", "causal-lm")
    with pytest.raises(NpformerError, match="expected positive numbers"):
        next_words(model, TEXT, temperatures=[0.0])
    with pytest.raises(NpformerError, match=r"temperature: expected one of 0\.1, 0\.2"):
        next_words(model, TEXT).probabilities(0.15)
