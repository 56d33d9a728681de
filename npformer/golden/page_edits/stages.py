"""Records the stages of a page: every assignment and every call with weights, under the names of a golden file.

A call with weights, such as `linear(x, **query)`, is a stage of that name, and the names of stages inside it begin with
it. An assignment `scores = ...` is the stage `scores` of the call that contains it. Both follow from the source, so a
page needs no taps.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from npformer.plain.formulas import combine_heads

#: Name of a variable -> stages, where they differ. A rotated query is the query that attention splits into heads.
STAGES = {
    "total": ("sum",),
    "tokens": ("token",),
    "activated": ("activation",),
    "query_rotated": ("query_rotated", "query_heads"),
    "key_rotated": ("key_rotated", "key_heads"),
}
#: Function and variable -> stage, for functions whose weights come in a dict of several groups.
OF_FUNCTION = {
    ("predict_words", "activated"): "head.activation",
    ("transform", "activated"): "head.activation",
    ("find_replaced", "activated"): "head.activation",
    ("translate", "scaled"): "head.scaled",
}
#: Stages of a whole model.
WHOLE = {"pooled", "logits", "start_logits", "end_logits"}


def group_of(node: ast.AST) -> ast.expr | None:
    """The name of the weights that a call gets by `**`; None if it gets none."""
    weights = [each.value for each in node.keywords if each.arg is None] if isinstance(node, ast.Call) else []
    if not weights:
        return None
    if isinstance(weights[0], ast.Subscript) and isinstance(weights[0].slice, ast.Name):
        return weights[0].slice  # a group of this name, such as tables[name]
    return ast.Constant(ast.unparse(weights[0]).replace("['", ".").replace("']", ""))


class Recorder(ast.NodeTransformer):
    """Makes each function record its calls and assignments, and passes the weights' name to calls with weights."""

    function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self.function = self.function, node.name
        self.generic_visit(node)
        self.function = before
        rest = f", {node.args.kwarg.arg!r}" if node.args.kwarg else ""
        node.body.insert(0, ast.parse(f"_page.enter(dict(locals()){rest})").body[0])
        return node

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        self.generic_visit(node)
        if not self.function:
            return [node]
        names = [each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        notes = [ast.parse(f"{each} = _page.note({self.function!r}, {each!r}, {each})").body[0] for each in names]
        for note in notes:
            for each in ast.walk(note):
                ast.copy_location(each, node)
        return [node, *notes]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if (name := group_of(node)) is None:
            return node
        called = ast.Call(ast.parse("_page.call", mode="eval").body, [name, node.func, *node.args], node.keywords)
        return ast.copy_location(called, node)


class Stages:
    """The stages of an instrumented page, which calls `enter`, `note` and `call`."""

    axes_before = 0  # number of batch axes before the axes of a text: 1 for a padded batch
    last_layer = math.inf  # a run after the last layer counts as that layer, like a torch module called twice

    def __init__(self) -> None:
        self.start()

    def start(self, scope: tuple[str, ...] = ()) -> None:
        """Forgets the stages of earlier runs. scope: where the names of stages begin."""
        self.stages: dict[str, np.ndarray] = {}
        self.scope = [*scope]
        self.layers: dict[str, int] = {}

    def recorded(self, run: Callable[[], Any]) -> dict[str, np.ndarray]:
        """The stages of one run of the page, by name."""
        self.start()
        run()
        for name in [each for each in self.stages if each.endswith("embeddings.token")]:
            self.stages.setdefault(name.replace("token", "sum"), self.stages[name])  # of one table alone
        return self.stages

    # --- called by the page ---

    def enter(self, arguments: dict[str, Any], rest: str = "") -> None:
        """Called when a function is entered. rest: the name of its parameter for other keywords, if it has one."""

    def note(self, function: str, name: str, value: Any) -> Any:
        """Records the value of a variable, and returns it."""
        if isinstance(value, np.ndarray):
            for stage in self.stages_of_variable(function, name):
                value = self.keep(stage, value)
        return value

    def stages_of_variable(self, function: str, name: str) -> list[str]:
        """The names of the stages that a variable contains."""
        found = []
        for stage in STAGES.get(name, (name,)):
            if name in ("tokens", "total") and self.scope[-1:] != ["embeddings"]:
                stage = f"embeddings.{stage}"
            own = name if name in WHOLE else ".".join([*self.scope, stage])
            found.append(OF_FUNCTION.get((function, name), own))
        return found

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        """Records a stage. Rotated and normalized queries and keys are heads on a page, and rows in a model."""
        in_heads = value.ndim == 3 + self.axes_before and name.endswith(("_rotated", "_normed"))
        self.stages[name] = combine_heads(value) if in_heads else value
        return value

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with weights, and records the array that it returns, unless the function recorded it."""
        with self._in(name):
            own = ".".join(self.scope)
            self.stages.pop(own, None)  # drops the array of an earlier run of the layer
            value = function(*args, **kwargs)
            found = value[0] if isinstance(value, tuple) else value
            if not isinstance(found, np.ndarray) or own in self.stages:
                return value
            kept = self.keep(own, found)
        return (kept, *value[1:]) if isinstance(value, tuple) else kept

    @contextmanager
    def _in(self, name: str) -> Iterator[None]:
        if name == "layer":
            at = ".".join([*self.scope, "layers"])
            self.layers[at] = self.layers.get(at, -1) + 1
            name = f"layers.{min(self.layers[at], self.last_layer)}"
        self.scope.append(name)
        yield
        self.scope.pop()
