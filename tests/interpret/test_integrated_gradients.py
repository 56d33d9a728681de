"""Attribution by gradients: finite differences, completeness, and results by hand for a model without blocks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from npformer import edit, load, view
from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import drawn
from npformer.common import progress
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.families.torch_nn import TORCH_MODULES
from npformer.interpret.attribution import Target, target
from npformer.interpret.integrated_gradients import slope
from npformer.interpret.study_inputs import texts_of
from npformer.interpret.traces import trace
from npformer.model import Model
from npformer.text.inputs import Pair
from npformer.text.words import word_spans
from tests.golden import seq2seq_cases as cases
from tests.support import tiny

pytestmark = pytest.mark.numbers

TEXT = "I love good ice cream"
PAIR = Pair("I love ice", "it is hotter")
KINDS = ["distilbert", "bert"]
CLASSIFIER = "tests/golden/seq2seq/classifier"  # an nn.TransformerEncoder without a tokenizer


def method(shown: view.AttributionView, name: str) -> Any:
    return next(each for each in shown.methods if each.name == name)


def sums(about: str) -> tuple[float, ...]:
    """Returns the numbers in the description of integrated gradients: sum, values at both ends, their difference."""
    numbers = re.search(r"sum to (\S+); .* from (\S+) to (\S+), by (\S+); the sum is off", about)
    assert numbers
    return tuple(map(float, numbers.groups()))


def prepared(model: Model, text: Any, label: int = 0) -> tuple[Any, list[str], Target]:
    (ids,), (tokens,), _ = texts_of(model, text)
    logits = trace(model, text)["logits"]
    return ids, tokens, target(model, label, logits if logits.ndim == 1 else logits[-1])


# --- the target ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("problem", "labels"), [(None, 2), (None, 5), ("multi_label_classification", 3)])
def test_the_target_has_the_gradient_of_its_own_differences(problem: str | None, labels: int) -> None:
    model = tiny.model(labels=tuple("abcde"[:labels]), problem_type=problem)
    logits = np.random.default_rng(1).standard_normal((4, labels))
    explained, h = target(model, labels - 1, logits[0]), 1e-6
    steps = h * np.eye(labels)
    differences = np.stack([explained.of(logits + s) - explained.of(logits - s) for s in steps], axis=1) / (2 * h)
    # errors of about h² and 1e-16 / h
    np.testing.assert_allclose(explained.gradient(logits), differences, rtol=0, atol=1e-9)


# --- gradient times input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TEXT, PAIR], ids=["text", "pair"])
@pytest.mark.parametrize("kind", [*KINDS, "bart"])
def test_the_gradient_is_that_of_central_differences(kind: str, text: Any) -> None:
    model = tiny.model(kind, dtype=np.float64)
    ids, _, explained = prepared(model, text)
    here, h = slope(model, [ids], explained), 1e-5
    rng = np.random.default_rng(2)
    for _ in range(4):
        way = rng.standard_normal(here.rows.shape)
        ends = [slope(model, [ids], explained, here.rows + sign * h * way).values[0] for sign in (1, -1)]
        # With this h, the truncation error (third derivative) and the rounding error are both about 1e-9.
        np.testing.assert_allclose((here.gradient * way).sum(), (ends[0] - ends[1]) / (2 * h), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokens_score_is_the_change_along_its_own_embedding(kind: str) -> None:
    model = tiny.model(kind, dtype=np.float64)
    ids, tokens, explained = prepared(model, TEXT)
    rows, h, scores = slope(model, [ids], explained).rows, 1e-6, []
    for i in range(len(tokens)):
        way = h * rows * (np.arange(len(tokens)) == i)[:, None]
        ends = [slope(model, [ids], explained, rows + sign * way).values[0] for sign in (1, -1)]
        scores.append((ends[0] - ends[1]) / (2 * h))
    shown = method(view.attribution(model, TEXT, label=0), "Gradient × input")  # noqa: RUF001
    np.testing.assert_allclose(shown.scores, scores, rtol=0, atol=1e-7)
    assert shown.words == tokens


def test_a_token_that_is_read_twice_has_the_score_of_both_places() -> None:
    """The decoder reads the text shifted by one token, after a start token that the encoder does not read."""
    model = tiny.model("bart", dtype=np.float64)
    ids, tokens, explained = prepared(model, TEXT)
    rows, h, scores = slope(model, [ids], explained).rows, 1e-6, []
    for i in range(-1, len(tokens)):
        places = np.arange(len(tokens)) == np.array([[i], [i + 1]])  # the token's places in encoder and decoder
        way = h * rows * places[..., None]
        ends = [slope(model, [ids], explained, rows + sign * way).values[0] for sign in (1, -1)]
        scores.append((ends[0] - ends[1]) / (2 * h))
    shown = method(view.attribution(model, TEXT, label=0), "Gradient × input")  # noqa: RUF001
    np.testing.assert_allclose(shown.scores, scores, rtol=0, atol=1e-7)
    assert shown.words == ["[SEP]", *tokens]


# --- integrated gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "bart"])
@pytest.mark.parametrize("text", [TEXT, PAIR], ids=["text", "pair"])
def test_integrated_gradients_are_complete(kind: str, text: Any) -> None:
    model = tiny.model(kind)
    shown = method(view.attribution(model, text, label="NEGATIVE"), "Integrated gradients")
    total, start, end, change = sums(shown.about)
    logits = trace(model, text)["logits"].astype(float)
    assert end == pytest.approx(logits[0] - logits[1], abs=5e-5)  # as printed
    assert change == pytest.approx(end - start, abs=2e-4)
    assert total == pytest.approx(shown.scores.sum(), abs=5e-5)
    # Where the gradient of the pooler's ReLUs jumps, the error is up to 1 / 100 of the jump (half a step).
    assert abs(shown.scores.sum() - change) < {"bert": 5e-4, "bart": 5e-4, "distilbert": 2e-2}[kind]


def test_the_error_falls_with_the_square_of_the_places() -> None:
    """The midpoint rule's error is proportional to 1 / steps^2 for functions without kinks, such as tanh and GELU."""
    model, errors = tiny.model("bert", dtype=np.float64), []
    for steps in (20, 40, 80):
        shown = method(view.attribution(model, TEXT, label=0, steps=steps), "Integrated gradients")
        found = re.search(r"off by (\S+)\.$", shown.about)
        assert found
        errors.append(float(found[1]))
        assert f"averaged over {steps} points" in shown.about
    # rel=0.3, because only one digit of each error is printed
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.3)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.3)


