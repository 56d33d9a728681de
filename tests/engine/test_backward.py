"""Backward passes: torch's gradients of every function, head and model, and finite differences in float64.

The golden gradients are made by `golden/make_gradients.py`; no test here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from npformer.checkpoint import load_folder
from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import PROJECTION, TOKENS, ties
from npformer.engine import activations, functions
from npformer.engine.attention import (
    masked_attention,
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from npformer.engine.blocks import PackedTexts
from npformer.engine.functions import SparseRows, embedding_backward, layer_norm_backward, linear_backward
from npformer.engine.layers.stack import Stack
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families import parts_of
from npformer.families.building import encoder_layer_of
from npformer.interpret.text_parts import is_input
from npformer.training import Example, HeadLoss, Trainable, initialize, losses
from npformer.training.batch_gradients import gradients
from npformer.training.losses import TranslationLoss
from tests.golden import gradients as given
from tests.support import tiny, torch_values
from tests.support.packed import encoder
from tests.support.seq2seq_models import golden_model
from tests.support.slow import slow_after

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

DATA = torch_values.DATA.parent / "gradients_data"
DTYPES = ("float32", "float64")
CLOSE = 1e-9  # relative to the largest entry, in float64; a different order of summation has a smaller effect


@cache
def file(name: str) -> tuple[dict[str, np.ndarray], Any]:
    with safe_open(DATA / name, "np") as opened:
        described = opened.metadata() or {}
    return load_file(DATA / name), {key: json.loads(text) for key, text in described.items() if key != "format"}


def dense(grad: np.ndarray | SparseRows, like: np.ndarray) -> np.ndarray:
    if isinstance(grad, np.ndarray):
        return grad
    table = np.zeros_like(like)
    table[grad.ids] = grad.values
    return table


def flat(tree: Mapping[str, Any], weights: Mapping[str, Any], tied: bool) -> dict[str, np.ndarray]:
    """Returns dense gradients by name. The gradient of a tied projection is added to its table's gradient."""
    arrays = layout.flatten(dict(weights))
    grads = {name: dense(grad, arrays[name]) for name, grad in layout.flatten(dict(tree)).items()}
    if tied:
        grads[TOKENS] = grads[TOKENS] + grads.pop(PROJECTION).T
    return grads


# --- single functions ------------------------------------------------------------------------------------------------


