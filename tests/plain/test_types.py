"""The types of public functions are in stubs (.pyi) next to their pages, because a page has no type hints."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import npformer
from npformer import plain

FOLDER = Path(plain.__file__).parent
STUBS = sorted(path.stem for path in FOLDER.glob("*.pyi"))


def functions(path: Path) -> dict[str, str]:
    """Returns the parameters of each function of a file, with defaults but without types, by the function's name."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name != "__getattr__":
            for each in node.args.args:
                each.annotation = None
            defaults = [ast.literal_eval(each) for each in node.args.defaults]
            found[node.name] = f"{[each.arg for each in node.args.args]} {defaults}"
    return found


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_has_the_functions_of_its_page(name: str) -> None:
    assert functions(FOLDER / f"{name}.pyi") == functions(FOLDER / f"{name}.py")


def test_every_public_function_has_types() -> None:
    public = [getattr(npformer, name) for name in npformer.__all__]
    modules = {inspect.unwrap(each).__module__ for each in public if callable(each)}
    assert {each for each in modules if each.startswith("npformer.plain.")} == {
        f"npformer.plain.{name}" for name in STUBS
    }
