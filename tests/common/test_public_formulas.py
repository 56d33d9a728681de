"""The public mathematical functions, which are the pages' formulas: their source, arguments, dtypes and errors."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from tests.support.array_likes import FORMS, assert_rounded, changed

FORMULAS = sorted(name for name, module in npformer._MODULE_OF.items() if module.startswith("plain."))
X = np.array([[1.0, 2.0], [-3.0, 0.0], [0.0, 1.0]])
W = np.array([[1.0, 0.0], [2.0, -1.0]])
LINEAR = {"weight": W, "bias": np.array([1.0, -1.0])}
NORM = {"weight": np.array([2.0, 1.0]), "bias": np.array([0.0, 1.0])}
ATTENTION = dict.fromkeys(("query", "key", "value", "output"), LINEAR)
FFN = {"hidden": LINEAR, "output": LINEAR}
GATED = {"gate": LINEAR, "up": LINEAR, "output": LINEAR}
LAYER = {"attention": ATTENTION, "attention_norm": NORM, "ffn": FFN, "ffn_norm": NORM}
DECODER_LAYER = {**LAYER, "cross_attention": ATTENTION, "cross_attention_norm": NORM}
SIZES = {"mask": np.tri(3, dtype=bool), "n_heads": 1, "activation": npformer.gelu, "eps": 1e-5}
PAST = (np.zeros((1, 0, 2)),) * 2
ANGLES = (np.ones((3, 1)), np.zeros((3, 1)))
#: Function -> arguments; every array contains whole numbers.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"x": X} for name in ("relu", "silu", "gelu", "gelu_tanh", "softmax")},
    "layer_norm": {"x": X, **NORM},
    "rms_norm": {"x": X, "weight": NORM["weight"]},
    "linear": {"x": X, **LINEAR},
    "embedding": {"ids": np.array([2, 0]), "weight": X},
    "split_heads": {"x": X, "n_heads": 2},
    "combine_heads": {"x": X[None]},
    "scaled_dot_product_attention": {"q": X, "k": X, "v": X, "mask": np.eye(3, dtype=bool)},
    "causal_mask": {"n_queries": 2, "n_keys": 3},
    "sinusoidal_positions": {"length": 3, "width": 4},
    "rotary_frequencies": {"d_head": 4, "theta": 100.0},
    "rotary_angles": {"positions": np.arange(3), "frequencies": np.array([1.0, 0.5])},
    "rotate": {"x": X, "cos": np.ones((3, 1)), "sin": np.zeros((3, 1))},
    "feed_forward": {"x": X, "activation": npformer.gelu, **FFN},
    "gated_feed_forward": {"x": X, "activation": npformer.silu, **GATED},
    "self_attention": {"x": X, "mask": True, "n_heads": 1, **ATTENTION},
    "multi_head_attention": {"x": X, "source": X, "mask": True, "n_heads": 2, **ATTENTION},
    "grouped_query_attention": {
        "x": X, "past": PAST, "mask": True, "heads": (1, 1), "angles": ANGLES, **ATTENTION,
    },
    "encoder_layer": {"x": X, **SIZES, **LAYER},
    "encoder": {"x": X, **SIZES, "layers": [LAYER, LAYER]},
    "decoder_layer": {"x": X, "source": X, **SIZES, **DECODER_LAYER},
    "decoder": {"x": X, "source": X, **SIZES, "layers": [DECODER_LAYER, DECODER_LAYER]},
}  # fmt: skip


def test_every_formula_is_tried() -> None:
    assert sorted(CASES) == FORMULAS


@pytest.mark.parametrize("name", FORMULAS)
def test_a_public_function_is_its_formula(name: str) -> None:
    """The source, file, arguments and docstring are the same as on the page, and the function can be pickled."""
    function = getattr(npformer, name)
    formula = inspect.unwrap(function)
    assert Path(str(inspect.getsourcefile(function))).parent.name == "plain"
    assert inspect.getsource(function) == inspect.getsource(formula)
    assert inspect.signature(function) == inspect.signature(formula)
    assert function.__doc__ == formula.__doc__
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "call",
    [
        "softmax(x)",
        "scaled_dot_product_attention(x, x, x)",
        "scaled_dot_product_attention(x, x, x, mask=True)",
        "scaled_dot_product_attention(x, x, x, mask)",
    ],
)
def test_a_debugger_steps_into_the_formula(call: str) -> None:
    """A debugger that steps into a call shows the formula, and none of the code that converts arguments."""
    call = f"npformer.{call}"
    code = f"import numpy, npformer; x = numpy.ones((3, 3)); mask = x == 1; {call}; import pdb; pdb.set_trace(); {call}"
    steps = subprocess.run(
        [sys.executable, "-c", code], input="s\n" * 4 + "q\n", capture_output=True, text=True, check=False
    )
    frames = [line for line in steps.stdout.splitlines() if line.startswith("> ")]
    of_formulas = [line for line in frames if "formulas.py(" in line]
    assert any(line.endswith(f"){call[9:].partition('(')[0]}()") for line in of_formulas)
    assert not any("public_formulas.py" in line or "arraylike.py" in line for line in frames)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_array_likes_give_the_float64_result(name: str, form: str) -> None:
    function = getattr(npformer, name)
    found, expected = function(**changed(CASES[name], FORMS[form])), function(**CASES[name])
    for each, wanted in zip(parts(found), parts(expected), strict=True):
        np.testing.assert_array_equal(each, wanted)
        if name not in ("split_heads", "combine_heads", "embedding"):  # these keep the dtype of an argument
            assert np.asarray(each).dtype == np.asarray(wanted).dtype


def parts(value: Any) -> list[Any]:
    return [part for each in value for part in parts(each)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("number", [2, 2.0, True, np.int32(2), np.float64(2)])
def test_activations_of_one_number(name: str, number: Any) -> None:
    function = getattr(npformer, name)
    assert float(function(number)) == float(function(np.array(float(number))))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "gelu_tanh", "softmax", "layer_norm", "rms_norm"])
def test_floats_keep_their_dtype(name: str, dtype: type) -> None:
    assert getattr(npformer, name)(np.ones(3, dtype)).dtype == dtype


def test_positional_arguments_and_optional_ones() -> None:
    assert npformer.linear([1, 2], [[1, 0], [0, 1]], [1, 1]).tolist() == [2, 3]
    assert npformer.linear([1, 2], [[1, 0], [0, 1]], None).tolist() == [1, 2]
    assert npformer.softmax([[0, 0], [0, 0]], 0).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert npformer.causal_mask(2).tolist() == [[True, False], [True, True]]
    assert npformer.causal_mask(np.array(2)).tolist() == [[True, False], [True, True]]


def test_masks_of_zeros_and_ones_are_booleans() -> None:
    mask = np.tri(3, dtype=int)
    expected = npformer.scaled_dot_product_attention(X, X, X, mask.astype(bool))
    np.testing.assert_array_equal(npformer.scaled_dot_product_attention(X, X, X, mask), expected)
    np.testing.assert_array_equal(npformer.scaled_dot_product_attention(X, X, X, mask=mask.tolist()), expected)


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
OF_WIDE = {"x": WIDE, "mask": True, "n_heads": 4}
HALVES: dict[str, dict[str, Any]] = {
    **{name: {"x": WIDE} for name in ("relu", "silu", "gelu", "softmax", "layer_norm", "rms_norm")},
    "linear": {"x": WIDE, **SMALL, "bias": WIDE[0]},
    "embedding": {"ids": np.array([2, 0]), "weight": WIDE},
    "split_heads": {"x": WIDE, "n_heads": 2},
    "combine_heads": {"x": WIDE[None]},
    "scaled_dot_product_attention": {"q": WIDE, "k": WIDE, "v": WIDE},
    "feed_forward": {"x": WIDE, "activation": npformer.gelu, "hidden": SQUARE, "output": SMALL},
    "self_attention": {**OF_WIDE, **WIDE_ATTENTION},
    "encoder_layer": {**OF_WIDE, "activation": npformer.gelu, "eps": 1e-5, **WIDE_LAYER},
}


@pytest.mark.parametrize("name", HALVES)
def test_float16_gives_the_float64_result_rounded(name: str) -> None:
    assert_rounded(name, HALVES[name])


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: npformer.softmax([[1], [1, 2]]), "^softmax: x: expected an array of numbers, got rows of different"),
        (lambda: npformer.gelu(["a"]), "^gelu: x: expected an array of real numbers, got <U1 of shape"),
        (lambda: npformer.relu([1j]), "^relu: x: expected an array of real numbers, got complex128"),
        (lambda: npformer.gelu(None), "^gelu: x: expected an array, or a dict of weights, got None"),
        (
            lambda: npformer.feed_forward(X, npformer.relu, **{**FFN, "output": {"weight": "w"}}),
            "^feed_forward: output.weight: expected an array of real numbers, got <U1",
        ),
        (
            lambda: npformer.linear(np.ones((3, 2)), np.ones((5, 7))),
            r"^linear: got x \(3, 2\), weight \(5, 7\): .*; expected y = x W \+ b. x \(..., in\), weight \(in, out\)",
        ),
        (lambda: npformer.linear(X, LINEAR), r"^linear: got x \(3, 2\), weight \{weight \(2, 2\), bias \(2,\)\}: "),
        (lambda: npformer.embedding([0.5], X), r"^embedding: got ids \(1,\), weight \(3, 2\): .* integer"),
        (
            lambda: npformer.embedding([7], X),
            r"^embedding: .*index 7 is out of bounds .*; expected The rows of a table",
        ),
        (
            lambda: npformer.split_heads(X, 3),
            r"^split_heads: got x \(3, 2\), n_heads 3: cannot reshape .*; expected \(..., L, D\)",
        ),
        (lambda: npformer.split_heads([1, 2], 2), r"^split_heads: got x \(2,\), n_heads 2: "),
        (lambda: npformer.combine_heads([1, 2]), r"^combine_heads: got x \(2,\): "),
        (lambda: npformer.split_heads(X, 2.0), "^split_heads: n_heads: expected a whole number of at least 1, got 2.0"),
        (lambda: npformer.causal_mask([1, 2]), "^causal_mask: n_queries: expected a whole number .* got a list"),
        (
            lambda: npformer.feed_forward(X, "gelu", **FFN),
            "^feed_forward: activation: expected a function, such as npformer.gelu, got 'gelu'",
        ),
        (
            lambda: npformer.encoder(X, True, 1, npformer.gelu, 1e-5, LAYER),
            "^encoder: layers: expected a list of layers",
        ),
        (
            lambda: npformer.encoder(X, True, 1, npformer.gelu, 1e-5, [X]),
            "^encoder: layers.0: expected a dict of weights, got ",
        ),
        (
            lambda: npformer.scaled_dot_product_attention(X, X, X, np.zeros((3, 3))),
            "^scaled_dot_product_attention: mask: expected booleans, True for keys that may be seen, got float64",
        ),
        (
            lambda: npformer.scaled_dot_product_attention(X, X, X, np.triu(np.full((3, 3), -np.inf), 1)),
            "got float64; write mask == 0$",
        ),
        (lambda: npformer.scaled_dot_product_attention(X, X, X, np.tri(3)), "got float64; write mask == 1$"),
        (
            lambda: npformer.encoder_layer(X, 2, True, npformer.gelu, 1e-5, **LAYER),
            "^encoder_layer: mask: expected booleans, True for keys that may be seen, got 2",
        ),
        (lambda: npformer.split_heads([[1, 2]], True), "^split_heads: n_heads: expected a whole number .* got True"),
        (lambda: npformer.split_heads(X, 0), "^split_heads: n_heads: expected a whole number of at least 1, got 0"),
        (lambda: npformer.embedding([1, -1], X), "^embedding: ids: expected ids of at least 0, got -1"),
    ],
)
def test_what_a_formula_cannot_compute_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: npformer.softmax(X, dim=0), "^softmax: no argument 'dim': write axis="),
        (
            lambda: npformer.scaled_dot_product_attention(X, X, X, is_causal=True),
            "^scaled_dot_product_attention: no argument 'is_causal': write mask=npformer.causal_mask",
        ),
        (
            lambda: npformer.encoder_layer(X, lengths=[3], n_heads=1, activation=npformer.gelu, **LAYER),
            "^encoder_layer: no argument 'lengths': x is one text",
        ),
        (
            lambda: npformer.encoder_layer(X, [3], 1, npformer.gelu, **LAYER),
            "^encoder_layer: missing a required argument: 'eps'; its arguments are \\(x, mask, n_heads, activation, eps",
        ),
        (lambda: npformer.linear(X, W, nothing=1), "^linear: got an unexpected keyword argument 'nothing'"),
        (
            lambda: npformer.encoder_layer(X, **SIZES, **{**LAYER, "ffn": GATED}),
            "^encoder_layer: .* unexpected keyword argument 'gate'; npformer.gated_feed_forward computes",
        ),
        (
            lambda: npformer.encoder_layer(X, **SIZES, embeddings={}, layers=[LAYER], norm={}),
            r"^encoder_layer: no argument 'layers': .*write \*\*model.weights\[\"layers\"\]\[0\] for one layer",
        ),
        (
            lambda: npformer.encoder_layer(
                np.stack([X, X]), np.ones((2, len(X)), bool), 1, npformer.gelu, 0.1, **LAYER
            ),
            r"^encoder_layer: .*; write mask\[:, None, None, :\] for a mask \(B, L\) of padding",
        ),
    ],
)
def test_arguments_of_other_functions_are_answered(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


def test_the_layer_of_another_family_is_refused() -> None:
    """A layer of Llama has a gated feed-forward network, which `encoder_layer` does not compute."""
    from tests.support import tiny

    layer = tiny.model("llama", "causal-lm", n_kv_heads=0).weights["layers"][0]
    with pytest.raises(NpformerError, match=r"ffn \{gate, up, output\}.*npformer.gated_feed_forward"):
        npformer.encoder_layer(np.ones((3, 32)), npformer.causal_mask(3), 4, npformer.silu, 1e-6, **layer)
    layer = tiny.model("llama", "causal-lm", n_kv_heads=2).weights["layers"][0]
    with pytest.raises(
        NpformerError, match=r"share keys and values, .* npformer.grouped_query_attention computes them"
    ):
        npformer.encoder_layer(np.ones((3, 32)), npformer.causal_mask(3), 4, npformer.silu, 1e-6, **layer)


def test_an_error_inside_a_formula_names_the_call_that_failed() -> None:
    """The error shows the shapes of this call's arguments, and the shapes that the docstring declares."""
    layer = {**LAYER, "attention": {**ATTENTION, "key": {"weight": np.ones((3, 2))}}}
    with pytest.raises(NpformerError) as error:
        npformer.encoder_layer(X, **SIZES, **layer)
    assert str(error.value) == (
        "encoder_layer: in multi_head_attention(x, x, mask, n_heads, **attention), linear(source, **key): "
        "got x (3, 2), weight (3, 2), bias 0.0: the sizes 2 and 3 do not match; "
        "expected y = x W + b. x (..., in), weight (in, out), transposed compared to torch, bias (out,) -> (..., out)."
    )


def test_an_error_of_ones_own_activation_keeps_its_traceback() -> None:
    def activation(h: np.ndarray) -> Any:
        return h.nothing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="nothing") as error:
        npformer.feed_forward(X, activation, **FFN)
    assert error.traceback[-1].name == "activation"


def test_empty_arrays_give_empty_results() -> None:
    assert npformer.embedding(np.zeros(0, int), X).shape == (0, 2)
    assert npformer.linear(np.zeros((0, 2)), W).shape == (0, 2)
