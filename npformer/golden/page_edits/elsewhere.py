"""Edits that read from elsewhere: the weights of another layer, or an earlier stage."""

from __future__ import annotations

import ast
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
