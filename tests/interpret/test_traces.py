"""A trace contains every stage of a forward pass, for each text; its table, page and file agree."""

from __future__ import annotations

import gc
import sys
import timeit
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.config import Decoder
from npformer.engine.attention import scaled_dot_product_attention
from npformer.engine.functions import softmax
from npformer.engine.replay.replays import Replays
from npformer.engine.runtime.packing import Text
from npformer.engine.taps import tap
from npformer.families import encoders
from npformer.families.marian import MARIAN
from npformer.interpret import stages
from npformer.interpret.edits import edit
from npformer.interpret.traces import Trace, trace
from npformer.model import Model, Seq2Seq
from npformer.tasks import Pair
from tests.support import tiny

pytestmark = pytest.mark.numbers

TEXT = "I love ice cream"
FAMILIES = ("distilbert", "bert", "albert", "gpt2")
OTHERS = ("mpnet", "deberta-v2", "modernbert", "bart")  # families with additional stages
LAYER = [stage.name for stage in stages.STAGES if stage.name.startswith("layers.*.")]
NORMS_FIRST = {"attention_norm": 0, "attention_residual": 2, "ffn_norm": 3, "ffn_residual": 5}  # 1: attention, 4: FFN
# endings of stage names that only some mechanisms have
OF_OTHERS = "_normed", "_rotated", ".distance_scores", ".gate", ".up", ".gated", ".uncapped_scores", ".output_norm"


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return tiny.model(request.param)


def test_every_stage_fires_once_in_the_order_of_the_table(model: Model) -> None:
    layer = [name for name in LAYER if not name.endswith(OF_OTHERS)]
    if model.config.norm_first:
        layer = sorted(layer, key=lambda name: NORMS_FIRST.get(name.rpartition(".")[2], 1 + 3 * (".ffn." in name)))
    layers = [name.replace("*", str(n)) for n in range(model.config.n_layers) for name in layer]
    token_type_ids = ["embeddings.segment"] if model.config.n_token_types else []
    expected = [
        *("embeddings.token", "embeddings.position"),
        *token_type_ids,
        "embeddings.sum",
        *([] if model.config.final_norm else ["embeddings.norm"]),
        *(["embeddings.project"] if model.config.d_embedding else []),
        *layers,
        *(["norm"] if model.config.final_norm else ["pooler", "pooled"]),
        *("logits", "probabilities"),
    ]
    assert list(trace(model, TEXT)) == expected
    assert set(expected) <= set(stages.names(model.config))


def test_shapes_of_one_text_have_no_batch_axis(model: Model) -> None:
    t = trace(model, TEXT)
    sizes = {"T": 6, "D": 32, "E": model.config.table_width, "H": 4, "K": 8, "F": 64, "C": 2}
    for name in t:
        symbols = stages.find(name).shape.split(" or ")[0].strip("()").split(",")
        assert t[name].shape == tuple(sizes[each.strip()] for each in symbols if each), name
        assert t[name].dtype == np.float32, name


def test_the_stages_equal_their_formulas(model: Model) -> None:
    t = trace(model, TEXT)
    attention = model.weights["layers"][0]["attention"]
    x = t[model.parts.embeddings.output]
    read = t["layers.0.attention_norm"] if model.config.norm_first else x
    np.testing.assert_allclose(
        t["layers.0.attention.query"], read @ attention["query"]["weight"] + attention["query"]["bias"], 1e-5, 1e-5
    )
    q, k, v = (t[f"layers.0.attention.{name}_heads"] for name in ("query", "key", "value"))
    np.testing.assert_allclose(t["layers.0.attention.scores"], q @ k.mT / np.sqrt(8), 1e-4, 1e-5)
    seen = np.tri(6, dtype=bool) | (not model.config.causal)
    scores = np.where(seen, t["layers.0.attention.scores"], -np.inf)
    np.testing.assert_allclose(t["layers.0.attention.weights"], softmax(scores), 1e-5, 1e-6)
    np.testing.assert_allclose(t["layers.0.attention.context"], t["layers.0.attention.weights"] @ v, 1e-4, 1e-5)
    np.testing.assert_array_equal(
        t["layers.0.attention.combined"], np.concatenate(list(t["layers.0.attention.context"]), 1)
    )
    np.testing.assert_array_equal(t["layers.0.attention_residual"], x + t["layers.0.attention.output"])
    np.testing.assert_allclose(t["probabilities"].sum(), 1, 1e-6)


