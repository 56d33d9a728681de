"""The edits: each replaces one expression of a function by a text, the commonest mistakes of ports first."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np

#: Kinds of edits, the commonest mistake first. Causes are ranked in this order.
KINDS = (
    "left out", "another size", "another name", "exchanged", "another function", "another axis",
    "another operation", "off by one", "another order", "another value", "another layout", "wrapped", "in later rows",
    "from elsewhere", "rounded",
)  # fmt: skip
#: Kinds of edits that are tried in pairs; pairs of other kinds would fit by chance.
LIKELY = (
    "left out", "another size", "another name", "exchanged", "another function", "another operation", "off by one",
    "another order", "another value", "another layout", "from elsewhere",
)  # fmt: skip
#: Functions that ports confuse.
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "np.tanh", "sigmoid")
SIBLINGS = (
    ACTIVATIONS,
    ("layer_norm", "rms_norm", "gemma_norm"),
    ("np.cos", "np.sin"),
    ("np.floor", "np.ceil", "np.round"),
    ("np.maximum", "np.minimum"),
    ("causal_mask", "full_mask"),
)
OPERATIONS: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Add: ("({l}) - ({r})", "({l}) * ({r})", "2 * ({l}) + ({r})", "({l}) + 2 * ({r})"),
    ast.Sub: ("({l}) + ({r})", "({r}) - ({l})"),
    ast.Mult: ("({l}) / ({r})", "({l}) + ({r})", "({l}) * (1 + ({r}))"),
    ast.Div: ("({l}) * ({r})", "({l}) / ({r}) ** 2", "({r}) / ({l})"),
    ast.Pow: ("({l}) ** -({r})",),
    ast.FloorDiv: ("({l}) // (2 * ({r}))", "({l}) // ({r}) - 1", "({l}) // ({r}) + 1", "({l}) - 1"),
    ast.MatMult: ("({l}).mT @ ({r})",),
}
REVERSED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">", ">="), ast.LtE: ("<", ">="), ast.Gt: (">=", "<", "<="), ast.GtE: (">", "<="),
}  # fmt: skip
#: Values that ports use for eps and other small numbers.
EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 0.0)
#: Bases of rotary frequencies.
BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 160000.0, 1000.0)
#: Wrong orders: columns with halves exchanged, pairs as halves, or halves as pairs; heads reversed, or the first head
#: for all; and numbers transposed but read in the old shape.
COLUMNS = (
    "np.concatenate(np.split({x}, 2, axis=-1)[::-1], axis=-1)",
    "np.concatenate([{x}[..., ::2], {x}[..., 1::2]], axis=-1)",
    "np.stack(np.split({x}, 2, axis=-1), axis=-1).reshape({x}.shape)",
    "{x}[::-1]",
    "{x}[:1]",
    "{x}.mT.reshape({x}.shape)",
)
#: Wrong uses of a mask: after the softmax, or with other numbers.
MASKED = (
    "softmax({0}) * {1}", "softmax({0} * {1})", "softmax({0} + {1})", "softmax(np.where({1}, {0}, 0.0))",
    "softmax(np.where({1}, {0}, -10.0))", "softmax(np.where({1}, {0}, -100.0))", "softmax(np.where({1}, {0}, 1e-9))",
)  # fmt: skip


class Edit(NamedTuple):
    """An edit: an expression's place in the text of a function, the text that replaces it, and its kind.

    only: a part of stage names, such as "ffn", if the function is edited only in calls that compute those stages
    """

    node: ast.expr
    text: str
    kind: str
    only: str = ""

    @property
    def rank(self) -> int:
        return KINDS.index(self.kind)


def is_of_module(node: ast.expr) -> bool:
    """Whether an expression is a module, or a function or type of one, such as np.cos."""
    own = node.value if isinstance(node, ast.Attribute) else node
    return isinstance(own, ast.Name) and own.id in ("np", "math")


def kind_of(value: object) -> str:
    """Describes a value, so that only names of similar values are exchanged; "" is similar to every value."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.kind} array {value.ndim} {value.shape[-1:]}"
    if isinstance(value, dict):
        return f"weights {', '.join(value)}"
    if isinstance(value, list | tuple):
        return f"list of {len(value)}"
    if isinstance(value, bool | str):
        return type(value).__name__
    return type(value).__name__ if isinstance(value, int | float) else "function" if callable(value) else ""


