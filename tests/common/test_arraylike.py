"""Public functions accept array-likes of real numbers. Lists and integer arrays are computed in float64; arrays of
floats keep their dtype, and those of float16 are computed in float32."""

from __future__ import annotations

import importlib
import inspect
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError, Text
from npformer.tasks.vector_search import SIMILARITIES, similarity
from tests.support import tiny

X = np.array([[1.0, 2.0], [-3.0, 0.0], [0.0, 1.0]])
W = np.array([[1.0, 0.0], [2.0, -1.0]])
LINEAR = {"weight": W, "bias": np.array([1.0, -1.0])}
NORM = {"weight": np.array([2.0, 1.0]), "bias": np.array([0.0, 1.0])}
ATTENTION = dict.fromkeys(("query", "key", "value", "output"), LINEAR)
FFN = {"hidden": LINEAR, "output": LINEAR}
LAYER = {"attention": ATTENTION, "attention_norm": NORM, "ffn": FFN, "ffn_norm": NORM}
DECODER_LAYER = {**LAYER, "cross_attention": ATTENTION, "cross_attention_norm": NORM}
LENGTHS = np.array([2, 1])
#: Function -> arguments; every array contains whole numbers.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"x": X} for name in ("relu", "silu", "gelu", "softmax", "log_softmax")},
    "layer_norm": {"x": X, **NORM},
    "rms_norm": {"x": X, "weight": NORM["weight"]},
    "linear": {"x": X, **LINEAR},
    "embedding": {"ids": np.array([2, 0]), "weight": X},
    "cross_entropy": {"logits": X, "targets": np.array([1, 0, -100]), "log_probabilities": X},
    "split_heads": {"x": X, "n_heads": 2},
    "combine_heads": {"x": X[None]},
    "scaled_dot_product_attention": {"q": X, "k": X, "v": X, "mask": np.eye(3, dtype=bool)},
    "padding_mask": {"lengths": LENGTHS},
    "causal_mask": {"queries": 2, "keys": 3},
    "sinusoidal_positions": {"length": 3, "width": 4},
    "tap": {"name": "x", "array": X},
    "feed_forward": {"x": X, "activation": npformer.gelu, **FFN},
    "self_attention": {"x": X, "lengths": LENGTHS, "n_heads": 1, "row_indices": np.array([1, 2]), **ATTENTION},
    "encoder_layer": {"x": X, "lengths": LENGTHS, "n_heads": 1, "activation": npformer.gelu, **LAYER},
    "encoder": {
        "x": X, "lengths": LENGTHS, "n_heads": 1, "activation": npformer.gelu, "layers": [LAYER, LAYER], "norm": NORM,
    },
    "decoder_layer": {
        "x": X, "lengths": LENGTHS, "source": X, "source_lengths": LENGTHS, "n_heads": 1, "activation": npformer.relu,
        **DECODER_LAYER,
    },
    "decoder": {
        "x": X, "lengths": LENGTHS, "source": X, "source_lengths": LENGTHS, "n_heads": 1, "activation": npformer.relu,
        "layers": [DECODER_LAYER, DECODER_LAYER], "norm": NORM,
    },
    "search": {"query": X[0], "corpus": X, "k": 2},
    "shift_right": {"target": np.array([5, 6]), "start": 1, "end": 2},
}  # fmt: skip


def in_tuples(value: Any) -> Any:
    return tuple(map(in_tuples, value)) if isinstance(value, list) else value


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": lambda array: array.tolist(),
    "tuples": lambda array: in_tuples(array.tolist()),
    "lists of whole numbers": lambda array: (array if array.dtype == bool else array.astype(int)).tolist(),
    "integers": lambda array: array if array.dtype == bool else array.astype(np.int64),
    "small integers": lambda array: array if array.dtype == bool else array.astype(np.int8),
}


def changed(arguments: Any, form: Callable[[np.ndarray], Any]) -> Any:
    if isinstance(arguments, Mapping):
        return {name: changed(each, form) for name, each in arguments.items()}
    if isinstance(arguments, list):
        return [changed(each, form) for each in arguments]
    return form(arguments) if isinstance(arguments, np.ndarray) else arguments