def test_the_frame_stays_and_every_word_starts_from_the_mask() -> None:
    model = tiny.model("bert", dtype=np.float64)
    shown = method(view.attribution(model, PAIR, label=0), "Integrated gradients")
    scores = dict(zip(enumerate(shown.words), shown.scores, strict=True))
    assert {word for (_, word), score in scores.items() if score == 0} == {"[CLS]", "[SEP]"}
    assert "a text of [MASK]" in shown.about
    (text,), (tokens,), _ = texts_of(model, PAIR)
    ids = [
        number if token in ("[CLS]", "[SEP]") else tiny.SPECIAL.index("[MASK]")
        for number, token in zip(text.ids, tokens, strict=True)
    ]
    masked = trace(model, Text(np.array(ids), text.token_type_ids))["logits"]
    assert sums(shown.about)[1] == pytest.approx(masked[0] - masked[1], abs=5e-5)


@pytest.mark.parametrize("steps", [1, 50])
def test_on_a_linear_model_both_are_the_weights_times_the_input(steps: int) -> None:
    """Without blocks and norms, F(x) = x_0 . (w_0 - w_1) + b_0 - b_1, and the baseline is 0."""
    config = TORCH_MODULES.config(
        "sequence-classification", vocab_size=20, d_model=8, n_heads=2, n_layers=2, d_ffn=16, max_length=32,
        labels=("a", "b"), torch_class="nn.TransformerEncoder", norm_first=True,
    )  # fmt: skip
    flat = {
        name: cases.drawn("linear", name, each.shape) * (".output." not in name or name.startswith("head"))
        for name, each in drawn(config).items()
    }
    model = Model(config, layout.own_to_tree(flat, config, np.dtype(np.float64)))
    shown = view.attribution(model, [3, 4, 5], label=0, steps=steps)
    assert [each.name for each in shown.methods] == ["Gradient × input", "Integrated gradients", "Attention roll-out"]  # noqa: RUF001
    row = trace(model, [3, 4, 5])["embeddings.sum"][0]
    weight = model.weights["head"]["output"]["weight"]
    expected = [row @ (weight[:, 0] - weight[:, 1]), 0, 0]
    for each in shown.methods[:2]:
        np.testing.assert_allclose(each.scores, expected, rtol=1e-12, atol=1e-14)


