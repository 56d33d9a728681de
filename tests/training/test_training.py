"""Training: torch's losses step by step, gradients with the same bits for any number of threads, and dropout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from npformer.checkpoint import load_folder
from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import PROJECTION, TOKENS
from npformer.common.errors import NpformerError
from npformer.engine.functions import SparseRows
from npformer.engine.runtime.packing import Text
from npformer.engine.transformer import forward
from npformer.families.vaswani import residual_rates
from npformer.training import (
    Adam,
    Dropout,
    Example,
    HeadLoss,
    Trainable,
    TranslationLoss,
    clip_scale,
    constant,
    global_norm,
    gradients,
    initialize,
    is_decayed,
    linear,
    noam,
    standard_rates,
)  # fmt: skip
from npformer.training.batch_gradients import cut
from npformer.training.start import as_distilbert
from tests.golden import gradients as given
from tests.support import tiny, torch_values
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

DATA = torch_values.DATA.parent / "gradients_data"


def examples(n: int = 40, seed: int = 0) -> list[Example]:
    """Returns texts with labels: whether the second token of a text is even."""
    random = np.random.default_rng(seed)
    texts = [random.integers(5, 200, length) for length in random.integers(3, 20, n)]
    return [Example(Text(ids), int(ids[1] % 2)) for ids in texts]


def weights(**overrides: Any) -> Trainable:
    model = tiny.model(**overrides)
    return Trainable(model.weights, model.config)


# --- against torch ---------------------------------------------------------------------------------------------------


def losses_of(objective: Any, trained: Trainable, batches: Iterable[list[Example]]) -> np.ndarray:
    """Trains with AdamW, warm-up and clipping, as `make_gradients.py` did in torch; returns the loss of each step."""
    settings = given.SETTINGS
    optimizer = Adam(trained.flat, weight_decay=settings["weight_decay"], lazy=False)
    factor = linear(int(settings["warmup"]), int(settings["steps"]))
    losses = []
    for step, batch in enumerate(batches):
        found = gradients(objective, trained, batch)
        scale = clip_scale(global_norm(found.flat), settings["clip"])
        optimizer.step(found.flat, settings["learning_rate"] * factor(step), scale)
        losses.append(found.loss)
    return np.array(losses)


@pytest.mark.parametrize(("dtype", "tolerance"), slow_after(1, [("float64", 1e-12), ("float32", 1e-5)]))
def test_fifty_steps_are_torchs(dtype: str, tolerance: float) -> None:
    """In float64, only the order of summation differs. In float32, rounding errors also add up over fifty steps."""
    config, tree = load_folder(torch_values.DATA / given.TRAINED, dtype)
    batches = (
        [Example(Text(each), int(label)) for each, label in zip(ids, labels, strict=True)]
        for ids, labels in given.batches()
    )
    losses = losses_of(HeadLoss(config), Trainable(tree, config), batches)
    torchs = load_file(DATA / "training.safetensors")[f"{dtype}/losses"]
    assert np.abs(losses / torchs - 1).max() < tolerance
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(("dtype", "tolerance"), slow_after(1, [("float64", 1e-12), ("float32", 1e-5)]))
def test_fifty_steps_of_a_translator_are_torchs(dtype: str, tolerance: float) -> None:
    """Compares the losses of nn.Transformer with tables and a projection, teacher forcing and label smoothing."""
    found, config = load_file(DATA / "training.safetensors"), given.TRANSLATOR
    trained = Trainable(layout.own_to_tree(torch_values.below(found, "translator"), config, np.dtype(dtype)), config)
    batches = ([Example(Text(source), target) for source, target in pairs] for pairs in given.pairs())
    losses = losses_of(TranslationLoss(config, given.SMOOTHING), trained, batches)
    assert np.abs(losses / found[f"{dtype}/translation losses"] - 1).max() < tolerance
    assert losses[-1] < 0.9 * losses[0]


def test_lazy_adam_is_adam_on_the_rows_that_occur() -> None:
    """Rows with a gradient at every step change as in dense Adam. Other rows and their moments do not change."""
    random = np.random.default_rng(0)
    table, other = random.standard_normal((6, 3)), random.standard_normal((6, 3))
    lazy, dense = Adam({"embeddings.token.weight": table}), Adam({"embeddings.token.weight": other}, lazy=False)
    other[...] = table
    before = table.copy()
    for _ in range(3):
        rows = SparseRows(np.array([1, 4]), random.standard_normal((2, 3)))
        lazy.step({"embeddings.token.weight": rows}, 0.1)
        dense.step({"embeddings.token.weight": rows}, 0.1)
    assert np.array_equal(table, other)
    assert np.array_equal(table[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    lazy.step({"embeddings.token.weight": SparseRows(np.array([0]), np.ones((1, 3)))}, 0.1)
    assert np.array_equal(table[[1, 4]], other[[1, 4]])


def test_adam_does_not_depend_on_its_blocks_and_threads() -> None:
    random = np.random.default_rng(0)
    start, grad = random.standard_normal((2, 1500, 1100)).astype(np.float32)
    found = []
    for threads in (1, 2):
        array = start.copy()
        optimizer = Adam({"w.weight": array}, weight_decay=0.1)
        optimizer.step({"w.weight": grad}, 0.01, 0.5, threads)
        found.append(array)
    assert np.array_equal(*found)
    g = grad * np.float32(0.5)
    expected = start * (1 - 0.001) - 0.01 * g / (np.abs(g) + 1e-8)  # m / (1 - b1) = g, sqrt(v / (1 - b2)) = |g|
    assert np.abs(found[0] - expected).max() < 1e-6


def test_a_gradient_that_fits_no_parameter_is_an_error() -> None:
    array = np.zeros((2, 3))
    optimizer = Adam({"w.weight": array})
    for name, grad, message in (
        ("w.weigth", np.ones((2, 3)), "Adam: gradient: 'w.weigth' is not known; did you mean 'w.weight'"),
        ("w.weight", np.ones(3), r"Adam: gradient w.weight: expected \(2, 3\), got \(3,\)"),
    ):
        with pytest.raises(NpformerError, match=message):
            optimizer.step({name: grad}, 0.1)
    assert optimizer.t == 0
    assert not array.any()


def test_decay_is_for_weights() -> None:
    flat = weights(model_type="bert").flat
    kept = [name for name in flat if not is_decayed(name)]
    assert all(name.endswith("bias") or "norm" in name for name in kept)
    assert "embeddings.token.weight" not in kept


def test_schedules() -> None:
    assert [linear(2, 4)(step) for step in range(6)] == [0, 0.5, 1, 0.5, 0, 0]
    assert [constant()(0), constant(2)(1), constant(2)(9)] == [1, 0.5, 1]
    rates = [noam(64, 10)(step) for step in range(30)]
    assert np.argmax(rates) == 9
    assert rates[9] == pytest.approx((64 * 10) ** -0.5)
    with pytest.raises(NpformerError, match="warmup"):
        linear(5, 4)


# --- gradients of a batch --------------------------------------------------------------------------------------------


def test_a_step_has_the_same_bits_for_any_number_of_threads() -> None:
    trained, batch = weights(), examples(60)
    loss, rates = HeadLoss(trained.config), standard_rates(trained.config, 0.3)
    one, two = (
        gradients(loss, trained, batch, threads, lambda shard: Dropout(rates, (0, 7, shard))) for threads in (1, 2)
    )
    assert len(cut([(len(each.text),) for each in batch])) == 2
    assert (one.loss, one.right) == (two.loss, two.right)
    for name, grad in one.flat.items():
        other = two.flat[name]
        if isinstance(grad, SparseRows):
            assert isinstance(other, SparseRows)
            assert np.array_equal(grad.ids, other.ids)
            grad, other = grad.values, other.values
        assert np.array_equal(grad, other), name


def test_shards() -> None:
    """Every text occurs once. Many texts are divided into an even number of shards of about a thousand tokens, and
    few texts form a single shard."""
    sizes = list(np.random.default_rng(0).integers(1, 60, 300))
    shards = cut([(size,) for size in sizes])
    assert sorted(i for shard in shards for i in shard) == list(range(300))
    assert len(shards) % 2 == 0
    assert max(sum(sizes[i] for i in shard) for shard in shards) < 1100
    assert cut([(3,), (4,)]) == [[1, 0]]
    assert cut([(30, 5), (20, 5), (30, 5), (30, 2)]) == [[0, 2], [3, 1]]


def test_a_tied_projection_is_one_parameter() -> None:
    trained = weights(head="masked-lm")
    assert PROJECTION not in trained.flat
    token, projection = trained.tree["embeddings"]["token"]["weight"], trained.tree["head"]["output"]["weight"]
    trained.flat[TOKENS][3, 2] = 7
    assert token[3, 2] == projection[2, 3] == 7
    texts = [each.text for each in examples(3)]
    grads = gradients(HeadLoss(trained.config), trained, [Example(text, text.ids) for text in texts]).flat
    assert isinstance(grads[TOKENS], np.ndarray)
    assert grads[TOKENS].shape == token.shape


def test_a_batch_without_targets_is_an_error() -> None:
    trained = weights(head="token-classification")
    with pytest.raises(NpformerError, match="expected at least one target in the batch"):
        gradients(HeadLoss(trained.config), trained, [Example(Text(np.array([5, 6])), np.array([-100, -100]))])
    with pytest.raises(NpformerError, match="expected at least one target in the batch"):
        gradients(HeadLoss(tiny.config()), weights(), [Example(Text(np.array([5, 6])), -100)])
    with pytest.raises(NpformerError, match="head: expected a head to train, got a base model"):
        HeadLoss(tiny.config(head="base"))


IDS = Text(np.array([5, 6, 7]))


@pytest.mark.parametrize(
    ("head", "text", "target", "message"),
    [
        ("sequence-classification", [5, 6], 1, "text: expected a Text with tokens, or a list of Texts .* got a list"),
        ("sequence-classification", "I love ice cream", 1, "got 'I love ice cream'"),
        ("sequence-classification", Text(np.array([], int)), 1, "got an empty one"),
        (
            "sequence-classification",
            IDS,
            [0, 1],
            r"target: expected shape \(\) for sequence-classification, got \(2,\)",
        ),
        ("token-classification", IDS, [0, 1], r"target: expected shape \(3,\) for token-classification, got \(2,\)"),
        ("question-answering", IDS, [0, 1, 2], r"target: expected shape \(2,\)"),
        ("question-answering", IDS, 1, r"target: expected shape \(2,\)"),
    ],
)
def test_an_example_of_the_wrong_form_is_an_error(head: str, text: Any, target: Any, message: str) -> None:
    """Targets are concatenated, so two wrong lengths in a batch could cancel each other."""
    trained = weights(head=head)
    with pytest.raises(NpformerError, match=message):
        gradients(HeadLoss(trained.config), trained, [Example(text, target), Example(IDS, [0, 1, 0, 1])])


def test_examples_with_different_numbers_of_choices() -> None:
    """The loss and gradients of a batch are the means over its examples."""
    trained = weights(head="multiple-choice")
    several = [Example([IDS, Text(np.array([5 + i]))] + [IDS] * i, i) for i in range(3)]
    alone = [gradients(HeadLoss(trained.config, 0.1), trained, [each]) for each in several]
    batch = gradients(HeadLoss(trained.config, 0.1), trained, several)
    assert batch.loss == pytest.approx(np.mean([each.loss for each in alone]))
    name = "pooler.weight"
    np.testing.assert_allclose(
        batch.flat[name], np.mean([each.flat[name] for each in alone], axis=0), atol=1e-6
    )  # float32


def test_label_smoothing_is_a_fraction() -> None:
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(NpformerError, match="label_smoothing: expected a number from 0 to 1"):
            HeadLoss(tiny.config(), wrong)


# --- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    dropout = Dropout({"a.*": 0.25}, (1, 2))
    x = np.ones((400, 500), np.float32)
    y = dropout("a.b", x)
    assert dropout("b", x) is x
    assert y.dtype == np.float32
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.01)
    assert np.unique(y).tolist() == [0, pytest.approx(4 / 3)]
    result, pullback = Dropout({"a.*": 0.25}, (1, 2)).change("a.b", x)
    assert np.array_equal(result, y)
    assert np.array_equal(pullback(x), y)
    assert np.array_equal(Dropout({"a.*": 0.25}, (1, 2))("a.b", x), y)
    assert not np.array_equal(Dropout({"a.*": 0.25}, (1, 3))("a.b", x), y)
    assert y.flags.c_contiguous
    assert dropout("a.b", x.T).flags.f_contiguous  # in the memory order of x, for a fast product
    with pytest.raises(NpformerError, match=r"dropout.*a\.\*.*1"):
        Dropout({"a.*": 1.0}, 0)


@pytest.mark.parametrize("family", ["distilbert", "bert"])
def test_gradients_pass_dropout(family: str) -> None:
    """If the same elements are dropped, the loss changes as its gradient predicts, in float64."""
    trained = weights(model_type=family, dtype=np.float64)
    loss, batch, rates = HeadLoss(trained.config), examples(6), standard_rates(trained.config, 0.3)

    def run() -> Any:
        return gradients(loss, trained, batch, edit=lambda shard: Dropout(rates, (3, shard)))

    found = run().flat
    random = np.random.default_rng(0)
    for name in ("layers.0.attention.query.weight", "layers.1.ffn.output.weight", "embeddings.norm.weight"):
        array, direction = trained.flat[name], random.standard_normal(trained.flat[name].shape)
        start, step, values = array.copy(), 1e-5, []
        for sign in (1, -1):
            array[...] = start + sign * step * direction
            values.append(run().loss)
        array[...] = start
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float((found[name] * direction).sum()), rel=1e-5)


def test_standard_dropout_rates() -> None:
    """Transformers' rates are 0.1, and 0.2 for the input of DistilBERT's classifiers."""
    for family, head, stage, rate in (
        ("distilbert", "sequence-classification", "pooled", 0.2),
        ("distilbert", "multiple-choice", "pooled", 0.2),
        ("distilbert", "question-answering", "layers.1.ffn_norm", 0.1),
        ("distilbert", "token-classification", "layers.1.ffn_norm", 0.1),
        ("bert", "sequence-classification", "pooled", 0.1),
    ):
        rates = standard_rates(tiny.config(family, head))
        assert rates.pop(stage) == rate, (family, head)
        assert set(rates.values()) == {0.1}


def test_standard_dropout_sites_are_stages() -> None:
    """The pattern of every rate matches a stage of a forward pass of its model."""
    from npformer.engine.runtime.packing import pack
    from npformer.engine.tape import Recording
    from npformer.engine.taps import listen

    for family, head in (("distilbert", "sequence-classification"), ("bert", "token-classification")):
        model = tiny.model(family, head)
        for pattern, rate in standard_rates(model.config, 0.5).items():
            recording = Recording()
            with listen(Dropout({pattern: rate}, 0)), listen(recording):
                forward(model.weights, model.parts, pack([examples(1)[0].text]))
            assert recording.changes, pattern
    config = given.TRANSLATOR
    pairs = [Example(Text(source), target) for source, target in next(iter(given.pairs()))]
    for rates in (residual_rates(0.5), standard_rates(config, 0.5)):
        for pattern in rates:
            recording = Recording()
            with listen(Dropout({pattern: 0.5}, 0)), listen(recording):
                TranslationLoss(config).part(initialize(config), pairs, 1, None)
            assert recording.changes, pattern


# --- initial weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["normal", "torch", "xavier"])
def test_initial_weights_have_torchs_spread(scheme: str) -> None:
    """Compares second moments with those of nn.Linear, nn.Embedding, nn.MultiheadAttention and BERT's N(0, 0.02^2)."""
    config = tiny.config(d_model=128, d_ffn=256)
    flat = layout.flatten(initialize(config, 1, scheme))
    spread = {name: array.std() for name, array in flat.items()}
    table = {"normal": 0.02, "torch": 1, "xavier": 128**-0.5}[scheme]
    query = {"normal": 0.02, "torch": (1 / 3 / 128) ** 0.5, "xavier": (6 / 3 / (4 * 128)) ** 0.5}[scheme]
    hidden = {"normal": 0.02, "torch": (1 / 3 / 128) ** 0.5, "xavier": (6 / 3 / (128 + 256)) ** 0.5}[scheme]
    assert spread["embeddings.token.weight"] == pytest.approx(table, rel=0.05)
    assert spread["layers.0.attention.query.weight"] == pytest.approx(query, rel=0.05)
    assert spread["layers.0.ffn.hidden.weight"] == pytest.approx(hidden, rel=0.05)
    assert (flat["layers.0.attention_norm.weight"] == 1).all()
    assert not flat["layers.0.attention_norm.bias"].any()
    assert flat["layers.1.ffn.output.bias"].any() == (scheme != "normal")
    again = layout.flatten(initialize(config, 1, scheme))
    assert all(np.array_equal(array, again[name]) for name, array in flat.items())


def test_a_bert_is_rewritten_as_a_distilbert() -> None:
    """Both models have the same output of the last layer, up to rounding, for texts of one segment."""
    model = tiny.model("bert", "base")
    config, tree = as_distilbert(model.config, dict(model.weights))
    from npformer.model import Model

    texts = [each.text for each in examples(4)]
    for a, b in zip(model.run(texts), Model(config, tree).run(texts), strict=True):
        # one of the models rounds an additional sum
        assert np.abs(a["last_hidden_state"] - b["last_hidden_state"]).max() < 1e-5
    with pytest.raises(NpformerError, match="expected a bert"):
        as_distilbert(config, tree)
