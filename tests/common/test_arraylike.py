"""Public functions accept array-likes of real numbers. Lists and integer arrays are computed in float64; arrays of
floats keep their dtype."""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError, Text
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
