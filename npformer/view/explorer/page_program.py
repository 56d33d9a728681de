"""A model's plain page as one Python text that can be run and stepped through, with the calls that give its answers."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from npformer.pages.find import PACKAGE, page_of
from npformer.pages.one_file import contents, one_file
from npformer.pages.run import functions_of
from npformer.pages.sizes import bind


class OfPage(NamedTuple):
    """An argument that is one of the functions in the text, given by its name."""

    name: str


class PageProgram(NamedTuple):
    """The text of a page, and the calls, (name, arguments), that compute the last layer's rows and then the answers."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]


def page_program(model: Any, inputs: Any) -> PageProgram:
    """Returns a model's page for one text, or for a source and its target, with all functions that the model uses."""
    on, config = page_of(model.config), model.config
    functions = functions_of(on, config, model.weights)
    bound: list[Any] = [bind(each, config, model.weights, inputs) for each in functions]
    arguments = [dict(each.keywords) for each in bound]
    used = [each for given in arguments for each in given.values() if _is_of_page(each)]
    places = [(each.__module__.removeprefix(PACKAGE), each.__name__) for each in (*functions, *used)]
    text = brief(one_file(contents(on.__name__.removeprefix(PACKAGE)).docstring, places))
    rows, head = (
        (_name(function, text), {name: _argument(value, text) for name, value in given.items()})
        for function, given in zip(functions, arguments, strict=True)
    )
    return PageProgram(text, (rows, head))


def run_calls(program: PageProgram, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answers, computed by the program's calls. `namespace`: the names defined by executing the text."""

    def called(function: str, given: dict[str, Any], *more: Any, **names: Any) -> Any:
        known = {name: namespace[value.name] if isinstance(value, OfPage) else value for name, value in given.items()}
        return namespace[function](*more, **known, **names)

    (rows_of, given), (head, head_given) = program.calls
    rows = called(rows_of, given)
    x, *others = rows if isinstance(rows, tuple) else (rows,)
    code = namespace[head].__code__
    reads_source = "source" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, Any] = called(head, head_given, x, **({"source": others[0]} if reads_source else {}))
    return found


def brief(text: str) -> str:
    """Returns the text with each docstring reduced to its first line, the formula."""
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    documented: list[ast.Module | ast.FunctionDef] = [tree]
    documented += [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    for node in reversed(documented):
        first = node.body[0]
        if isinstance(first, ast.Expr) and (docstring := ast.get_docstring(node)):
            indent, line = " " * first.col_offset, docstring.splitlines()[0]
            lines[first.lineno - 1 : first.end_lineno] = [f'{indent}"""{line}"""\n']
    return "".join(lines)


def _is_of_page(value: Any) -> bool:
    return callable(value) and str(getattr(value, "__module__", "")).startswith(PACKAGE)


def _argument(value: Any, text: str) -> Any:
    return OfPage(_name(value, text)) if _is_of_page(value) else value


def _name(function: Any, text: str) -> str:
    """Returns the function's name in the text, prefixed with the name of its page if two pages define that name."""
    longer = f"{function.__module__.removeprefix(PACKAGE)}_{function.__name__}"
    return longer if re.search(rf"^def {longer}\(", text, re.M) else str(function.__name__)
