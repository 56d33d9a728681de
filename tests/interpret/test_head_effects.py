"""A head's effect equals that of an edit: the probabilities of the answer and of other answers without the head."""

from __future__ import annotations

import numpy as np
import pytest

import npformer
from npformer import edit
from npformer.common.errors import NpformerError
from npformer.engine.functions import log_softmax, softmax
from npformer.interpret.edits import without_head
from npformer.interpret.head_effects import head_effects
from npformer.interpret.study_inputs import pair_of
from npformer.interpret.traces import trace
from tests.support import tiny

TEXT = "I love [MASK] cream"


@pytest.mark.parametrize(
    ("family", "head", "row"),
    [
        ("distilbert", "sequence-classification", ...),
        ("bert", "masked-lm", 3),
        ("gpt2", "causal-lm", -1),
        ("bart", "sequence-classification", ...),
    ],
)
def test_an_effect_is_that_of_a_run_without_the_head(family: str, head: str, row: int) -> None:
    model = tiny.model(family, head)
    found, before = head_effects(model, TEXT), softmax(trace(model, TEXT)["logits"].astype(np.float64)[row])
    assert found is not None
    assert found.before == before.max()
    for at, attention in enumerate(found.attentions):
        with edit(without_head(f"{attention}.context", 2)):
            after = softmax(trace(model, TEXT)["logits"].astype(np.float64)[row])
        assert found.changes[at, 2] == after[before.argmax()] - before.max()
        assert [share for _, share in found.outcomes[at][2]] == sorted(after.tolist(), reverse=True)[:5]


def test_a_translation_keeps_its_words() -> None:
    model = npformer.load("en-de-multi30k")
    pair = pair_of(model, "A man rides a bike.")[0]
    found, ids = head_effects(model, pair), pair[1].ids[1:]
    assert found is not None
    assert found.answer == model.tokenizer.decode(ids.tolist())
    at = found.attentions.index("decoder.layers.1.cross_attention")
    with edit(without_head("decoder.layers.1.cross_attention.context", 3)):
        logits = trace(model, pair)["logits"].astype(np.float64)
    after = np.exp(log_softmax(logits[: len(ids)])[np.arange(len(ids)), ids].mean())
    assert found.outcomes[at][3] == ((found.answer, after),)
    assert found.changes[at, 3] == after - found.before


def test_a_model_without_one_answer_has_no_effects() -> None:
    assert head_effects(tiny.model("bert", "token-classification"), TEXT) is None


def test_only_some_heads_are_ablated() -> None:
    model = tiny.model()
    every, some = head_effects(model, TEXT), head_effects(model, TEXT, heads=[("layers.1.attention", 2)])
    assert every is not None
    assert some is not None
    assert np.isnan(some.changes).sum() == some.changes.size - 1
    assert some.changes[1, 2] == every.changes[1, 2]
    assert (some.outcomes[1][2], some.outcomes[0][0]) == (every.outcomes[1][2], ())
    assert some.whole[0] == (some.answer, some.before)
    with pytest.raises(NpformerError, match=r"heads: expected an attention block and one of its heads, got layers.7"):
        head_effects(model, TEXT, heads=[("layers.7.attention", 0)])
