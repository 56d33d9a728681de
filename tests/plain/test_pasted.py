"""A public formula can be pasted into a notebook: its source, with all that it calls, needs only NumPy and math."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.pages.one_file import one_file
from tests.common.test_public_formulas import CASES, FORMULAS, parts


def pasted(name: str) -> str:
    """Returns the source of a formula, preceded by the definitions of all functions that it uses."""
    formula = inspect.unwrap(getattr(npformer, name))
    return one_file(f"{name}, with all that it uses.", [(formula.__module__.removeprefix("npformer.plain."), name)])


@pytest.mark.parametrize("name", FORMULAS)
def test_a_pasted_formula_computes_the_same(name: str) -> None:
    """The pasted formula runs in a namespace that contains nothing else, and gives the same bits."""
    notebook: dict[str, Any] = {}
    exec(compile(pasted(name), f"<{name}>", "exec"), notebook)
    found, expected = notebook[name](**CASES[name]), getattr(npformer, name)(**CASES[name])
    for each, wanted in zip(parts(found), parts(expected), strict=True):
        assert each.dtype == wanted.dtype
        np.testing.assert_array_equal(each, wanted)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_pasted_formula_imports_numpy_and_math(name: str) -> None:
    tree = ast.parse(pasted(name))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {ast.unparse(node) for node in imports} <= {"import math", "import numpy as np"}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_pasted_formula_is_the_source_that_inspect_shows(name: str) -> None:
    assert inspect.getsource(getattr(npformer, name)) in pasted(name)
