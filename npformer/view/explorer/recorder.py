"""Runs the text of a page line by line, and records the values of each line, with a small picture of each array."""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from npformer.view.explorer.page_program import PageProgram, run_calls

FILE = "<page>"
STEPS = 50_000  # maximum lines of a run
HEADS, ROWS, COLUMNS = 32, 64, 64  # maximum numbers to keep of each array
#: Built-in names of Python that the text may not use.
WITHOUT = ("breakpoint", "compile", "eval", "exec", "input", "open")


class TooLong(Exception):
    """Raised when a run has more than STEPS lines."""


@dataclass
class Recording:
    """The executed lines of a run, in order, and the values that they computed.

    frames: for each call, (function, index of the step that called it, or -1, {parameter: value}).
    steps: for each line, [frame, line, depth, {name: value}, returned value or None].
    A value is the index of a picture in `values`, or a text.
    """

    frames: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    steps: list[list[Any]] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)


def record(program: PageProgram) -> tuple[dict[str, Any], Recording]:
    """Executes the text, and returns its answers and the recording of its lines."""
    recorder = _Recorder(program.text)
    namespace: dict[str, Any] = {"__builtins__": _builtins(), "__name__": "page"}
    exec(compile(program.text, FILE, "exec"), namespace)
    before = sys.gettrace()
    sys.settrace(recorder.trace)
    try:
        answers = run_calls(program, namespace)
    finally:
        sys.settrace(before)
    return answers, recorder.recording


def _builtins() -> dict[str, Any]:
    def imported(name: str, *more: Any) -> Any:
        if name.partition(".")[0] not in ("numpy", "math"):  # NumPy imports parts of itself when they are first used
            raise ImportError(f"a page imports numpy and math, not {name}")
        return __import__(name, *more)

    names = vars(builtins).keys() - set(WITHOUT)
    return {name: getattr(builtins, name) for name in names} | {"__import__": imported}


class _Recorder:
    def __init__(self, text: str) -> None:
        self.recording = Recording()
        self.first = first_lines(text)
        # (frame, its index, its last step, ids of its locals)
        self.open: list[tuple[FrameType, int, int, dict[str, int]]] = []
        # id -> (the object, stored so that its id is not reused, and its recorded value)
        self.known: dict[int, tuple[Any, Any]] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename != FILE or code.co_name.startswith("<"):
            return None
        if event == "call":
            caller = self.open[-1][2] if self.open else -1
            given = {name: self.value(each) for name, each in frame.f_locals.items()}
            self.recording.frames.append((code.co_name, caller, given))
            ids = {name: id(each) for name, each in frame.f_locals.items()}
            self.open.append((frame, len(self.recording.frames) - 1, -1, ids))
        elif event == "line":
            self._line(frame)
        elif event == "return" and self.open:
            self._finish(frame)
            _, _, last, _ = self.open.pop()
            if last >= 0:
                self.recording.steps[last][4] = self.value(argument)
        return self.trace

    def _line(self, frame: FrameType) -> None:
        _, index, last, ids = self.open[-1]
        line = self.first.get(frame.f_lineno, frame.f_lineno)
        steps = self.recording.steps
        if last >= 0 and steps[last][1] == line and line != frame.f_lineno:
            return  # another line of the same statement
        ids = self._finish(frame)
        if len(steps) >= STEPS:
            raise TooLong
        steps.append([index, line, len(self.open) - 1, {}, None])
        self.open[-1] = (frame, index, len(steps) - 1, ids)

    def _finish(self, frame: FrameType) -> dict[str, int]:
        """Records the values that the last line of a frame assigned, and returns the ids of its locals."""
        _, _, last, ids = self.open[-1]
        now = {name: id(each) for name, each in frame.f_locals.items()}
        if last >= 0:
            made = [name for name in now if ids.get(name) != now[name]]
            self.recording.steps[last][3].update({name: self.value(frame.f_locals[name]) for name in made})
        return now

    def value(self, value: Any) -> Any:
        """Returns the index of an array's picture in `values`, or a short text for any other value."""
        if id(value) in self.known:
            return self.known[id(value)][1]
        answer = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else None
        if isinstance(value, dict) and "logits" in value:
            answer = value["logits"]
        if isinstance(answer, np.ndarray):  # the value is a head's answers, a dict by name
            found = self.value(answer)
        elif isinstance(value, np.ndarray | np.number) and np.asarray(value).dtype.kind in "fiub":
            self.recording.values.append(picture(np.asarray(value)))
            found = len(self.recording.values) - 1
        else:
            found = described(value)
        self.known[id(value)] = (value, found)
        return found


def first_lines(text: str) -> dict[int, int]:
    """Returns a dict from each line of a simple statement to the statement's first line."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
    return found


def picture(array: np.ndarray) -> dict[str, Any]:
    """Returns an array's shape and range, and its numbers at evenly spaced rows and columns, as float32 (H, R, C)."""
    wide = array.reshape(-1, *(1,) * (2 - array.ndim), *array.shape[-2:]) if array.ndim != 1 else array[None, None]
    wide = wide.reshape(-1, *wide.shape[-2:])
    picked = [_spaced(count, most) for count, most in zip(wide.shape, (HEADS, ROWS, COLUMNS), strict=True)]
    some = wide[np.ix_(*picked)].astype(np.float32)
    numbers = [float(array.min()), float(array.max()), float(array.mean(dtype=np.float64))] if array.size else [0.0] * 3
    is_finite = all(map(math.isfinite, numbers))
    if not is_finite:
        numbers = [0.0] * 3
    return {
        "shape": list(array.shape), "dtype": str(array.dtype), "range": numbers, "finite": is_finite,
        "picked": [each.tolist() for each in picked], "counts": list(wide.shape), "data": some,
    }  # fmt: skip


def _spaced(count: int, most: int) -> np.ndarray:
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def described(value: Any) -> str:
    """Describes a value that is not an array in a few words."""
    if isinstance(value, Mapping):
        return "weights: " + ", ".join(map(str, list(value)[:8]))
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    if callable(value):
        return f"function {getattr(value, '__name__', '')}"
    return repr(value)[:80]
