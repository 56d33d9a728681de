"""The parts of a logit add up to it. With constant norms, removing a part lowers the logit by that part's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer import edit, load, logit_attribution
from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import drawn
from npformer.common.errors import NpformerError
from npformer.config import InputConvolution
from npformer.engine.functions import log_softmax
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.families.torch_nn import TORCH_MODULES
from npformer.interpret.direct_attribution import LogitAttribution, head_results
from npformer.interpret.edits import from_trace
from npformer.interpret.study_inputs import pair_of
from npformer.interpret.traces import Trace, trace
from npformer.model import Model
from npformer.text.inputs import Pair
from tests.golden import seq2seq_cases as cases
from tests.support import tiny

pytestmark = pytest.mark.numbers

TEXT = "I love good ice cream"
HEADS = [
    (family, head)
    for family in ("distilbert", "bert", "electra")
    for head in encoders()[family].heads
    if head != "base"
]
HEADS += [(family, "sequence-classification") for family in ("mpnet", "deberta-v2", "modernbert", "gpt2", "bart")]
HEADS += [("bart", "question-answering")]


def pre_norm(**options: Any) -> Model:
    """Returns an encoder with GPT's order of norms: before the blocks, and after the last layer."""
    config = TORCH_MODULES.config(
        "token-classification", vocab_size=20, d_model=8, n_heads=2, n_layers=3, d_ffn=16, max_length=32,
        activation="gelu", labels=("a", "b", "c"), torch_class="nn.TransformerEncoder", norm_first=True,
        final_norm=True, **options,
    )  # fmt: skip
    flat = {name: cases.drawn("parts", name, each.shape) for name, each in drawn(config).items()}
    return Model(config, layout.own_to_tree(flat, config, np.dtype(np.float64)))


def adds_up(found: LogitAttribution, tolerance: float) -> None:
    assert found.total == pytest.approx(found.logit, abs=tolerance)
    assert found.accumulated[-1] + sum(
        value
        for name, value in found.biases.items()
        if not name.removeprefix("decoder.").startswith(("embeddings", "layers", "convolution"))
    ) == pytest.approx(found.logit, abs=tolerance)
    assert found.lens_logit[-1] == pytest.approx(found.logit, abs=tolerance)
    assert found.words.sum() == pytest.approx(
        found.heads.sum() + found.ffn.sum() + found.convolution.sum() + sum(found.embeddings.values()), abs=tolerance
    )


