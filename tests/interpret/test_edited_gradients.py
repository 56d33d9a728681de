"""A gradient computed inside an edit is the edited model's gradient, compared with central differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from npformer import edit, view
from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import drawn
from npformer.common.errors import NpformerError
from npformer.engine.functions import SparseRows
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families.torch_nn import TORCH_MODULES
from npformer.interpret.edits import (
    Differentiable,
    ablate_head,
    add,
    freeze_attention,
    from_trace,
    mean_ablate,
    replace_row,
    scale,
    scale_head,
    zero,
)
from npformer.interpret.integrated_gradients import slope
from npformer.interpret.study_inputs import texts_of
from npformer.interpret.text_parts import is_input
from npformer.interpret.traces import Trace, trace
from npformer.model import Model
from npformer.training import Dropout, Example, Gradients, HeadLoss, Trainable, gradients, initialize
from npformer.training.losses import TranslationLoss
from tests.golden import gradients as given
from tests.golden import seq2seq_cases as cases
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

TEXTS = ["I love ice cream", "no not", "you love ice cream", "no"]
Opened = Callable[[], AbstractContextManager[Any]]
SQUARE = Differentiable(np.square, lambda array, grad: 2 * array * grad)


def trained(model: Model) -> tuple[HeadLoss, Trainable, list[Example]]:
    """Returns a loss, weights and a batch. Texts with an even index have label 0, the others label 1."""
    texts, _, _ = texts_of(model, TEXTS)
    examples = [Example(text, i % 2) for i, text in enumerate(texts)]
    return HeadLoss(model.config), Trainable(model.weights, model.config), examples


def agrees(run: Callable[[], Gradients], weights: Trainable, opened: Opened) -> float:
    """Asserts that the loss changes along a random direction of all weights as `run`'s gradients predict.

    Returns the change.
    """
    random, h = np.random.default_rng(0), 2e-6
    directions = {name: random.standard_normal(array.shape) for name, array in weights.flat.items()}
    start = {name: array.copy() for name, array in weights.flat.items()}
    with opened():
        found = run().flat
    slope = 0.0
    for name, grad in found.items():
        at = directions[name][grad.ids] if isinstance(grad, SparseRows) else directions[name]
        slope += float(((grad.values if isinstance(grad, SparseRows) else grad) * at).sum())
    losses = []
    for sign in (1, -1):
        for name, array in weights.flat.items():
            array[...] = start[name] + sign * h * directions[name]
        with opened():
            losses.append(run().loss)
    for name, array in weights.flat.items():
        array[...] = start[name]
    # the tolerance allows h^2 times a third derivative, and rounding of 1e-16 / h
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * h), rel=1e-6, abs=1e-8)
    return slope


def stages_of(run: Callable[[], Any]) -> list[str]:
    names: dict[str, None] = {}
    with listen(lambda name, array: names.setdefault(name) or array):
        run()
    return [name for name in names if not is_input(name)]


# --- every stage -----------------------------------------------------------------------------------------------------


def every_stage(run: Callable[[], Gradients], weights: Trainable) -> None:
    plain = agrees(run, weights, edit)
    for name in stages_of(run):
        edited = agrees(run, weights, lambda name=name: edit({name: SQUARE}, scale(name, 0.7)))
        assert edited != pytest.approx(plain, rel=1e-6), name


@pytest.mark.parametrize(
    ("kind", "head", "n_layers"),
    slow_after(
        1,
        [
            ("bert", "token-classification", 1),
            ("bert", "question-answering", 2),
            ("distilbert", "sequence-classification", 2),
            ("distilbert", "masked-lm", 2),
        ],
    ),
)
def test_a_gradient_passes_an_edit_of_any_stage(kind: str, head: str, n_layers: int) -> None:
    model = tiny.model(kind, head, dtype=np.float64, n_layers=n_layers)
    random = np.random.default_rng(0)
    targets: dict[str, Callable[[int], Any]] = {
        "sequence-classification": lambda length: length % 2,
        "token-classification": lambda length: random.integers(0, 5, length),
        "masked-lm": lambda length: random.integers(5, 200, length),
        "question-answering": lambda length: (1, length - 1),
    }
    texts, _, _ = texts_of(model, TEXTS)
    examples = [Example(text, targets[head](len(text))) for text in texts]
    loss, weights = HeadLoss(model.config), Trainable(model.weights, model.config)
    every_stage(lambda: gradients(loss, weights, examples), weights)


@pytest.mark.slow
def test_a_gradient_passes_an_edit_of_any_stage_of_a_pre_norm_encoder() -> None:
    config = TORCH_MODULES.config(
        "sequence-classification", vocab_size=20, d_model=8, n_heads=2, n_layers=2, d_ffn=16, max_length=32,
        activation="gelu", labels=("a", "b"), torch_class="nn.TransformerEncoder", norm_first=True, final_norm=True,
    )  # fmt: skip
    flat = {name: cases.drawn("edited", name, each.shape) for name, each in drawn(config).items()}
    weights = Trainable(layout.own_to_tree(flat, config, np.dtype(np.float64)), config)
    examples = [Example(Text(np.arange(3, 3 + length)), length % 2) for length in (5, 3, 3)]
    every_stage(lambda: gradients(HeadLoss(config), weights, examples), weights)


@pytest.mark.slow
def test_a_gradient_passes_an_edit_of_any_stage_of_an_encoder_decoder() -> None:
    config = given.TRANSLATOR
    weights = Trainable(initialize(config, scheme="torch", dtype=np.float64), config)
    pairs = [Example(Text(source), target) for source, target in next(iter(given.pairs()))][:3]
    every_stage(lambda: gradients(TranslationLoss(config), weights, pairs), weights)


# --- typical edits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=("distilbert", "bert"))
def model(request: pytest.FixtureRequest) -> Model:
    return tiny.model(request.param, dtype=np.float64)


@pytest.fixture(scope="module")
def other(model: Model) -> Trace:
    """Returns a trace of the same texts, with edits that change its numbers."""
    with edit(scale("embeddings.sum", 0.5), scale("layers.0.attention.scores", 3)):
        return trace(model, TEXTS)


CHANGES: dict[str, Callable[[Model, Trace], list[Any]]] = {
    "a head left out": lambda model, other: [ablate_head(0, 1), ablate_head(1, 2)],
    "zeros": lambda model, other: [zero("layers.*.ffn.output")],
    "zeros behind a mean": lambda model, other: [mean_ablate("layers.0.attention.context", other), zero("*.1.*.value")],
    "the mean": lambda model, other: [mean_ablate("layers.*.attention_norm", other)],
    "another trace's stage": lambda model, other: [from_trace(other, "layers.0.attention.output")],
    "frozen attention": lambda model, other: [freeze_attention(other)],
    "an array": lambda model, other: [{"layers.1.ffn.hidden": [np.full((n, 64), 0.3) for n in (6, 4, 6, 3)]}],
    "a scaled head": lambda model, other: [scale_head("layers.0.attention.context", 2, -1.5)],
    "a direction": lambda model, other: [add("layers.*.attention.output", np.linspace(-1, 1, 32))],
    "a row": lambda model, other: [replace_row("layers.0.ffn_norm", 1, np.linspace(-1, 1, 32))],
    "scaled scores": lambda model, other: [scale("layers.*.attention.scores", 2)],
    "several at one stage": lambda model, other: [
        scale("layers.1.attention.weights", 1.5), {"*.weights": SQUARE}, ablate_head(1, 0), scale("*.context", 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "rates"),
    [(what, {}) for what in CHANGES]
    + [(what, {"*.weights": 0.2, "*.ffn_norm": 0.1, "*.output": 0.3}) for what in ("zeros", "several at one stage")],
)
def test_the_gradient_is_that_of_differences(model: Model, other: Trace, what: str, rates: dict[str, float]) -> None:
    loss, weights, examples = trained(model)
    changes = CHANGES[what](model, other)
    drawn = (lambda shard: Dropout(rates, (4, shard))) if rates else (lambda shard: None)

    def run() -> Gradients:
        return gradients(loss, weights, examples, edit=drawn)

    edited = agrees(run, weights, lambda: edit(*changes))
    assert edited != pytest.approx(agrees(run, weights, edit), rel=1e-3)


@pytest.mark.parametrize("positions", [None, 0, [1, 3]])
def test_the_gradient_passes_unpatched_rows(model: Model, positions: Any) -> None:
    """Patches activations in two texts. Each has as many tokens as the trace's text."""
    loss, weights, examples = trained(model)
    source = trace(model, "you love ice music")
    for stage in ("layers.0.ffn_norm", "layers.*.attention.weights", "layers.1.attention.query_heads"):
        changes = from_trace(source, stage, positions)
        agrees(lambda: gradients(loss, weights, [examples[0], examples[2]]), weights, lambda c=changes: edit(c))