def common_kind(one: str, other: str) -> str:
    """The kind that two kinds of values have in common, for a name with values of both; "" if there is none."""
    if one == other:
        return one
    kinds = {each.partition(" array")[0] + " array" for each in (one, other) if " array" in each}
    return kinds.pop() if len(kinds) == 1 and " array" in one and " array" in other else ""


def are_alike(one: str, other: str) -> bool:
    """Whether a port may confuse two values. The kind of an array may have no shape, as in "f array"."""
    return one == other or "" in (one, other) or ((one.startswith(other) or other.startswith(one)) and " array" in one)


def expressions(statements: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """Yields the expressions in the values of statements, each before its subexpressions."""
    for statement in statements:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.expr):
            yield from (each for each in ast.walk(value) if isinstance(each, ast.expr))


def edits(
    function: ast.FunctionDef, statements: Iterable[ast.stmt], known: Iterable[str], kinds: Mapping[str, str]
) -> Iterator[Edit]:
    """Yields the edits of the expressions in `statements` of a function.

    known: the names of all functions of the page. kinds: the function's variables -> their kinds, from `kind_of`
    """
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    stored = [each for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    names = dict.fromkeys([*(each.arg for each in arguments), *(each.id for each in stored)])
    scope = {name: kinds.get(name, "") for name in names}
    wrappers = [
        each for each in ast.walk(function)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in set(known) and each.args
    ]  # fmt: skip
    seen = set()
    for statement in statements:
        value = getattr(statement, "value", None) or getattr(statement, "iter", None)
        if not isinstance(value, ast.expr):
            continue
        for node in ast.walk(value):
            if not isinstance(node, ast.expr) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                continue
            if isinstance(node, ast.Slice | ast.Starred) or is_of_module(node):
                continue
            own = ast.unparse(node)
            for kind, text in chain(_of_node(node, scope, set(known)), _wrapped(node, wrappers, scope)):
                try:
                    text = ast.unparse(ast.parse(text, mode="eval"))
                except SyntaxError:  # the text is no expression, such as a slice
                    continue
                place = (node.lineno, node.col_offset, node.end_col_offset, text)
                if text != own and place not in seen:
                    seen.add(place)
                    yield Edit(node, text, kind)


def _of_node(node: ast.expr, scope: Mapping[str, str], known: set[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.BinOp):
        yield from _of_operation(node, scope)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, known, scope)
    elif isinstance(node, ast.Name) and node.id in scope:
        yield from _of_name(node.id, scope)
    elif isinstance(node, ast.Name):
        yield from _siblings(node.id)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "left out", ast.unparse(node.operand)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield from (("another operation", f"{left} {sign} {right}") for sign in REVERSED.get(type(node.ops[0]), ()))
    elif isinstance(node, ast.Subscript):
        yield from _of_subscript(node)
    elif isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
        yield "left out", ast.unparse(node.value)
    elif isinstance(node, ast.Tuple | ast.List):
        items = [ast.unparse(each) for each in node.elts]
        for a, b in combinations(range(len(items)), 2):
            yield "exchanged", f"[{', '.join(_swapped(items, a, b))}]"
    if isinstance(node, ast.Attribute | ast.Subscript) and "shape" not in ast.unparse(node):
        yield "another layout", f"({ast.unparse(node)}).T"


def _of_name(name: str, scope: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    own = scope[name]
    alike = [each for each, kind in scope.items() if each != name and are_alike(kind, own)]
    yield from (("another name", each) for each in alike)
    if "mask" in name:
        yield from (("another value", text) for text in (f"~{name}", "True"))
    if "eps" in name:
        yield from (("another value", repr(each)) for each in EPSILONS)
    if own == "" or own == "int" or own.startswith("i array"):
        yield from (("off by one", f"({name} {sign} 1)") for sign in "+-")
    if own.startswith("list"):
        yield from (("left out", f"{name}[{some}]") for some in ("1:", ":-1"))
        yield "exchanged", f"{name}[::-1]"
    if own == "" or "array" in own:
        yield "another layout", f"{name}.mT"
        yield from (("another layout", text.format(x=name)) for text in COLUMNS)


def _wrapped(node: ast.expr, wrappers: list[ast.Call], scope: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Wraps an expression in a call that the function makes elsewhere: for example, values are rotated like keys."""
    if isinstance(node, ast.Name) and not is_float_array(scope.get(node.id, "")):
        return
    if not isinstance(node, ast.Call | ast.Name):
        return
    own = ast.unparse(node)
    for text in dict.fromkeys(
        ast.unparse(ast.Call(each.func, [node, *each.args[1:]], each.keywords)) for each in wrappers
    ):
        if not own.startswith(text.partition("(")[0] + "("):
            yield "wrapped", text
    if isinstance(node, ast.Name) and is_float_array(scope.get(node.id, "")):
        yield from (("wrapped", f"{norm}({own})") for norm in ("layer_norm", "rms_norm"))
        if "eps" in scope:
            yield from (("wrapped", f"{norm}({own}, eps=eps)") for norm in ("layer_norm", "rms_norm"))


def _is_number(node: ast.expr, scope: Mapping[str, str]) -> bool:
    """Whether an expression is a number, or a name of one."""
    return isinstance(node, ast.Constant) or scope.get(ast.unparse(node)) in ("int", "float")


def _of_operation(node: ast.BinOp, scope: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    of_numbers = all(_is_number(each, scope) for each in (node.left, node.right))
    kept = [each for each in (node.left, node.right) if of_numbers or not _is_number(each, scope)]
    yield from (("left out", ast.unparse(each)) for each in kept)
    for text in OPERATIONS.get(type(node.op), ()):
        yield "another operation", text.format(l=left, r=right)
    if isinstance(node.op, ast.Add) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult):
        yield "another order", f"({ast.unparse(node.left.left)} + {right}) * {ast.unparse(node.left.right)}"
    if isinstance(node.op, ast.Div) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.MatMult):
        yield "another size", f"({left}) / math.sqrt(({ast.unparse(node.left.left)}).shape[-1])"
    if isinstance(node.op, ast.MatMult):  # scores that are scaled once more, or whose scale is undone
        for size in ("math.sqrt(({}).shape[-1])", "({}).shape[-1]", "math.sqrt(({}).shape[-2])"):
            yield "another size", f"({left} @ {right}) / {size.format(left)}"
            yield "another size", f"({left} @ {right}) * {size.format(left)}"


def is_float_array(kind: str) -> bool:
    return kind == "" or kind.startswith("f array")


def _siblings(name: str) -> Iterator[tuple[str, str]]:
    """Yields the functions that ports confuse with the function `name`, each with the kind of the edit."""
    for family in SIBLINGS:
        if name in family:
            yield from (("another function", other) for other in family if other != name)


def _of_call(node: ast.Call, known: set[str], scope: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    name, arguments = ast.unparse(node.func), [ast.unparse(each) for each in node.args]
    keywords = [
        f"{each.arg}=" * bool(each.arg) + "**" * (not each.arg) + ast.unparse(each.value) for each in node.keywords
    ]

    def call(function: str, given: list[str], named: list[str] = keywords) -> str:
        return f"{function}({', '.join([*given, *named])})"

    own = call(name, arguments)
    yield from (("left out", each) for each in arguments)
    if arguments:
        yield "another value", call(name, [own, *arguments[1:]])  # applied twice
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in ("np", "math"):
        yield "left out", ast.unparse(node.func.value)
    if name in ("math.sqrt", "np.sqrt"):
        yield "another size", f"({arguments[0]}) ** 2"
        yield from _root(node.args[0])
    for _, other in _siblings(name):
        yield "another function", call(other, arguments)
    if name in scope and "activation" in name:
        yield from (("another function", call(other, arguments)) for other in ACTIVATIONS)
    if name == "masked_softmax" and len(arguments) == 2:
        yield from (("another order", text.format(*arguments)) for text in MASKED)
    for a, b in combinations(range(len(arguments)), 2):
        yield "exchanged", call(name, _swapped(arguments, a, b))
    for i, each in enumerate(keywords):
        others = keywords[:i] + keywords[i + 1 :]
        if each.startswith(("axis=", "eps=", "**")):
            yield "left out", call(name, arguments, others)
        if each.startswith("**"):  # omits the bias of a layer or norm, or reorders the columns of a layer or table
            yield "left out", call(name, [*arguments, f"({each[2:]})['weight']"], others)
            yield from (("another layout", text.format(x=own)) for text in COLUMNS[:3])
        if each == "axis=-1":
            yield "another axis", call(name, arguments, [*keywords[:i], "axis=-2", *keywords[i + 1 :]])
            yield "another axis", call(name, arguments, [*keywords[:i], "axis=None", *keywords[i + 1 :]])
    yield from _of_method(node, name, arguments, keywords)


def _root(inside: ast.expr) -> Iterator[tuple[str, str]]:
    """Adds eps outside the root."""
    if isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Add):
        left, right = ast.unparse(inside.left), ast.unparse(inside.right)
        yield "another order", f"(np.sqrt({left}) + {right})"


def _of_method(node: ast.Call, name: str, arguments: list[str], keywords: list[str]) -> Iterator[tuple[str, str]]:
    of, _, method = name.rpartition(".")
    rest = ", ".join([*arguments, *keywords])
    for pair in (("mean", "sum"), ("max", "min"), ("sum", "max"), ("sum", "mean"), ("var", "std")):
        if method == pair[0]:
            yield "another function", f"{of}.{pair[1]}({rest})"
    if method == "repeat" and "axis=-3" in keywords:
        yield "another layout", f"np.tile({of}, ({arguments[0]}, 1, 1))"
    if method == "var":
        yield "another value", f"{of}.var({rest}, ddof=1)"
    if method == "swapaxes" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        shape = node.func.value.args
        if len(shape) >= 3:
            ends = ", ".join([*map(ast.unparse, shape[:-2]), ast.unparse(shape[-1]), ast.unparse(shape[-2])])
            base = ast.unparse(node.func.value.func)
            yield "another layout", f"np.moveaxis({base}({ends}), -1, -3)"  # neighbouring columns go to different heads
    if name == "np.moveaxis":
        yield "another layout", f"({arguments[0]}).reshape({name}({rest}).shape)"
    if name == "np.split":
        yield "another layout", f"({arguments[0]}[..., ::2], {arguments[0]}[..., 1::2])"


def _of_constant(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield "another value", repr(not value)
    elif isinstance(value, int):
        yield from (("off by one", repr(value + step)) for step in (1, -1))
        yield from (("another value", repr(each)) for each in (2 * value, value + 2))
    elif isinstance(value, float):
        near: tuple[float, ...] = EPSILONS if 0 < value < 1e-2 else (2 * value, value / 2, 1.0, 0.0)
        near = BASES if value >= 1e3 else near
        yield from (("another value", repr(each)) for each in near)


def _of_subscript(node: ast.Subscript) -> Iterator[tuple[str, str]]:
    base = ast.unparse(node.value)
    last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
    if isinstance(last, ast.Slice):
        upper = ast.unparse(last.upper) if last.upper else ""
        lower = ast.unparse(last.lower) if last.lower else ""
        start = "..., " if isinstance(node.slice, ast.Tuple) else ""
        if upper and not lower:
            yield "another layout", f"{base}[{start}-({upper}):]"
    if isinstance(node.slice, ast.Tuple):
        items = [ast.unparse(each) for each in node.slice.elts]
        for a, b in combinations(range(len(items)), 2):
            yield "exchanged", f"{base}[{', '.join(_swapped(items, a, b))}]"
        if items[-2:] == ["0", ":"]:
            yield "another axis", f"{base}[{', '.join(items[:-2])}, :, :].mean(axis=-2)"


def _swapped(items: list[str], a: int, b: int) -> list[str]:
    items = list(items)
    items[a], items[b] = items[b], items[a]
    return items