def wrapped() -> set[str]:
    return {name for name in npformer.__all__ if getattr(getattr(npformer, name), "__module__", "") == "npformer"}


def test_every_public_function_of_arrays_is_tried() -> None:
    """`load` takes no arrays, and explains other libraries' arguments; `shift_right` converts its own arguments."""
    assert wrapped() - {"load"} == CASES.keys() - {"shift_right"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_array_likes_give_the_float64_result(name: str, form: str) -> None:
    function = getattr(npformer, name)
    found, expected = function(**changed(CASES[name], FORMS[form])), function(**CASES[name])
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)
    # these functions keep the dtype of an argument
    if name not in ("split_heads", "combine_heads", "embedding", "tap", "shift_right", "search"):
        assert np.asarray(found).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("name", ["relu", "silu", "gelu"])
@pytest.mark.parametrize("number", [2, 2.0, True, np.int32(2), np.float64(2)])
def test_activations_of_one_number(name: str, number: Any) -> None:
    function = getattr(npformer, name)
    assert float(function(number)) == float(function(np.array(float(number))))


def test_booleans_are_numbers_and_floats_keep_their_type() -> None:
    assert npformer.softmax([True, False]).tolist() == npformer.softmax([1.0, 0.0]).tolist()
    for dtype in (np.float16, np.float32, np.float64):
        assert npformer.softmax(np.ones(3, dtype)).dtype == dtype
        assert npformer.relu(np.ones(3, dtype)).dtype == dtype


# --- float16 ---------------------------------------------------------------------------------------------------------


#: Function -> float16 arguments for which a computation in float16 overflows, or loses more than the last bit.
WIDE = np.random.default_rng(0).normal(0, 300, (3, 512)).astype(np.float16)
SQUARE = {"weight": np.random.default_rng(1).normal(0, 1, (512, 512)).astype(np.float16)}
SMALL = {"weight": np.random.default_rng(2).normal(0, 0.01, (512, 512)).astype(np.float16)}
WIDE_ATTENTION = dict.fromkeys(("query", "key", "value"), SQUARE) | {"output": SMALL}
WIDE_NORM = {"weight": np.ones(512, np.float16), "bias": np.full(512, 0.1, np.float16)}
WIDE_LAYER = {
    "attention": WIDE_ATTENTION, "attention_norm": WIDE_NORM, "ffn": {"hidden": SQUARE, "output": SMALL},
    "ffn_norm": WIDE_NORM,
}  # fmt: skip
WIDE_DECODER_LAYER = {**WIDE_LAYER, "cross_attention": WIDE_ATTENTION, "cross_attention_norm": WIDE_NORM}
PACKED: dict[str, Any] = {"x": WIDE, "lengths": LENGTHS, "n_heads": 4}
SOURCE: dict[str, Any] = {"source": WIDE[:2], "source_lengths": np.array([1, 1]), "activation": npformer.gelu}
HALVES: dict[str, dict[str, Any]] = {
    **{name: {"x": WIDE} for name in ("relu", "silu", "gelu", "softmax", "log_softmax", "layer_norm", "rms_norm")},
    "linear": {"x": WIDE, **SMALL, "bias": WIDE[0]},
    "embedding": {"ids": np.array([2, 0]), "weight": WIDE},
    "cross_entropy": {"logits": WIDE, "targets": np.array([1, 0, -100])},
    "split_heads": {"x": WIDE, "n_heads": 2},
    "combine_heads": {"x": WIDE[None]},
    "scaled_dot_product_attention": {"q": WIDE, "k": WIDE, "v": WIDE, "mask": np.full((3, 3), -60000, np.float16)},
    "tap": {"name": "x", "array": WIDE},
    "feed_forward": {"x": WIDE, "activation": npformer.gelu, "hidden": SQUARE, "output": SMALL},
    "self_attention": {**PACKED, **WIDE_ATTENTION},
    "encoder_layer": {**PACKED, "activation": npformer.gelu, **WIDE_LAYER},
    "encoder": {**PACKED, "activation": npformer.gelu, "layers": [WIDE_LAYER, WIDE_LAYER], "norm": WIDE_NORM},
    "decoder_layer": {**PACKED, **SOURCE, **WIDE_DECODER_LAYER},
    "decoder": {**PACKED, **SOURCE, "layers": [WIDE_DECODER_LAYER] * 2, "norm": WIDE_NORM},
}


