"""Patching by position, head and layer, for every head. Attribution patching is its first-order estimate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError, NpformerWarning
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.interpret import patching
from npformer.interpret.edits import edit, from_trace, without_head
from npformer.interpret.patching import ablate_heads, attribution_patching, patch
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.support import tiny
from tests.support.seq2seq_models import random_model

pytestmark = pytest.mark.numbers

CLEAN, CORRUPTED = "I love [MASK] cream", "you love [MASK] cream"
CASES = [(family, head) for family in ("distilbert", "bert", "electra") for head in encoders()[family].heads]


def norm(answers: dict[str, np.ndarray]) -> float:
    return float(np.square(answers["last_hidden_state"][0]).sum())


def metric_of_head(head: str) -> Any:
    return norm if head == "base" else None


def value(model: Model, head: str, text: Any, answered: Any) -> float:
    """Returns the default metric, written out: the logit of `answered`, the model's answer to the clean text."""
    t, chosen = trace(model, text), answered
    if head == "base":
        last = [name for name in t if name.endswith("ffn_norm")][-1]
        return float(np.square(t[last][0]).sum())
    if head == "question-answering":
        return float(np.mean([t[f"{side}_logits"][chosen[f"{side}_logits"].argmax()] for side in ("start", "end")]))
    if head == "replaced-token":
        return float(np.mean(t["logits"]))
    rows = t["logits"] if t["logits"].ndim == 2 else t["logits"][None]
    theirs = chosen["logits"] if chosen["logits"].ndim == 2 else chosen["logits"][None]
    at = {"masked-lm": [3], "causal-lm": [len(rows) - 1]}.get(head, range(len(rows)))
    return float(np.mean([rows[i][theirs[i].argmax()] for i in at]))


def test_heads_are_left_out_of_several_translations() -> None:
    """The effects for several pairs are the means of the effects for each pair."""
    model = random_model("float64", n_layers=1)
    pairs = [([5, 6, 0], [499, 7]), ([8, 0], [499, 9, 10])]
    alone = [ablate_heads(model, pair).values for pair in pairs]
    np.testing.assert_allclose(ablate_heads(model, pairs).values, np.mean(alone, axis=0), atol=1e-12)


@pytest.mark.parametrize(("family", "head"), CASES)
def test_every_head_of_a_model_is_measured_by_its_own_answer(family: str, head: str) -> None:
    model = tiny.model(family, head, dtype=np.float64)
    effects = ablate_heads(model, CLEAN, metric_of_head(head))
    answered = trace(model, CLEAN)
    before = value(model, head, CLEAN, answered)
    for layer, number in ((0, 3), (1, 0)):
        with edit(without_head(f"layers.{layer}.attention.context", number)):
            after = value(model, head, CLEAN, answered)
        assert effects.values[layer, number] == pytest.approx(after - before, abs=1e-12)
    patched = patch(model, CLEAN, CORRUPTED, "layers.0.ffn_norm", metric_of_head(head))
    with edit(from_trace(answered, "layers.0.ffn_norm", 2)):
        after = value(model, head, CORRUPTED, answered)
    assert patched.values[0, 2] == pytest.approx(after - value(model, head, CORRUPTED, answered), abs=1e-12)


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2", "modernbert", "gpt2", "bart"])
def test_patches_from_the_clean_run_restore_its_logits(family: str) -> None:
    """Patching all stages, or only the last layer, gives exactly the clean logits. Patching a row has
    the same effect as editing it.
    """
    model = tiny.model(family, dtype=np.float64)
    clean, corrupted = trace(model, CLEAN), trace(model, CORRUPTED)
    with edit(from_trace(clean, "*")):
        np.testing.assert_array_equal(trace(model, CORRUPTED)["logits"], clean["logits"])
    label = int(clean["logits"].argmax())
    change = clean["logits"][label] - corrupted["logits"][label]
    last = "ffn_residual" if model.config.norm_first else "ffn_norm"
    layers = patch(model, CLEAN, CORRUPTED, by="layer")
    blocks = ["attention.output", *["cross_attention.output"] * (family == "bart"), "ffn.output", last]
    assert list(layers.columns) == blocks
    assert layers.values[-1, layers.columns.index(last)] == pytest.approx(change, abs=1e-12) != 0
    rows = patch(model, CLEAN, CORRUPTED)
    behind = int(family == "bart")  # BART's decoder first reads a start token
    assert [row.startswith("decoder.") for row in rows.rows] == [False] * 2 + [True] * 2 * behind
    assert rows.columns == (*clean.tokens[:behind], *(corrupted.key_tokens or corrupted.tokens))
    with edit(from_trace(clean, rows.rows[0], 1)):
        after = trace(model, CORRUPTED)["logits"][label]
    assert rows.values[0, 1 + behind] == pytest.approx(after - corrupted["logits"][label], abs=1e-12)
    with edit(from_trace(clean, rows.rows[-1], 2)):
        after = trace(model, CORRUPTED)["logits"][label]
    assert rows.values[-1, 2] == pytest.approx(after - corrupted["logits"][label], abs=1e-12)
    assert np.isnan(rows.values).sum() == 4 * behind


