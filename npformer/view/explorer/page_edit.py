"""Checks a changed line of a page: only arithmetic with the page's own names and listed NumPy functions is allowed.

The line is parsed, and refused if it contains any syntax or name that is not listed here. In addition, the worker
(`page_worker.py`) runs the changed page in a process with limits.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.view.explorer.changes import ChangeLine

words = str.split
LONGEST = 400  # maximum characters of a statement
NUMPY = frozenset(
    words(
        "abs add arange argmax argsort array broadcast_to ceil clip concatenate cos cosh cumsum diag divide dot "
        "einsum equal exp expm1 eye finfo flip float32 float64 floor full full_like greater hstack identity inf int64 "
        "isfinite less linspace log log1p log2 logaddexp logical_and logical_not logical_or matmul max maximum mean "
        "median min minimum moveaxis multiply nan nan_to_num newaxis ones ones_like outer pi pad power prod repeat "
        "reshape roll round sign sin sinh sort split sqrt square squeeze stack std subtract sum swapaxes "
        "take_along_axis tan tanh tile trace transpose tri tril triu true_divide var vstack where zeros zeros_like"
    )
)
MATH = frozenset(words("ceil cos e erf exp floor inf log log2 pi pow sin sqrt tanh tau"))
OF_ARRAYS = frozenset(
    words(
        "T mT shape dtype ndim size all any argmax argsort astype clip copy cumsum max mean min prod ravel repeat "
        "reshape round squeeze std sum swapaxes transpose var eps"
    )
)
BUILTINS = frozenset(words("abs enumerate float int len list max min range reversed round sum tuple zip"))
NODES = (
    ast.Assign, ast.AugAssign, ast.Return, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call,
    ast.keyword, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Name, ast.Constant,
    ast.Starred, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def changed_page(text: str, changes: Sequence[ChangeLine]) -> str:
    """Returns the page's text with changed lines. Raises NpformerError for a line that is not arithmetic on its names.

    A change names the first line of a statement, and replaces the whole statement.
    """
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    for change in sorted(changes, key=lambda each: -each.line):
        function, old = _statement(tree, change)
        new = _checked(change, function, tree)
        indent = " " * old.col_offset
        end = old.end_lineno or old.lineno
        blank = "\n" * (end - old.lineno + 1)  # other lines keep their numbers
        lines[old.lineno - 1 : end] = [indent + ast.unparse(new) + blank]
    return "".join(lines)


def statements(text: str) -> dict[int, str]:
    """Returns the statements in the page's functions that can be changed: number of the first line -> statement."""
    tree = ast.parse(text)
    found = {}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AugAssign | ast.Return):
                    found[node.lineno] = ast.unparse(node)
    return found


def _statement(tree: ast.Module, change: ChangeLine) -> tuple[ast.FunctionDef, ast.stmt]:
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AugAssign | ast.Return) and node.lineno == change.line:
                    if ast.unparse(node) != change.old:
                        break
                    return function, node
    raise NpformerError(f"line {change.line}: expected a statement of the page, {shown(change.old)}")


def _checked(change: ChangeLine, function: ast.FunctionDef, tree: ast.Module) -> ast.stmt:
    """The new statement."""
    where = f"line {change.line}"
    if len(change.to) > LONGEST:
        raise NpformerError(f"{where}: expected at most {LONGEST} characters, got {len(change.to)}")
    try:
        body = ast.parse(change.to.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NpformerError(f"{where}: {getattr(error, 'msg', 'too deep')}") from None
    if len(body) != 1 or not isinstance(body[0], ast.Assign | ast.AugAssign | ast.Return):
        raise NpformerError(f"{where}: expected one assignment or return, got {shown(change.to)}")
    names = _names(function)
    defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    assigned = [each.targets[0] for each in tree.body if isinstance(each, ast.Assign)]
    defined |= {each.id for each in assigned if isinstance(each, ast.Name)}
    for node in ast.walk(body[0]):
        _check(node, where, names, defined)
    return body[0]


def _names(function: ast.FunctionDef) -> set[str]:
    """Returns the names of a function's parameters and variables."""
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {each.arg for each in listed if each}


def _check(node: ast.AST, where: str, names: set[str], defined: set[str]) -> None:
    if not isinstance(node, NODES):
        raise NpformerError(f"{where}: {type(node).__name__.lower()}: expected only arithmetic and calls of functions")
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | type(None) | type(...)):
        raise NpformerError(f"{where}: expected numbers, got {shown(node.value)}")
    if isinstance(node, ast.Name):
        is_stored = not isinstance(node.ctx, ast.Load)
        if node.id.startswith("_") or (is_stored and (node.id in defined | BUILTINS | {"np", "math"})):
            raise NpformerError(f"{where}: {shown(node.id)}: expected a variable of the function")
        if not is_stored and node.id not in names | defined | BUILTINS | {"np", "math"}:
            raise NpformerError(f"{where}: {shown(node.id)}: expected a name of the page, np or math")
    if isinstance(node, ast.Attribute):
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        allowed = {"np": NUMPY, "math": MATH}.get(of, OF_ARRAYS)
        if node.attr not in allowed or not isinstance(node.ctx, ast.Load):
            raise NpformerError(f"{where}: {shown(node.attr)}: expected an array attribute or a NumPy function")
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        raise NpformerError(f"{where}: expected an assignment to a variable, not into an array that others may share")
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
        raise NpformerError(f"{where}: expected a call of a function by its name")
