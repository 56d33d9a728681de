"""Edits that read from elsewhere: the weights or settings of another layer, or an earlier stage."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, permutations
from typing import Any

import numpy as np

from npformer.golden.page_edits import heads
from npformer.golden.page_edits.case import Case
from npformer.golden.page_edits.instrumented import Frame
from npformer.golden.page_edits.operators import Edit, expressions


def edits(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[Edit]:
    """Yields the edits that make `statements` of a function read the wrong weights, settings or stages."""
    frame = case.call_of(function)
    if frame is None:
        return
    groups = {name: value for name, value in frame.arguments.items() if isinstance(value, dict)}
    layers, trees = stacks(frame), trees_of_stacks(frame)
    norms = norms_above(frame)
    functions = [name for name in ("layer_norm", "rms_norm", "gemma_norm") if name in case.page.functions]
    case.page.module.__dict__.update(layers | trees)
    case.page.module.__dict__.setdefault("norms", {}).update(norms)
    for node in expressions(statements):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id in groups:
            for text in (*_others(groups[node.id], layers), *_of_other_stacks(groups[node.id], trees)):
                yield Edit(node, text, "from elsewhere")
            for name, other in groups.items():
                if _is_alike_but_wider(groups[node.id], other):
                    yield Edit(node, f"first_of({name}, {node.id})", "from elsewhere")
        elif isinstance(array := frame.arguments.get(node.id), np.ndarray) and array.ndim == 2:
            yield from (Edit(node, text, "wrapped") for text in _normed(node.id, frame, norms, functions))
            yield from (
                Edit(node, f"stages[{name!r}]", "from elsewhere")
                for name, other in case.stages[0].items()
                if other.shape == array.shape and _is_hidden_state(name)
            )
    for node in expressions(statements):
        yield from (Edit(node, text, "from elsewhere") for text in of_other_layers(case, function, node))


def norms_above(frame: Frame) -> dict[str, dict[str, Any]]:
    """Returns the weights of the norms that a call's callers have as arguments, by name, such as "embeddings.norm"."""
    found: dict[str, dict[str, Any]] = {}
    for caller in islice(frame.outward(), 1, None):
        groups = {name: each for name, each in caller.arguments.items() if isinstance(each, dict)}
        inner = {f"{above}.{name}": each for above, tree in groups.items() for name, each in tree.items()}
        for name, each in (groups | inner).items():
            is_norm = name.endswith("norm") and isinstance(each, dict) and "weight" in each
            if is_norm and not any(each is other for other in found.values()):
                found[name] = each
    return found


def _normed(own: str, frame: Frame, norms: Mapping[str, dict[str, Any]], functions: Iterable[str]) -> Iterator[str]:
    """Yields expressions that normalize an array with the weights of a caller's norm."""
    width = frame.arguments[own].shape[-1]
    for name, group in norms.items():
        if group["weight"].shape == (width,) and "eps" in frame.arguments:
            for function in functions:
                if ("bias" in group) <= (function == "layer_norm"):
                    yield f"{function}({own}, **norms[{name!r}], eps=eps)"


