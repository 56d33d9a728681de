"""Pages are readable: they import only NumPy and other pages, and have short functions, formulas and no options."""

from __future__ import annotations

import ast
import doctest
import io
import tokenize
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from npformer import plain
from npformer.pages.find import names

FOLDER = Path(plain.__file__).parent
PAGES = [FOLDER / f"{name}.py" for name in names()]
#: Functions that branch on their data, here the kind of a tree's node.
DATA = {"tree_map"}
LONGEST_FUNCTION, LONGEST_FILE, LONGEST_DOCSTRING = 15, 100, 6  # lines of code, and lines of a docstring


def code_lines(path: Path) -> set[int]:
    """Returns the numbers of the lines with code, without docstrings, comments and empty lines."""
    source = path.read_text(encoding="utf-8")
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node):
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def functions(path: Path) -> list[ast.FunctionDef]:
    return [each for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(each, ast.FunctionDef)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_imports_numpy_and_pages(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    assert set(imported) <= {"math", "numpy"}
    of = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(name.startswith("npformer.plain.") and name.rpartition(".")[2] in names() for name in of)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_short(path: Path) -> None:
    lines = code_lines(path)
    assert len(lines) <= LONGEST_FILE
    for node in functions(path):
        own = [line for line in lines if node.lineno <= line <= (node.end_lineno or 0)]
        assert len(own) <= LONGEST_FUNCTION, node.name
        docstring = ast.get_docstring(node)
        assert docstring, f"{node.name} has no docstring"
        assert len(docstring.splitlines()) <= LONGEST_DOCSTRING, node.name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_no_options(path: Path) -> None:
    """A page has no `if`, and no argument with the default None: a different option is a different function or page."""
    for node in functions(path):
        inside = list(ast.walk(node))
        branches = [each for each in inside if isinstance(each, ast.If | ast.IfExp | ast.Try)]
        assert not branches or node.name in DATA, node.name
        defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each)]
        assert not any(isinstance(each, ast.Constant) and each.value is None for each in defaults), node.name
        assert not {"out", "config"} & {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}, node.name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_examples_of_a_page_are_right(path: Path) -> None:
    module = import_module(f"npformer.plain.{path.stem}")
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0