def test_edits_within_edits(model: Model) -> None:
    loss, weights, examples = trained(model)

    class Nested(AbstractContextManager[None]):
        def __enter__(self) -> None:
            self.outer = edit(scale("layers.0.ffn.output", 3), {"pooled": SQUARE})
            self.inner = edit({"layers.0.ffn.output": SQUARE}, scale("pooled", 2))
            self.outer.__enter__()
            self.inner.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.inner.__exit__(*error)
            self.outer.__exit__(*error)

    agrees(lambda: gradients(loss, weights, examples), weights, Nested)


def test_stages_hidden_by_a_constant_have_no_gradient(model: Model) -> None:
    loss, weights, examples = trained(model)
    with edit(zero("layers.0.ffn_norm")):
        found = gradients(loss, weights, examples).flat
    assert found["layers.1.ffn.hidden.bias"].any()  # type: ignore[union-attr]
    for name, grad in found.items():
        if name.startswith(("embeddings", "layers.0.")):
            assert not (grad.values if isinstance(grad, SparseRows) else grad).any(), name
    with edit(freeze_attention(trace(model, TEXTS))):
        found = gradients(loss, weights, examples).flat
    assert not found["layers.1.attention.query.weight"].any()  # type: ignore[union-attr]
    assert found["layers.1.attention.value.weight"].any()  # type: ignore[union-attr]


