"""Gradients of a metric with respect to every stage, for every head, compared with central differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npformer import edit
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.interpret.edits import Differentiable, ablate_head, scale
from npformer.interpret.traces import Trace, trace
from npformer.model import Model, Seq2Seq
from tests.support import tiny
from tests.support.seq2seq_models import random_model
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

TEXTS = ["I love ice cream", "no not", "you [MASK] ice cream", "[MASK]"]  # two texts have the same length
MASKED = ["I [MASK] ice cream", "no [MASK]", "you love [MASK] cream", "[MASK]"]
DIRECTION = np.random.default_rng(5).standard_normal(32)


def of_vectors(answers: dict[str, np.ndarray]) -> float:
    """A metric that is not linear in the answers of a base model."""
    value = np.tanh(answers["last_hidden_state"] @ DIRECTION).sum()
    return float(value + (answers["pooler_output"] ** 2).sum() if "pooler_output" in answers else value)


#: Head -> metric and position.
METRICS: dict[str, tuple[Any, int | None]] = {
    "base": (of_vectors, None),
    "sequence-classification": ("POSITIVE", None),
    "token-classification": ("B-PER", 1),
    "question-answering": (None, None),
    "masked-lm": (None, None),
    "causal-lm": (None, None),
    "next-sentence": (1, None),
    "multiple-choice": (0, None),
    "replaced-token": (None, 1),
}
CASES = [
    (family, "sequence-classification")
    for family in ("distilbert", "deberta-v2", "modernbert", "gpt2", "bart", "roberta", "mpnet")
]
CASES += [("bert", head) for head in encoders()["bert"].heads] + [("electra", "base")]


def metric_value(model: Model | Seq2Seq, texts: Any, metric: Callable[[Any], float]) -> float:
    """Returns the sum of the metric over the texts' answers."""
    return sum(metric(each) for each in model.run(texts))


def agree(model: Any, inputs: list[Any], recorded: Trace, metric: Callable[[Any], float]) -> None:
    """Checks that a random change to each stage changes the metric as the stage's gradient predicts."""
    random, h = np.random.default_rng(0), 1e-5
    assert set(recorded.grads) >= {name for name in recorded if "probabilities" not in name}
    for name in recorded.grads:
        arrays, grads = recorded.texts(name), recorded.grads.texts(name)
        assert [a.shape for a in arrays] == [g.shape for g in grads], name
        ways = [random.standard_normal(array.shape) for array in arrays]
        ends = []
        for sign in (1, -1):
            moved = [array + sign * h * way for array, way in zip(arrays, ways, strict=True)]
            with edit({name: moved}):
                ends.append(metric_value(model, inputs, metric))
        slope = sum(float((grad * way).sum()) for grad, way in zip(grads, ways, strict=True))
        # With this h, the truncation and rounding errors are both about 1e-9 times the largest terms.
        size = sum(float(np.abs(grad * way).sum()) for grad, way in zip(grads, ways, strict=True))
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, abs=1e-6 * max(1.0, size)), name


@pytest.mark.parametrize(("family", "head"), slow_after(4, CASES))
def test_the_gradient_of_every_stage_is_that_of_differences(family: str, head: str) -> None:
    from npformer.interpret.metric import metric_of
    from npformer.interpret.study_inputs import texts_of

    smooth = {"pooler": "gelu"}  # the default, ReLU, has a kink near one text; golden gradients cover ReLU
    model = tiny.model(family, head, dtype=np.float64, **smooth)
    texts = MASKED if head == "masked-lm" else TEXTS
    metric, position = METRICS[head]
    recorded = trace(model, texts, grads=True if metric is None else metric, position=position)
    inputs, _, _ = texts_of(model, texts)
    each = [metric_of(model, metric, position, a, t) for a, t in zip(model.run(inputs), inputs, strict=True)]
    remaining = iter(range(10**9))
    agree(model, inputs, recorded, lambda answers: each[next(remaining) % len(each)].of(answers))


