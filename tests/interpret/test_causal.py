"""Views and measures of a model that predicts the next word: by default, they explain this word."""

from __future__ import annotations

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.model import Model
from npformer.text.words import piece_names
from npformer.view import attribution, heads, logit
from tests.support import writers

TEXT = "The other in the"


@pytest.fixture(scope="module")
def model() -> Model:
    return writers.model(seed=4, dtype=np.float64)


def test_a_token_attends_to_no_later_one(model: Model) -> None:
    found = npformer.trace(model, TEXT)
    for layer in range(model.config.n_layers):
        weights = found[f"layers.{layer}.attention.weights"]
        assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(weights.sum(axis=-1), 1)
    first = str(heads(model, TEXT)).splitlines()[4].split()
    assert first[1:3] == ["T", "█1.00"]


def test_the_word_after_the_text_is_explained(model: Model) -> None:
    """The parts add up to the last token's logit. The lens names a word for each layer; the last is the answer."""
    logits = model(model.tokenizer.encode(TEXT).ids).logits[0]
    found = npformer.logit_attribution(model, TEXT)
    word = piece_names(["Ġa", model.tokenizer.id_to_token(int(logits[-1].argmax()))])[1]
    assert (found.position, found.what) == (len(logits) - 1, f"the logit of '{word}' at token {len(logits) - 1}")
    assert found.total == pytest.approx(found.logit, abs=1e-9)
    assert found.logit == pytest.approx(logits[-1].max(), abs=1e-9)
    assert found.lens_labels[-1] == word
    assert set(found.lens_labels) <= {piece_names(["Ġa", piece])[1] for piece in model.tokenizer.get_vocab()}
    assert word in str(logit(model, TEXT))
    the = model.tokenizer.token_to_id("Ġthe")
    for label in ("Ġthe", " the"):
        asked = npformer.logit_attribution(model, TEXT, label, position=np.int64(0), against=5)
        assert asked.logit == pytest.approx(logits[0, the] - logits[0, 5], abs=1e-9)
    with pytest.raises(NpformerError, match="label=' the the': expected"):
        npformer.logit_attribution(model, TEXT, " the the")


def test_edits_are_measured_by_the_same_logit(model: Model) -> None:
    logits = model(model.tokenizer.encode(TEXT).ids).logits[0]
    with npformer.edit({"layers.0.attention.context": lambda x: x * [[[1]], [[0]], [[1]], [[1]]]}):
        edited = model(model.tokenizer.encode(TEXT).ids).logits[0]
    best = int(logits[-1].argmax())
    table = npformer.ablate_heads(model, [TEXT])
    assert table.values[0, 1] == pytest.approx(edited[-1, best] - logits[-1, best], abs=1e-9)


def test_roll_out_begins_at_the_last_token(model: Model) -> None:
    """Only the last token attends to all others; the first attends only to itself."""
    [last], [first] = (attribution(model, TEXT, token=token, methods="roll-out").methods for token in (None, 0))
    assert last.scores.sum() == pytest.approx(1)
    assert (last.scores > 0).all()
    assert first.scores.tolist() == [1, 0, 0, 0]
