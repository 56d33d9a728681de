"""Runs the source of a page with every named stage recorded, and each call of its functions with its arguments.

A call with weights, such as `linear(x, **query)`, is a stage of that name, and the names of stages inside it begin with
it. An assignment `scores = ...` is the stage `scores` of the call in which it stands.
"""

from __future__ import annotations

import ast
import copy
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npformer.golden.page_edits.operators import common_kind, kind_of
from npformer.golden.page_edits.roundings import FUNCTIONS
from npformer.plain import formulas
from npformer.plain.gemma import gemma_norm

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


#: Functions that a page may not have, and edits may call.
OTHERS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (formulas.gelu, formulas.gelu_tanh, formulas.relu, formulas.silu)},
    **{each.__name__: each for each in (formulas.softmax, formulas.layer_norm, formulas.rms_norm)},
    **{each.__name__: each for each in (formulas.causal_mask, formulas.full_mask, gemma_norm)},
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


class Recorder(ast.NodeTransformer):
    """Notes calls and assignments of each function, and passes the name of the weights to each call with weights."""

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
        weights = [each.value for each in node.keywords if each.arg is None]
        if not weights:
            return node
        name: ast.expr = ast.Constant(ast.unparse(weights[0]).replace("['", ".").replace("']", ""))
        if isinstance(weights[0], ast.Subscript) and isinstance(weights[0].slice, ast.Name):
            name = weights[0].slice  # a group of this name, such as tables[name]
        called = ast.Call(ast.parse("_page.call", mode="eval").body, [name, node.func, *node.args], node.keywords)
        return ast.copy_location(called, node)


@dataclass(eq=False)
class Frame:
    """A call of a page's function: its arguments, its caller, and where the names of its stages begin."""

    function: str
    arguments: dict[str, Any]
    caller: Frame | None
    line: int  # of the call in the caller
    scope: tuple[str, ...]
    layers: dict[str, int]
    settled: set[int] = field(default_factory=set)  # lines whose assignments are stages of the other program


class Reached(Exception):
    """The page has made the wanted stage."""