@pytest.mark.parametrize("model", [*FAMILIES, *OTHERS], indirect=True)
def test_each_of_several_texts_has_the_stages_it_has_alone(model: Model) -> None:
    """Adjacent texts of equal length are recorded together, and each has the same bits as when it is traced alone."""
    texts = [TEXT, "no not", "you love ice cream", "no", "is it", "my movie"]
    together = trace(model, texts)
    for i, text in enumerate(texts):
        alone = trace(model, text)
        assert (together.tokens[i], list(together)) == (alone.tokens, list(alone))
        for name in alone:
            np.testing.assert_array_equal(together[name][i], alone[name], err_msg=name)
            np.testing.assert_array_equal(together.texts(name)[i], alone.texts(name)[0])


@pytest.mark.parametrize(
    ("family", "head"), [(family, head) for family in FAMILIES for head in encoders()[family].heads]
)
def test_every_head_ends_in_its_probabilities(family: str, head: str) -> None:
    t = trace(tiny.model(family, head), [TEXT, "no not", "no"])
    last = [name for name in t if not name.startswith(("layers.", "embeddings.")) and name != "norm"]
    if head == "base":
        assert last == (["pooler", "pooled"] if encoders()[family].heads["base"] else [])
    elif head == "question-answering":
        assert last == ["start_logits", "end_logits", "start_probabilities", "end_probabilities"]
        assert [each.shape for each in t["end_probabilities"]] == [(6,), (4,), (3,)]
        np.testing.assert_allclose([each.sum() for each in t["start_probabilities"]], 1, 1e-6)
    elif head == "replaced-token":
        assert last == ["head.hidden", "head.activation", "logits", "probabilities"]
        logits, shares = (np.concatenate(t[name]) for name in ("logits", "probabilities"))
        np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits)), 1e-5)
    else:
        assert last[-2:] == ["logits", "probabilities"]
        of_tokens = head in ("token-classification", "masked-lm", "causal-lm")
        assert [array.ndim for array in t["logits"]] == [1 + of_tokens] * 3
        sums = (
            np.sum(t["probabilities"])
            if head == "multiple-choice"
            else np.concatenate([np.atleast_2d(p) for p in t["probabilities"]]).sum(-1)
        )
        np.testing.assert_allclose(sums, 1, 1e-5)


def test_a_regression_has_no_probabilities_and_several_labels_have_independent_ones() -> None:
    regression = tiny.model(labels=("SCORE",), problem_type="regression")
    assert "probabilities" not in trace(regression, TEXT)
    t = trace(tiny.model(labels=("A", "B"), problem_type="multi_label_classification"), TEXT)
    assert {"sigmoid(logits)", "output_heads.probabilities"} <= set(vars(t.row("probabilities")).values())
    np.testing.assert_allclose(t["probabilities"], 1 / (1 + np.exp(-t["logits"])), 1e-6)


def test_pairs_ids_and_segments() -> None:
    model = tiny.model("bert")
    t = trace(model, Pair("good", "my movie"))
    assert t.tokens == ["[CLS]", "good", "[SEP]", "my", "movie", "[SEP]"]
    assert t.token_type_ids == [0, 0, 0, 1, 1, 1]
    again = trace(model, Text(t.ids, np.array(t.token_type_ids)))
    np.testing.assert_array_equal(again["logits"], t["logits"])
    assert again.tokens == t.tokens
    # a trace has token types, although DistilBERT has none
    assert trace(tiny.model(), Pair("good", "my movie")).token_type_ids == [0, 0, 0, 1, 1, 1]
    without = Model(model.config, model.weights)
    assert trace(without, [2, 3]).tokens == ["2", "3"]


def test_the_label_is_the_likelier_one(model: Model) -> None:
    t = trace(model, [TEXT, "no"])
    assert t.label == [model.config.labels[int(np.argmax(logits))] for logits in t["logits"]]
    assert trace(tiny.model(head="base"), TEXT).label is None


# --- recording only some stages, and by hand ------------------------------------------------------------------------


