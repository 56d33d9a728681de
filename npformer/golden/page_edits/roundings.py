"""Edits that round: values in 16 or 8 bits, weights in 8 or 4 bits, and sums in lower precision."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import combinations, product

import numpy as np

from npformer.common.halves import HALVES
from npformer.golden.page_edits.number_formats import FUNCTIONS
from npformer.golden.page_edits.operators import Edit, expressions, is_float_array, is_of_module

SUMS = ("mean", "sum", "var")
WEIGHTS = ("weight", "table")
OF_VALUES = ("float16", "bfloat16", "float8", "int8", "int8_rows", "uint8", "uint8_rows")
#: Formats with a fixed scale: fractions of 1, such as attention weights, and ranges that clip large values.
FIXED = (
    *(f"in_range({{x}}, steps={steps})" for steps in (255, 127, 256, 128, 15)),
    *(f"in_range({{x}}, {largest})" for largest in (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 16.0)),
)
BLOCKS = [f", fused=True, block={n}" for n in (4, 8, 16, 32, 64)]
OF_SUMS = [*product(("", ", fused=True", *BLOCKS), ("", ", operands=False"), ("", ", kind='bfloat16'"))]
#: Calls that compute norms with some steps in 16 bits, and the steps between the first and the last one.
NORMS = {
    "rms_norm": "norm_in_16_bits(x, weight, 0.0, eps, {kind!r}, {steps!r})",
    "gemma_norm": "norm_in_16_bits(x, 1 + weight, 0.0, eps, {kind!r}, {steps!r})",
    "layer_norm": "norm_in_16_bits(x, weight, bias, eps, {kind!r}, {steps!r}, centred=True)",
}
STEPS = ("square", "mean", "sum", "root", "inverse", "normed", "weight")
WHOLE = ("int8", "int8_rows", "int8_columns", "int4_columns")
UNSIGNED = ("uint8", "uint8_columns")
BLOCKS_OF_4_BITS = ("q4_0", "q4_1", "nf4")
#: Number of columns that usually show the format of a weight, and the formats that need all columns.
COLUMNS = 8
NEARLY = 0.95  # share of numbers that must agree, because a number between two steps may be rounded to either
OF_ALL_COLUMNS = ("int8(", "int8_rows(", "uint8(", "tf32(")
#: Numbers of weights in a group with one scale.
SIZES = (8, 16, 32, 64, 128)


def _rounded_weight(own: str) -> Iterator[str]:
    """The roundings of a weight, the commonest first."""
    floats = ("float16", "bfloat16", "tf32", "float8", "float8_e5m2")
    scaled = [*(f"{kind}({own}" for kind in WHOLE), *_groups(own)]
    yield from (f"{kind}({own})" for kind in (*floats, *WHOLE, *UNSIGNED, "q8_0", *BLOCKS_OF_4_BITS))
    yield from (f"{each})" for each in _groups(own))
    yield from (f"uint4_groups({own}, size={size})" for size in SIZES)
    yield from (f"{each}, stored={kind})" for each in scaled for kind in HALVES)
    yield from (f"{each}, toward_zero=True)" for each in (f"bfloat16({own}", *scaled))


def _rounded_value(own: str) -> list[str]:
    """The roundings of a value."""
    fixed = [each.format(x=own) for each in FIXED]
    return [*_calls(OF_VALUES, own), f"bfloat16({own}, toward_zero=True)", *fixed]


def _misread_weight(own: str) -> Iterator[str]:
    """The mistakes in converting a rounded weight back."""
    groups = _groups(own)
    for each in (*(f"{kind}({own}" for kind in WHOLE), *groups):
        half_of_all = 8 if "int4" in each else 128
        yield from (f"{each}, off={steps})" for steps in (1, -1, half_of_all, -half_of_all))
    yield from (f"{each}, strided=True)" for each in groups)
    yield from (f"int8_misscaled({own}{more})" for more in ("", ", axis=1"))
    yield from (f"{kind}({own}, zero_point=False)" for kind in UNSIGNED)
    for size in SIZES:
        yield from (f"uint4_groups({own}, size={size}, {how})" for how in ("zero_point=False", "off_by_one=True"))
    yield from (f"{each}, scale_of={other})" for each in groups for other in (1, -1))
    yield from (f"{one}_read_as_{other}({own})" for one, other in (HALVES, HALVES[::-1]))
    of_4_bits = [f"{each})" for each in (f"int4_columns({own}", *groups) if "int4" in each]
    in_4_bits = [own, *of_4_bits, *_calls(BLOCKS_OF_4_BITS, own)]
    yield from (f"nibbles_{order}({each})" for each in in_4_bits for order in ("swapped", "interleaved", "halved"))


def format_of(theirs: np.ndarray, own: np.ndarray) -> str:
    """Returns the call that turns a weight (in, out) into another program's weight, or "" if no known format does.

    Only formats of single numbers, columns and groups of rows are tried, on a few columns.
    """
    some = np.linspace(0, own.shape[1] - 1, min(COLUMNS, own.shape[1])).astype(int)
    names = {**FUNCTIONS, "weight": own[:, some].astype(np.float64), "__builtins__": {}}
    for text in (*_rounded_weight("weight"), *_misread_weight("weight")):
        if not text.startswith(OF_ALL_COLUMNS):
            made = eval(text, names)
            near = np.abs(theirs[:, some] - made) <= 1e-5 * np.abs(made).max()
            if near.mean() >= NEARLY:
                return text
    return ""


def _groups(own: str) -> list[str]:
    """The beginnings of calls that round groups of a weight."""
    return [f"{kind}_groups({own}, size={size}" for size in SIZES for kind in ("int8", "int4")]


def _calls(functions: Iterable[str], own: str) -> list[str]:
    return [f"{each}({own})" for each in functions]


def misreadings(statements: Iterable[ast.stmt]) -> Iterator[Edit]:
    """Yields the edits that make `statements` convert a rounded weight back wrongly."""
    for node in expressions(statements):
        if isinstance(node, ast.Name) and node.id in WEIGHTS and isinstance(node.ctx, ast.Load):
            yield from (Edit(node, text, "rounded") for text in _misread_weight(node.id))


def edits(statements: Iterable[ast.stmt], kinds: Mapping[str, str], far: bool = False) -> Iterator[Edit]:
    """Yields the edits that make `statements` round a value, a weight or the operands of a product.

    far: whether the error is too large for sums in 16 bits, which are then not tried because they take long
    """
    statements = list(statements)
    results = [getattr(each, "value", None) for each in statements]
    for node in expressions(statements):
        own = ast.unparse(node)
        if is_of_module(node):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if not is_float_array(kinds.get(node.id, "")):
                continue
            texts: Iterable[str] = _rounded_weight(own) if own in WEIGHTS else _rounded_value(own)
        elif isinstance(node, ast.BinOp | ast.Call):
            texts = _rounded_value(own) if node in results else _calls(HALVES, own)
        else:
            continue
        yield from (Edit(node, text, "rounded") for text in texts)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            first, rest = ast.unparse(node.args[0]), [*node.args[1:], *node.keywords]
            more = "".join(f", {ast.unparse(each)}" for each in rest)
            yield from (Edit(node, f"{kind}({node.func.id}({kind}({first}){more}))", "rounded") for kind in HALVES)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SUMS:
            narrow = ast.Call(ast.Name("sums_in_float16"), [node.func.value], [])
            called = ast.Call(ast.Attribute(narrow, node.func.attr), node.args, node.keywords)
            yield Edit(node, ast.unparse(called), "rounded")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            yield from (
                Edit(node, f"{kind}({left}) @ {kind}({right})", "rounded")
                for kind in ("float16", "bfloat16", "tf32", "int8", "float8", "sums_in_float16")
            )
            for how in () if far else OF_SUMS:
                yield Edit(node, f"product_in_16_bits({left}, {right}{''.join(how)})", "rounded")
            yield Edit(node, f"int8_rows({left}) @ int8_columns({right})", "rounded")


def of_norms(name: str, statements: Iterable[ast.stmt]) -> Iterator[list[Edit]]:
    """Yields the edits that compute a norm with some steps in 16 bits, the most steps first."""
    returned = [each.value for each in statements if isinstance(each, ast.Return) and each.value is not None]
    if name not in NORMS or not returned:
        return
    some = [each for n in range(len(STEPS), -1, -1) for each in combinations(STEPS, n)]
    for kind, chosen, ends in product(HALVES, some, (("x", "result"), ("result",), ())):
        steps = " ".join([*chosen, *ends])
        if steps and ("inverse" not in chosen or "root" in chosen):
            yield [Edit(returned[0], NORMS[name].format(kind=kind, steps=steps), "rounded")]


class _InHalf(ast.NodeTransformer):
    """Rounds the result of every operation and of every call that computes new numbers."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def _rounded(self, node: ast.expr) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(ast.Name(self.kind, ast.Load()), [node], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._rounded(node) if "shape" not in ast.unparse(node.left) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        computes = isinstance(node.func, ast.Name) or name.startswith("np.") or name.endswith(SUMS)
        return self._rounded(node) if computes else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node


def of_all_values(statements: Iterable[ast.stmt]) -> Iterator[list[Edit]]:
    """Yields the edits that together compute some statements of a function in 16 bits, each result rounded."""
    values = [each.value for each in statements if isinstance(each, ast.Assign | ast.Return)]
    nodes = [each for each in values if isinstance(each, ast.BinOp | ast.Call)]
    for kind in HALVES if len(nodes) > 1 else ():
        yield [Edit(each, ast.unparse(_InHalf(kind).visit(deepcopy(each))), "rounded") for each in nodes]