def test_a_metric_of_ones_own_is_measured_on_each_text() -> None:
    model = tiny.model("bert", dtype=np.float64)
    texts = [CLEAN, "no"]
    effects = ablate_heads(model, texts, lambda answers: answers["logits"][1] - answers["logits"][0])
    plain = trace(model, texts)["logits"]
    with edit(without_head("layers.1.attention.context", 2)):
        without = trace(model, texts)["logits"]
    changes = [(after[1] - after[0]) - (before[1] - before[0]) for before, after in zip(plain, without, strict=True)]
    assert effects.values[1, 2] == pytest.approx(np.mean(changes), abs=1e-12)
    tags = tiny.model("bert", "token-classification", dtype=np.float64)
    one = ablate_heads(tags, CLEAN, "B-PER", position=2)
    assert one.title == "change in the logit of B-PER at token 2"
    with edit(without_head("layers.0.attention.context", 1)):
        after = trace(tags, CLEAN)["logits"][2, 1]
    assert one.values[0, 1] == pytest.approx(after - trace(tags, CLEAN)["logits"][2, 1], abs=1e-12)


def test_the_heads_of_a_translation_model() -> None:
    model = random_model("float64", d_model=16, d_ffn=24)
    pair = (np.array([5, 6, 7, 0]), np.array([499, 8, 9]))
    effects = ablate_heads(model, pair, lambda answers: answers["logits"][-1, 0])
    assert effects.rows == (
        "encoder 0", "encoder 1", "decoder 0", "decoder 0, source", "decoder 1", "decoder 1, source",
    )  # fmt: skip
    texts = [(Text(pair[0]), Text(pair[1]))]
    (before,) = model.run(texts)
    for row, stage in ((1, "encoder.layers.1.attention.context"), (3, "decoder.layers.0.cross_attention.context")):
        with edit(without_head(stage, 1)):
            (after,) = model.run(texts)
        assert effects.values[row, 1] == after["logits"][-1, 0] - before["logits"][-1, 0] != 0
    assert ablate_heads(model, pair).title == "change in the mean log-probability of the translation"


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert", dtype=np.float64)


def test_by_head_and_by_layer(model: Model) -> None:
    clean = trace(model, CLEAN)
    label = int(clean["logits"].argmax())
    before = trace(model, CORRUPTED)["logits"][label]
    heads = patch(model, CLEAN, CORRUPTED, by="head")
    assert heads.rows == ("layers.0.attention.context", "layers.1.attention.context")
    assert heads.columns == ("head 0", "head 1", "head 2", "head 3")
    with edit(from_trace(clean, "layers.1.attention.context", heads=[2])):
        after = trace(model, CORRUPTED)
    np.testing.assert_array_equal(after["layers.1.attention.context"][2], clean["layers.1.attention.context"][2])
    assert not np.array_equal(after["layers.1.attention.context"][1], clean["layers.1.attention.context"][1])
    assert heads.values[1, 2] == pytest.approx(after["logits"][label] - before, abs=1e-12)
    layers = patch(model, CLEAN, CORRUPTED, by="layer")
    assert layers.rows == ("layer 0", "layer 1")
    assert layers.columns == ("attention.output", "ffn.output", "ffn_norm")
    assert layers.values[1, 2] == pytest.approx(clean["logits"][label] - before, abs=1e-12)
    with edit(from_trace(clean, "layers.0.ffn.output")):
        after = trace(model, CORRUPTED)
    assert layers.values[0, 1] == pytest.approx(after["logits"][label] - before, abs=1e-12)


def test_positions_and_heads_together(model: Model) -> None:
    clean = trace(model, CLEAN)
    with edit(from_trace(clean, "layers.0.attention.weights", 1, [0, 3])):
        t = trace(model, CORRUPTED)
    own = trace(model, CORRUPTED)["layers.0.attention.weights"]
    expected = own.copy()
    expected[[0, 3], 1] = clean["layers.0.attention.weights"][[0, 3], 1]
    np.testing.assert_array_equal(t["layers.0.attention.weights"], expected)
    for heads, name in (([4], "*.weights"), (0, "layers.0.ffn_norm")):
        with pytest.raises(NpformerError, match="no heads"), edit(from_trace(clean, name, heads=heads)):
            trace(model, CORRUPTED)


def test_adjacent_tokens_are_patched_together(model: Model) -> None:
    """All rows of a group get values from the clean run. The last group may be smaller."""
    clean, stage = trace(model, CLEAN), "layers.0.ffn_norm"
    found = patch(model, CLEAN, CORRUPTED, stage, lambda answers: float(answers["logits"].flat[0]), group=2)
    before = float(trace(model, CORRUPTED)["logits"].flat[0])
    assert len(found.columns) == math.ceil(len(clean.ids) / 2)
    assert found.columns[0] == "[CLS]…you"
    for place, change in enumerate(found.values[0]):
        rows = range(2 * place, min(2 * place + 2, len(clean.ids)))
        with edit(from_trace(clean, stage, rows)):
            after = float(trace(model, CORRUPTED)["logits"].flat[0])
        assert change == after - before


