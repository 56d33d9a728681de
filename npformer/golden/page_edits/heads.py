"""Edits of queries, keys and values before attention: the order of their columns in heads, and the scale of a bias."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np

from npformer.golden.page_edits.case import Case
from npformer.golden.page_edits.operators import Edit, expressions

PROJECTIONS = ("query", "key", "value")


def edits(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[Edit]:
    """Yields the edits of `statements` in a function that projects rows to queries, keys and values."""
    frame = case.call_of(function)
    if frame is None or not isinstance(frame.arguments.get("query"), dict):
        return
    has_bias, of_heads = "bias" in frame.arguments["query"], counts(frame.arguments)
    for node in expressions(statements):
        if isinstance(node, ast.Name) and node.id.startswith("query_") and has_bias:
            scale = f"math.sqrt({node.id}.shape[-1])"
            bias = f"heads_like(query['bias'][None], {node.id})"
            for factor in (f"({scale} - 1)", f"(1 / {scale} - 1)"):  # a bias that is not scaled, or is scaled twice
                yield Edit(node, f"{node.id} + {factor} * {bias}", "another order")
        elif isinstance(node, ast.Call) and _projects(node):
            own = ast.unparse(node)
            for one, other in product(of_heads, repeat=2):
                if one != other:
                    yield Edit(node, f"pairs_as_halves(halves_as_pairs({own}, {one}), {other})", "another layout")
            for count in of_heads:
                yield Edit(node, f"halves_as_pairs({own}, {count})", "another layout")
                yield Edit(node, f"pairs_as_halves({own}, {count})", "another layout")


def _projects(node: ast.Call) -> bool:
    """Whether a call multiplies by the weights of queries, keys or values."""
    return any(each.arg is None and ast.unparse(each.value) in PROJECTIONS for each in node.keywords)


def counts(arguments: dict[str, Any]) -> list[int]:
    """The numbers of heads that a call has as arguments, each once."""
    found = arguments.get("heads", arguments.get("n_heads", ()))
    return list(dict.fromkeys(found if isinstance(found, list | tuple) else [found]))


def halves_as_pairs(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Puts columns i and i + K / 2 of each head next to one another, as for rotations of pairs, (..., L, H K)."""
    heads = rows.reshape(*rows.shape[:-1], n_heads, 2, -1)
    return heads.swapaxes(-1, -2).reshape(rows.shape)


def pairs_as_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """The inverse of `halves_as_pairs`."""
    heads = rows.reshape(*rows.shape[:-1], n_heads, -1, 2)
    return heads.swapaxes(-1, -2).reshape(rows.shape)


#: The functions that edits call, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {each.__name__: each for each in (halves_as_pairs, pairs_as_halves)}
