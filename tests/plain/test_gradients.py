"""The gradients on pages equal the engine's and finite differences, training lowers a loss, decoding writes texts."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import plain
from npformer.checkpoint.tree import flatten, unflatten
from npformer.engine.functions import SparseRows
from npformer.engine.mechanisms import Rotary
from npformer.engine.mechanisms.rotary_scaling import Yarn
from npformer.engine.runtime.packing import pack
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward, transformer, transformer_backward
from npformer.pages.sizes import bind
from npformer.plain import (
    decoding,
    formulas,
    gpt2_gradients,
    gradients,
    llama,
    llama_gradients,
    training,
    transformer_gradients,
)
from npformer.training.optimizer import Adam
from tests.plain.test_pages import TOLERANCE, model_of

TEXT = npformer.Text(np.array([5, 6, 7, 8, 9, 4, 6]))

#: The functions of pages with gradients, and their formulas that have a backward function.
PAGES = (gradients, llama_gradients, gpt2_gradients, transformer_gradients, training)
BACKWARDS = {name: each for page in PAGES for name, each in vars(page).items() if name.endswith("_backward")}


@pytest.mark.parametrize("name", [each for each in BACKWARDS if hasattr(formulas, each.removesuffix("_backward"))])
def test_a_backward_function_has_the_defaults_of_its_function(name: str) -> None:
    """The optional arguments of a backward function have the same defaults as those of its function."""
    own, of = inspect.signature(BACKWARDS[name]), inspect.signature(getattr(formulas, name.removesuffix("_backward")))
    given = {each.name: each.default for each in own.parameters.values() if each.default is not inspect.Parameter.empty}
    assert given == {each: of.parameters[each].default for each in given}


def engine_gradients(model: Any, grad: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the engine's gradients of all weights, by flat name, from the gradient of the logits."""
    batch, recording = pack([TEXT], last=model.config.pooling == "last"), Recording()
    with listen(recording):
        forward(model.weights, model.parts, batch)
    found = flatten(backward({"logits": grad}, recording.stages, model.weights, model.parts, batch))
    return dense(found, flatten(dict(model.weights)))


@pytest.mark.parametrize(
    ("function", "model_type", "head", "fields"),
    [
        (gradients.distilbert_backward, "distilbert", "sequence-classification", {}),
        (gradients.distilbert_backward, "distilbert", "sequence-classification", {"activation": "relu"}),
        (gpt2_gradients.gpt2_backward, "gpt2", "causal-lm", {"tied": False}),
        (gpt2_gradients.gpt2_backward, "gpt2", "causal-lm", {"tied": True}),
        (gpt2_gradients.gpt2_backward, "gpt2", "causal-lm", {"activation": "gelu"}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"tied": False}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"tied": True}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"n_kv_heads": 1}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"n_kv_heads": 0}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"head_width": 10}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"bias": True}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"activation": "gelu_tanh"}),
        (llama_gradients.llama_backward, "llama", "causal-lm", {"mechanisms": (Rotary(30.0, scaling=Yarn(4.0, 64)),)}),
    ],
)
def test_gradients_of_a_model(function: Any, model_type: str, head: str, fields: dict[str, Any]) -> None:
    model = model_of(model_type, head, **fields)
    logits = model(TEXT.ids).logits[0]
    grad = np.random.default_rng(0).standard_normal(logits.shape)
    batch_axis = grad[None] if model_type == "distilbert" else grad
    expected = engine_gradients(model, batch_axis)
    got = flatten(bind(function, model.config, model.weights, TEXT)(grad))
    without = got.keys() - expected.keys()  # biases that the model lacks
    assert not without & flatten(dict(model.weights)).keys()
    assert all(name.endswith(".bias") for name in without)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, err_msg=name, **TOLERANCE)


@pytest.mark.parametrize("fields", [{}, {"scale_embedding": True}, {"activation": "gelu"}, {"bias": False}], ids=str)
def test_gradients_of_a_translator(fields: dict[str, Any]) -> None:
    model = model_of("transformer", "translation", **fields)
    source, target = npformer.Text(np.array([5, 6, 7, 6])), npformer.Text(np.array([3, 9, 4, 9, 8]))
    grad = np.random.default_rng(0).standard_normal((5, model.config.decoder.vocab_size))
    batches, recording = (pack([source]), pack([target])), Recording()
    with listen(recording):
        transformer(model.weights, model.parts, *batches)
    tree = transformer_backward({"logits": grad}, recording.stages, model.weights, model.parts, *batches)
    expected = dense(flatten(tree), flatten(dict(model.weights)))
    function = transformer_gradients.transformer_backward
    got = flatten(bind(function, model.config, model.weights, (source, target))(grad))
    without = got.keys() - expected.keys()  # biases that the model lacks
    assert not without & flatten(dict(model.weights)).keys()
    assert all(name.endswith(".bias") for name in without)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, err_msg=name, **TOLERANCE)


