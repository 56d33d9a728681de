"""The functions of a Transformer: torch's numbers, unusual values and shapes, and errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npformer
from npformer.common.errors import NpformerError
from npformer.engine import activations, functions
from npformer.engine.activations import gelu, gelu_tanh, relu, silu, tanh
from npformer.engine.functions import (
    cross_entropy,
    embedding,
    layer_norm,
    linear,
    log_softmax,
    softmax,
)
from tests.support import torch_values
from tests.support.bits import alike
from tests.support.draw import normal

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

INF, NAN = np.inf, np.nan
DTYPES = ("float32", "float64")
ELEMENT_WISE = (gelu, gelu_tanh, relu, silu, tanh)
SAME_SHAPE = (*ELEMENT_WISE, softmax, log_softmax, layer_norm)
CALLS = [name for name, each in torch_values.calls().items() if each["function"] != "scaled_dot_product_attention"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_torchs_numbers(name: str, dtype: str) -> None:
    described, (arguments, torch32, truth) = torch_values.calls()[name], torch_values.call(name, dtype)
    module = activations if hasattr(activations, described["function"]) else functions
    ours = getattr(module, described["function"])(**arguments, **described["options"])
    assert torch_values.wrong(np.asarray(ours), torch32, truth) == ""


# --- NaN and infinities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "at_inf", "at_minus_inf"),
    [(gelu, INF, NAN), (gelu_tanh, INF, NAN), (silu, INF, NAN), (relu, INF, 0), (tanh, 1, -1)],
)
def test_odd_numbers_of_element_wise_functions(
    function: Callable[..., np.ndarray], at_inf: float, at_minus_inf: float, dtype: str
) -> None:
    y = function(np.array([INF, -INF, NAN, 0], dtype))
    assert np.array_equal(y, np.array([at_inf, at_minus_inf, NAN, 0], dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_numbers_of_softmax(dtype: str) -> None:
    x = np.array([[0, -INF, 0], [0, INF, 0], [-INF, -INF, -INF], [0, NAN, 0]], dtype)
    assert np.array_equal(softmax(x)[0], [0.5, 0, 0.5])
    assert np.allclose(log_softmax(x)[0], [-math.log(2), -INF, -math.log(2)])
    for function in (softmax, log_softmax):
        y = function(x)
        assert np.isnan(y[2:]).all()
        assert np.isnan(y[1, 1])  # the other columns of this row may be 0, as in torch
        assert not np.isfinite(y[1][y[1] != 0]).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_differences_that_overflow(dtype: str) -> None:
    """The difference overflows to -inf, and its exponential, 0, is correct, so there is no warning."""
    largest = np.finfo(dtype).max
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.array([largest, -largest], dtype)
        assert np.array_equal(softmax(x), [1, 0])
        assert np.array_equal(log_softmax(x), [0, -INF])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_odd_numbers_of_layer_norm(odd: float, dtype: str) -> None:
    x = np.ones((2, 4), dtype)
    x[0, 2] = odd
    y = layer_norm(x, np.ones(4, dtype), np.ones(4, dtype))
    assert np.isnan(y[0]).all()
    assert np.array_equal(y[1], [1, 1, 1, 1])


@pytest.mark.parametrize(("dtype", "large"), [("float32", 1e25), ("float64", 1e200)])
def test_layer_norm_is_nan_if_its_variance_overflows(dtype: str, large: float) -> None:
    assert np.isnan(layer_norm(np.array([large, -large, 0], dtype))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_numbers_of_linear_and_embedding(dtype: str) -> None:
    weight = np.ones((2, 3), dtype)
    weight[0, 1] = 0
    with np.errstate(invalid="ignore"):  # like NumPy's own product, it warns where infinity meets 0
        y = linear(np.array([[NAN, 1], [INF, 1], [-INF, 1], [1, 2]], dtype), weight)
    expected = [[NAN, NAN, NAN], [INF, NAN, INF], [-INF, NAN, -INF], [3, 2, 3]]
    assert np.array_equal(y, expected, equal_nan=True)
    table = np.array([[NAN], [INF]], dtype)
    assert np.array_equal(embedding(np.array([1, 0]), table), [[INF], [NAN]], equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_numbers_of_cross_entropy(dtype: str) -> None:
    logits = np.array([[0, -INF], [0, -INF], [0, NAN], [-INF, -INF]], dtype)
    loss = cross_entropy(logits, np.array([0, 1, 0, 0]), reduction="none")
    assert np.array_equal(loss, [0, INF, NAN, NAN], equal_nan=True)
    assert np.isnan(cross_entropy(logits, np.array([-100] * 4)))
    assert cross_entropy(logits, np.array([-100] * 4), reduction="sum") == 0


# --- dtypes, shapes, memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_in_is_dtype_out(dtype: str) -> None:
    """A setting of NumPy's type float64 does not widen float32 arrays."""
    x, wide = normal(3, 4, dtype=dtype), np.float64(1e-5)
    answers = [function(x) for function in SAME_SHAPE] + [gelu(x, "tanh"), layer_norm(x, x[0], x[1], wide)]
    answers += [linear(x, normal(4, 5, dtype=dtype), normal(5, dtype=dtype)), embedding(np.array([1]), x)]
    answers += [cross_entropy(x, np.array([1, 2, 3]), label_smoothing=e, reduction=r) for e, r in
                ((0, "mean"), (0.1, "mean"), (wide, "mean"), (wide, "sum"), (wide, "none"))]  # fmt: skip
    assert {each.dtype for each in answers} == {np.dtype(dtype)}


