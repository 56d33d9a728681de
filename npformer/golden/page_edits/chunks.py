"""Edits for a text that is read in chunks: mistakes in the second chunk, and in the keys cached from the first."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from npformer.golden.page_edits import elsewhere
from npformer.golden.page_edits.case import Case
from npformer.golden.page_edits.operators import BASES, LIKELY, Edit, expressions

#: Arrays that a program may have cached instead of the keys or values before a chunk. q8_0 and q4_0 round columns, so
#: rows are transposed for them.
EARLIER = (
    "0 * {own}", "np.roll({own}[..., :start, :], 1, axis=-2)", "np.roll({own}[..., :start, :], -1, axis=-2)",
    "float16({own})", "bfloat16({own})", "float8({own})", "int8_rows({own})", "int8({own})", "int8_columns({own})",
    "q8_0({own}.mT).mT", "q4_0({own}.mT).mT",
)  # fmt: skip
#: Arrays of a program that writes a chunk's rows one row too early, or not at all.
OF_CACHES = ("k", "v", "each")  # beginnings of the names of keys and values
MISPLACED = ("one_row_early({own})", "unwritten({own})")
#: The windows of a program whose steps see one token more or one fewer.
REACHES = tuple(f"(reach {sign} (np.arange(len(positions)) >= start)[:, None])" for sign in "+-")
#: Positions of a cache that begins again after its last slot, or writes all later tokens to one slot.
SLOTS = ("{own} % start", "np.minimum({own}, start)", "np.minimum({own}, start - 1)")
#: Changes of later positions: those of the chunk alone, off by some, or after a prompt that is padded to some length.
CHANGES = (
    "- start", "- 1", *(f"+ {n}" for n in range(1, 9)), *(f"+ {n} - start" for n in (16, 32, 64, 128, 256, 512, 1024)),
)  # fmt: skip
#: Stages of other layers whose rows a program may have cached.
KEPT = ("key_heads", "value_heads", "key_rotated", "key_normed", "key", "value")


def _heads_of(name: str, array: np.ndarray) -> str:
    return f"stages[{name!r}]" if array.ndim > 2 else f"split_heads(stages[{name!r}], {{own}}.shape[-3])"


def _other_caches(stages: Mapping[str, np.ndarray]) -> Iterator[str]:
    """The keys and values of other layers before a chunk, as if layers shared a cache."""
    for name in stages:
        group, _, last = name.rpartition(".")
        values = f"{group}.value"
        if last in ("key", "key_rotated") and values in stages and (last != "key" or f"{name}_rotated" not in stages):
            pairs = ((name, "keys"), (values, "values"))
            read = [f"before_start({_heads_of(each, stages[each]).format(own=own)}, {own})" for each, own in pairs]
            yield f"[{', '.join(read)}]"


def _is_of_heads(kind: str) -> bool:
    """Whether a value is an array of heads."""
    return kind in ("", "f array") or kind.startswith("f array 3")


def edits(case: Case, function: str, statements: Iterable[ast.stmt]) -> Iterator[Edit]:
    """Yields edits of `statements` that change only the rows from `start` on, each text's first wrong row."""
    frame = case.call_of(function)
    arguments = frame.arguments if frame else {}
    kinds = case.page.kinds.get(function, {})
    calls = [each for each in ast.walk(case.page.functions[function]) if isinstance(each, ast.Call) and each.args]
    of_layers = [_heads_of(name, array) for name, array in case.stages[0].items() if name.endswith(KEPT)]
    again = [
        ast.unparse(ast.Call(each.func, [ast.Name("{own}"), *each.args[1:]], each.keywords)).replace("'", '"')
        for each in calls
        if isinstance(each.func, ast.Name) and each.func.id.startswith("rotate")
    ]
    for node, text in unscaled_rotations(statements):
        yield Edit(node, f"before_start({ast.unparse(node)}, {text})", "in later rows")
    for node in expressions(statements):
        own = ast.unparse(node)
        array = arguments.get(own) if isinstance(node, ast.Name) else None
        of_masks = isinstance(node, ast.Call) and own.startswith(("causal_mask(", "causal_window_mask("))
        if of_masks or (isinstance(array, np.ndarray) and array.dtype == bool and array.ndim > 1):
            yield from (Edit(node, text, "in later rows") for text in _masks(own))
        elif are_positions(node, arguments):
            yield Edit(node, f"{own} - start", "in later rows")
            for slots in SLOTS:
                yield Edit(node, slots.format(own=own), "in later rows")
            for change in CHANGES:
                later = f"np.where(np.arange(len({own})) < start, {own}, {own} {change})"
                yield Edit(node, later, "in later rows")
        elif isinstance(node, ast.Call) and own.startswith("rotate"):
            first, *rest = map(ast.unparse, node.args)
            yield Edit(node, f"before_start({own}, {first})", "in later rows")
            if rest == ["*angles"]:
                function = ast.unparse(node.func)
                for step in (-1, 1):  # the angles of the next or previous position
                    turned = f"{function}({first}, *(np.roll(each, {step}, axis=-2) for each in angles))"
                    yield Edit(node, f"before_start({own}, {turned})", "in later rows")
                for slots in SLOTS:  # the angles of slots of a cache
                    at = slots.format(own="np.arange(each.shape[-2])")
                    yield Edit(node, f"{function}({first}, *(each[..., {at}, :] for each in angles))", "in later rows")
        elif own == "reach":
            yield from (Edit(node, text, "in later rows") for text in REACHES)
        elif isinstance(node, ast.Tuple) and own == "(keys, values)":
            yield from (Edit(node, text, "in later rows") for text in _other_caches(case.stages[0]))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _is_of_heads(kinds.get(own, "")):
            for early in (*EARLIER, *again, *of_layers):
                yield Edit(node, f"before_start({early}, {{own}})".format(own=own), "in later rows")
            if own.startswith(OF_CACHES):
                yield from (Edit(node, text.format(own=own), "in later rows") for text in MISPLACED)
        for other in elsewhere.of_other_layers(case, function, node):
            yield Edit(node, f"before_start({own}, {other})", "in later rows")


