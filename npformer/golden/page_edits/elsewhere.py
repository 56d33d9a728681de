"""Edits that read from elsewhere: the weights or settings of another layer, or an earlier stage."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from npformer.golden.page_edits.case import Case
from npformer.golden.page_edits.instrumented import Frame
from npformer.golden.page_edits.operators import Edit, expressions


def edits(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[Edit]:
    """Yields the edits of some statements of a function that read other weights or stages of the same shapes."""
    frame = case.call_of(function)
    if frame is None:
        return
    groups = {name: value for name, value in frame.arguments.items() if isinstance(value, dict)}
    layers = stacks(frame)
    case.page.module.__dict__.update(layers)
    for node in expressions(statements):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id in groups:
            for text in _others(groups[node.id], layers):
                yield Edit(node, text, "from elsewhere")
        elif isinstance(array := frame.arguments.get(node.id), np.ndarray) and array.ndim == 2:
            yield from (
                Edit(node, f"stages[{name!r}]", "from elsewhere")
                for name, other in case.stages[0].items()
                if other.shape == array.shape and _is_hidden_state(name)
            )
    for node in expressions(statements):
        yield from (Edit(node, text, "from elsewhere") for text in of_other_layers(case, function, node))


def of_other_layers(case: Case, function: str, node: ast.expr) -> Iterator[str]:
    """The texts of a call that reads a setting of its layer, such as `reach`, with the settings of other layers.

    A setting is a loop variable next to the layer, as in `for layer, reach in zip(layers, reaches)`.
    """
    frame = case.call_of(function)
    if frame is None or not isinstance(node, ast.Call):
        return
    read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    for name, values in _settings(case.page.functions[function]).items():
        items = frame.arguments.get(values)
        if name in read and "layer" not in read and isinstance(items, list | tuple):
            for i in dict.fromkeys((0, 1, len(items) - 1)):
                if i < len(items):
                    yield ast.unparse(_Renamed(name, f"{values}[{i}]").visit(copy.deepcopy(node)))


def _settings(function: ast.FunctionDef) -> dict[str, str]:
    """Loop variable -> the list from which it comes, for loops over several lists."""
    found: dict[str, str] = {}
    for loop in (each for each in ast.walk(function) if isinstance(each, ast.For)):
        calls = [each for each in ast.walk(loop.iter) if isinstance(each, ast.Call) and ast.unparse(each.func) == "zip"]
        targets = [each for each in ast.walk(loop.target) if isinstance(each, ast.Tuple)]
        if calls and targets:
            pairs = zip(targets[-1].elts, calls[0].args, strict=False)
            found |= {ast.unparse(name): ast.unparse(values) for name, values in pairs if ast.unparse(name) != "layer"}
    return found


class _Renamed(ast.NodeTransformer):
    """Replaces a name by an expression."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.text, mode="eval").body if node.id == self.name else node


def _is_hidden_state(name: str) -> bool:
    return name.endswith(("residual", "norm", "sum", "token")) or name.rpartition(".")[2].isdecimal()


def stacks(frame: Frame | None) -> dict[str, Any]:
    """The lists of layers among the arguments of a call and of its callers, by name."""
    found: dict[str, Any] = {}
    while frame is not None:
        for name, value in frame.arguments.items():
            if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                found.setdefault(name, value)
            elif isinstance(value, dict) and isinstance(value.get("layers"), list):
                found.setdefault(f"{name}_layers", value["layers"])
        frame = frame.caller
    return found


def _others(group: dict[str, Any], layers: dict[str, Any]) -> Iterator[str]:
    """The group of the same name in the first layer, the last layer, and the layers next to its own."""
    for name, stack in layers.items():
        for i, layer in enumerate(stack):
            path = _path(layer, group)
            if path is None:
                continue
            for other in dict.fromkeys((i - 1, i + 1, 0, len(stack) - 1)):
                if 0 <= other < len(stack) and other != i:
                    yield f"{name}[{other}]{path}"


def _path(tree: Any, group: dict[str, Any], above: str = "") -> str | None:
    """The subscripts of a group in a tree of weights; None if the tree does not contain it."""
    if tree is group:
        return above
    if isinstance(tree, dict):
        for name, each in tree.items():
            if (found := _path(each, group, f"{above}[{name!r}]")) is not None:
                return found
    return None