def in_double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def test_every_public_function_of_floats_is_tried_with_float16() -> None:
    """The others take whole numbers, except `search`, which has a test of its own."""
    assert HALVES.keys() == CASES.keys() - {
        "padding_mask",
        "causal_mask",
        "sinusoidal_positions",
        "shift_right",
        "search",
    }


@pytest.mark.parametrize("name", HALVES)
def test_float16_gives_the_float64_result_rounded(name: str) -> None:
    """float32 and float64 results may round to neighbouring numbers of float16."""
    function = getattr(npformer, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, truth = function(**HALVES[name]), function(**changed(HALVES[name], in_double))
    assert found.dtype == np.float16
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.astype(np.float64), truth, rtol=2**-10, atol=2**-14)


def test_search_computes_scores_of_float16_vectors_in_float32() -> None:
    found, expected = (npformer.search(x[0], x, similarity="dot") for x in (WIDE, WIDE.astype(np.float32)))
    np.testing.assert_array_equal(found.scores, expected.scores)
    for kind in SIMILARITIES:
        near, truth = similarity(WIDE, WIDE, kind), similarity(WIDE.astype(np.float64), WIDE.astype(np.float64), kind)
        assert near.dtype == np.float16
        ordinary = np.abs(truth) < 65504
        assert np.isinf(near[~ordinary]).all()
        np.testing.assert_allclose(near[ordinary], truth[ordinary], rtol=2**-10, atol=1e-3)


def test_float16_of_one_number_and_results_beyond_its_range() -> None:
    assert npformer.gelu(np.float16(300)) == 300
    assert npformer.gelu(np.float16(300)).dtype == np.float16
    words = np.zeros((1, 70_000), np.float16)  # the sum of their exponentials is above 65504
    loss = npformer.cross_entropy(words, np.array([5]))
    assert (loss, loss.dtype) == (np.float16(np.log(70_000)), np.float16)
    np.testing.assert_array_equal(npformer.softmax(words), np.float16(1 / 70_000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = npformer.linear(np.full(4, 300, np.float16), np.full((4, 1), 300, np.float16))
    assert found.tolist() == [np.inf]


def test_float16_with_wider_arrays_or_out() -> None:
    """float16 with float32 gives float32, as in NumPy. An array for the result may be float16 for any input."""
    weight = np.ones(512, np.float32)
    assert npformer.rms_norm(WIDE, weight).dtype == np.float32
    assert npformer.linear(WIDE, np.eye(512)).dtype == np.float64
    mask = np.zeros((3, 3), np.float32)
    assert npformer.scaled_dot_product_attention(WIDE, WIDE, WIDE, mask).dtype == np.float16
    expected = npformer.softmax(WIDE)
    for x in (WIDE, WIDE.astype(np.float32)):
        room = np.empty_like(WIDE)
        assert npformer.softmax(x, out=room) is room
        assert npformer.softmax(x, -1, room) is room
        np.testing.assert_array_equal(room, expected)
    x = WIDE.copy()
    assert npformer.layer_norm(x, out=x) is x
    np.testing.assert_array_equal(x, npformer.layer_norm(WIDE))


# --- other arguments -------------------------------------------------------------------------------------------------


def test_positional_arguments_and_out() -> None:
    room = np.empty(2)
    assert npformer.linear([1, 2], [[1, 0], [0, 1]], [1, 1]).tolist() == [2, 3]
    assert npformer.softmax([0, 0], -1, room) is room
    assert room.tolist() == [0.5, 0.5]
    x = np.ones(3)
    assert npformer.tap("x", x) is x


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: npformer.softmax([[1], [1, 2]]),
            r"softmax: x: expected an array of numbers, got rows of different lengths",
        ),
        (lambda: npformer.gelu(["a"]), "gelu: x: expected an array of real numbers, got <U1 of shape"),
        (lambda: npformer.relu([1j]), "relu: x: expected an array of real numbers, got complex128"),
        (
            lambda: npformer.feed_forward(X, npformer.relu, **{**FFN, "output": {"weight": "w"}}),
            "feed_forward: output.weight: expected an array of real numbers, got <U1",
        ),
        (lambda: npformer.embedding([0.5], X), "embedding: ids must be integers, got float64"),
        (
            lambda: npformer.shift_right([1.5], 0, 1),
            r"shift_right: target: expected whole numbers \(L,\), got float64 of shape \(1,\)",
        ),
    ],
)
def test_arguments_without_numbers_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


