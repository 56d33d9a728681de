"""Forms in which users pass numbers, and checks of the public functions that get them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import npformer

#: Arguments that are not converted, because a cache and angles come from an earlier call.
AS_GIVEN = ("past", "angles", "frequencies")


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
        return {name: each if name in AS_GIVEN else changed(each, form) for name, each in arguments.items()}
    if isinstance(arguments, list):
        return [changed(each, form) for each in arguments]
    return form(arguments) if isinstance(arguments, np.ndarray) else arguments


def assert_rounded(name: str, given: Mapping[str, Any]) -> None:
    """Float16 arguments give the float64 result, rounded. float32 and float64 results may round to neighbours."""
    function = getattr(npformer, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, truth = function(**given), function(**changed(given, _in_double))
    assert found.dtype == np.float16
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.astype(np.float64), truth, rtol=2**-10, atol=2**-14)


def _in_double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
