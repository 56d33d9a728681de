"""All warnings have npformer's own category, and their location is the user's line."""

from __future__ import annotations

import ast
import warnings

import pytest

import npformer
from tests.test_structure import nodes


def test_one_function_warns() -> None:
    """Only npformer.common.errors calls `warnings.warn`, so every warning has the category `NpformerWarning`."""
    callers = {
        name
        for name, node in nodes("warn")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warnings.warn_explicit")
    }
    assert callers == {"npformer.common.errors"}


def test_warnings_have_a_category_and_the_users_line() -> None:
    classify = npformer.pipeline("text-classification", max_length=4)
    with pytest.warns(npformer.NpformerWarning, match="input 0: 6 tokens, cut to 4") as caught:
        classify("I love ice cream")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", npformer.NpformerWarning)
        classify("I love ice cream")
    assert issubclass(npformer.NpformerWarning, UserWarning)
