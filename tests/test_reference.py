"""Each call that the reference mentions in a sentence also occurs in an example of the same docstring or page.

`test_docstrings.py` runs the examples of docstrings, and `test_documentation.py` the blocks of docstrings and pages. A
call is code if it is between backticks or has a dot before its name; other parentheses belong to formulas.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from doctest import DocTestParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.reference import BLOCK, ROOT, blocks, documented

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
CODE = re.compile(r"`([^`\n]*\([^`\n]*)`|((?:\b\w+)?(?:\.\w+)+\([^()\n]*\))")


def promised(text: str) -> Iterator[ast.Call]:
    """Returns the calls in the sentences of a text, without its examples and blocks."""
    text = re.sub(r"^```.*?^```|^ *>>>.*?(?:\n\s*\n|\Z)", "", BLOCK.sub("", text), flags=re.M | re.S)
    for span in (found[1] or found[2] for found in CODE.finditer(text)):
        code = span.strip()
        code = f"it{code}" if code.startswith(".") else code
        code = f"{code} pass" if code.startswith("with ") and code.endswith(":") else code
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue  # a shape such as (B, L), a command or a formula
        yield from calls(tree)


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def form(call: ast.Call) -> tuple[str, int, frozenset[str]]:
    """Returns the last name of the function, the number of positional arguments, and the names of the others."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return name, len(call.args), frozenset(each.arg or "**" for each in call.keywords)


def absent(text: str, examples: str) -> list[str]:
    made = {form(each) for each in calls(ast.parse(examples))}
    return [ast.unparse(each) for each in promised(text) if form(each) not in made]


@pytest.mark.parametrize(
    ("name", "found"), documented().items(), ids=lambda each: each if isinstance(each, str) else ""
)
def test_an_example_makes_each_call_that_a_docstring_promises(name: str, found: Any) -> None:
    doc = inspect.getdoc(found) or ""
    examples = "\n".join([*(each.source for each in DocTestParser().get_examples(doc)), *blocks(doc)])
    assert absent(doc, examples) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_block_makes_each_call_that_a_page_promises(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert absent(text, "\n".join(blocks)) == []


def test_a_promise_without_an_example_is_found() -> None:
    text = "Every task has `stream(texts)`, f(x) = tanh(x), `.save(\"page.html\")` and numpy.load(path, mmap_mode='r')."
    assert absent(text, "") == ["stream(texts)", "it.save('page.html')", "numpy.load(path, mmap_mode='r')"]
    assert absent(text, "list(task.stream(['ice']))\nview.save(path)\nnp.load('a.npy', mmap_mode='r')") == []