class Page:
    """A page's source, compiled so that its runs are recorded; functions can be replaced."""

    def __init__(self, source: str) -> None:
        self.source, self.lines = source, source.splitlines()
        self.functions = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
        self.module = types.ModuleType("page")
        self.module.__dict__.update(_page=self, math=math, **OTHERS, **FUNCTIONS)
        exec(
            compile(ast.fix_missing_locations(Recorder().visit(ast.parse(source))), "<page>", "exec"),
            self.module.__dict__,
        )
        self.kinds: dict[str, dict[str, str]] = {}  # of the variables of each function
        self._trees: dict[str, ast.Module] = {}
        self._found: dict[str, dict[tuple[Any, ...], tuple[ast.AST, str, int | None]]] = {}
        self._start(frozenset(), "")

    def _start(self, exported: frozenset[str], until: str, scope: tuple[str, ...] = ()) -> None:
        self.stages: dict[str, np.ndarray] = {}
        self.exported, self.until, self.scope = exported, until, [*scope]
        self.layers: dict[str, int] = {}
        self.frames: dict[types.FrameType, Frame] | None = None
        self.found: Frame | None = None
        self.line = 0  # of the statement that makes the stage, in its call

    def record(self, run: Callable[[types.ModuleType], Any], exported: frozenset[str], until: str) -> list[Frame]:
        """Runs the page up to a stage, and returns its calls so far; `found` is the one that makes the stage."""
        self._start(exported, until)
        self.frames = {}
        with np.errstate(all="ignore"), suppress(Reached):
            run(self.module)
        frames = list(self.frames.values())
        self.frames = None
        return frames

    def again(self, frame: Frame, exported: frozenset[str], until: str) -> dict[str, np.ndarray]:
        """The stages of a call, run again from its arguments up to a stage."""
        self._start(exported, until, frame.scope)
        self.layers = dict(frame.layers)
        with np.errstate(all="ignore"), suppress(Reached):
            value = self.module.__dict__[frame.function](**frame.arguments)
            if isinstance(value, np.ndarray):
                self.stages.setdefault(".".join(frame.scope), value)
        return self.stages

    @contextmanager
    def replaced(self, name: str, node: ast.expr, text: str) -> Iterator[None]:
        """The page with an expression of a function replaced; those who hold the function run the edited one, too."""
        held = self.module.__dict__[name]
        while hasattr(held, "__wrapped__"):
            held = held.__wrapped__
        places = self._places(name)
        parent, key, index = places[_place(node)]
        new = Recorder().visit(ast.parse(text, mode="eval").body)
        for each in ast.walk(new):
            ast.copy_location(each, node)
        old = getattr(parent, key)
        setattr(parent, key, new if index is None else [*old[:index], new, *old[index + 1 :]])
        made: dict[str, Any] = {}
        before = held.__code__
        try:
            exec(compile(self._trees[name], "<page>", "exec"), self.module.__dict__, made)
            held.__code__ = made[name].__code__
            yield
        finally:
            setattr(parent, key, old)
            held.__code__ = before

    def _places(self, name: str) -> dict[tuple[Any, ...], tuple[ast.AST, str, int | None]]:
        """Place of an expression in the text -> where the function's recorded tree has it: parent, field and index."""
        if name not in self._found:
            function = Recorder().visit(copy.deepcopy(self.functions[name]))
            function.decorator_list = []
            self._trees[name] = ast.fix_missing_locations(ast.Module([function], []))
            self._found[name] = {}
            for parent in ast.walk(function):
                for key, value in ast.iter_fields(parent):
                    for index, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
                        if isinstance(each, ast.expr):
                            self._found[name].setdefault(_place(each), (parent, key, index))
        return self._found[name]

    # --- called by the page ---

    def enter(self, arguments: dict[str, Any], rest: str = "") -> None:
        """Notes a call. rest: the name of the parameter that takes all other keywords, if there is one."""
        if self.frames is None:
            return
        frame = sys._getframe(1)
        for name, value in arguments.items():
            self._know(frame.f_code.co_name, name, value)
        arguments = arguments | arguments.pop(rest, {})
        caller, line = self._caller(frame.f_back)
        self.frames[frame] = Frame(frame.f_code.co_name, arguments, caller, line, tuple(self.scope), dict(self.layers))

    def _know(self, function: str, name: str, value: Any) -> None:
        """Notes the kind of a variable's values, "" if it has values of several kinds."""
        kinds, kind = self.kinds.setdefault(function, {}), kind_of(value)
        kinds[name] = common_kind(kinds.get(name, kind), kind)

    def _caller(self, frame: types.FrameType | None) -> tuple[Frame | None, int]:
        while frame is not None and frame not in (self.frames or {}):
            frame = frame.f_back
        return (None, 0) if frame is None or self.frames is None else (self.frames[frame], frame.f_lineno)

    def note(self, function: str, name: str, value: Any) -> Any:
        """Records the value of a variable, and returns it."""
        if self.frames is not None:
            self._know(function, name, value)
        if not isinstance(value, np.ndarray):
            return value
        stages = set()
        for stage in STAGES.get(name, (name,)):
            if name in ("tokens", "total") and self.scope[-1:] != ["embeddings"]:
                stage = f"embeddings.{stage}"
            of_function = OF_FUNCTION.get((function, name))
            stage = of_function or (name if name in WHOLE else ".".join([*self.scope, stage]))
            stages.add(stage)
            value = self.keep(stage, value)
        if self.frames is not None:
            stages |= {each for each, array in self.stages.items() if array is value}
            frame, line = self._caller(sys._getframe(1))
            if frame is not None and stages & self.exported:
                frame.settled.add(line)
        return value

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        """Records a stage. Rotated and normalized queries and keys are heads on a page, and rows in a model."""
        in_heads = value.ndim == 3 and name.endswith(("_rotated", "_normed"))
        self.stages[name] = formulas.combine_heads(value) if in_heads else value
        if name == self.until:
            self._reach()
        return value

    def _reach(self) -> None:
        if self.frames is not None:
            self.found, self.line = self._caller(sys._getframe(1))
        raise Reached

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with weights, and records the array that it returns, unless it did."""
        before = list(self.scope)
        if name == "layer":
            at = ".".join([*self.scope, "layers"])
            self.layers[at] = self.layers.get(at, -1) + 1
            name = f"layers.{self.layers[at]}"
        self.scope.append(name)
        own = ".".join(self.scope)
        self.stages.pop(own, None)  # of an earlier run of the same layer
        value = function(*args, **kwargs)
        found = value[0] if isinstance(value, tuple) else value
        if isinstance(found, np.ndarray) and own not in self.stages:
            self.keep(own, found)
        self.scope = before
        return value


def _place(node: ast.expr) -> tuple[Any, ...]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
