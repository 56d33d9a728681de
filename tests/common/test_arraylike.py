"""Public functions accept array-likes of real numbers. Lists and integer arrays are converted to float64.
Floating-point arrays keep their dtype, but float16 is computed in float32."""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError, Text
from npformer.tasks.vector_search import SIMILARITIES, similarity
from tests.support import tiny
from tests.support.array_likes import FORMS, assert_rounded, changed

X = np.array([[1.0, 2.0], [-3.0, 0.0], [0.0, 1.0]])
LENGTHS = np.array([2, 1])
#: Function -> arguments; every array contains whole numbers. The formulas of pages are in test_public_formulas.py.
CASES: dict[str, dict[str, Any]] = {
    "log_softmax": {"x": X},
    "cross_entropy": {"logits": X, "targets": np.array([1, 0, -100]), "log_probabilities": X},
    "padding_mask": {"lengths": LENGTHS},
    "tap": {"name": "x", "array": X},
    "search": {"query": X[0], "corpus": X, "k": 2},
    "shift_right": {"target": np.array([5, 6]), "start": 1, "end": 2},
}


def wrapped() -> set[str]:
    found = {name for name in npformer.__all__ if getattr(getattr(npformer, name), "__module__", "") == "npformer"}
    return {name for name in found if not npformer._MODULE_OF[name].startswith("plain.")}


def test_every_public_function_of_arrays_is_tried() -> None:
    """`load` is wrapped only to explain other libraries' arguments, and `shift_right` converts its arguments itself."""
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


# --- float16 ---------------------------------------------------------------------------------------------------------


#: Function -> float16 arguments for which a computation in float16 overflows, or loses more than the last bit.
WIDE = np.random.default_rng(0).normal(0, 300, (3, 512)).astype(np.float16)
HALVES: dict[str, dict[str, Any]] = {
    "log_softmax": {"x": WIDE},
    "cross_entropy": {"logits": WIDE, "targets": np.array([1, 0, -100])},
    "tap": {"name": "x", "array": WIDE},
}


def test_every_public_function_of_floats_is_tried_with_float16() -> None:
    """The other functions take whole numbers, except `search`, which has a separate test."""
    assert HALVES.keys() == CASES.keys() - {"padding_mask", "shift_right", "search"}


@pytest.mark.parametrize("name", HALVES)
def test_float16_gives_the_float64_result_rounded(name: str) -> None:
    assert_rounded(name, HALVES[name])


def test_search_computes_scores_of_float16_vectors_in_float32() -> None:
    found, expected = (npformer.search(x[0], x, similarity="dot") for x in (WIDE, WIDE.astype(np.float32)))
    np.testing.assert_array_equal(found.scores, expected.scores)
    for kind in SIMILARITIES:
        near, truth = similarity(WIDE, WIDE, kind), similarity(WIDE.astype(np.float64), WIDE.astype(np.float64), kind)
        assert near.dtype == np.float16
        ordinary = np.abs(truth) < 65504
        assert np.isinf(near[~ordinary]).all()
        np.testing.assert_allclose(near[ordinary], truth[ordinary], rtol=2**-10, atol=1e-3)


def test_float16_results_beyond_its_range() -> None:
    words = np.zeros((1, 70_000), np.float16)  # the sum of the exponentials exceeds 65504
    loss = npformer.cross_entropy(words, np.array([5]))
    assert (loss, loss.dtype) == (np.float16(np.log(70_000)), np.float16)


# --- other arguments -------------------------------------------------------------------------------------------------


def test_tap_returns_its_argument() -> None:
    x = np.ones(3)
    assert npformer.tap("x", x) is x


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: npformer.log_softmax([[1], [1, 2]]),
            r"log_softmax: x: expected an array of numbers, got rows of different lengths",
        ),
        (lambda: npformer.log_softmax(["a"]), "log_softmax: x: expected an array of real numbers, got <U1 of shape"),
        (lambda: npformer.log_softmax([1j]), "log_softmax: x: expected an array of real numbers, got complex128"),
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
        (lambda: npformer.log_softmax(3), r"^log_softmax: x: expected an array of at least 1 axis, got shape \(\)"),
        (lambda: npformer.cross_entropy(3, 0), r"^cross_entropy: logits: .* at least 1 axis"),
        (lambda: npformer.padding_mask(3), r"^padding_mask: lengths: expected .* \(B,\), got int64 of shape \(\)"),
        (lambda: npformer.padding_mask([[1, 1, 0]]), r"^padding_mask: lengths: .* got int64 of shape \(1, 3\)"),
        (lambda: npformer.padding_mask([1.5]), "^padding_mask: lengths: .* whole numbers .* got float64"),
        (lambda: npformer.padding_mask([-1]), "^padding_mask: lengths: expected the number of tokens"),
        (lambda: npformer.log_softmax(None), "^log_softmax: x: expected an array, got None"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        call()


def test_empty_arrays_give_empty_results() -> None:
    assert npformer.padding_mask([]).shape == (0, 1, 1, 0)
    assert np.isnan(npformer.cross_entropy(np.empty((0, 2)), []))


def test_a_model_calls_the_functions_as_they_are_written() -> None:
    """Only the public functions of `npformer` convert their arguments, so models do not pay for the conversion."""
    modules = [
        importlib.import_module(f"npformer.engine.{name}") for name in ("functions", "layers.layer", "transformer")
    ]
    for name in wrapped():
        inside = {id(getattr(module, name)) for module in modules if hasattr(module, name)}
        assert inside <= {id(inspect.unwrap(getattr(npformer, name)))}, name


def test_public_functions_can_be_pickled() -> None:
    for name in wrapped():
        assert pickle.loads(pickle.dumps(getattr(npformer, name))) is getattr(npformer, name)


def test_a_text_of_a_list_of_ids() -> None:
    model = tiny.model()
    [found] = model.run([Text([2, 4, 5, 3])])
    [expected] = model.run([Text(np.array([2, 4, 5, 3]))])
    np.testing.assert_array_equal(found["logits"], expected["logits"])
    with pytest.raises(NpformerError, match=r"Text: ids: expected an array \(L,\) of whole numbers"):
        Text([0.5])