def fused(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[list[Edit]]:
    """Yields the edits that split a fused weight wrongly into groups with equal inputs, such as query, key and value.

    The columns are stored in one order, such as query, key and value of each head, and read in another one.
    """
    frame = case.call_of(function)
    arguments = frame.arguments if frame else {}
    nodes = [each for each in expressions(case.page.functions[function].body) if isinstance(each, ast.Name)]
    read = {each.id for each in expressions(statements) if isinstance(each, ast.Name)}
    counts = heads.counts(arguments)
    for names in _fused_names(arguments):
        if not read & {*names}:
            continue
        widths = [arguments[name]["weight"].shape[-1] for name in names]
        for stored, other in permutations(orders(widths, counts), 2):
            how = f"{', '.join(names)}, stored={stored!r}, read={other!r}"
            parts = {name: f"split_wrongly({i}, {how})" for i, name in enumerate(names)}
            yield [Edit(each, parts[each.id], "from elsewhere") for each in nodes if each.id in parts]


def _fused_names(arguments: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The groups of weights that a file may store as one: queries, keys and values, or groups of equal shapes."""
    shapes: dict[object, list[str]] = {}
    for name, group in arguments.items():
        if isinstance(group, dict) and isinstance(group.get("weight"), np.ndarray) and group["weight"].ndim == 2:
            shapes.setdefault(tuple(sorted((key, each.shape) for key, each in group.items())), []).append(name)
    if all(any(name in names for names in shapes.values()) for name in heads.PROJECTIONS):
        yield heads.PROJECTIONS
        yield heads.PROJECTIONS[1:]
    for names in shapes.values():
        if len(names) > 1 and not {*names} & {*heads.PROJECTIONS}:
            yield tuple(names)
            yield tuple(names[::-1])


def of_other_layers(case: Case, function: str, node: ast.expr) -> Iterator[str]:
    """Yields a call as text, in which settings of other layers replace its own layer's setting, such as `reach`.

    A setting is a loop variable beside the layer, as in `for layer, reach in zip(layers, reaches)`.
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
    """Maps the loop variables of loops over zip(...), except the layer, to the lists from which they come."""
    found: dict[str, str] = {}
    for loop in (each for each in ast.walk(function) if isinstance(each, ast.For)):
        calls = [each for each in ast.walk(loop.iter) if isinstance(each, ast.Call) and ast.unparse(each.func) == "zip"]
        targets = [each for each in ast.walk(loop.target) if isinstance(each, ast.Tuple)]
        if calls and targets:
            pairs = zip(targets[-1].elts, calls[0].args, strict=False)
            found |= {ast.unparse(name): ast.unparse(values) for name, values in pairs if ast.unparse(name) != "layer"}
    return found


def _is_alike_but_wider(group: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether `other` has arrays of the same names as `group`, at least one of them longer and none shorter."""
    if group.keys() != other.keys() or not all(
        isinstance(each, np.ndarray) for each in (*group.values(), *other.values())
    ):
        return False
    pairs = [(group[name].shape, other[name].shape) for name in group]
    return any(a != b for a, b in pairs) and all(
        len(a) == len(b) and all(m <= n for m, n in zip(a, b, strict=True)) for a, b in pairs
    )


def first_of(group: dict[str, np.ndarray], like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a group, cut to the shapes of the arrays in `like`."""
    return {name: each[tuple(slice(n) for n in like[name].shape)] for name, each in group.items()}


def split_wrongly(
    i: int, *groups: dict[str, np.ndarray], stored: tuple[str, int], read: tuple[str, int]
) -> dict[str, np.ndarray]:
    """Part i of the columns of several groups, stored in one order and read in another one.

    An order is ("parts", 1), one group after another, ("heads", n), an n-th of each group and then the next n-th, or
    ("numbers", 1), in which the columns of the groups alternate.
    """
    made = {}
    for name, own in groups[i].items():
        columns = np.concatenate([each[name] for each in groups], axis=-1)
        widths = [each[name].shape[-1] for each in groups]
        if own.ndim and sum(widths) == columns.shape[-1]:
            at = _order(widths, *read).argsort()  # where the reader finds each column
            first = sum(widths[:i])
            made[name] = columns[..., _order(widths, *stored)[at[first : first + widths[i]]]]
    return made


def orders(widths: Sequence[int], counts: Iterable[int]) -> list[tuple[str, int]]:
    """Returns the orders in which a file may store the columns of parts of these widths. counts: numbers of heads"""
    some = [n for n in dict.fromkeys(counts) if n > 1 and not any(width % n for width in widths)]
    found = [("parts", 1), *(("heads", n) for n in some)]
    if len(set(widths)) == 1:
        found.append(("numbers", 1))
    return found


def _order(widths: Sequence[int], kind: str, n: int) -> np.ndarray:
    """Returns the columns of parts in the order in which a file stores them."""
    parts = np.split(np.arange(sum(widths)), np.cumsum(widths)[:-1])
    of_heads = [each.reshape(n, -1) for each in parts]
    if kind == "numbers":
        return np.stack(of_heads, axis=-1).ravel()
    return np.concatenate(of_heads, axis=-1).ravel()


#: The functions that edits call, by name.
FUNCTIONS = {each.__name__: each for each in (first_of, split_wrongly)}


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
    for call in frame.outward() if frame else ():
        for name, value in call.arguments.items():
            if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
                found.setdefault(name, value)
            elif _is_stack(value):
                found.setdefault(f"{name}_layers", value["layers"])
    return found


def trees_of_stacks(frame: Frame) -> dict[str, dict[str, Any]]:
    """The weights of the encoder and the decoder among the arguments of a call and of its callers, by name."""
    found: dict[str, dict[str, Any]] = {}
    for call in frame.outward():
        trees = {f"{name}_weights": each for name, each in call.arguments.items() if _is_stack(each)}
        found |= trees if len(trees) > 1 else {}
    return found


def _is_stack(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("layers"), list)


def _of_other_stacks(group: dict[str, Any], trees: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yields the group at the same place in the other stack, such as the encoder's position table in the decoder."""
    own = [path for tree in trees.values() if (path := _path(tree, group)) is not None]
    for path in own:
        for name, tree in trees.items():
            with suppress(KeyError, IndexError):
                other = eval(f"tree{path}", {"tree": tree, "__builtins__": {}})
                if other is not group:
                    yield f"{name}{path}"


def _others(group: dict[str, Any], layers: dict[str, Any]) -> Iterator[str]:
    """Yields the group of the same name in the first layer, the last layer, and the layers beside its own layer."""
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
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, each in pairs:
        if (found := _path(each, group, f"{above}[{name!r}]")) is not None:
            return found
    return None
