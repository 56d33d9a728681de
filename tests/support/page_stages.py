"""Runs a page of `npformer.plain` with every assignment recorded under the name of its stage.

A call with weights, such as `linear(x, **query)`, is a stage of that name, and the names of stages inside it begin with
it. An assignment `scores = ...` is the stage `scores` of the call in which it stands. Both follow from the source, so a
page needs no taps. `edited_pages.py` does the same with mistakes planted in the source.
"""

from __future__ import annotations

import ast
import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from npformer.golden.page_edits.instrumented import OF_FUNCTION, STAGES, WHOLE
from npformer.plain.formulas import combine_heads
from npformer.plain.pages import PAGES, answers


class Recorder(ast.NodeTransformer):
    """Notes the value of each assignment, and passes the name of the weights to each call with weights."""

    function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self.function = self.function, node.name
        self.generic_visit(node)
        self.function = before
        return node

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        self.generic_visit(node)
        if not self.function:
            return [node]
        names = [each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        notes = [f"{name} = _page.note({self.function!r}, {name!r}, {name})" for name in names]
        return [node, *(ast.parse(note).body[0] for note in notes)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        weights = [each.value for each in node.keywords if each.arg is None]
        if not weights:
            return node
        name: ast.expr = ast.Constant(ast.unparse(weights[0]).replace("['", ".").replace("']", ""))
        if isinstance(weights[0], ast.Subscript) and isinstance(weights[0].slice, ast.Name):
            name = weights[0].slice  # a group of this name, such as tables[name]
        return ast.Call(ast.parse("_page.call", mode="eval").body, [name, node.func, *node.args], node.keywords)


class Stages:
    """The stages of an instrumented page, which calls `note` and `call`."""

    axes_before = 0  # axes of a value before those of one text: 1 for a padded batch
    last_layer = math.inf  # a layer that runs after the last one has its name, as a torch module that runs twice

    def __init__(self) -> None:
        self.stages: dict[str, np.ndarray] = {}
        self._scope: list[str] = []
        self._layers: dict[str, int] = {}

    def recorded(self, run: Callable[[], Any]) -> dict[str, np.ndarray]:
        """The stages of one run of the page, by name."""
        self.stages, self._scope, self._layers = {}, [], {}
        run()
        for name in [each for each in self.stages if each.endswith("embeddings.token")]:
            self.stages.setdefault(name.replace("token", "sum"), self.stages[name])  # the sum of a single table
        return self.stages

    def note(self, function: str, name: str, value: Any) -> Any:
        """Records the value of a variable, and returns it."""
        if not isinstance(value, np.ndarray):
            return value
        for stage in STAGES.get(name, (name,)):
            if name in ("tokens", "total") and self._scope[-1:] != ["embeddings"]:
                stage = f"embeddings.{stage}"
            of_function = OF_FUNCTION.get((function, name))
            value = self.keep(of_function or (name if name in WHOLE else ".".join([*self._scope, stage])), value)
        return value

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        """Records a stage. Rotated and normalized queries and keys are heads on a page, and rows in a model."""
        in_heads = value.ndim == 3 + self.axes_before and name.endswith(("_rotated", "_normed"))
        self.stages[name] = combine_heads(value) if in_heads else value
        return value

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with weights, and records the array that it returns, unless it did."""
        with self._in(name):
            own = ".".join(self._scope)
            self.stages.pop(own, None)  # of an earlier run of the same layer
            value = function(*args, **kwargs)
            found = value[0] if isinstance(value, tuple) else value
            if not isinstance(found, np.ndarray) or own in self.stages:
                return value
            kept = self.keep(own, found)
        return (kept, *value[1:]) if isinstance(value, tuple) else kept

    @contextmanager
    def _in(self, name: str) -> Iterator[None]:
        if name == "layer":
            at = ".".join([*self._scope, "layers"])
            self._layers[at] = self._layers.get(at, -1) + 1
            name = f"layers.{min(self._layers[at], self.last_layer)}"
        self._scope.append(name)
        yield
        self._scope.pop()


class Page(Stages):
    """A page and the pages it imports, instrumented."""

    def __init__(self, model_type: str) -> None:
        super().__init__()
        self.modules: dict[str, types.ModuleType] = {}
        self.module = self._load(f"npformer.plain.{PAGES.get(model_type, model_type)}")

    def run(self, model: Any, text: Any) -> dict[str, np.ndarray]:
        """The stages of one text, by name."""
        return self.stages_of(model.config, model.weights, text)

    def stages_of(self, config: Any, weights: Mapping[str, Any], text: Any) -> dict[str, np.ndarray]:
        """As `run`, without a model."""
        return self.recorded(lambda: answers(self.module, config, weights, text))

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if str(getattr(function, "__module__", "")).startswith("npformer.plain."):
            # a function that came as an argument, such as a feed-forward network
            function = getattr(self._load(function.__module__), function.__name__)
        return super().call(name, function, *args, **kwargs)

    def _load(self, name: str) -> types.ModuleType:
        if name in self.modules:
            return self.modules[name]
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        source = Path(spec.origin).read_text(encoding="utf-8")
        module = self.modules[name] = types.ModuleType(name)
        module.__dict__["_page"] = self
        tree = Recorder().visit(ast.parse(source))
        for node in [each for each in tree.body if isinstance(each, ast.ImportFrom)]:
            if str(node.module).startswith("npformer.plain."):
                other = self._load(str(node.module))
                module.__dict__.update({each.asname or each.name: getattr(other, each.name) for each in node.names})
                tree.body.remove(node)
        exec(compile(ast.fix_missing_locations(tree), spec.origin, "exec"), module.__dict__)
        return module
