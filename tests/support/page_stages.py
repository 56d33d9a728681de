"""Runs a page of `npformer.plain` with every assignment recorded under the name of its stage, and with planted edits.

A call with weights, such as `linear(x, **query)`, is a stage of that name, and the names of stages inside it begin with
it. An assignment `scores = ...` is the stage `scores` of the call in which it stands. Both follow from the source, so a
page needs no taps. An edit replaces one place of the source: a port with a mistake is a page with an edit.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from npformer.plain.pages import PAGES, answers

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


class _Recorded(ast.NodeTransformer):
    """Adds a note after each assignment, and the name of the weights to each call with weights."""

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
        notes = [f"_page.note({self.function!r}, {name!r}, {name})" for name in names]
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


class Page:
    """A page and the pages it imports, instrumented. edits: text that occurs once in one of them -> its replacement."""

    def __init__(self, model_type: str, edits: dict[str, str] | None = None) -> None:
        self.edits = dict(edits or {})
        self.modules: dict[str, types.ModuleType] = {}
        self.stages: dict[str, np.ndarray] = {}
        self._scope: list[str] = []
        self._layers: dict[str, int] = {}
        self.module = self._load(f"npformer.plain.{PAGES.get(model_type, model_type)}")
        assert not self.edits, f"found in no page: {list(self.edits)}"

    def run(self, model: Any, text: Any) -> dict[str, np.ndarray]:
        """The stages of one text, by name."""
        return self.stages_of(model.config, model.weights, text)

    def stages_of(self, config: Any, weights: Mapping[str, Any], text: Any) -> dict[str, np.ndarray]:
        """As `run`, without a model."""
        self.stages, self._scope, self._layers = {}, [], {}
        answers(self.module, config, weights, text)
        for name in [each for each in self.stages if each.endswith("embeddings.token")]:
            self.stages.setdefault(name.replace("token", "sum"), self.stages[name])  # the sum of a single table
        return self.stages

    def note(self, function: str, name: str, value: Any) -> None:
        if not isinstance(value, np.ndarray):
            return
        for stage in STAGES.get(name, (name,)):
            if name in ("tokens", "total") and self._scope[-1:] != ["embeddings"]:
                stage = f"embeddings.{stage}"
            of_function = OF_FUNCTION.get((function, name))
            self.stages[of_function or (name if name in WHOLE else ".".join([*self._scope, stage]))] = value

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        own = str(getattr(function, "__module__", "")).startswith("npformer.plain.")
        if own:  # a function that came as an argument, such as a feed-forward network
            function = getattr(self._load(function.__module__), function.__name__)
        with self._in(name):
            value = function(*args, **kwargs)
            found = value[0] if isinstance(value, tuple) else value
            if isinstance(found, np.ndarray):
                self.stages.setdefault(".".join(self._scope), found)
        return value

    @contextmanager
    def _in(self, name: str) -> Iterator[None]:
        if name == "layer":
            at = ".".join([*self._scope, "layers"])
            self._layers[at] = self._layers.get(at, -1) + 1
            name = f"layers.{self._layers[at]}"
        self._scope.append(name)
        yield
        self._scope.pop()

    def _load(self, name: str) -> types.ModuleType:
        if name in self.modules:
            return self.modules[name]
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        source = Path(spec.origin).read_text(encoding="utf-8")
        for old in [each for each in self.edits if source.count(each) == 1]:
            source = source.replace(old, self.edits.pop(old))
        module = self.modules[name] = types.ModuleType(name)
        module.__dict__["_page"] = self
        tree = _Recorded().visit(ast.parse(source))
        for node in [each for each in tree.body if isinstance(each, ast.ImportFrom)]:
            if str(node.module).startswith("npformer.plain."):
                other = self._load(str(node.module))
                module.__dict__.update({each.asname or each.name: getattr(other, each.name) for each in node.names})
                tree.body.remove(node)
        exec(compile(ast.fix_missing_locations(tree), spec.origin, "exec"), module.__dict__)
        return module