def of_later_rows(edit: Edit) -> Edit | None:
    """Restricts an edit to the rows from the first wrong row on; None if its expression cannot have such rows."""
    if edit.kind not in LIKELY or not isinstance(edit.node, ast.BinOp | ast.Call | ast.Name):
        return None
    return Edit(edit.node, f"before_start({ast.unparse(edit.node)}, {edit.text})", "in later rows")


def unscaled_rotations(statements: Iterable[ast.stmt]) -> Iterator[tuple[ast.expr, str]]:
    """Products of positions and rotary frequencies, with texts of the products without scaled frequencies."""
    for node in expressions(statements):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            if left.startswith("positions") and right.startswith("frequencies"):
                for base in ("", *(f", {each}" for each in BASES)):
                    yield node, f"{left} * unscaled({right}{base})"


def are_positions(node: ast.expr, arguments: Mapping[str, Any]) -> bool:
    """Whether an expression computes, or is an argument with, the positions of a text's tokens."""
    own = ast.unparse(node)
    if own.startswith("np.arange(") and any(each in own for each in ("len(", "shape", "length")):
        return True
    array = arguments.get(own) if isinstance(node, ast.Name) else None
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind == "i" and "ids" not in own


def _masks(own: str) -> Iterator[str]:
    """Yields wrong masks of the second chunk: aligned to the top left, without each token's own key, without the first
    chunk, without the first chunk's last key (as if overwritten), and with all keys."""
    shape = f"*({own}).shape[-2:]"
    yield f"{own} & np.tri({shape}, -start, dtype=bool)"
    yield f"{own} & np.tri({shape}, -1, dtype=bool)"
    yield f"{own} & (np.arange(({own}).shape[-1]) >= start)"
    yield f"{own} & (np.arange(({own}).shape[-1]) != start - 1)"
    yield f"{own} | True"
