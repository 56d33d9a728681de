"""An edit replaces only the named stages, and the rest of the forward pass uses the new values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.engine.activations import gelu
from npformer.engine.functions import softmax
from npformer.interpret.edits import ablate_head, edit, freeze_attention, from_trace, mean_ablate, zero
from npformer.interpret.patching import ablate_heads, patch
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.support import tiny

pytestmark = pytest.mark.numbers

TEXTS = ["I love ice cream", "no not", "you love ice cream", "no"]  # two texts have the same length


@pytest.fixture(scope="module", params=("distilbert", "bert"))
def model(request: pytest.FixtureRequest) -> Model:
    return tiny.model(request.param)


def test_a_function_sees_one_text_as_a_trace_shows_it(model: Model) -> None:
    seen = []
    with edit({"layers.0.attention.weights": lambda weights: seen.append(weights) or weights}):
        t = trace(model, TEXTS)
    for array, traced in zip(seen, t["layers.0.attention.weights"], strict=True):
        np.testing.assert_array_equal(array, traced)


def test_an_edit_that_changes_nothing_changes_no_bit(model: Model) -> None:
    plain = trace(model, TEXTS)
    with edit({"*": lambda array: array}):
        edited = trace(model, TEXTS)
    for name in plain:
        for a, b in zip(plain[name], edited[name], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_later_stages_are_computed_from_the_edited_stage(model: Model) -> None:
    with edit({"layers.1.attention.scores": lambda scores: scores * 2}):
        t = trace(model, TEXTS)
    for i in range(len(TEXTS)):
        weights = t["layers.1.attention.weights"][i]
        np.testing.assert_allclose(weights, softmax(t["layers.1.attention.scores"][i]), 1e-5, 1e-6)
        np.testing.assert_allclose(
            t["layers.1.attention.context"][i], weights @ t["layers.1.attention.value_heads"][i], 1e-4, 1e-5
        )
    plain = trace(model, TEXTS)
    np.testing.assert_array_equal(t["layers.1.attention.scores"][0], plain["layers.1.attention.scores"][0] * 2)
    np.testing.assert_array_equal(t["layers.0.ffn_norm"][0], plain["layers.0.ffn_norm"][0])


def test_a_trace_shows_the_edited_stage_in_either_order(model: Model) -> None:
    from npformer.interpret.traces import Trace

    with Trace() as outer, edit(zero("pooled")):
        model([2, 40, 3])
    with edit(zero("pooled")), Trace() as inner:
        model([2, 40, 3])
    assert not outer["pooled"].any()
    assert not inner["pooled"].any()


def test_arrays_and_lists_of_arrays_replace_stages_text_by_text(model: Model) -> None:
    source = trace(model, TEXTS)
    with edit({"layers.0.attention.weights": source["layers.0.attention.weights"][::-1][::-1]}):
        t = trace(model, TEXTS)
    np.testing.assert_array_equal(t["logits"], source["logits"])
    one = np.arange(32, dtype=np.float64)  # converted to the stage's own dtype
    with edit({"pooler": one}):
        t = trace(model, TEXTS)
    assert all(np.array_equal(array, one) and array.dtype == np.float32 for array in t["pooler"])


def test_changes_are_made_in_the_order_given(model: Model) -> None:
    with edit({"pooled": np.ones_like}, {"pooled": lambda x: x + 1}, {"poo*": lambda x: x * 3}):
        t = trace(model, "no")
    np.testing.assert_array_equal(t["pooled"], np.full(32, 6, np.float32))


def test_an_in_place_edit_changes_only_the_stage(model: Model) -> None:
    def spoil(array: np.ndarray) -> np.ndarray:
        array[:] = 7
        return array

    with trace() as outer, edit({"layers.0.attention.query_heads": spoil}):  # this stage is a view of the query
        model([2, 40, 3])
    assert not (outer["layers.0.attention.query"] == 7).any()
    assert (outer["layers.0.attention.query_heads"] == 7).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("layers.0.ffn.output", r"^edit: expected a dict from stages to changes, .* got 'layers\.0\.ffn\.output'"),
        (["layers.0.ffn.output"], "^edit: expected a dict from stages to changes, .* got a list"),
        ({"layers.0.ffn.output": 0}, r"^edit of layers\.0\.ffn\.output: expected a function .* got 0"),
    ],
)
def test_changes_of_another_kind_are_refused(model: Model, changes: Any, message: str) -> None:
    with pytest.raises(NpformerError, match=message), edit(changes):
        trace(model, "no")


def test_a_name_that_never_fires_is_an_error(model: Model) -> None:
    near = r"layers\.0\.atention.*did you mean layers.0.attention.weights"
    with pytest.raises(NpformerError, match=near), edit({"layers.0.atention.weights": np.zeros_like}):
        model([2, 3])
    with pytest.raises(NpformerError, match="no stage has fired"), edit(zero("pooled")):
        pass
    with pytest.raises(ZeroDivisionError), edit(zero("nothing")):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: None, "the function returned None; return the changed array"),
        (lambda x: "x", r"expected an array of shape \(2,\), got <U1 of shape \(\)"),
        (lambda x: x[:1], r"got float32 of shape \(1,\)"),
        (lambda x: x + 1j, "got complex"),
        (np.zeros(3), r"got float64 of shape \(3,\)"),
        ([np.zeros(2)], "expected an array for text 1, got arrays for 1 texts"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(model: Model, change: object, message: str) -> None:
    with pytest.raises(NpformerError, match=f"edit of logits: .*{message}"), edit({"logits": change}):
        trace(model, ["no", "not"])


# --- helpers --------------------------------------------------------------------------------------------------------


def test_a_head_left_out_adds_nothing(model: Model) -> None:
    with edit(ablate_head(1, 2)):
        t = trace(model, TEXTS)
    for context, combined in zip(t["layers.1.attention.context"], t["layers.1.attention.combined"], strict=True):
        assert not context[2].any()
        assert context[[0, 1, 3]].any(axis=(1, 2)).all()
        assert not combined[:, 16:24].any()
    with pytest.raises(NpformerError, match=r"context: expected a head from 0 to 3, got 4"), edit(ablate_head(1, 4)):
        model([2, 3])
    with pytest.raises(NpformerError, match=r"layers\.2\.attention\.context"), edit(ablate_head(2, 0)):
        model([2, 3])


def test_mean_ablation_leaves_only_the_mean_of_the_reference(model: Model) -> None:
    reference = trace(model, TEXTS)
    with edit(mean_ablate("layers.0.ffn.output", reference)):
        t = trace(model, "my movie")
    mean = np.concatenate(reference["layers.0.ffn.output"]).mean(axis=0)
    np.testing.assert_allclose(t["layers.0.ffn.output"], np.tile(mean, (4, 1)), 1e-5, 1e-6)
    with edit(mean_ablate("layers.*.attention.context", reference), mean_ablate("pooled", reference)):
        t = trace(model, TEXTS)
    assert np.ptp(t["layers.1.attention.context"][0], axis=1).max() == 0
    np.testing.assert_allclose(t["pooled"][1], np.mean(reference["pooled"], axis=0), 1e-5, 1e-6)
    with pytest.raises(NpformerError, match="no mean row"):
        mean_ablate("*.weights", reference)


def test_frozen_attention_does_not_depend_on_the_queries(model: Model) -> None:
    source = trace(model, TEXTS)
    with edit(zero("layers.*.attention.query"), freeze_attention(source)):
        t = trace(model, TEXTS)
    np.testing.assert_array_equal(t["logits"], source["logits"])


def test_a_stage_from_another_trace_whole_or_at_some_positions(model: Model) -> None:
    clean, other = trace(model, TEXTS[0]), TEXTS[2]
    with edit(from_trace(clean, "layers.0.ffn_norm")):
        np.testing.assert_array_equal(trace(model, other)["logits"], clean["logits"])
    plain = trace(model, other)
    with edit(from_trace(clean, "layers.0.ffn_norm", [0, 1])):
        t = trace(model, other)
    np.testing.assert_array_equal(t["layers.0.ffn_norm"][:2], clean["layers.0.ffn_norm"][:2])
    np.testing.assert_array_equal(t["layers.0.ffn_norm"][2:], plain["layers.0.ffn_norm"][2:])
    with edit(from_trace(clean, "*.weights", np.int64(3))):  # type: ignore[arg-type]
        t = trace(model, other)
    np.testing.assert_array_equal(t["layers.0.attention.weights"][:, 3], clean["layers.0.attention.weights"][:, 3])
    for name, text, positions, message in (
        ("*.ffn_norm", "no", 0, "cannot copy positions 0 from"),
        ("*.ffn_norm", other, 6, r"no positions \[6\] in shape"),
        ("pooled", other, 0, "no positions"),
    ):
        with pytest.raises(NpformerError, match=message), edit(from_trace(clean, name, positions)):
            trace(model, text)
    with pytest.raises(NpformerError, match="expected a trace of one text, got 2"):
        from_trace(trace(model, ["no", "not"]), "logits", 0)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_ablate_heads_is_the_change_in_the_labels_logit(model: Model) -> None:
    effects = ablate_heads(model, TEXTS)
    assert np.asarray(effects).shape == (2, 4)
    plain = trace(model, TEXTS)
    changes = []
    with edit(ablate_head(0, 3)):
        without = trace(model, TEXTS)
    for before, after in zip(plain["logits"], without["logits"], strict=True):
        changes.append(after[before.argmax()] - before[before.argmax()])
    np.testing.assert_allclose(effects.values[0, 3], np.mean(changes), 1e-5, 1e-6)
    lines = str(effects).splitlines()
    assert lines[0].split() == ["head", "0", "head", "1", "head", "2", "head", "3"]
    assert lines[2].startswith("layer 1")


def test_patch_is_the_effect_of_each_stage_at_each_position(model: Model) -> None:
    clean, corrupted = TEXTS[0], TEXTS[2]
    effects = patch(model, clean, corrupted, ["embeddings.norm", "layers.*.ffn_norm"])
    assert effects.rows == ("embeddings.norm", "layers.0.ffn_norm", "layers.1.ffn_norm")
    assert effects.columns == ("[CLS]", "you", "love", "ice", "cream", "[SEP]")
    label = int(trace(model, clean)["logits"].argmax())
    change = trace(model, clean)["logits"][label] - trace(model, corrupted)["logits"][label]
    np.testing.assert_allclose(effects.values[2, 0], change, 1e-4, 1e-5)  # the head reads only the first row
    np.testing.assert_allclose(effects.values[0, 1], change, 1e-4, 1e-5)  # the texts differ only in the second token
    np.testing.assert_array_equal(effects.values[2, 1:], 0)
    np.testing.assert_array_equal(effects.values[0, [0, 2, 3, 4, 5]], 0)


def test_texts_and_models_without_a_common_measure_are_errors(model: Model) -> None:
    with pytest.raises(NpformerError, match="two texts with the same number of tokens, got 3 and 4; "):
        patch(model, "no", "no not")
    with pytest.raises(
        NpformerError, match="ablate_heads: expected a function of the answers, because a base model has no labels"
    ):
        ablate_heads(tiny.model(head="base"), TEXTS)


def test_tables_wrap_at_80_columns() -> None:
    model = tiny.model(n_heads=16)
    assert max(map(len, str(ablate_heads(model, "no")).splitlines())) <= 80


def test_an_edited_stage_may_be_used_in_a_study_of_one_function() -> None:
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    from npformer.engine.taps import tap

    with edit({"activation": lambda a: a * 0}):
        assert not tap("activation", gelu(x)).any()