@pytest.mark.parametrize("options", slow_after(1, [{"n_layers": 1}, {}, {"norm_first": True, "final_norm": True}]))
def test_the_gradient_of_every_stage_of_a_translation(options: dict[str, Any]) -> None:
    from npformer.interpret.metric import metric_of

    model = random_model("float64", d_model=16, d_ffn=24, **options)
    pair = (Text(np.array([5, 6, 7, 0])), Text(np.array([499, 8, 9])))
    recorded = trace(model, (pair[0].ids, pair[1].ids), grads=None)
    with pytest.raises(NpformerError, match="grads: the trace has no gradients"):
        _ = recorded.grads
    (answers,) = model.run([pair])
    measured = metric_of(model, None, None, answers, pair)
    logits = answers["logits"] - np.log(np.exp(answers["logits"]).sum(axis=-1, keepdims=True))
    assert measured.of(answers) == pytest.approx((logits[0, 8] + logits[1, 9]) / 2)
    recorded = trace(model, (pair[0].ids, pair[1].ids), grads=measured)
    agree(model, [pair], recorded, measured.of)
    assert recorded.grads["encoder.layers.0.attention.weights"].any()


def test_a_function_may_state_its_derivative() -> None:
    model = tiny.model("bert", dtype=np.float64)

    def backward(answers: dict[str, np.ndarray], grad: float) -> dict[str, np.ndarray]:
        return {"logits": grad * 3 * answers["logits"] ** 2}

    by_differences = trace(model, TEXTS, grads=lambda answers: (answers["logits"] ** 3).sum())
    stated = trace(model, TEXTS, grads=Differentiable(lambda answers: (answers["logits"] ** 3).sum(), backward))
    for name in stated.grads:
        for a, b in zip(stated.grads[name], by_differences.grads[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9, err_msg=name)


def test_the_gradients_are_a_trace_with_the_stages_that_were_asked_for() -> None:
    model = tiny.model()
    recorded = trace(model, "I love ice cream", "layers.*.attention.weights", grads="NEGATIVE")
    assert list(recorded) == list(recorded.grads) == [f"layers.{i}.attention.weights" for i in range(2)]
    assert recorded.grads.tokens == recorded.tokens
    assert "layers.1.attention.weights" in str(recorded.grads)
    with pytest.raises(NpformerError, match="not recorded"):
        recorded.grads["logits"]
    plain = trace(model, "I love ice cream", "layers.*.attention.weights")
    np.testing.assert_array_equal(recorded["layers.0.attention.weights"], plain["layers.0.attention.weights"])


def test_inside_an_edit_they_match_the_edited_forward() -> None:
    model = tiny.model("bert", dtype=np.float64)
    with edit(ablate_head(0, 1), scale("layers.1.ffn.output", 0.5)):
        edited = trace(model, TEXTS, grads=0)

        def logit(answers: Any) -> float:
            return float(answers["logits"][0])

        from npformer.interpret.study_inputs import texts_of

        agree_within_edit = trace(model, TEXTS, "layers.0.ffn.output", grads=0)
        agree(model, texts_of(model, TEXTS)[0], agree_within_edit, logit)
    assert not np.array_equal(
        edited.grads["embeddings.sum"][0], trace(model, TEXTS, grads=0).grads["embeddings.sum"][0]
    )


@pytest.mark.parametrize(
    ("head", "arguments", "message"),
    [
        ("base", {"grads": 0}, "grads: expected a function of the answers, because a base model has no labels"),
        ("sequence-classification", {"grads": "GOOD"}, "label='GOOD': expected one of NEGATIVE, POSITIVE"),
        ("sequence-classification", {"grads": lambda a: a["logits"]}, r"to one number, got float64 of shape \(2,\)"),
        ("sequence-classification", {"grads": len, "position": 1}, "position: not allowed if the metric is a function"),
        (
            "masked-lm",
            {"grads": lambda a: a["logits"].sum()},
            "expected at most 65536 numbers in the answers .* pass a label, or Differentiable",
        ),
        (
            "sequence-classification",
            {"grads": Differentiable(lambda a: a["logits"].sum(), lambda a, grad: {"logits": np.ones(3)})},
            r"gradient of logits: expected shape \(2,\), got \(3,\)",
        ),
        (
            "sequence-classification",
            {"grads": Differentiable(lambda a: a["logits"].sum(), lambda a, grad: {"logit": np.ones(2)})},
            "expected gradients of the answers logits, got one of 'logit'",
        ),
    ],
)
def test_stages_without_a_gradient_are_errors(head: str, arguments: dict[str, Any], message: str) -> None:
    words = {"vocab_size": 70_000} if head == "masked-lm" else {}
    with pytest.raises(NpformerError, match=message):
        trace(tiny.model("bert", head, **words), "I love ice cream", **arguments)