def test_a_long_text_is_patched_in_groups_unless_each_token_is_asked_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = len(trace(model, CLEAN).ids)
    each = patch(model, CLEAN, CORRUPTED)
    # a tiny model may read twice MOST tokens, which is enough for half of the runs
    monkeypatch.setattr(patching, "MOST", len(each.rows) * length**2 / 4)
    with pytest.warns(NpformerWarning, match="2 adjacent tokens are patched together; group=1 patches one at a time"):
        assert len(patch(model, CLEAN, CORRUPTED).columns) == math.ceil(length / 2)
    assert patch(model, CLEAN, CORRUPTED, group=1).values.tolist() == each.values.tolist()
    assert patch(model, CLEAN, CORRUPTED, by="head").values.size  # heads and layers are never grouped


def test_words_that_are_repeated_have_columns_of_their_own(model: Model) -> None:
    assert patch(model, "ice ice", "ice hot", "layers.0.ffn_norm").columns == ("[CLS]", "ice", "hot", "[SEP]")
    assert patch(model, "ice hot", "ice ice", "layers.0.ffn_norm").columns == ("[CLS]", "ice", "ice", "[SEP]")


@pytest.mark.parametrize("by", ["position", "head", "layer"])
@pytest.mark.parametrize("head", ["sequence-classification", "masked-lm", "question-answering"])
def test_attribution_patching_is_the_first_order_of_patching(by: str, head: str) -> None:
    """If the texts differ by a fraction of a word's vector, the error grows about as the square of the fraction."""
    model = tiny.model("bert", head, dtype=np.float64)
    estimates, measured = [], []
    for share in (1e-3, 1e-4):
        table = model.weights["embeddings"]["token"]["weight"]
        i, you = (model.tokenizer.token_to_id(word) for word in ("i", "you"))
        moved = table.copy()
        moved[i] = table[you] + share * (table[i] - table[you])
        weights = {**model.weights, "embeddings": {**model.weights["embeddings"], "token": {"weight": moved}}}
        other = Model(model.config, weights)
        other.tokenizer = model.tokenizer
        estimates.append(attribution_patching(other, CLEAN, CORRUPTED, by=by).values)
        measured.append(patch(other, CLEAN, CORRUPTED, by=by).values)
    errors = [np.abs(a - b).max() for a, b in zip(estimates, measured, strict=True)]
    assert np.abs(measured[0]).max() > 0
    assert errors[0] < 0.02 * np.abs(measured[0]).max()
    assert errors[1] < errors[0] / 50  # 1/100 without terms of third and higher order


def test_arguments_that_do_not_fit_are_errors(model: Model) -> None:
    for arguments, message in (
        ({"by": "word"}, "patch: by: expected one of position, head, layer, got 'word'"),
        ({"by": "head", "stages": "layers.*.ffn_norm"}, "layers.0.ffn_norm: expected a stage with heads"),
        ({"by": "layer", "stages": "embeddings.norm"}, "embeddings.norm: expected a stage of a layer"),
        ({"stages": "pooled"}, r"pooled: expected a stage with a row for each token, .*, got \(32,\)"),
        ({"metric": "GOOD"}, "patch: label='GOOD': expected one of NEGATIVE, POSITIVE"),
    ):
        for study in (patch, attribution_patching):
            with pytest.raises(NpformerError, match=message):
                study(model, CLEAN, CORRUPTED, **arguments)
    with pytest.raises(
        NpformerError, match=r"patch: expected a Model, got <.*; patch does not accept a translation model"
    ):
        patch(random_model(), "a", "b")  # type: ignore[arg-type]
    with pytest.raises(NpformerError, match="patch: expected one clean and one corrupted text"):
        patch(model, [CLEAN, CLEAN], [CORRUPTED, CORRUPTED])
    with pytest.raises(NpformerError, match="expected a text, a pair of texts, or token ids, got an empty list"):
        ablate_heads(model, [])


@pytest.mark.parametrize("function", [ablate_heads, npformer.trace, npformer.logit_attribution, npformer.perplexity])
def test_another_object_than_a_model_is_refused(function: Any) -> None:
    name = function.__name__
    with pytest.raises(NpformerError, match=rf"^{name}: expected a Model, got 'a'; npformer.load\(name\) returns one"):
        function("a", CLEAN)
    task = npformer.pipeline("text-classification", tiny.model())
    with pytest.raises(NpformerError, match=f"^{name}: expected a Model, got <.*; use its attribute .model"):
        function(task, CLEAN)


def test_a_table_is_a_heat_map_in_a_notebook(model: Model) -> None:
    effects = patch(model, CLEAN, CORRUPTED, by="head")
    page = effects._repr_html_()
    assert page.startswith("<table>\n<caption style='text-align:left'>change in the logit of ")
    assert page.count("<td") == effects.values.size
    largest = effects.values.flat[np.abs(effects.values).argmax()]
    colour = "210,113,27" if largest > 0 else "44,123,189"
    assert f"rgba({colour},1.00)'>{largest:+.3f}<" in page
    other = effects.values[0, 1]
    assert f"{abs(other) / abs(largest):.2f})'>{other:+.3f}<" in page