# --- models and texts that are accepted ------------------------------------------------------------------------------


def test_the_next_word_of_a_causal_model_is_explained_by_every_measure() -> None:
    """Each method's scores for the log-odds of the word after the text equal a computation by hand."""
    model = load("gpt2-austen", dtype="float64")
    words = ["It", "is", "a", "truth"]
    shown = view.attribution(model, " ".join(words), label="Ġof")
    left_out, by_gradient, integrated = shown.methods[:3]
    number = model.tokenizer.token_to_id("Ġof")

    def odds(text: str) -> float:
        row = model(model.tokenizer.encode(text).ids).logits[0][-1].astype(float)
        return float(row[number] - np.logaddexp.reduce(np.delete(row, number)))

    whole = odds("It is a truth")
    without = [odds("is a truth"), odds("It a truth"), odds("It is truth"), odds("It is a")]
    np.testing.assert_allclose(left_out.scores, [whole - each for each in without], rtol=0, atol=1e-6)
    ids, _, explained = prepared(model, "It is a truth", number)
    rows, h = slope(model, [ids], explained).rows, 1e-6
    ends = [slope(model, [ids], explained, rows * (1 + sign * h)).values[0] for sign in (1, -1)]
    assert by_gradient.scores.sum() == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-6)
    total, _, end, change = sums(integrated.about)
    assert end == pytest.approx(whole, abs=5e-5)  # as printed
    assert total == pytest.approx(change, abs=1e-2)  # 50 steps
    assert "a text of <|endoftext|>" in integrated.about


def test_a_view_lists_the_measures_in_order() -> None:
    names = [each.name for each in view.attribution(tiny.model("bert"), PAIR).methods]
    assert names == ["Leave one word out", "Gradient × input", "Integrated gradients", "Attention roll-out"]  # noqa: RUF001


def test_a_torch_encoder_without_a_tokenizer_starts_from_zeros() -> None:
    model = load(CLASSIFIER, dtype="float64")
    shown = method(view.attribution(model, [3, 4, 5, 6], label="positive", steps=400), "Integrated gradients")
    total, _, end, change = sums(shown.about)
    assert "from zeros" in shown.about
    assert total == pytest.approx(change, abs=5e-2)  # ReLUs have kinks, and norms change fast near zero rows
    assert end == pytest.approx(float(np.diff(trace(model, [3, 4, 5, 6])["logits"])[0]), abs=5e-5)


def test_a_torch_encoder_with_a_tokenizer_is_asked_with_texts() -> None:
    model = load(CLASSIFIER)
    vocabulary = tiny.tokenizer()
    model.tokenizer = vocabulary
    text = "0 1 2 3 4"  # all pieces are among the table's 50 rows
    (ids,), _, _ = texts_of(model, text)
    assert ids.ids.max() < model.config.vocab_size
    shown = view.attribution(model, text)
    assert len(shown.methods) == 4
    assert method(shown, "Integrated gradients").words == ["[CLS]", *"01234", "[SEP]"]


def test_pieces_add_up_to_words() -> None:
    model = tiny.model("bert", dtype=np.float64)
    shown = method(view.attribution(model, "hotter politics"), "Gradient × input")  # noqa: RUF001
    _, tokens, _ = prepared(model, "hotter politics")
    assert len(shown.words) == len(word_spans(tokens)) < len(tokens)
    ids, _, explained = prepared(model, "hotter politics", int(trace(model, "hotter politics")["logits"].argmax()))
    here = slope(model, [ids], explained)
    assert shown.scores.sum() == pytest.approx(float((here.rows * here.gradient).sum()), abs=1e-12)


def test_regression_explains_the_output() -> None:
    model = tiny.model("distilbert", labels=("score",), problem_type="regression", dtype=np.float64)
    shown = method(view.attribution(model, TEXT), "Integrated gradients")
    assert sums(shown.about)[2] == pytest.approx(float(trace(model, TEXT)["logits"][0]), abs=5e-5)
    assert "the model's output changed from" in shown.about