@pytest.mark.parametrize(("family", "head"), HEADS)
@settings(max_examples=4, deadline=None)
@given(
    ids=st.lists(st.integers(5, 199), min_size=1, max_size=9), number=st.integers(0, 1), at=st.integers(-11, 10),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_the_parts_add_up_to_the_logit(family: str, head: str, ids: list[int], number: int, at: int, seed: int) -> None:
    model = tiny.model(family, head, seed, dtype=np.float64)
    of_text = head in ("sequence-classification", "next-sentence", "multiple-choice")
    labels = {"question-answering": ("start", "end"), "multiple-choice": (0, 0), "replaced-token": (None, None)}
    label: Any = labels.get(head, (0, 1))[number]
    position = None if of_text else max(-len(ids) - 2, min(at, len(ids) + 1))
    found = logit_attribution(model, Text(np.array([2, *ids, 3])), label, position=position)
    adds_up(found, 1e-11)
    logits = trace(model, Text(np.array([2, *ids, 3])))[f"{label}_logits" if head == "question-answering" else "logits"]
    a_logit_a_token = head in ("question-answering", "replaced-token")
    assert found.logit == (
        logits[position] if a_logit_a_token else logits[label] if of_text else logits[position][label]
    )
    # BART's decoder has self-attention and cross-attention, and reads an additional start token.
    assert found.heads.shape == ((2, 8, len(ids) + 3) if family == "bart" else (2, 4, len(ids) + 2))


@pytest.mark.parametrize("options", [{}, {"bias": False}])
def test_a_pre_norm_stack_with_a_last_norm_adds_up(options: dict[str, Any]) -> None:
    model = pre_norm(**options)
    found = logit_attribution(model, [3, 4, 5, 6], "b", position=-1, against="c")
    adds_up(found, 1e-12)
    assert found.position == 3
    assert found.what == "the logit of b at token 3 less the logit of c at token 3"
    logits = trace(model, [3, 4, 5, 6])["logits"][3]
    assert found.logit == logits[1] - logits[2]
    assert bool(found.biases["layers.0.ffn.output"]) == (not options)


@pytest.mark.parametrize(
    ("head", "label", "n_layers", "width"),
    [
        ("sequence-classification", 1, 2, 3),
        ("token-classification", 2, 1, 1),
        ("token-classification", 2, 2, 15),
    ],
)
def test_a_convolution_adds_to_the_tokens_that_it_reads(head: str, label: int, n_layers: int, width: int) -> None:
    options = {"convolution": InputConvolution(width, "gelu"), "n_layers": n_layers}
    model = tiny.model("deberta-v2", head, dtype=np.float64, **options)
    position = None if head == "sequence-classification" else 4
    found = logit_attribution(model, TEXT, label, position=position)
    adds_up(found, 1e-11)
    row, reach = found.position, width // 2
    reads = np.abs(np.arange(len(found.tokens)) - row) <= reach
    assert ((found.convolution != 0) == reads).all()
    layers = found.by_layer()
    assert layers.columns[5:8] == ("FFN", "convolution", "biases")
    assert layers.values[1, 6] == pytest.approx(found.convolution.sum())
    np.testing.assert_allclose(np.nansum(layers.values[:, :8], axis=1), layers.values[:, 8])
    gaps = np.array([0, 1, 3, 4, 6, 7, 8])
    adds_up(logit_attribution(model, Text(trace(model, TEXT).ids, places=gaps), label, position=position), 1e-11)
    assert found.biases["convolution.hidden"]
    assert found.biases["convolution_norm"]


def test_in_float32_it_adds_up_to_rounding() -> None:
    found = logit_attribution(load("distilbert-sst2"), "I love ice cream", against="NEGATIVE")
    adds_up(found, 2e-5)  # float32 logits near 10


# --- each part compared with a run with constant norms --------------------------------------------------------------


class Held:
    """Edits that keep the blocks' outputs, the norms' statistics and the gate at their values in `run`."""

    def __init__(self, model: Model, run: Trace) -> None:
        self.run, self.weights, self.eps = run, model.weights, model.config.eps
        self.before = np.zeros(0)

    def keep(self, array: np.ndarray) -> np.ndarray:
        self.before = array.copy()
        return array

    def norm(self, residual: str, layer: dict[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        deviation = np.sqrt(self.run[residual].var(axis=-1, keepdims=True) + self.eps)
        return lambda _: (
            (self.before - self.before.mean(axis=-1, keepdims=True)) / deviation * layer["weight"] + layer["bias"]
        )

    def changes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"*_residual": self.keep, "embeddings.sum": self.keep}]
        found.append({"embeddings.norm": self.norm("embeddings.sum", self.weights["embeddings"]["norm"])})
        for i, layer in enumerate(self.weights["layers"]):
            for block in ("attention", "ffn"):
                name = f"layers.{i}.{block}"
                found.append({f"{name}_norm": self.norm(f"{name}_residual", layer[f"{block}_norm"])})
        gate = self.run["pooled"] / self.run["pooler"]
        found.append({"pooler": self.keep, "pooled": lambda _: self.before * gate})
        return found


@pytest.mark.parametrize("family", ["distilbert", "bert"])
def test_a_part_s_term_is_the_loss_of_the_logit_without_it(family: str) -> None:
    model = tiny.model(family, dtype=np.float64)
    run = trace(model, TEXT)
    found = logit_attribution(model, TEXT, 1)
    blocks = from_trace(run, "layers.*.attention.output") | from_trace(run, "layers.*.ffn.output")
    written = head_results(model, run)

    def logit(**less: np.ndarray) -> float:
        written_less = {name: array - less.get(name.replace(".", "_"), 0) for name, array in blocks.items()}
        with edit(written_less, {f"embeddings.{name}": run[f"embeddings.{name}"] for name in ("token", "position")},
                  *({name.replace("_", ".", 1): run[name.replace("_", ".", 1)] - array}
                    for name, array in less.items() if name.startswith("embeddings_")), *Held(model, run).changes()):  # fmt: skip
            return float(trace(model, TEXT)["logits"][1])

    # without a change, the model with these edits gives the same logit
    assert logit() == pytest.approx(run["logits"][1], abs=1e-12)
    for layer in range(2):
        for head in range(4):
            less = logit(**{f"layers_{layer}_attention_output": written[layer, head]})
            assert found.heads[layer, head].sum() == pytest.approx(run["logits"][1] - less, abs=1e-11)
        bias = model.weights["layers"][layer]["ffn"]["output"]["bias"]
        less = logit(**{f"layers_{layer}_ffn_output": run[f"layers.{layer}.ffn.output"] - bias})
        assert found.ffn[layer] == pytest.approx(run["logits"][1] - less, abs=1e-11)
    for table in ("token", "position"):
        less = logit(**{f"embeddings_{table}": run[f"embeddings.{table}"]})
        assert found.embeddings[table] == pytest.approx(run["logits"][1] - less, abs=1e-11)


def test_a_word_s_term_is_the_contribution_of_its_values() -> None:
    """Removing token j's values from the last layer, with constant weights, removes its contribution to this layer."""
    model = tiny.model("bert", dtype=np.float64)
    run, found = trace(model, TEXT), logit_attribution(model, TEXT, 0)
    written = head_results(model, run)
    output = model.weights["layers"][1]["attention"]["output"]["weight"].reshape(4, 8, 32)
    weights, values = run["layers.1.attention.weights"], run["layers.1.attention.value_heads"]
    by_word = np.einsum("hj,hjk,hkd->hjd", weights[:, 0], values, output)
    np.testing.assert_allclose(by_word.sum(axis=1), written[1, :, 0], rtol=0, atol=1e-12)
    # a direction, the same for all tokens, onto which the parts are projected
    slope = np.linalg.lstsq(by_word.reshape(-1, 32), found.heads[1].reshape(-1), rcond=None)[0]
    np.testing.assert_allclose(by_word @ slope, found.heads[1], rtol=0, atol=1e-10)
    assert np.abs(found.heads[1]).min() > 0


# --- arrays, tables, lens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_the_heads_outputs_sum_to_attention_s(family: str) -> None:
    model = tiny.model(family, dtype=np.float64)
    run = trace(model, TEXT)
    stacked = head_results(model, run)
    assert stacked.shape == (2, 4, 7, 32)
    for i, layer in enumerate(model.weights["layers"]):
        bias = layer["attention"]["output"]["bias"]
        np.testing.assert_allclose(
            stacked[i].sum(axis=0) + bias, run[f"layers.{i}.attention.output"], rtol=0, atol=1e-12
        )


def test_the_lens_reads_each_layer_as_if_it_were_the_last() -> None:
    model = tiny.model("bert", "masked-lm", dtype=np.float64)
    found = logit_attribution(model, "I [MASK] ice cream")
    assert found.position == 2
    assert found.lens.shape == (3, model.config.vocab_size)
    with edit({"layers.1.ffn_norm": trace(model, "I [MASK] ice cream")["layers.0.ffn_norm"]}):
        np.testing.assert_allclose(found.lens[1], trace(model, "I [MASK] ice cream")["logits"][2], rtol=0, atol=1e-12)
    assert found.lens_labels[-1] == model.tokenizer.id_to_token(int(found.lens[-1].argmax()))
    assert found.what == f"the logit of '{found.lens_labels[-1]}' at token 2"


def test_tables_and_pages_show_the_numbers() -> None:
    model = tiny.model("bert")
    found = logit_attribution(model, Pair("I love ice", "it is hot"), "POSITIVE")
    layers, words = found.by_layer(), found.by_word()
    assert layers.rows == ("embeddings", "layer 0", "layer 1", "model head")
    heads = ("head 0", "head 1", "head 2", "head 3")
    assert layers.columns == ("embed", *heads, "FFN", "biases", "sum", "so far", "lens")
    np.testing.assert_allclose(np.nansum(layers.values[:, 7]), found.logit, atol=1e-5)
    assert layers.values[-1, 8] == pytest.approx(found.logit, abs=1e-5)
    assert layers.values[0, 0] == pytest.approx(sum(found.embeddings.values()))
    assert np.isnan(layers.values[0, 1:6]).all()
    assert np.isnan(layers.values[1:, 0]).all()
    assert words.rows == found.tokens == ("[CLS]", "i", "love", "ice", "[SEP]", "it", "is", "hot", "[SEP]")
    np.testing.assert_allclose(words.values[:, -1], found.words.sum(axis=0))
    assert repr(found).startswith("<npformer.LogitAttribution: the logit of POSITIVE, ")
    assert repr(layers) == str(layers)
    text = str(found)
    assert "the logit of POSITIVE is" in text
    assert max(map(len, text.splitlines())) <= 80
    page = found._repr_html_()
    assert page.count("<table>") == 2
    assert f"{found.heads[1, 2].sum():+.3f}" in page
    assert "rgba(210,113,27,1.00)" in layers._repr_html_() or "rgba(44,123,189,1.00)" in layers._repr_html_()


def test_segments_are_a_part_where_the_model_has_them() -> None:
    assert list(logit_attribution(tiny.model("bert"), TEXT).embeddings) == ["token", "position", "segment"]
    assert list(logit_attribution(tiny.model(), TEXT).embeddings) == ["token", "position"]


def test_an_edited_forward_is_the_one_that_is_explained() -> None:
    model = tiny.model("bert", dtype=np.float64)
    plain = logit_attribution(model, TEXT, 0)
    with edit({"layers.0.ffn.output": lambda array: array * 0.5}):
        found = logit_attribution(model, TEXT, 0)
    assert found.logit != plain.logit
    bias = found.biases["layers.0.ffn.output"]
    assert found.total == pytest.approx(found.logit, abs=1e-12)
    assert found.ffn[0] + bias != pytest.approx(plain.ffn[0] + plain.biases["layers.0.ffn.output"], abs=1e-6)

    def without(weights: np.ndarray) -> np.ndarray:
        weights[2] = 0
        return weights

    with edit({"layers.1.attention.weights": without}):
        found = logit_attribution(model, TEXT, 0)
    assert not found.heads[1, 2].any()
    adds_up(found, 1e-12)


@pytest.mark.parametrize(
    ("head", "arguments", "message"),
    [
        ("base", {}, "a base model has no labels"),
        ("sequence-classification", {"label": "GOOD"}, "label='GOOD': expected one of NEGATIVE, POSITIVE"),
        ("sequence-classification", {"label": 2}, "label=2: expected one of NEGATIVE, POSITIVE"),
        ("sequence-classification", {"position": 1}, "position: omit it; a sequence-classification model gives one answer for the whole text"),
        ("sequence-classification", {"label": 0, "against": "NEGATIVE"}, "expected a label other than the one"),
        ("token-classification", {}, "expected the number of the token to explain, one of 7 tokens"),
        ("token-classification", {"label": "O"}, "'O': expected position="),
        ("token-classification", {"label": "O", "position": 7}, "position: expected a token's number, 0 to 6, got 7"),
        ("masked-lm", {}, "the text has no masked word"),
        ("masked-lm", {"label": "xyzzy", "position": 1}, "label='xyzzy': expected one of"),
        ("question-answering", {"label": "middle"}, "'middle': expected 'start' or 'end'"),
    ],
)  # fmt: skip
def test_inexplicable_inputs_are_errors(head: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        logit_attribution(tiny.model("bert", head), TEXT, **arguments)


def test_a_replaced_token_has_one_logit_and_no_label() -> None:
    model = tiny.model("electra", "replaced-token", dtype=np.float64)
    assert logit_attribution(model, TEXT, position=-2).what == "the replaced-token logit of token 5"
    with pytest.raises(NpformerError, match="1: omit it; a replaced-token model has one logit per token"):
        logit_attribution(model, TEXT, 1, position=2)
    with pytest.raises(NpformerError, match="position: expected the number of the token to explain, one of 7 tokens"):
        logit_attribution(model, TEXT)


def test_one_text_and_an_encoder() -> None:
    with pytest.raises(NpformerError, match="expected one text; call it once per text"):
        logit_attribution(tiny.model(), [TEXT, "no"])
    with pytest.raises(NpformerError, match="logit_attribution: expected a Model, got 'distilbert-sst2'"):
        logit_attribution("distilbert-sst2", TEXT)  # type: ignore[arg-type]


# --- translations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 3])
def test_the_parts_of_a_translations_logit_add_up_to_it(position: int) -> None:
    model = load("en-de-multi30k", dtype="float64")
    pair = pair_of(model, "A man rides a bike.")[0]
    found, recorded = logit_attribution(model, pair, position=position), trace(model, pair)
    assert found.total == pytest.approx(found.logit, abs=1e-10)
    assert found.logit == recorded["logits"][position].max()
    assert list(found.tokens) == [*recorded.tokens, *recorded.key_tokens]
    own = found.heads.shape[1] - found.source_heads
    assert not found.heads[:, own:, : len(recorded.tokens)].any()
    assert not found.heads[:, :own, position + 1 :].any()
    assert found.heads[:, own:, len(recorded.tokens) :].all()


def test_a_word_of_a_translation_is_named_with_its_mark_or_a_space() -> None:
    model = load("en-de-multi30k")
    found = [logit_attribution(model, "A dog runs.", label, position=1) for label in ("▁Hund", " Hund")]
    assert {each.what for each in found} == {"the logit of 'Hund' at token 1"}
    with pytest.raises(NpformerError, match="label='Hund': expected a token of the vocabulary, or a text that is one"):
        logit_attribution(model, "A dog runs.", "Hund", position=1)


def test_a_translation_s_least_probable_word_is_explained_by_default() -> None:
    model = load("en-de-multi30k")
    pair = pair_of(model, "A man rides a bike.")[0]
    recorded = trace(model, pair)
    written = pair[1].ids[1:]
    scores = log_softmax(recorded["logits"][: len(written)].astype(np.float64))[np.arange(len(written)), written]
    found = logit_attribution(model, pair)
    assert found.position == int(scores.argmin())
    assert found.logit == pytest.approx(float(recorded["logits"][found.position, written[found.position]]))
    only_start = (pair[0], Text(pair[1].ids[:1]))
    assert logit_attribution(model, only_start).position == 0