@pytest.mark.parametrize("function", SAME_SHAPE)
@pytest.mark.parametrize("shape", [(5,), (1, 1), (2, 3, 4), (2, 1, 3, 2, 2), (0, 3), (2, 0, 3)])
def test_any_leading_shape(function: Callable[..., np.ndarray], shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    y = function(x)
    assert y.shape == shape
    rows = x.reshape(-1, shape[-1])
    assert np.array_equal(y.reshape(rows.shape), np.reshape([function(row) for row in rows], rows.shape))


@pytest.mark.parametrize("function", ELEMENT_WISE)
def test_one_number_alone(function: Callable[..., np.ndarray]) -> None:
    assert function(np.array(0.5, np.float32)).shape == ()


def test_nothing_at_all() -> None:
    assert linear(normal(0, 3), normal(3, 2), normal(2)).shape == (0, 2)
    assert linear(normal(2, 0, 3), normal(3, 2)).shape == (2, 0, 2)
    assert np.array_equal(linear(normal(2, 0), normal(0, 3), np.ones(3, np.float32)), np.ones((2, 3)))
    assert linear(normal(2, 3), normal(3, 0)).shape == (2, 0)
    assert embedding(np.zeros((2, 0), np.int64), normal(4, 3)).shape == (2, 0, 3)
    assert np.isnan(cross_entropy(normal(0, 3), np.zeros(0, np.int64)))
    for function in (*ELEMENT_WISE, softmax, log_softmax, layer_norm):
        assert function(normal(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 0, 5), (2, 1, 3, 5)])
def test_linear_and_embedding_of_any_leading_shape(shape: tuple[int, ...]) -> None:
    x, weight, bias = normal(*shape), normal(5, 3), normal(3)
    y = linear(x, weight, bias)
    assert y.shape == (*shape[:-1], 3)
    assert np.allclose(y, x @ weight + bias, atol=1e-6)
    ids = np.zeros(shape, np.int32)
    assert embedding(ids, weight).shape == (*shape, 3)


@pytest.mark.parametrize("function", SAME_SHAPE)
def test_memory_of_any_layout(function: Callable[..., np.ndarray]) -> None:
    x = normal(6, 4, 5)
    for view in (x.mT, x[::2], x[:, ::-1], x[..., 1:4], np.asfortranarray(x), np.broadcast_to(x[:1], x.shape)):
        assert np.allclose(function(view), function(view.copy()), rtol=1e-6, atol=1e-6)


def test_linear_of_memory_of_any_layout() -> None:
    x, weight, bias = normal(4, 6, 32), normal(64, 32), normal(128)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T + bias[::2]
    assert np.allclose(linear(x, weight.T, bias[::2]), expected, atol=1e-4)
    assert np.allclose(linear(x.mT.copy().mT, np.asfortranarray(weight).T, bias[::2]), expected, atol=1e-4)
    assert np.allclose(linear(x[::2, ::-1], weight.T, bias[::2]), expected[::2, ::-1], atol=1e-4)


