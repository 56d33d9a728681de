"""Finds the expression with which a learner's function widens float32 arrays to float64.

The function is compiled and executed again with every expression wrapped in a call that receives its value. The result
is the first expression with a float64 value that, when converted to float32, makes the answer float32.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from textwrap import dedent
from types import FunctionType
from typing import Any

import numpy as np

from npformer.learn.answers import copied, leaves

SEEN = "__npformer_seen__"
MOST = 60  # maximum number of expressions to try


def widening(function: Any, args: tuple[Any, ...]) -> tuple[int, str]:
    """Returns the line and the source of the expression that widens the answer, or 0 and "" if none is found.

    args: arguments without float64 arrays
    """
    try:
        found = list[tuple[int, str]]()
        run = _watched(function, found)
        for i in range(min(MOST, len(_wide(run, args, found)))):
            if not _float64(run(i, copied(args))):
                return found[i]
    except Exception:  # the instrumented copy may fail, for example if the function inspects its caller
        return 0, ""
    return 0, ""


def _wide(run: Callable[..., Any], args: tuple[Any, ...], found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    run(-1, copied(args))
    return list(found)


def _watched(function: Any, found: list[tuple[int, str]]) -> Callable[[int, tuple[Any, ...]], Any]:
    """Returns a function that calls the learner's function with its i-th float64 value converted to float32.

    Each call fills `found` with the line and the source of each expression that has a float64 value, in order.
    """
    lines, first = inspect.getsourcelines(function)
    source = dedent("".join(lines))
    tree = ast.parse(source)
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    texts: list[tuple[int, str]] = []
    definition.body = [_Wrapper(texts, source, first).visit(each) for each in definition.body]
    chosen, count = [-1], [0]

    def seen(index: int, value: Any) -> Any:
        if not isinstance(value, np.ndarray | np.float64) or value.dtype != np.float64:
            return value
        if chosen[0] < 0:
            found.append(texts[index])
        count[0] += 1
        return np.float32(value) if count[0] - 1 == chosen[0] else value

    names = {**function.__globals__, SEEN: seen}
    exec(compile(ast.fix_missing_locations(tree), "<widening>", "exec"), names)
    copy = names[definition.name]
    assert isinstance(copy, FunctionType)

    def run(i: int, args: tuple[Any, ...]) -> Any:
        chosen[0], count[0] = i, 0
        with np.errstate(all="ignore"):
            return copy(*args)

    return run


class _Wrapper(ast.NodeTransformer):
    """Wraps expressions that compute a value. Operands precede the expression that contains them."""

    def __init__(self, texts: list[tuple[int, str]], source: str, first: int) -> None:
        self.texts, self.source, self.first = texts, source, first

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            return node
        text = ast.get_source_segment(self.source, _moved(node, 1 - self.first)) if isinstance(node, ast.expr) else None
        node = self.generic_visit(node)
        if text is None or not isinstance(node, ast.Call | ast.BinOp):
            return node
        self.texts.append((node.lineno, " ".join(text.split())))
        call = ast.Call(ast.Name(SEEN, ast.Load()), [ast.Constant(len(self.texts) - 1), node], [])
        return ast.copy_location(call, node)


def _moved(node: ast.expr, lines: int) -> ast.expr:
    """Returns a node at the same position, with its line numbers shifted."""
    copy = ast.copy_location(ast.Constant(0), node)
    copy.lineno += lines
    copy.end_lineno = (copy.end_lineno or 0) + lines
    return copy


def _float64(answer: Any) -> bool:
    return any(np.asarray(value).dtype == np.float64 and np.ndim(value) > 0 for _, value in leaves(answer))
