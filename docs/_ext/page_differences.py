"""The difference between two pages of `npformer.plain`, function by function. It is independent of Sphinx, for tests.

A function of a page that its parent does not use is compared with the parent's function for the same purpose, which its
parameters show: a function with the weights `query` and `key` is an attention, and one with `attention` and `ffn` a
layer. Docstrings and comments are left out.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from functools import cache
from itertools import groupby
from types import ModuleType
from typing import Any

from npformer.pages.find import PACKAGE

Function = Callable[..., Any]
#: Purpose of a function -> parameters that it has. The first purpose that fits counts.
PURPOSES = {
    "decoder layer": {"cross_attention", "ffn"},
    "layer": {"ffn"},
    "attention": {"query", "key", "value"},
    "products": {"q", "k", "v"},
    "feed-forward": {"output", "activation"},
    "model": {"encoder", "decoder"},
    "stack": {"layers"},
    "embeddings": {"ids", "token"},
    "head": {"head"},
    "norm": {"x", "weight", "eps"},
    "positions": {"length", "width"},
}


def functions(module: ModuleType) -> list[Function]:
    """Returns the functions of a page and all that they call. The model comes first, and callers precede callees."""
    options = [each for choice in getattr(module, "CHOICES", {}).values() for each in choice.values()]
    defined = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    found: list[Function] = []
    for each in filter(callable, [module.MODEL, *options, *module.HEADS.values(), *defined]):
        _collect(each, found)
    return found


def _collect(function: Function, found: list[Function]) -> None:
    if function not in found:
        found.append(function)
        for each in called(function):
            _collect(each, found)


@cache
def called(function: Function) -> list[Function]:
    """Returns the functions of pages that a function calls, in order."""
    inner = inspect.unwrap(function)
    names = [node.id for node in ast.walk(_tree(inner)) if isinstance(node, ast.Name)]
    used = [inner.__globals__.get(name) for name in dict.fromkeys(names)]
    return [each for each in used if callable(each) and str(getattr(each, "__module__", "")).startswith(PACKAGE)]


@cache
def _tree(function: Function) -> ast.FunctionDef:
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return next(each for each in body if isinstance(each, ast.FunctionDef))


@cache
def purpose(function: Function) -> str:
    names = set(inspect.signature(function).parameters)
    return next((each for each, needed in PURPOSES.items() if needed <= names), "")


@cache
def code(function: Function) -> list[str]:
    """Returns the lines of a function without its docstring and comments, and with its parameters on one line."""
    node = _tree(function)
    first = node.body[1] if ast.get_docstring(node) else node.body[0]
    body = inspect.getsource(function).splitlines()[first.lineno - 1 :]
    return [
        f"def {node.name}({ast.unparse(node.args)}):",
        *(re.sub(r"  #.*", "", line) for line in body if line.strip() and not line.strip().startswith("#")),
    ]


def pairs(child: ModuleType, parent: ModuleType) -> list[tuple[Function, Function | None]]:
    """Returns each function that a page has and its parent lacks, with the parent's function that it replaces."""
    own, inherited = functions(child), functions(parent)
    heads = {child.HEADS[head]: each for head, each in parent.HEADS.items() if head in child.HEADS}
    new = [each for each in own if each not in inherited and page_of(each) != "heads"]
    return [(each, heads.get(each) or _replaced(each, own, inherited)) for each in new]


def _replaced(function: Function, own: list[Function], inherited: list[Function]) -> Function | None:
    """Returns the parent's function for the same purpose: one that the page does not use, or of the same name."""
    kind, calls = purpose(function), called(function)
    alike = [
        each
        for each in inherited
        if each not in calls
        and (purpose(each) == kind if kind not in ("", "head") else each.__name__ == function.__name__)
    ]
    unused = [each for each in alike if each not in own]
    return max(unused or alike, key=lambda each: _likeness(function, each), default=None)


def page_of(function: Function) -> str:
    return str(function.__module__).removeprefix(PACKAGE)


def _likeness(function: Function, other: Function) -> float:
    alike = SequenceMatcher(None, "\n".join(code(function)), "\n".join(code(other)), autojunk=False).ratio()
    return alike + (function.__name__ == other.__name__)


def differences(child: ModuleType, parent: ModuleType) -> Iterator[tuple[Function, Function | None, list[str]]]:
    """Yields each changed or new function of a page, the function of the parent, and the lines of their difference.

    Lines begin with "+", "-" or " ". Functions of the pages that replace each other get one name, the child's.
    """
    found = pairs(child, parent)
    names: dict[str, str] = {}
    for each, other in found:
        if other and "formulas" not in (page_of(each), page_of(other)):
            names.setdefault(other.__name__, each.__name__)
    for each, other in found:
        before = [_renamed(line, names) for line in code(other)] if other else []
        if before != code(each):
            yield each, other, compared(before, code(each))


def _renamed(line: str, names: dict[str, str]) -> str:
    return re.sub(r"(?<![\w\"])\w+(?=\()", lambda found: names.get(found[0], found[0]), line)


def compared(before: list[str], after: list[str]) -> list[str]:
    lines = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            lines += [f" {line}" for line in after[c:d]]
        else:
            lines += [f"-{line}" for line in before[a:b]] + [f"+{line}" for line in after[c:d]]
    return lines


def unused(child: ModuleType, parent: ModuleType) -> list[str]:
    """Returns the functions of the parent's model that a page neither uses nor replaces."""
    model: list[Function] = []
    _collect(parent.MODEL, model)
    known = {*functions(child), *(other for _, other in pairs(child, parent))}
    return [each.__name__ for each in model if each not in known]


def marked(lines: list[str]) -> str:
    """Returns the lines of a difference as HTML, with the changed words of a changed line marked."""
    runs = [(kind, [line[1:] for line in run]) for kind, run in groupby(lines, key=lambda line: line[0])]
    written = []
    for i, (kind, run) in enumerate(runs):
        tag = {"+": "ins", "-": "del", " ": "span"}[kind]
        beside = i + 1 if kind == "-" else i - 1
        near = runs[beside][1] if kind != " " and 0 <= beside < len(runs) and runs[beside][0] in "+-" else []
        written += [f"<{tag}>{kind}{_words(line, near)}</{tag}>" for line in run]
    return "".join(written)


def _words(line: str, near: list[str]) -> str:
    """Returns a line as HTML, and marks the words that are not in the most similar of the lines that it replaces."""
    words = _split(line)
    matchers = [SequenceMatcher(None, _split(other), words, autojunk=False) for other in near]
    best = max(matchers, key=SequenceMatcher.ratio, default=None)
    if best is None or best.ratio() < 0.6:
        return html.escape(line)
    parts = []
    for kind, _, _, c, d in best.get_opcodes():
        text = html.escape("".join(words[c:d]))
        parts.append(text if kind == "equal" or not text.strip() else f"<b>{text}</b>")
    return "".join(parts)


def _split(line: str) -> list[str]:
    return re.findall(r"\w+|\s+|.", line)