def test_one_stage_keeps_only_that_stage_alive(model: Model) -> None:
    kept: dict[str, weakref.ref] = {}

    def watch(name: str, array: np.ndarray) -> np.ndarray:
        owner = array if array.base is None else array.base
        kept[name] = weakref.ref(owner)
        return array

    from npformer.engine.taps import listen

    with listen(watch):
        t = trace(model, TEXT, "layers.1.attention.weights")
    gc.collect()
    assert list(t) == ["layers.1.attention.weights"]
    assert [name for name, array in kept.items() if array() is not None and name.startswith("layers.")] == list(t)
    with pytest.raises(NpformerError, match=r"not recorded; this trace records only layers.1.attention.weights"):
        t["layers.0.attention.weights"]


def test_patterns_choose_stages(model: Model) -> None:
    t = trace(model, TEXT, ["layers.*.attention.weights", "logits"])
    assert list(t) == ["layers.0.attention.weights", "layers.1.attention.weights", "logits"]
    assert list(t.select("*weights")) == list(t)[:2]


def test_a_block_gathers_all_forwards_in_it(model: Model) -> None:
    with trace() as t:
        model([[2, 40, 3], [2, 41, 3]])
        model([2, 42, 43, 3])
    assert [ids.tolist() for ids in t.ids] == [[2, 40, 3], [2, 41, 3], [2, 42, 43, 3]]
    assert [array.shape for array in t["layers.0.attention.weights"]] == [(4, 3, 3), (4, 3, 3), (4, 4, 4)]
    np.testing.assert_array_equal(t["logits"][2], model([2, 42, 43, 3]).logits[0])


def test_functions_and_stages_of_ones_own_are_traced_too() -> None:
    q = np.ones((2, 3, 4), np.float32)
    with trace() as t:
        scaled_dot_product_attention(q, q, q, scale=0.5)
        tap("mine", q[0])
    assert t["weights"].shape == (2, 3, 3)
    assert t.row("mine").shape == "(3, 4)"
    assert t.ids is None
    assert t.tokens is None


