"""A page compiled for editing: its calls are recorded with their arguments and can be run again."""

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

from npformer.golden.mistakes.parts.ffn import sigmoid
from npformer.golden.page_edits.number_formats import FUNCTIONS
from npformer.golden.page_edits.operators import common_kind, kind_of
from npformer.golden.page_edits.readings import FUNCTIONS as OF_READINGS
from npformer.golden.page_edits.stages import Recorder, Stages, group_of
from npformer.plain import formulas
from npformer.plain.gemma import gemma_norm

#: Functions that edits may call even if the page lacks them.
OTHERS: dict[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (formulas.gelu, formulas.gelu_tanh, formulas.relu, formulas.silu)},
    **{each.__name__: each for each in (formulas.softmax, formulas.layer_norm, formulas.rms_norm)},
    **{each.__name__: each for each in (formulas.causal_mask, formulas.full_mask, gemma_norm)},
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "sigmoid": sigmoid,
}


@dataclass(eq=False)
class Frame:
    """A call of a page's function: its arguments, its caller, and the prefix of its stages' names."""

    function: str
    arguments: dict[str, Any]
    caller: Frame | None
    line: int  # the line of the call in the caller
    scope: tuple[str, ...]
    layers: dict[str, int]
    #: Lines and names whose last assignment is a stage of the other program. A line in a loop runs several times.
    settled: set[tuple[int, str]] = field(default_factory=set)

    def outward(self) -> Iterator[Frame]:
        """Yields the call, its caller, and so on up to the outermost call."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.caller


class Reached(Exception):
    """Raised when the page has computed the wanted stage."""


class Page(Stages):
    """A page's source, compiled so that its runs are recorded; functions can be replaced."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines()
        self.functions = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
        self.module = types.ModuleType("page")
        self.module.__dict__.update(_page=self, math=math, **OTHERS, **FUNCTIONS, **OF_READINGS)
        exec(
            compile(ast.fix_missing_locations(Recorder().visit(ast.parse(source))), "<page>", "exec"),
            self.module.__dict__,
        )
        #: Functions that are edited in some of their calls -> the part of stages' names, and the edited function.
        self.edited: dict[Any, tuple[str, Callable[..., Any]]] = {}
        self.repeated = set[str]()  # names that a complete run gives to several values, such as scaled token rows
        self.kinds: dict[str, dict[str, str]] = {}  # function -> the kinds of its variables' values
        self._trees: dict[str, ast.Module] = {}
        self._found: dict[str, dict[tuple[Any, ...], tuple[ast.AST, str, int | None]]] = {}
        self._begin(frozenset(), "")

    def _begin(self, exported: frozenset[str], until: str, scope: tuple[str, ...] = ()) -> None:
        self.start(scope)
        self.exported, self.until = exported, until
        self.frames: dict[types.FrameType, Frame] | None = None
        self.found: Frame | None = None
        self.line = 0  # line of the statement that computes the stage, in its call

    def record(self, run: Callable[[types.ModuleType], Any], exported: frozenset[str], until: str) -> list[Frame]:
        """Runs the page up to a stage, and returns its calls so far; `found` is the call that computes the stage."""
        self._begin(exported, until)
        self.frames = {}
        with np.errstate(all="ignore"), suppress(Reached):
            run(self.module)
        frames = list(self.frames.values())
        self.frames = None
        return frames

    def whole(self, run: Callable[[types.ModuleType], Any]) -> dict[str, np.ndarray]:
        """Runs the page to its end, and returns its stages."""
        self._begin(frozenset(), "")
        with np.errstate(all="ignore"):
            run(self.module)
        return self.stages

    def again(self, frame: Frame, exported: frozenset[str], until: str) -> dict[str, np.ndarray]:
        """Runs a call again from its arguments, up to a stage, and returns its stages."""
        self._begin(exported, until, frame.scope)
        self.layers = dict(frame.layers)
        with np.errstate(all="ignore"), suppress(Reached):
            value = self.module.__dict__[frame.function](**frame.arguments)
            if isinstance(value, np.ndarray):
                self.stages.setdefault(".".join(frame.scope), value)
        return self.stages

    @contextmanager
    def replaced(self, name: str, node: ast.expr, text: str, kind: str = "", only: str = "") -> Iterator[None]:
        """Replaces an expression of a function inside the `with` block, even for callers with their own reference.

        only: a part of stage names, to edit only the calls that compute those stages
        """
        held = self.module.__dict__[name]
        while hasattr(held, "__wrapped__"):
            held = held.__wrapped__
        places = self._places(name)
        parent, key, index = places[_place(node)]
        new = Recorder().visit(_named(ast.parse(text, mode="eval").body, group_of(node)))
        for each in ast.walk(new):
            ast.copy_location(each, node)
        old = getattr(parent, key)
        setattr(parent, key, new if index is None else [*old[:index], new, *old[index + 1 :]])
        made: dict[str, Any] = {}
        before = held.__code__
        try:
            exec(compile(self._trees[name], "<page>", "exec"), self.module.__dict__, made)
            if only:
                self.edited[held] = only, made[name]
            else:
                held.__code__ = made[name].__code__
            yield
        finally:
            setattr(parent, key, old)
            held.__code__ = before
            self.edited.pop(held, None)

    def _places(self, name: str) -> dict[tuple[Any, ...], tuple[ast.AST, str, int | None]]:
        """Place of an expression in the text -> its parent, field and index in the function's recorded tree."""
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
        if self.frames is None:
            return
        frame = sys._getframe(1)
        for name, value in arguments.items():
            self._know(frame.f_code.co_name, name, value)
        arguments = arguments | arguments.pop(rest, {})
        caller, line = self._caller(frame.f_back)
        self.frames[frame] = Frame(frame.f_code.co_name, arguments, caller, line, tuple(self.scope), dict(self.layers))

    def _know(self, function: str, name: str, value: Any) -> None:
        """Records the kind of a variable's values; "" for values of several kinds."""
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
        super().note(function, name, value)
        if self.frames is not None and isinstance(value, np.ndarray):
            stages = {*self.stages_of_variable(function, name)}
            stages |= {each for each, array in self.stages.items() if array is value}
            frame, line = self._caller(sys._getframe(1))
            if frame is not None:
                (frame.settled.add if stages & self.exported else frame.settled.discard)((line, name))
        return value

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        """Records a stage, and ends the run at the wanted one."""
        again = name in self.stages
        self.repeated |= {name} if again else set()
        super().keep(name, value)
        if name == self.until and (again or name not in self.repeated):
            self._reach()
        return value

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with weights, edited or not."""
        only, edited = self.edited.get(function, ("", function))
        return super().call(name, edited if {*only.split(".")} <= {*self.scope, name} else function, *args, **kwargs)

    def _reach(self) -> None:
        if self.frames is not None:
            self.found, self.line = self._caller(sys._getframe(1))
        raise Reached


def _named(new: ast.expr, group: ast.expr | None) -> ast.expr:
    """The expression that replaces a call with weights, recorded as the call's stage even if it has no weights."""
    if group is None or any(group_of(each) for each in ast.walk(new)):
        return new
    nothing = ast.arguments([], [], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Call(ast.parse("_page.call", mode="eval").body, [group, ast.Lambda(nothing, new)], [])


def _place(node: ast.expr) -> tuple[Any, ...]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