def ours(name: str, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns npformer's gradients of a golden call, by argument name."""
    function, given = name.split()[0], dict(arrays)
    grad = given.pop("grad")
    if function in ("linear", "layer_norm"):
        dx, grads = getattr(functions, f"{function}_backward")(grad, **given, **options)
        return {"x": dx, **grads}
    if function == "embedding":
        return {"weight": dense(embedding_backward(grad, given["ids"]), given["weight"])}
    if function == "softmax":
        return {"x": functions.softmax_backward(grad, functions.softmax(given["x"], **options), **options)}
    if function == "cross_entropy":
        return {"logits": functions.cross_entropy_backward(grad, **given, **options)}
    if function == "scaled_dot_product_attention":
        recording, (q, k, v) = Recording(), (given[each] for each in "qkv")
        scale = q.shape[-1] ** -0.5
        mask = np.tri(q.shape[-2], dtype=bool) if options["is_causal"] else given.get("mask")
        with listen(recording):
            scaled_dot_product_attention(q, k, v, scale, mask)
        found = scaled_dot_product_attention_backward(grad, recording.stages, q, k, v, scale)
        return dict(zip("qkv", found, strict=True))
    return {"x": getattr(activations, f"{function}_backward")(grad, given["x"])}


def test_cross_entropy_from_given_log_probabilities() -> None:
    """Passing log probabilities as an argument does not change the loss. The gradient differs only by rounding:
    exp(log p) differs from p by a few units in the last place."""
    random = np.random.default_rng(0)
    logits, targets = random.standard_normal((7, 11)) * 3, np.array([0, 10, 3, -100, 5, 5, 1])
    options: dict[str, Any] = {"label_smoothing": 0.1, "reduction": "sum"}
    given = {"log_probabilities": functions.log_softmax(logits)}
    assert functions.cross_entropy(logits, targets, **options, **given) == functions.cross_entropy(
        logits, targets, **options
    )
    found = functions.cross_entropy_backward(2.0, logits, targets, **options, **given)
    assert np.abs(found - functions.cross_entropy_backward(2.0, logits, targets, **options)).max() < 1e-14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", file("functions.safetensors")[1]["options"])
def test_torchs_gradients_of_functions(name: str, dtype: str) -> None:
    """Gradients agree in float32 within the budget of `torch_values.over_budget`, and in float64 up to rounding."""
    arrays, described = file("functions.safetensors")
    found = torch_values.below(arrays, name)
    truth, torch32, errors = (
        torch_values.below(found, "float64"),
        torch_values.below(found, "float32"),
        torch_values.errors_in(found),
    )
    given = {key: a for key, a in found.items() if "/" not in key}
    given = {key: a.astype(dtype) if a.dtype.kind == "f" else a for key, a in given.items()}
    grads = ours(name, given, described["options"][name])
    assert grads.keys() == truth.keys()
    for key, grad in grads.items():
        assert grad.dtype == dtype
        if dtype == "float64":
            assert np.abs(grad - truth[key]).max() <= 1e-12 * np.abs(truth[key]).max(), key
        else:
            assert not torch_values.over_budget(grad, torch32[key], truth[key], errors[key]), key


# --- models ----------------------------------------------------------------------------------------------------------


def model_gradients(case: str, dtype: str) -> dict[str, np.ndarray]:
    config, tree = load_folder(torch_values.DATA / case, dtype)
    texts, targets = given.texts(config), given.targets(config)
    if config.head == "base":
        batch, recording = pack(texts), Recording()
        with listen(recording):
            forward(tree, parts_of(config), batch)
        grads = {name: wave.astype(dtype) for name, wave in given.weights_of_answers(config).items()}
        return flat(backward(grads, recording.stages, tree, parts_of(config), batch), tree, tied=False)
    if config.head == "multiple-choice":
        texts = [list(pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
    examples = [Example(text, target) for text, target in zip(texts, targets, strict=True)]
    trained = Trainable(tree, config)
    found = gradients(HeadLoss(config), trained, examples).flat
    return {name: dense(grad, trained.flat[name]) for name, grad in found.items()}


@pytest.mark.parametrize("case", given.MODELS)
def test_torchs_gradients_of_models(case: str) -> None:
    """Compares all gradients for every family, head and activation with the gradients of transformers' loss.

    In float64, the largest entry, the sum and two checksums equal torch's. In float32, npformer and torch have their
    largest errors in different entries. So npformer's error against its float64 gradient may be three times torch's
    error plus one ulp of the largest entry.
    """
    arrays, described = file("models.safetensors")
    truth, run32 = model_gradients(case, "float64"), model_gradients(case, "float32")
    assert sorted(truth) == sorted(described["parameters"][case])
    scale = max(np.abs(grad).max() for grad in truth.values())
    for name, row in zip(described["parameters"][case], arrays[f"summary/{case}"], strict=True):
        torchs_error, largest, total, *_ = row
        error = np.abs(run32[name] - truth[name]).max()
        # A key's bias adds the same number to all scores of a query, and the bias of a head for spans or choices adds
        # the same number to all logits. So their gradients are 0 except for rounding, here and in torch.
        floor = 1e-13 * scale
        assert np.abs(given.summary(truth[name]) - row[1:]).max() <= CLOSE * total + floor * truth[name].size, name
        assert run32[name].dtype == np.float32
        assert error <= 3 * torchs_error + torch_values.ulp(largest) + 4 * 2**-23 * scale, name


def numerical(loss: Callable[[float], float], step: float = 1e-4) -> float:
    """Returns the derivative at 0, by differences of sixth order."""
    weights = {1: 45.0, 2: -9.0, 3: 1.0}
    return sum(w * (loss(k * step) - loss(-k * step)) for k, w in weights.items()) / (60 * step)


@pytest.mark.parametrize("head", slow_after(2, ["base", "masked-lm", "token-classification", "multiple-choice"]))
def test_finite_differences_of_models(head: str) -> None:
    """Moves each parameter along a random direction, in float64. Uses BERT, because DistilBERT's pooler has a kink."""
    model = tiny.model("bert", head, dtype=np.float64, n_layers=1)
    random, batch, recording = np.random.default_rng(0), pack(given.texts(model.config)), Recording()
    with listen(recording):
        answers = forward(model.weights, model.parts, batch)
    grads = {name: random.standard_normal(answer.shape) for name, answer in answers.items()}
    tied, arrays = bool(ties(model.config)), layout.flatten(dict(model.weights))
    found = flat(backward(grads, recording.stages, model.weights, model.parts, batch), model.weights, tied)
    for name, grad in found.items():
        direction = random.standard_normal(grad.shape)
        direction /= np.linalg.norm(direction)

        def loss(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            moved = {**arrays, name: arrays[name] + step * direction}
            if tied:
                moved[PROJECTION] = moved[TOKENS].T
            answers = forward(layout.unflatten(moved), model.parts, batch)
            return sum(float((answers[each] * grads[each]).sum()) for each in answers)

        error = abs(numerical(loss, 3e-3) - (grad * direction).sum())
        assert error <= CLOSE * max(np.linalg.norm(grad), 1e-1), name


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
@pytest.mark.parametrize("head", ["sequence-classification", "multiple-choice"])
def test_a_whole_last_layer_has_the_gradients_of_its_first_rows(kind: str, head: str) -> None:
    """If every row of the last layer is computed, rows that the head does not read add nothing to the gradients."""
    model, found = tiny.model(kind, head, dtype=np.float64), []
    batch = pack(given.texts(model.config))
    for whole in (False, True):
        recording = Recording()
        with listen(recording):
            answers = forward(model.weights, model.parts, batch, whole)
        grads = {"logits": np.cos(np.arange(answers["logits"].size)).reshape(answers["logits"].shape)}
        tree = backward(grads, recording.stages, model.weights, model.parts, batch)
        found.append(flat(tree, model.weights, tied=False))
    for name, grad in found[0].items():
        assert np.abs(found[1][name] - grad).max() <= CLOSE * max(1, np.abs(grad).max()), name


@pytest.mark.parametrize(
    ("norm_first", "only"), slow_after(2, [(False, False), (True, True), (False, True), (True, False)])
)
def test_finite_differences_of_the_encoder(norm_first: bool, only: bool) -> None:
    """Checks the gradients of x and every weight, for pre-norm and post-norm, and for all rows or one row per text."""
    config = tiny.config(head="base")
    weights = tiny.weights(config, dtype=np.float64)
    random, lengths = np.random.default_rng(0), np.array([4, 4, 1, 6])
    first = np.cumsum(lengths) - lengths if only else None
    norm = {"weight": random.standard_normal(32), "bias": random.standard_normal(32)} if norm_first else None
    tree = {"x": random.standard_normal((15, 32)), "layers": weights["layers"], **({"norm": norm} if norm else {})}
    grad = random.standard_normal((4 if only else 15, 32))
    recording = Recording()

    def run(tree: Mapping[str, Any]) -> np.ndarray:
        parts = {"eps": 1e-5, "row_indices": first, "norm_first": norm_first, "norm": tree.get("norm")}
        return encoder(tree["x"], lengths, 4, activations.gelu, tree["layers"], **parts)

    with listen(recording):
        run(tree)
    layer = encoder_layer_of(4, activations.gelu, False, LayerNorm(1e-5), norm_first)
    stack = Stack((layer,) * len(tree["layers"]), LayerNorm(1e-5) if norm else None)
    dx, grads, _ = stack.backward(grad, recording.stages, tree["x"], PackedTexts(lengths, attending=first), tree)
    arrays, found = layout.flatten(tree), layout.flatten({"x": dx, **grads})
    assert arrays.keys() == found.keys()
    for name, each in found.items():
        direction = random.standard_normal(each.shape)
        direction /= np.linalg.norm(direction)

        def loss(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            return float((run(layout.unflatten({**arrays, name: arrays[name] + step * direction})) * grad).sum())

        error = abs(numerical(loss, 3e-3) - (each * direction).sum())
        assert error <= CLOSE * max(np.linalg.norm(each), 1e-1), name


@pytest.mark.parametrize(("norm_first", "tied"), [(False, True), pytest.param(True, False, marks=pytest.mark.slow)])
def test_finite_differences_of_the_encoder_decoder(
    norm_first: bool, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks every parameter, with one table shared by both sides and the projection, or with three tables."""
    config = replace(
        given.TRANSLATOR, n_layers=1, norm_first=norm_first, final_norm=norm_first, tied=tied, shared=tied, scale_embedding=tied,
        activation="gelu", decoder=replace(given.TRANSLATOR.decoder, vocab_size=31, n_heads=2),
    )  # fmt: skip
    trained, random = Trainable(initialize(config, 0, "xavier", np.float64), config), np.random.default_rng(0)
    for array in trained.flat.values():
        array += 0.1 * random.standard_normal(array.shape)
    pairs = [(5, 4), (5, 4), (3, 7), (1, 1)]
    examples = [Example(Text(random.integers(2, 31, n)), random.integers(2, 31, m)) for n, m in pairs]
    objective = TranslationLoss(config)
    found, count = gradients(objective, trained, examples).flat, sum(map(objective.count, examples))
    assert found.keys() == trained.flat.keys()
    monkeypatch.setattr(losses, "transformer_backward", lambda *_: {})  # finite differences need only the loss
    for name, array in trained.flat.items():
        grad, direction, start = dense(found[name], array), random.standard_normal(array.shape), array.copy()
        direction /= np.linalg.norm(direction)

        def loss(
            step: float, array: np.ndarray = array, start: np.ndarray = start, direction: np.ndarray = direction
        ) -> float:
            array[...] = start + step * direction
            return objective.part(trained.tree, examples, count, None).loss

        error = abs(numerical(loss, 3e-3) - (grad * direction).sum())
        array[...] = start
        assert error <= CLOSE * max(np.linalg.norm(grad), 1e-1), name


def test_training_a_marian_checkpoint_leaves_the_padding_token_s_row_alone() -> None:
    """As with torch's `padding_idx`, the row gets the gradient of the tied projection, but none from the lookup."""
    model = golden_model("marian-small", "float64")
    pad = model.config.pad_id
    assert model.config.decoder.start_id == pad  # every target begins with the padding token
    weights, loss = Trainable(model.weights, model.config), TranslationLoss(model.config)
    example = Example(Text(np.array([5, 9, 0])), np.array([7, 8]))
    found = gradients(loss, weights, [example]).flat
    (table,) = (name for name in found if name.endswith("embeddings.token.weight"))
    projection = weights.tree["head"]["output"]["weight"].copy()  # a copy, so that only the projection is moved
    head = {"output": {**weights.tree["head"]["output"], "weight": projection}}

    def value(step: float) -> float:
        projection[:, pad] = weights.flat[table][pad] + step
        return loss.part({**weights.tree, "head": head}, [example], loss.count(example), None).loss

    assert dense(found[table], weights.flat[table])[pad].sum() == pytest.approx(numerical(value, 3e-3), rel=1e-6)


def test_every_stage_has_a_gradient() -> None:
    """`keep_gradients` stores each stage's gradient in the shape of the stage, from the last stage to the first."""
    model = tiny.model("bert", "token-classification")
    batch, recording = pack(given.texts(model.config)), Recording(keep_gradients=True)
    heard: dict[str, list[np.ndarray]] = {}

    def hear(name: str, array: np.ndarray) -> np.ndarray:
        heard.setdefault(name, []).append(array)
        return array

    with listen(hear), listen(recording):
        answers = forward(model.weights, model.parts, batch)
    backward({"logits": np.ones_like(answers["logits"])}, recording.stages, model.weights, model.parts, batch)
    stages = [name for name in heard if not is_input(name)]
    assert sorted(recording.gradients) == sorted(name for name in stages if name not in ("pooler", "pooled"))
    for name, grads in recording.gradients.items():
        assert [grad.shape for grad in grads] == [array.shape for array in heard[name]], name


def test_a_batch_has_its_texts_gradients() -> None:
    """Packed rows of several texts give the mean of the gradients of the texts."""
    model = tiny.model(dtype=np.float64)
    weights, loss = Trainable(model.weights, model.config), HeadLoss(model.config)
    examples = [Example(text, i % 2) for i, text in enumerate(given.texts(model.config))]
    whole = gradients(loss, weights, examples).flat
    alone = [gradients(loss, weights, [example]).flat for example in examples]
    for name, grad in whole.items():
        total = sum(dense(each[name], weights.flat[name]) for each in alone) / len(examples)
        assert np.abs(dense(grad, weights.flat[name]) - total).max() <= CLOSE * max(1, np.abs(total).max()), name


def test_odd_shapes() -> None:
    """Checks inputs of no rows and of one row, and layers without a bias. The gradient of a table has only the rows
    that were looked up."""
    x, weight = np.zeros((0, 3)), np.ones((3, 2))
    dx, grads = linear_backward(np.zeros((0, 2)), x, weight)
    assert dx.shape == (0, 3)
    assert grads.keys() == {"weight"}
    assert not grads["weight"].any()
    dx, grads = layer_norm_backward(np.ones((1, 4)), np.arange(4.0)[None])
    assert not grads
    assert np.abs(dx).max() < 1e-12  # the sum of a normalized row never changes
    rows = embedding_backward(np.ones((2, 2, 3)), np.array([[7, 2], [2, 2]]))
    assert rows.ids.tolist() == [2, 7]
    assert rows.values[:, 0].tolist() == [3, 1]
    assert len(embedding_backward(np.zeros((0, 3)), np.zeros(0, np.int64)).ids) == 0


def test_masked_keys_have_no_gradient() -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 3, 5, 4)) for _ in range(3))
    mask = np.ones((5, 5), bool)
    mask[:, 3] = False
    recording = Recording()
    with listen(recording):
        masked_attention(q * 0.5, k, v, mask)
    dq, dk, dv = scaled_dot_product_attention_backward(np.ones_like(q), recording.stages, q, k, v, 0.5)
    assert not dk[..., 3, :].any()
    assert not dv[..., 3, :].any()
    assert dq.any()


def test_labels_are_smoothed_in_the_loss_of_a_head() -> None:
    model = tiny.model()
    weights = Trainable(model.weights, model.config)
    examples = [Example(text, 1) for text in given.texts(model.config)]
    plain, smooth = (gradients(HeadLoss(model.config, e), weights, examples) for e in (0.0, 0.5))
    assert plain.loss != smooth.loss
    assert plain.right == smooth.right
    assert replace(plain, flat={}).count == len(examples)