def test_an_encoder_decoder_is_traced_under_both_names() -> None:
    """Source and target rows are distinguished, also in cross-attention, where keys and values come from the source."""
    sizes = {"vocab_size": 50, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ffn": 32, "max_length": 32}
    config = MARIAN.config("translation", **sizes, decoder=Decoder(n_layers=2, n_heads=2, d_ffn=32, vocab_size=40))
    random, model = np.random.default_rng(0), Seq2Seq(config, tiny.weights(config))
    lengths = ((5, 4), (7, 4), (7, 6))
    pairs = [tuple(Text(random.integers(0, 40, length)) for length in pair) for pair in lengths]
    with trace() as t:
        model.run(pairs)
    for i, (source, target) in enumerate(lengths):
        assert t["encoder.layers.1.attention.weights"][i].shape == (2, source, source)
        assert t["decoder.layers.1.cross_attention.weights"][i].shape == (2, target, source)
        assert t["decoder.layers.1.cross_attention.key"][i].shape == (source, 16)
        with trace() as alone:
            model.run(pairs[i : i + 1])
        for name in t:
            np.testing.assert_array_equal(t[name][i], alone[name], err_msg=name)
    assert t.row("decoder.layers.0.cross_attention.weights").formula == "W_h = softmax(scores)"
    with edit({"decoder.*": lambda array: array}), trace() as edited:
        model.run(pairs)
    assert all(np.array_equal(a, b) for name in t for a, b in zip(t[name], edited[name], strict=True))
    given = trace(model, tuple(text.ids for text in pairs[0]))
    assert list(given) == list(t)
    assert all(np.array_equal(given[name], t[name][0]) for name in t)
    assert given.key_tokens == [str(each) for each in pairs[0][0].ids]
    several = trace(model, [tuple(text.ids for text in pair) for pair in pairs])
    assert several.key_tokens == [[str(each) for each in source.ids] for source, _ in pairs]
    assert all(np.array_equal(a, b) for name in t for a, b in zip(several[name], t[name], strict=True))
    with pytest.raises(NpformerError, match="created without a folder, so it has no tokenizer; pass token ids"):
        trace(model, TEXT)


@pytest.mark.slow
def test_taps_cost_less_than_a_hundredth_of_a_short_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures taps and scopes without a listener in one forward pass of the bundled model, which is not replayed."""
    monkeypatch.setattr(Replays, "run", lambda self, each: each())
    model = npformer.load("distilbert-sst2")
    text = [Text(np.array([101, 1045, 2293, 3256, 6949, 102]))]
    forward = min(timeit.repeat(lambda: model.run(text), number=1, repeat=60))
    names = "attention multi_head packed_attention embeddings blocks.ffn layers.layer layers.stack output_heads.formulas transformer"
    modules = [sys.modules[f"npformer.engine.{name}"] for name in names.split()]
    count: Counter[str] = Counter()
    for name, right in (("tap", tap), ("scope", npformer.scope)):
        for module in modules:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *given, n=name, f=right: (count.update([n]), f(*given))[1])
    model.run(text)
    assert count["tap"] == 5 - 1 + 6 * 18 + 3 + 3  # all stages, ids, lengths and the rows that the head reads
    costs = {"tap": "tap('scores', array)", "scope": "with scope('layers.0'): pass"}
    globals_ = {"tap": tap, "scope": npformer.scope, "array": np.zeros(3)}
    spent = sum(count[n] * min(timeit.repeat(costs[n], globals=globals_, number=1000, repeat=20)) / 1000 for n in costs)
    assert spent < 0.01 * forward


# --- unknown names ---------------------------------------------------------------------------------------


def test_a_name_that_never_fired_is_an_error_with_the_nearest(model: Model) -> None:
    t = trace(model, TEXT)
    with pytest.raises(NpformerError, match=r"did you mean layers.0.attention.weights"):
        t["layers.0.attention.weigths"]
    with pytest.raises(NpformerError, match="did you mean"):
        t.select("layers.7.*")
    assert "layers.0.attention.weigths" not in t
    assert t.get("layers.7.ffn_norm") is None
    with pytest.raises(NpformerError, match=r"\*.hiden.*did you mean layers.0.ffn.hidden"):
        trace(model, TEXT, "*.hiden")


@pytest.mark.parametrize("stages", [3, None, ["logits", 3], {1}, np.zeros(2)])
def test_stages_that_are_no_names_are_refused(stages: Any) -> None:
    with pytest.raises(NpformerError, match="trace: stages: expected the name of a stage, a pattern or a list"):
        npformer.trace(stages=stages)


def test_a_block_without_a_forward_is_an_error() -> None:
    with pytest.raises(NpformerError, match="run a model first"), trace():
        pass
    with pytest.raises(NpformerError, match="no stage has fired"):
        Trace()["logits"]


def test_an_error_inside_a_block_is_the_error_that_is_seen(model: Model) -> None:
    with pytest.raises(ZeroDivisionError), trace():
        raise ZeroDivisionError


@pytest.mark.parametrize("text", [None, 3.5, ("a", "b"), np.ones(3), {"txt": "a"}])
def test_inputs_other_than_texts_are_errors(model: Model, text: object) -> None:
    with pytest.raises(NpformerError):
        trace(model, text)


# --- descriptions of stages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [*FAMILIES, "electra", "roberta"], indirect=True)
def test_a_row_describes_the_stage(model: Model) -> None:
    row = trace(model, TEXT).row("layers.1.attention.weights")
    assert (row.shape, row.formula) == ("(4, 6, 6)", "W_h = softmax(scores)")
    assert row.transformerlens == "blocks.1.attn.hook_pattern"
    np.testing.assert_allclose(row.mean, 1 / 6, 1e-6)
    assert 0 <= row.min < row.mean < row.max <= 1
    paths = {
        "distilbert": "distilbert.transformer.layer.1.ffn.lin1",
        "bert": "bert.encoder.layer.1.intermediate.dense",
        "electra": "electra.encoder.layer.1.intermediate.dense",
        "roberta": "roberta.encoder.layer.1.intermediate.dense",
        "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn",  # all layers share this module
        "gpt2": "transformer.h.1.mlp.c_fc",
    }
    assert trace(model, TEXT).row("layers.1.ffn.hidden").huggingface == paths[model.config.model_type]


def test_every_function_of_the_table_exists() -> None:
    import importlib

    for stage in stages.STAGES:
        module, _, function = stage.function.rpartition(".")
        assert callable(getattr(importlib.import_module(f"npformer.engine.{module}"), function)), stage


def test_every_module_of_hugging_face_is_named_once() -> None:
    for family in FAMILIES:
        runs = stages.module_runs(tiny.config(family)).values()
        assert sum(map(len, runs)) >= 19
        assert {stage for each in runs for stage in each} <= set(stages.names(tiny.config(family)))


@pytest.mark.parametrize("model", [*FAMILIES, *OTHERS], indirect=True)
def test_the_table_fits_in_80_columns(model: Model) -> None:
    """A decoder has the longest stage names; the numbers of some stages are on the next line."""
    lines = str(trace(model, [TEXT, "no"])).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(not line.startswith(" ") for line in lines) == 1 + len(trace(model, TEXT))
    assert all(len(line.split()) == 4 for line in lines if line.startswith(" "))
    assert lines[0].split() == ["stage", "shape", "mean", "std", "min", "max"]


def test_a_table_has_the_columns_that_are_asked_for(model: Model) -> None:
    table = trace(model, TEXT).table(("name", "mean", "transformerlens"), ["*.weights", "logits"])
    assert [line.split()[0] for line in str(table).splitlines()] == [
        "stage", "layers.0.attention.weights", "layers.1.attention.weights", "logits",
    ]  # fmt: skip
    assert table._repr_html_().count("<th ") == 3
    first, *_, last = table.records()
    assert list(first) == ["name", "mean", "transformerlens"]
    assert first["mean"] == pytest.approx(1 / 6)
    assert (first["transformerlens"], last["transformerlens"]) == ("blocks.0.attn.hook_pattern", None)


def test_the_page_shows_names_formulas_and_escaped_tokens(model: Model) -> None:
    page = trace(model, "<b> & co")._repr_html_()
    assert "&lt;" in page
    assert "<b>" not in page
    assert page.count("<tr>") == 1 + len(trace(model, TEXT))
    assert "W_h = softmax(scores)" in page
    assert "2 texts" in repr(trace(model, [TEXT, "no"]))


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [TEXT, [TEXT, Pair("no", "是 good"), "no"]])
def test_a_saved_trace_is_read_back_whole(model: Model, texts: object, tmp_path: Path) -> None:
    t = trace(model, texts)
    t.save(tmp_path / "t.safetensors")
    again = Trace.load(tmp_path / "t.safetensors")
    assert list(again) == list(t)
    assert (again.tokens, again.token_type_ids, again.label) == (t.tokens, t.token_type_ids, t.label)
    for name in t:
        for a, b in zip(t.texts(name), again.texts(name), strict=True):
            np.testing.assert_array_equal(a, b)
    assert again.row("layers.0.ffn.hidden") == t.row("layers.0.ffn.hidden")
    t.save(tmp_path / "u.safetensors")
    assert (tmp_path / "t.safetensors").read_bytes() == (tmp_path / "u.safetensors").read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.safetensors", "u.safetensors"]


def test_any_other_file_is_an_error(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(NpformerError, match="No such file"):
        Trace.load(path)
    trace(model, TEXT).save(path)
    data = path.read_bytes()
    for length in (0, 4, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(NpformerError, match=r"t.safetensors"):
            Trace.load(path)
    tiny.folder(tmp_path / "model")
    with pytest.raises(NpformerError, match="not a trace saved by npformer"):
        Trace.load(tmp_path / "model" / "model.safetensors")
    for name, message in (
        ("nowhere/t.safetensors", "cannot be written"),
        ("model", "model: cannot be written: it is a"),
    ):
        with pytest.raises(NpformerError, match=message):
            trace(model, TEXT).save(tmp_path / name)


def test_a_negative_id_is_refused_by_the_model_and_not_by_its_tokenizer() -> None:
    with pytest.raises(NpformerError, match="-1 of text 0 is outside the vocabulary"):
        trace(tiny.model(), [2, -1])


def test_a_saved_trace_of_a_translation_has_its_source(tmp_path: Path) -> None:
    made = trace(npformer.load("en-de-multi30k"), "A dog.", "*weights", grads=True)
    made.save(tmp_path / "trace.safetensors")
    for t in (Trace.load(tmp_path / "trace.safetensors"), made.grads):
        assert (t.tokens, t.key_tokens) == (made.tokens, ["▁A", "▁dog", ".", "</s>"])
        np.testing.assert_array_equal(t.key_ids, made.key_ids)
    assert [stack.keys.tokens for stack in npformer.view.heads(Trace.load(tmp_path / "trace.safetensors")).stacks] == [
        stack.keys.tokens for stack in npformer.view.heads(made).stacks
    ]
