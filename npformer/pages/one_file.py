"""Joins definitions of pages in one file, with everything that they use."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from npformer.pages.find import PACKAGE, text_of

Place = tuple[str, str]  # a page and a name that it defines


class Contents(NamedTuple):
    """The docstring of a page, the text of each definition, and the places where imported names are defined."""

    docstring: str
    definitions: Mapping[str, str]
    imported: Mapping[str, Place]


def one_file(docstring: str, wanted: Sequence[Place], *imports: str) -> str:
    """Writes one file: the docstring, the imports, and the definitions with their dependencies, in order."""
    order: list[Place] = []
    for place in wanted:
        _add(place, order)
    names = [name for _, name in order]
    texts = []
    for place in order:
        here = contents(place[0])
        renamed = {
            name: f"{other[0]}_{other[1]}"
            for name, other in {**{each: (place[0], each) for each in here.definitions}, **here.imported}.items()
            if names.count(other[1]) > 1
        }
        texts.append(_renamed(here.definitions[place[1]], renamed))
    body = "\n\n\n".join(text.rstrip() for text in texts)
    math = ["import math"] if re.search(r"\bmath\.", body) else []
    top = "\n".join(sorted([*math, *(each for each in imports if each.startswith("import "))]))
    top += "".join(f"\n{each}" for each in imports if each.startswith("from "))
    blank = "\n" * (2 if body.startswith(("def ", "@")) else 1)
    text = f'"""{docstring.strip()}\n"""\n\n{top}\n\nimport numpy as np\n{blank}{body}\n'
    return text.replace('"""\n\n\n\n', '"""\n\n')


def _add(place: Place, order: list[Place]) -> None:
    """Appends a definition to the order, after all definitions that it uses."""
    if place in order:
        return
    name, defined = place
    here = contents(name)
    for used in sorted(_names(here.definitions[defined]) - {defined}):
        if used in here.definitions:
            _add((name, used), order)
        elif used in here.imported:
            _add(here.imported[used], order)
    if place not in order:
        order.append(place)


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with names replaced, except attributes and keyword arguments."""
    if not names:
        return text
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines(keepends=True)
    for i in reversed(range(len(tokens))):
        token = tokens[i]
        is_argument = tokens[i + 1].string == "=" and tokens[i + 1].start == token.end if i + 1 < len(tokens) else False
        if token.type == tokenize.NAME and token.string in names and tokens[i - 1].string != "." and not is_argument:
            (row, start), (_, end) = token.start, token.end
            lines[row - 1] = lines[row - 1][:start] + names[token.string] + lines[row - 1][end:]
    return "".join(lines)


@lru_cache(maxsize=64)
def contents(name: str) -> Contents:
    """The contents of a page, by its name."""
    text = text_of(name)
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    definitions: dict[str, str] = {}
    imported: dict[str, Place] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE):
            of = str(node.module).removeprefix(PACKAGE)
            imported |= {each.asname or each.name: (of, each.name) for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.Assign):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) - 1
            while lines[first - 1].startswith("#"):
                first -= 1
            own = "".join(lines[first : node.end_lineno])
            target = node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.targets[0])
            definitions[target] = own
    return Contents(ast.get_docstring(tree) or "", definitions, imported)