def test_under_an_edit_no_gradient_is_offered() -> None:
    model = tiny.model("bert")
    with edit({"layers.0.attention.output": lambda array: array * 0}):
        shown = view.attribution(model, TEXT)
    assert [each.name for each in shown.methods] == ["Leave one word out", "Attention roll-out"]


def test_the_same_bits_on_any_number_of_threads() -> None:
    shown = [view.attribution(tiny.model("distilbert", threads=n), TEXT, steps=400).methods[2].scores for n in (1, 2)]
    assert np.array_equal(*shown)


@pytest.mark.parametrize("steps", [0, -1])
def test_no_places_are_an_error(steps: int) -> None:
    with pytest.raises(NpformerError, match=f"steps: expected a whole number of at least 1, got {steps}"):
        view.attribution(tiny.model(), TEXT, steps=steps)


# --- how they are computed -------------------------------------------------------------------------------------------


def test_no_gradient_of_a_weight_is_computed_for_a_gradient_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from npformer.engine import functions
    from npformer.engine.functions import linear_backward
    from npformer.engine.output_heads import formulas

    seen: list[set[str]] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        dx, grads = linear_backward(*arguments, **named)
        seen.append(set(grads))
        return dx, grads

    monkeypatch.setattr(formulas, "linear_backward", watched)
    view.attribution(tiny.model(), TEXT, methods="gradient")
    assert seen
    assert all("weight" not in names for names in seen)
    x, weight = np.ones((2, 3)), np.arange(12.0).reshape(3, 4)
    with functions.constant_weights():
        alone, _ = linear_backward(np.ones((2, 4)), x, weight)
    whole, grads = linear_backward(np.ones((2, 4)), x, weight)
    np.testing.assert_array_equal(alone, whole)
    assert grads["weight"].shape == weight.shape  # outside the block, weights have gradients again


def test_texts_without_a_word_run_untraced_in_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    from npformer.engine.taps import listening

    runs: list[tuple[int, bool]] = []
    model = tiny.model()
    run = model.run
    monkeypatch.setattr(model, "run", lambda texts: runs.append((len(texts), listening())) or run(texts), raising=False)
    view.attribution(model, " ".join(["love"] * 40), methods="leave-one-out")
    assert runs == [(1, True), (41, False)]  # one traced run for the tokens and the roll-out, then one run of all texts


def test_only_the_requested_methods_run() -> None:
    model = tiny.model("bert")
    for asked, names in (
        ("leave-one-out", ["Leave one word out"]),
        ("integrated", ["Integrated gradients"]),
        (["roll-out", "gradient"], ["Gradient × input", "Attention roll-out"]),  # noqa: RUF001
        ("logit", ["Logit attribution"]),
    ):
        assert [each.name for each in view.attribution(model, TEXT, methods=asked).methods] == names
    with pytest.raises(NpformerError, match=r"methods: expected one of leave-one-out, gradient, .*, got 'lime'"):
        view.attribution(model, TEXT, methods="lime")
    with pytest.raises(NpformerError, match="integrated: not available for this input"):
        view.attribution(tiny.model("bert", "masked-lm"), TEXT, methods="integrated")


def test_a_logit_of_any_head_is_marked_on_the_words() -> None:
    model = tiny.model("bert", "masked-lm")
    shown = method(view.attribution(model, "I [MASK] ice cream", methods="logit"), "Logit attribution")
    assert shown.words == ["[CLS]", "i", "[MASK]", "ice", "cream", "[SEP]"]
    assert "for token 2" in shown.about
    at_three = method(view.attribution(model, "I [MASK] ice cream", methods="logit", token=3), "Logit attribution")
    assert "for token 3" in at_three.about
    assert not np.array_equal(shown.scores, at_three.scores)


def test_slow_measures_show_how_far_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "DELAY", 0)
    view.attribution(tiny.model(), TEXT, progress=True)
    shown = capsys.readouterr().err
    assert "0/6 texts" in shown
    assert "\r50 steps in " in shown
    view.attribution(tiny.model(), TEXT)
    assert capsys.readouterr().err == ""