def dense(found: dict[str, Any], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the gradients by name, with the gradients of tables as arrays."""
    for name, each in found.items():
        if isinstance(each, SparseRows):
            found[name] = np.zeros_like(weights[name])
            found[name][each.ids] = each.values
    return found


#: Name of a backward function without weights -> the function itself and the shape of x.
ELEMENTWISE = [
    (formulas.relu, gradients.relu_backward),
    (formulas.gelu, gradients.gelu_backward),
    (formulas.gelu_tanh, gradients.gelu_tanh_backward),
    (formulas.softmax, lambda grad, x: gradients.softmax_backward(grad, formulas.softmax(x))),
    (formulas.silu, gradients.silu_backward),
    (formulas.layer_norm, lambda grad, x: gradients.layer_norm_backward(grad, x, eps=1e-5)[0]),
    (formulas.rms_norm, lambda grad, x: llama_gradients.rms_norm_backward(grad, x)[0]),
]


@pytest.mark.parametrize(("function", "backward_of"), ELEMENTWISE, ids=lambda each: getattr(each, "__name__", ""))
def test_a_backward_function_is_the_derivative(function: Any, backward_of: Any) -> None:
    """Central differences with step 1e-5 have an error of about 1e-10 for values of about 1."""
    random = np.random.default_rng(1)
    x, grad = random.standard_normal((3, 5)), random.standard_normal((3, 5))
    numerical = np.empty_like(x)
    for place in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        numerical[place] = (grad * (function(x + step) - function(x - step))).sum() / 2e-5
    np.testing.assert_allclose(backward_of(grad, x), numerical, rtol=1e-7, atol=1e-8)


def random_linear(random: Any, n_in: int, n_out: int) -> dict[str, np.ndarray]:
    return {"weight": random.standard_normal((n_in, n_out)) / 2, "bias": random.standard_normal(n_out)}


def weighted() -> list[Any]:
    """Returns functions with weights: id, function of rows and weights, its backward function, rows, and weights."""
    random = np.random.default_rng(7)
    x, source = random.standard_normal((2, 3, 8)), random.standard_normal((2, 4, 8))
    names = ("query", "key", "value", "output")
    four = {name: random_linear(random, 8, 8) for name in names}
    grouped = {**four, "key": random_linear(random, 8, 4), "value": random_linear(random, 8, 4)}
    ffn = {
        "gate": random_linear(random, 8, 5),
        "up": random_linear(random, 8, 5),
        "output": random_linear(random, 5, 8),
    }
    norm = {"weight": random.standard_normal(8), "bias": random.standard_normal(8)}
    angles, mask = formulas.rotary_angles(np.arange(3), np.array([1.0]), 1.1), formulas.causal_mask(3)
    past = [np.zeros((2, 2, 0, 2))] * 2
    seen = np.array([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]], bool)
    group, attend = llama.grouped_query_attention, formulas.multi_head_attention
    back, group_back = gradients.multi_head_attention_backward, llama_gradients.grouped_query_attention_backward
    cases = {
        "linear": (formulas.linear, gradients.linear_backward, [x], (), four["query"]),
        "layer_norm": (formulas.layer_norm, gradients.layer_norm_backward, [x], (), norm),
        "rms_norm": (formulas.rms_norm, llama_gradients.rms_norm_backward, [x], (), {"weight": norm["weight"]}),
        "cross_attention": (attend, back, [x, source], (seen, 4), four),
        "gated": (
            formulas.gated_feed_forward, llama_gradients.gated_feed_forward_backward, [x], (formulas.silu,), ffn,
        ),
        "rotary": (
            formulas.rotary_attention, llama_gradients.rotary_attention_backward, [x], (mask, 4, angles), four,
        ),
        "grouped": (
            lambda x, *sizes, **weights: group(x, past, *sizes, **weights)[0], group_back,
            [x], (mask, (4, 2), angles), grouped,
        ),
        "grouped-one": (
            lambda x, *sizes, **weights: group(x, [np.zeros((2, 1, 0, 4))] * 2, *sizes, **weights)[0], group_back,
            [x], (mask, (2, 1), formulas.rotary_angles(np.arange(3), np.array([1.0, 0.1]))), grouped,
        ),
    }  # fmt: skip
    return [pytest.param(*case, id=name) for name, case in cases.items()]


@pytest.mark.parametrize(("function", "backward_of", "rows", "sizes", "weights"), weighted())
def test_gradients_of_rows_and_weights_are_derivatives(
    function: Any, backward_of: Any, rows: list[np.ndarray], sizes: tuple[Any, ...], weights: dict[str, Any]
) -> None:
    """Compares the gradient of each array with central differences in a random direction, with step 1e-5."""
    random = np.random.default_rng(8)
    grad = random.standard_normal(function(*rows, *sizes, **weights).shape)
    *d_rows, d_weights = backward_of(grad, *rows, *sizes, **weights)
    given = dict(enumerate(rows)) | flatten(weights)
    found = dict(enumerate(d_rows)) | flatten(d_weights)
    assert found.keys() == given.keys()
    for name, array in given.items():
        assert found[name].shape == array.shape
        direction = random.standard_normal(array.shape)
        ends = []
        for sign in (1, -1):
            moved = {**given, name: array + sign * 1e-5 * direction}
            tree = unflatten({key: each for key, each in moved.items() if isinstance(key, str)})
            ends.append((grad * function(*(moved[i] for i in range(len(rows))), *sizes, **tree)).sum())
        assert (found[name] * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-7, abs=1e-8), name


@pytest.mark.parametrize("name", ["rotate", "rotate_first"])
def test_the_gradient_of_a_rotation_is_its_derivative(name: str) -> None:
    """A rotation is linear: grad . rotate(x) = rotate_backward(grad) . x for every x."""
    random = np.random.default_rng(9)
    x, grad = random.standard_normal((2, 4, 3, 6)), random.standard_normal((2, 4, 3, 6))
    frequencies = np.array([1.0, 0.1, 0.01])[: 3 if name == "rotate" else 1]
    angles = formulas.rotary_angles(np.arange(3), frequencies, magnitude=1.1)
    product = (grad * getattr(formulas, name)(x, *angles)).sum()
    assert (getattr(llama_gradients, f"{name}_backward")(grad, *angles) * x).sum() == pytest.approx(product, rel=1e-12)


def test_every_formula_with_a_derivative_has_a_backward_function() -> None:
    """`split_heads` and `combine_heads` are each other's backward function. Masks and angles are constants."""
    names = {name for name, each in vars(formulas).items() if inspect.isfunction(each)}
    masks = {"causal_mask", "full_mask", "window_mask", "causal_window_mask"}
    without = {"split_heads", "combine_heads", "rotary_angles"} | masks
    same = {"masked_softmax": "softmax", "self_attention": "multi_head_attention", "encoder": "stack"}
    assert {f"{same.get(name, name)}_backward" for name in names - without} <= BACKWARDS.keys()


def test_the_gradient_of_cross_entropy_is_its_derivative() -> None:
    logits, targets = np.random.default_rng(2).standard_normal((2, 3, 4)), np.array([[0, 3, 1], [2, 2, 0]])
    grad = training.cross_entropy_backward(logits, targets)
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        ends = (training.cross_entropy(logits + sign * step, targets) for sign in (1, -1))
        assert (next(ends) - next(ends)) / 2e-5 == pytest.approx(grad[place], rel=1e-6, abs=1e-9)


def test_a_batch_has_the_mean_gradient_of_its_texts() -> None:
    """The gradients of weights and biases sum over every leading axis."""
    model = model_of("distilbert", "sequence-classification")
    ids = np.array([[5, 6, 7], [8, 9, 4]])
    grad = np.random.default_rng(3).standard_normal((2, 2))

    def of(ids: np.ndarray, grad: np.ndarray) -> dict[str, np.ndarray]:
        sizes = np.arange(ids.shape[-1]), True, 4, formulas.gelu, model.config.eps
        return flatten(gradients.distilbert_backward(grad, ids, *sizes, **model.weights))

    whole, parts = of(ids, grad), [of(*each) for each in zip(ids, grad, strict=True)]
    for name, array in whole.items():
        np.testing.assert_allclose(array, parts[0][name] + parts[1][name], err_msg=name, **TOLERANCE)


def test_a_small_model_learns_which_token_comes_first() -> None:
    random = np.random.default_rng(4)
    ids = random.integers(0, 8, (32, 5))
    labels = (ids[:, 0] < 4).astype(int)
    weights = training.random_classifier(random, n_tokens=8, length=5, width=16, d_ffn=32, n_layers=1, n_labels=2)
    weights, losses = training.train(weights, ids, labels, n_heads=2, steps=60, learning_rate=0.02, weight_decay=0.01)
    assert losses[0] == pytest.approx(np.log(2), abs=0.05)  # random logits
    assert losses[-1] < 0.05
    assert weights["layers"][0]["ffn"]["hidden"]["weight"].shape == (16, 32)


def test_adamw_is_the_optimizer_of_the_engine() -> None:
    random = np.random.default_rng(5)
    weight, grads = random.standard_normal((4, 3)), random.standard_normal((6, 4, 3))
    flat = {"layers.0.ffn.hidden.weight": weight.copy()}
    optimizer = Adam(flat, weight_decay=0.1)
    m = v = np.zeros_like(weight)
    for step, grad in enumerate(grads, 1):
        optimizer.step({"layers.0.ffn.hidden.weight": grad}, 0.05)
        weight, m, v = training.adamw(weight, m, v, grad, step, learning_rate=0.05, weight_decay=0.1)
    np.testing.assert_allclose(weight, flat["layers.0.ffn.hidden.weight"], **TOLERANCE)


# --- decoding --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def writer() -> Any:
    """Returns a small Llama that predicts the next token."""
    return model_of("llama", "causal-lm", start_id=2, end_ids=(3,))


def steps_of(model: Any) -> tuple[Any, Any]:
    """Returns the step of `plain.decoding` for a Llama, and its `past` before the first token."""
    config, weights = model.config, model.weights
    past = decoding.no_past(config.n_layers, config.kv_heads, config.d_head)

    def step(ids: np.ndarray, past: Any) -> tuple[np.ndarray, Any]:
        first = past[0][0].shape[-2]
        text = npformer.Text(ids, positions=first + np.arange(len(ids)))
        rows, past = bind(llama.llama, config, weights, text)(past=past)
        return formulas.linear(rows[-1], **weights["head"]["output"]), past

    return step, past


PROMPT = np.array([5, 9, 4])


def test_greedy_writes_what_the_engine_writes(writer: Any) -> None:
    step, past = steps_of(writer)
    [[hypothesis]] = writer.generate(PROMPT, max_new_tokens=8)
    assert decoding.greedy(step, PROMPT, past, 3, 8) == hypothesis.ids.tolist()


@pytest.mark.parametrize("n_beams", [1, 2, 4])
def test_beams_are_those_of_the_engine(writer: Any, n_beams: int) -> None:
    """With early_stopping "never", the engine ends its search only if no running text can improve the result."""
    step, past = steps_of(writer)
    settings = {"max_new_tokens": 6, "num_beams": n_beams, "num_return_sequences": n_beams}
    [expected] = writer.generate(PROMPT, early_stopping="never", **settings)
    got = decoding.beam_search(step, PROMPT, past, 3, 6, n_beams)
    assert [ids for _, ids in got] == [each.ids.tolist() for each in expected]
    if n_beams > 1:
        np.testing.assert_allclose([score for score, _ in got], [each.score for each in expected], rtol=1e-9)


@pytest.mark.parametrize("n_beams", [1, 2])
def test_a_search_without_steps_finds_no_text(writer: Any, n_beams: int) -> None:
    step, past = steps_of(writer)
    assert decoding.beam_search(step, PROMPT, past, 3, 0, n_beams) == []


def test_samples_are_among_the_most_probable(writer: Any) -> None:
    step, past = steps_of(writer)
    random = np.random.default_rng(6)
    assert decoding.sample(step, PROMPT, past, 3, 8, 1.0, 1e-9, random) == decoding.greedy(step, PROMPT, past, 3, 8)
    texts = {tuple(decoding.sample(step, PROMPT, past, 3, 4, 5.0, 1.0, random)) for _ in range(10)}
    assert len(texts) > 1


def test_a_cache_gives_the_rows_of_the_whole_text(writer: Any) -> None:
    ids = np.array([5, 9, 4, 11, 7, 30])
    whole = plain.run(writer, ids).logits[0]
    step, past = steps_of(writer)
    for first, end in ((0, 3), (3, 4), (4, 6)):
        logits, past = step(ids[first:end], past)
        np.testing.assert_allclose(logits, whole[end - 1], **TOLERANCE)


def test_a_step_of_gpt2_gives_the_logits_of_the_whole_text() -> None:
    """The page without a cache is `plain.gpt2`."""
    model = model_of("gpt2", "causal-lm")
    config, ids = model.config, np.array([5, 9, 4, 11, 7, 30])
    whole = plain.run(model, ids).logits[0]
    past = decoding.no_past(config.n_layers, config.n_heads, config.d_head)
    for first, end in ((0, 3), (3, 4), (4, 6)):
        sizes = (config.n_heads, formulas.gelu_tanh, config.eps)
        logits, past = decoding.gpt2_step(ids[first:end], past, *sizes, **model.weights)
        np.testing.assert_allclose(logits, whole[end - 1], **TOLERANCE)


def test_cross_entropy_is_finite_for_a_target_of_probability_0() -> None:
    assert training.cross_entropy(np.array([[1000.0, 0.0]]), np.array([1])) == 1000
