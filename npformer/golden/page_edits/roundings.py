"""Edits that round: values in 16 or 8 bits, weights in 8 or 4 bits, and sums in lower precision."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np

from npformer.common.halves import HALVES, half
from npformer.golden.mistakes.precision import quantized, tf32
from npformer.golden.page_edits.operators import Edit, expressions, is_float_array, is_of_module


def _of_floats(kind: str) -> Callable[[Any], np.ndarray]:
    return lambda x: half(kind, np.asarray(x, np.float32)).astype(np.float64)


_float16 = _of_floats("float16")


def float8(x: np.ndarray, largest: float = 448.0, fraction: int = 3, least: int = -6) -> np.ndarray:
    """Rounds to a sign, four bits of exponent and three of fraction, and converts back."""
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**least)))
    step = 2.0 ** (exponent - fraction)
    return np.clip(np.rint(x / step) * step, -largest, largest)


def in_groups(x: np.ndarray, quantise: Callable[[np.ndarray], np.ndarray], size: int = 32) -> np.ndarray:
    """Rounds groups of consecutive numbers of each column, which a linear layer reads as one row of torch's weight."""
    columns = x.mT if x.ndim > 1 else x
    groups = [columns[..., at : at + size] for at in range(0, columns.shape[-1], size)]
    made = np.concatenate([quantise(each) for each in groups], axis=-1)
    return made.mT if x.ndim > 1 else made


def _steps(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.divide(x, step, out=np.zeros_like(x), where=step != 0)


def q8_0(group: np.ndarray) -> np.ndarray:
    """ggml's format of 8 bits: the largest absolute value is step 127. Scales are stored in float16."""
    scale = np.abs(group).max(axis=-1, keepdims=True) / 127
    return np.rint(_steps(group, scale)) * _float16(scale)


def q4_0(group: np.ndarray) -> np.ndarray:
    """ggml's format of 4 bits: the number of largest absolute value is step -8. Scales are stored in float16."""
    at = np.abs(group).argmax(axis=-1)[..., None]
    scale = np.take_along_axis(group, at, axis=-1) / -8
    return (np.clip(np.floor(_steps(group, scale) + 8.5), 0, 15) - 8) * _float16(scale)


def q4_1(group: np.ndarray) -> np.ndarray:
    """ggml's format of 4 bits with a minimum. Scales and minima are stored in float16."""
    low = group.min(axis=-1, keepdims=True)
    scale = (group.max(axis=-1, keepdims=True) - low) / 15
    return np.clip(np.floor(_steps(group - low, scale) + 0.5), 0, 15) * _float16(scale) + _float16(low)


#: The levels of bitsandbytes' NF4: quantiles of a normal distribution. Dettmers et al., 2023, QLoRA, appendix E.
NF4 = np.array(
    [
        -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
        0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
    ]
)  # fmt: skip


def nf4(group: np.ndarray) -> np.ndarray:
    """The nearest of 16 levels, times the largest absolute value."""
    scale = np.abs(group).max(axis=-1, keepdims=True)
    return NF4[np.abs(_steps(group, scale)[..., None] - NF4).argmin(-1)] * scale


def sums_in_float16(x: np.ndarray) -> np.ndarray:
    """Converts an array so that NumPy computes its sums in float16."""
    return np.asarray(x, np.float16)


#: Names that edits call -> the functions. int8 has one scale for an array, and the others have one for each row,
#: column or group of 32 numbers.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "float16": _float16,
    "bfloat16": _of_floats("bfloat16"),
    "tf32": tf32,
    "float8": float8,
    "int8": lambda x, stored=None: quantized(x, stored=stored),
    "int8_rows": lambda x: quantized(x, -1),
    "int8_columns": lambda x, stored=None: quantized(x, -2, stored=stored),
    "uint8": lambda x: quantized(x, None, 0),
    "uint8_columns": lambda x: quantized(x, -2, 0),
    "int4_columns": lambda x, stored=None: quantized(x, -2, 7, 4, stored),
    "q8_0": partial(in_groups, quantise=q8_0),
    "q4_0": partial(in_groups, quantise=q4_0),
    "q4_1": partial(in_groups, quantise=q4_1),
    "int8_groups": lambda x, stored=None, size=32: in_groups(x, lambda x: quantized(x, -1, stored=stored), size),
    "int4_groups": lambda x, stored=None, size=32: in_groups(x, lambda x: quantized(x, -1, 7, 4, stored), size),
    "nf4": partial(in_groups, quantise=nf4, size=64),
    "sums_in_float16": sums_in_float16,
}
SUMS = ("mean", "sum", "var")
OF_VALUES = ("float16", "bfloat16", "float8", "int8", "int8_rows")
OF_WEIGHTS = tuple(name for name in FUNCTIONS if name != "sums_in_float16")
#: Types with groups of several sizes, and types whose scales ports store in 16 bits.
WITH_GROUPS = ("int8_groups", "int4_groups")
WITH_SCALES = ("int8", "int8_columns", "int4_columns", *WITH_GROUPS)


def edits(statements: Iterable[ast.stmt], kinds: Mapping[str, str]) -> Iterator[Edit]:
    """Yields the edits of some statements that round a value, a weight or the operands of a product."""
    for node in expressions(statements):
        if is_of_module(node):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if not is_float_array(kinds.get(node.id, "")):
                continue
            types = OF_WEIGHTS if node.id in ("weight", "table") else OF_VALUES
        elif isinstance(node, ast.BinOp | ast.Call):
            types = ("float16", "bfloat16")
        else:
            continue
        text = ast.unparse(node)
        yield from (Edit(node, f"{kind}({text})", "rounded") for kind in types)
        if types is OF_WEIGHTS:
            for rest in (", float16", ", bfloat16"):
                yield from (Edit(node, f"{kind}({text}{rest})", "rounded") for kind in WITH_SCALES)
            for size in (64, 128):
                yield from (Edit(node, f"{kind}({text}, size={size})", "rounded") for kind in WITH_GROUPS)
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
            yield Edit(node, f"int8_rows({left}) @ int8_columns({right})", "rounded")


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