@pytest.mark.parametrize("name", CASES)
def test_a_missing_array_is_refused_by_name(name: str) -> None:
    function = getattr(npformer, name)
    for argument, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation == "np.ndarray" and argument in CASES[name]:
            with pytest.raises(NpformerError, match=f"^{name}: {argument}: expected an array"):
                function(**{**CASES[name], argument: None})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: npformer.softmax(3), r"^softmax: x: expected an array of at least 1 axis, got shape \(\)"),
        (lambda: npformer.layer_norm(5.0), r"^layer_norm: x: expected an array of at least 1 axis"),
        (lambda: npformer.split_heads([1, 2], 2), r"^split_heads: x: .* at least 2 axes, got shape \(2,\)"),
        (lambda: npformer.cross_entropy(3, 0), r"^cross_entropy: logits: .* at least 1 axis"),
        (lambda: npformer.combine_heads([[1, 2]]), r"^combine_heads: x: .* at least 3 axes, got shape \(1, 2\)"),
        (
            lambda: npformer.padding_mask(3),
            r"^padding_mask: lengths: expected the number .* \(B,\), got int64 of shape \(\)",
        ),
        (lambda: npformer.self_attention(X, 3, 1, **ATTENTION), r"^self_attention: lengths: .*got int64 of shape \(\)"),
    ],
)
def test_too_few_axes_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: npformer.gelu(None), "^gelu: x: expected an array, got None"),
        (lambda: npformer.softmax(None), "^softmax: x: expected an array, got None"),
        (
            lambda: npformer.linear(X, LINEAR),
            r"^linear: weight: expected an array, got a dict; use linear\(..., \*\*weights\)",
        ),
        (
            lambda: npformer.feed_forward(X, "gelu", **FFN),
            "^feed_forward: activation: expected a function, such as npformer.gelu, got 'gelu'",
        ),
        (
            lambda: npformer.encoder_layer(X, LENGTHS, 1, None, **LAYER),
            "^encoder_layer: activation: expected a function, such as npformer.gelu, got None",
        ),
        (lambda: npformer.encoder(X, LENGTHS, 1, npformer.gelu, LAYER), "^encoder: layers: expected a list of layers"),
        (lambda: npformer.encoder(X, LENGTHS, 1, npformer.gelu, [X]), "^encoder: layers.0: expected a dict of weights"),
        (
            lambda: npformer.encoder_layer(X, LENGTHS, 1, npformer.gelu, **{**LAYER, "ffn": None}),
            "^encoder_layer: ffn: expected a dict of weights, got None",
        ),
        (lambda: npformer.split_heads(X, 2.0), "^split_heads: n_heads: expected a whole number of at least 0, got 2.0"),
        (lambda: npformer.split_heads(X, "a"), "^split_heads: n_heads: expected a whole number .* got 'a'"),
        (lambda: npformer.causal_mask([1, 2]), "^causal_mask: queries: expected a whole number .* got a list"),
        (lambda: npformer.causal_mask(2, -1), "^causal_mask: keys: expected a whole number of at least 0, got -1"),
        (lambda: npformer.sinusoidal_positions(-1, 4), "^sinusoidal_positions: length: .* got -1"),
        (lambda: npformer.padding_mask([[1, 1, 0]]), r"^padding_mask: lengths: .* got int64 of shape \(1, 3\)"),
        (lambda: npformer.padding_mask([1.5]), "^padding_mask: lengths: .* whole numbers .* got float64"),
        (lambda: npformer.padding_mask([-1]), "^padding_mask: lengths: expected the number of tokens"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


@pytest.mark.parametrize("name", ["self_attention", "encoder_layer", "encoder", "decoder_layer", "decoder"])
@pytest.mark.parametrize(
    ("rows", "change", "total", "shape"),
    [
        ("x", {"x": X[None]}, 3, r"\(1, 3, 2\)"),
        ("x", {"lengths": [1, 1]}, 2, r"\(3, 2\)"),
        ("x", {"lengths": [4]}, 4, r"\(3, 2\)"),
        ("x", {"x": np.empty((0, 2)), "lengths": []}, 0, r"\(0, 2\)"),
        ("source", {"source": X[None]}, 3, r"\(1, 3, 2\)"),
        ("source", {"source_lengths": [2, 2]}, 4, r"\(3, 2\)"),
    ],
)
def test_rows_are_packed_by_the_lengths(name: str, rows: str, change: dict, total: int, shape: str) -> None:
    if rows not in CASES[name]:
        pytest.skip("the function reads no source")
    with pytest.raises(
        NpformerError, match=rf"^{name}: {rows}: expected the concatenated rows .*, {total}; got shape {shape}"
    ):
        getattr(npformer, name)(**{**CASES[name], **change})


def test_counts_of_numpy_are_counts() -> None:
    assert npformer.split_heads(X, np.int64(2)).shape == (2, 3, 1)
    assert npformer.causal_mask(np.array(2)).tolist() == [[True, False], [True, True]]


def test_empty_arrays_give_empty_results() -> None:
    assert npformer.padding_mask([]).shape == (0, 1, 1, 0)
    assert npformer.embedding([], X).shape == (0, 2)
    assert npformer.softmax([]).shape == (0,)
    assert np.isnan(npformer.cross_entropy(np.empty((0, 2)), []))


def test_a_model_calls_the_functions_as_they_are_written() -> None:
    """Only the public functions of `npformer` convert their arguments, so that models do not pay for the conversion."""
    modules = [importlib.import_module(f"npformer.{name}") for name in ("functions", "encoder_layers", "transformer")]
    for name in wrapped():
        inside = {id(getattr(module, name)) for module in modules if hasattr(module, name)}
        assert inside <= {id(inspect.unwrap(getattr(npformer, name)))}, name


def test_public_functions_can_be_pickled() -> None:
    for name in wrapped():
        assert pickle.loads(pickle.dumps(getattr(npformer, name))) is getattr(npformer, name)


def test_an_activation_has_its_gradient_when_it_comes_from_npformer() -> None:
    layer = tiny.model("bert", "base").weights["layers"][0]
    x = np.ones((3, layer["ffn"]["output"]["weight"].shape[1]), np.float32)
    with npformer.trace() as stages:
        npformer.feed_forward(x, npformer.gelu, **layer["ffn"])
    assert "activation" in stages


def test_a_text_of_a_list_of_ids() -> None:
    model = tiny.model()
    [found] = model.run([Text([2, 4, 5, 3])])
    [expected] = model.run([Text(np.array([2, 4, 5, 3]))])
    np.testing.assert_array_equal(found["logits"], expected["logits"])
    with pytest.raises(NpformerError, match=r"Text: ids: expected an array \(L,\) of whole numbers"):
        Text([0.5])


def test_self_attention_names_itself_where_an_argument_is_missing() -> None:
    with pytest.raises(TypeError, match=r"^self_attention\(\) missing 2 required keyword-only arguments: 'value' and"):
        npformer.self_attention(X, LENGTHS, 1, query=LINEAR, key=LINEAR)
    with pytest.raises(TypeError, match=r"^self_attention\(\) got an unexpected keyword argument 'values'"):
        npformer.self_attention(X, LENGTHS, 1, **ATTENTION, values=LINEAR)
