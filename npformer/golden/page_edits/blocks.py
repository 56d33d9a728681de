"""Edits that exchange two blocks of a layer, each a residual sum with its norm, such as attention and feed-forward."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from npformer.golden.page_edits.operators import Edit


class Block(NamedTuple):
    """A residual sum x + call(...), and the expression for the weights of the norm before or after this sum."""

    x: ast.Name
    call: ast.Call
    norm: ast.expr | None


def edits(function: ast.FunctionDef, statements: Iterable[ast.stmt]) -> Iterator[list[Edit]]:
    """Yields the edits that exchange two neighbouring blocks of a function, if `statements` has one of their sums."""
    lines = {each.lineno for each in statements}
    blocks = _blocks(function.body)
    for one, other in pairwise(blocks):
        if lines & {one.call.lineno, other.call.lineno}:
            yield [
                Edit(one.call, _renamed(other.call, {other.x.id: one.x.id}), "another order"),
                Edit(other.call, _renamed(one.call, {one.x.id: other.x.id}), "another order"),
                *_of_norms(one.norm, other.norm),
            ]


def _blocks(body: list[ast.stmt]) -> list[Block]:
    """The blocks of a layer in order. Their norms all come before their sums, or all after them."""
    sums = [i for i, each in enumerate(body) if _is_sum(each)]
    after = len(sums) > 0 and sums[-1] + 1 < len(body) and _norm(body[sums[-1] + 1]) is not None
    found = []
    for i in sums:
        value = body[i].value  # type: ignore[attr-defined]
        beside = i + 1 if after else i - 1
        found.append(Block(value.left, value.right, _norm(body[beside]) if 0 <= beside < len(body) else None))
    return found


def _is_sum(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and isinstance(value.left, ast.Name)
        and isinstance(value.right, ast.Call)
        and any(each.arg is None for each in value.right.keywords)
    )


def _norm(statement: ast.stmt) -> ast.expr | None:
    """The expression for the weights of the norm that a statement computes; None if it computes no norm."""
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Call) or "norm" not in ast.unparse(value.func):
        return None
    return next((each.value for each in value.keywords if each.arg is None), None)


def _of_norms(one: ast.expr | None, other: ast.expr | None) -> list[Edit]:
    if one is None or other is None:
        return []
    return [Edit(one, ast.unparse(other), "another order"), Edit(other, ast.unparse(one), "another order")]


def _renamed(call: ast.Call, names: Mapping[str, str]) -> str:
    made = copy.deepcopy(call)
    for each in ast.walk(made):
        if isinstance(each, ast.Name):
            each.id = names.get(each.id, each.id)
    return ast.unparse(made)