def test_a_recording_includes_the_surrounding_edits(model: Model) -> None:
    """Either the recording or the edit may be opened first, as with a trace."""
    batch, found = pack([Text(np.array([2, 40, 41, 3]))]), []
    for first in (True, False):
        recording = Recording(keep_gradients=True)
        changes = scale("layers.1.attention.context", 3), ablate_head(1, 2)
        if first:
            with edit(*changes), listen(recording):
                forward(model.weights, model.parts, batch)
        else:
            with listen(recording), edit(*changes):
                forward(model.weights, model.parts, batch)
        found.append(backward({"logits": np.ones((1, 2))}, recording.stages, model.weights, model.parts, batch))
        # the gradient with respect to the edited stage
        assert recording.gradients["layers.1.attention.context"][0][:, 2].any()
    assert np.array_equal(*(each["layers"][1]["attention"]["value"]["weight"] for each in found))
    assert not found[0]["layers"][1]["attention"]["value"]["weight"][:, 16:24].any()


# --- attribution -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        lambda model: [ablate_head(1, 1), scale("layers.0.ffn.output", 0.5)],
        lambda model: [freeze_attention(trace(model, TEXTS[0]))],
        lambda model: [{"pooler": SQUARE}, mean_ablate("layers.0.attention.output", trace(model, TEXTS))],
    ],
)
def test_attribution_is_the_edited_models(model: Model, changed: Callable[[Model], list[Any]]) -> None:
    """In the edited model, gradients equal central differences, and integrated gradients add up to the difference
    between the path's ends.
    """
    from npformer.interpret.attribution import target
    from npformer.interpret.integrated_gradients import by_gradients

    changes, h = changed(model), 1e-5
    (text,), (tokens,), _ = texts_of(model, TEXTS[0])
    with edit(*changes):
        explained = target(model, 0, trace(model, TEXTS[0])["logits"])
        here = slope(model, [text], explained)
        way = np.random.default_rng(1).standard_normal(here.rows.shape)
        ends = [slope(model, [text], explained, here.rows + sign * h * way).values[0] for sign in (1, -1)]
        _, integrated = by_gradients(model, text, tokens, 0, 100)
        logits = trace(model, TEXTS[0])["logits"]
    assert (here.gradient * way).sum() == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6, abs=1e-8)
    assert here.values[0] == pytest.approx(logits[0] - logits[1])
    change = float(integrated.about.split(", by ")[1].split(";")[0])
    assert integrated.scores.sum() == pytest.approx(change, abs=2e-2)  # DistilBERT's pooler has ReLUs


def test_a_view_has_gradients_inside_an_edit_with_a_derivative(model: Model) -> None:
    names = [each.name for each in view.attribution(model, TEXTS[0]).methods]
    with edit(ablate_head(0, 0)):
        inside = view.attribution(model, TEXTS[0])
    assert [each.name for each in inside.methods] == names
    assert not np.array_equal(inside.methods[1].scores, view.attribution(model, TEXTS[0]).methods[1].scores)


# --- changes without a derivative ------------------------------------------------------------------------------------


def test_a_function_without_a_derivative_is_an_error_with_a_remedy(model: Model) -> None:
    loss, weights, examples = trained(model)
    message = r"edit of layers\.1\.ffn\.output: a gradient passes through this change.*got <function.*scale\(\)"
    with edit({"layers.1.ffn.output": lambda array: array * 2}):
        assert trace(model, TEXTS)["logits"]
        with pytest.raises(NpformerError, match=message):
            gradients(loss, weights, examples)
        (text,), _, _ = texts_of(model, TEXTS[0])
        from npformer.interpret.attribution import target

        with pytest.raises(NpformerError, match="a known derivative"):
            slope(model, [text], target(model, 0, np.zeros(2)))


def test_nothing_is_kept_of_an_edit_when_no_gradient_is_taken(model: Model) -> None:
    import weakref

    kept: list[Any] = []

    def remember(array: np.ndarray) -> np.ndarray:
        kept.append(weakref.ref(array))
        return array

    with edit({"layers.*.ffn.hidden": Differentiable(remember, lambda array, grad: grad)}):
        model([2, 40, 3])
        model([2, 40, 3])
        assert len(kept) == 4
        assert [each() for each in kept[:2]] == [None, None]
