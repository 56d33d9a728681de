"""Public functions take what np.asarray takes, and compute with it as with an array of float64."""

from __future__ import annotations

import importlib
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
#: Function -> arguments, with whole numbers in every array.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"x": X} for name in ("relu", "silu", "gelu", "softmax", "log_softmax")},
    "layer_norm": {"x": X, **NORM},
    "linear": {"x": X, **LINEAR},
    "embedding": {"ids": np.array([2, 0]), "weight": X},
    "cross_entropy": {"logits": X, "targets": np.array([1, 0, -100]), "log_probabilities": X},
    "split_heads": {"x": X, "n_heads": 2},
    "combine_heads": {"x": X[None]},
    "scaled_dot_product_attention": {"q": X, "k": X, "v": X, "mask": np.eye(3, dtype=bool)},
    "padding_mask": {"lengths": LENGTHS},
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
    "shift": {"target": np.array([5, 6]), "start": 1, "end": 2},
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
    assert wrapped() == CASES.keys() - {"search", "shift"}  # which convert their arguments themselves


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_array_likes_give_the_float64_result(name: str, form: str) -> None:
    function = getattr(npformer, name)
    found, expected = function(**changed(CASES[name], FORMS[form])), function(**CASES[name])
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)
    if name not in ("split_heads", "combine_heads", "embedding", "tap", "shift", "search"):  # they keep the type
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
        (lambda: npformer.softmax([[1], [1, 2]]), r"softmax: x: expected an array of numbers, got .*inhomogeneous"),
        (lambda: npformer.gelu(["a"]), "gelu: x: expected an array of real numbers, got <U1 of shape"),
        (lambda: npformer.relu([1j]), "relu: x: expected an array of real numbers, got complex128"),
        (
            lambda: npformer.feed_forward(X, npformer.relu, **{**FFN, "output": {"weight": "w"}}),
            "feed_forward: output.weight: expected an array of real numbers, got <U1",
        ),
        (lambda: npformer.embedding([0.5], X), "embedding: ids must be integers, got float64"),
    ],
)
def test_what_holds_no_numbers_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: npformer.softmax(3), r"^softmax: x: expected an array of at least 1 axis, got shape \(\)"),
        (lambda: npformer.layer_norm(5.0), r"^layer_norm: x: expected an array of at least 1 axis"),
        (lambda: npformer.split_heads([1, 2], 2), r"^split_heads: x: .* at least 2 axes, got shape \(2,\)"),
        (lambda: npformer.combine_heads([[1, 2]]), r"^combine_heads: x: .* at least 3 axes, got shape \(1, 2\)"),
        (lambda: npformer.padding_mask(3), r"^padding_mask: lengths: .* at least 1 axis, got shape \(\)"),
        (lambda: npformer.self_attention(X, 3, 1, **ATTENTION), r"^self_attention: lengths: .* at least 1 axis"),
    ],
)
def test_too_few_axes_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


def test_nothing_is_converted_where_there_is_nothing() -> None:
    assert npformer.embedding([], X).shape == (0, 2)
    assert npformer.softmax([]).shape == (0,)
    assert np.isnan(npformer.cross_entropy(np.empty((0, 2)), []))


def test_a_model_calls_the_functions_as_they_are_written() -> None:
    """The conversion is in the functions of `npformer` alone, so that it costs a model nothing."""
    modules = [importlib.import_module(f"npformer.{name}") for name in ("functions", "encoder_layers", "transformer")]
    for name in wrapped():
        inside = {id(getattr(module, name)) for module in modules if hasattr(module, name)}
        assert inside <= {id(getattr(npformer, name).__wrapped__)}, name


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
    with pytest.raises(NpformerError, match="Text: ids: expected an array of whole numbers"):
        Text([0.5])


def test_self_attention_names_itself_where_an_argument_is_missing() -> None:
    with pytest.raises(TypeError, match=r"^self_attention\(\) missing 2 required keyword-only arguments: 'value' and"):
        npformer.self_attention(X, LENGTHS, 1, query=LINEAR, key=LINEAR)
    with pytest.raises(NpformerError, match="self_attention: values: only mechanisms read this"):
        npformer.self_attention(X, LENGTHS, 1, **ATTENTION, values=LINEAR)