@pytest.mark.parametrize("function", [*ELEMENT_WISE, softmax, layer_norm])
def test_out(function: Callable[..., np.ndarray]) -> None:
    """The result is written to `out`, which is returned. `out` may be the input, and may have any layout in memory.

    The order of summation follows the layout, so results in different layouts may round differently.
    """
    x = normal(6, 4, 40)
    expected = function(x.copy())
    for out in (np.empty_like(x), np.empty((6, 4, 48), np.float32)[..., :40], np.empty((6, 40, 4), np.float32).mT):
        assert function(x, out=out) is out
        assert np.allclose(out, expected, rtol=1e-6, atol=1e-6)
    wide = np.zeros((6, 4, 48), np.float32)
    for place in (x.copy(), wide[..., :40]):
        place[...] = x
        assert function(place, out=place) is place
        assert np.array_equal(place, expected)


def test_inputs_are_never_written_to() -> None:
    arrays = {"x": normal(3, 4), "weight": normal(4), "bias": normal(4), "matrix": normal(4, 4)}
    for array in arrays.values():
        array.flags.writeable = False
    x, ids = arrays["x"], np.array([0, 1, 3])
    ids.flags.writeable = False
    for function in SAME_SHAPE:
        assert not np.shares_memory(function(x), x)
    layer_norm(x, arrays["weight"], arrays["bias"])
    linear(x, arrays["matrix"], arrays["bias"])
    cross_entropy(x, ids, label_smoothing=0.1)
    assert not np.shares_memory(embedding(ids, arrays["matrix"]), arrays["matrix"])


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: linear(normal(2, 3), normal(4, 5)), ["linear", "weight", "(4, 5)", "(2, 3)"]),
        (lambda: linear(normal(2, 3), normal(3)), ["linear", "weight", "(3,)", "(2, 3)"]),
        (lambda: linear(np.array(1.0), normal(3, 4)), ["linear", "weight", "(3, 4)", "()"]),
        (lambda: linear(normal(2, 3), normal(3, 5), normal(4)), ["linear", "bias", "(4,)", "(5,)"]),
        (lambda: linear(normal(2, 3), normal(3, 5), normal(1, 5)), ["linear", "bias", "(1, 5)", "(5,)"]),
        (lambda: layer_norm(normal(2, 3), normal(4)), ["layer_norm", "weight", "(4,)", "(2, 3)"]),
        (lambda: layer_norm(normal(2, 3), normal(3), normal(2)), ["layer_norm", "bias", "(2,)", "(2, 3)"]),
        (lambda: layer_norm(normal(2, 3), np.array(1.0)), ["layer_norm", "weight", "()", "(2, 3)"]),
        (lambda: embedding(np.array([0, 3]), normal(3, 2)), ["embedding", "ids", "0 ... 2", "3"]),
        (lambda: embedding(np.array([[0], [-1]]), normal(3, 2)), ["embedding", "ids", "0 ... 2", "-1"]),
        (lambda: embedding(np.array([0.0]), normal(3, 2)), ["embedding", "ids", "integers", "float64"]),
        (lambda: embedding(np.array([True]), normal(3, 2)), ["embedding", "ids", "integers", "bool"]),
        (lambda: embedding(np.array([0]), normal(3)), ["embedding", "weight", "(3,)"]),
        (lambda: gelu(normal(2), "fast"), ["gelu", "approximate", "fast"]),
        (lambda: cross_entropy(normal(2, 3), np.zeros(3, int)), ["cross_entropy", "targets", "(3,)", "(2, 3)"]),
        (lambda: cross_entropy(normal(2, 3), np.zeros(2)), ["cross_entropy", "targets", "float64", "(2,)"]),
        (lambda: cross_entropy(normal(2, 3), np.array([0, 3])), ["cross_entropy", "targets", "0 ... 2", "3"]),
        (lambda: cross_entropy(normal(2, 3), np.array([0, -1])), ["cross_entropy", "targets", "0 ... 2", "-1"]),
        (lambda: cross_entropy(normal(1, 3), np.array([0]), reduction="max"), ["cross_entropy", "reduction", "max"]),
        (lambda: cross_entropy(normal(1, 3), np.array([0]), reduction=normal(2)), ["cross_entropy: reduction", "mean"]),
        (lambda: cross_entropy(normal(1, 3), np.array([0]), normal(2, 3)), ["cross_entropy: ignore_index", "whole"]),
        (lambda: cross_entropy(normal(1, 3), np.array([0]), 2**64), ["cross_entropy: ignore_index"]),
        (lambda: cross_entropy(normal(1, 3), np.array([0]), -100, normal(2)), ["cross_entropy: label_smoothing"]),
        (lambda: cross_entropy(normal(1, 3), np.array([0]), -100, 10**400), ["cross_entropy: label_smoothing", "0 to 1"]),
        (
            lambda: cross_entropy(normal(1, 3), np.array([0]), log_probabilities=normal(2, 3)),
            ["cross_entropy: log_probabilities", "(1, 3)", "(2, 3)"],
        ),
        (lambda: npformer.log_softmax(normal(2, 3), axis="last"), ["log_softmax: axis", "-2 to 1", "last"]),
        (lambda: npformer.log_softmax(normal(2, 3), axis=2), ["log_softmax: axis", "-2 to 1", "2"]),
        (lambda: npformer.softmax(normal(2, 3), axis=10**30), ["softmax"]),
        (lambda: npformer.rms_norm(normal(2, 3), normal(3), eps=10**400), ["rms_norm"]),
    ],
)  # fmt: skip
def test_errors_name_the_argument_and_its_value(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(NpformerError) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == []


# --- properties ------------------------------------------------------------------------------------------------------

numbers = st.integers(0, 2**32 - 1)
widths = st.sampled_from([1, 2, 3, 8, 15, 16, 17, 31, 33, 64, 100, 384, 768])


@given(seed=numbers, rows=st.integers(1, 9), width=widths, scale=st.sampled_from([1e-3, 1, 30, 1e4]))
def test_softmax_rows_sum_to_one(seed: int, rows: int, width: int, scale: float) -> None:
    x = (scale * np.random.default_rng(seed).standard_normal((rows, width))).astype(np.float32)
    y = softmax(x)
    assert (y >= 0).all()
    # each of `width` terms is rounded once, and their sum at most `width` times
    assert np.abs(y.sum(axis=-1, dtype=np.float64) - 1).max() <= 2**-23 * width
    assert np.array_equal(softmax(x.T, axis=0).shape, (width, rows))
    assert np.allclose(softmax(x.T.copy(), axis=0), y.T, rtol=1e-5, atol=1e-30)
    assert np.allclose(np.exp(log_softmax(x)), y, rtol=1e-4, atol=1e-30)


@given(seed=numbers, rows=st.integers(1, 9), width=widths.filter(lambda width: width > 1))
def test_layer_norm_rows_have_mean_zero_and_variance_one(seed: int, rows: int, width: int) -> None:
    x = 3 + 5 * np.random.default_rng(seed).standard_normal((rows, width))
    y = layer_norm(x, eps=0.0)
    assert np.abs(y.mean(axis=-1)).max() < 1e-12
    assert np.abs(y.var(axis=-1) - 1).max() < 1e-12


@given(seed=numbers, inner=widths, outer=widths, dtype=st.sampled_from(DTYPES), rows=st.integers(1, 70))
def test_rows_of_a_product_have_the_same_bits_in_any_batch(
    seed: int, inner: int, outer: int, dtype: str, rows: int
) -> None:
    random = np.random.default_rng(seed)
    x, weight, bias = (random.standard_normal(shape).astype(dtype) for shape in ((rows, inner), (inner, outer), outer))
    whole = linear(x, weight, bias)
    order = random.permutation(rows)
    assert alike(linear(x[order], weight, bias), whole[order])
    first, last = sorted(random.integers(0, rows + 1, 2))
    assert alike(linear(x[first:last], weight, bias), whole[first:last])
    assert alike(linear(x[0], weight, bias), whole[0])
