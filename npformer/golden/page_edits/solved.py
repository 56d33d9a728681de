"""Edits that multiply an expression by a factor, such as sqrt(K) or 1.702, which is computed from the port's values."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from npformer.golden.page_edits.case import Case, Place
from npformer.golden.page_edits.instrumented import Frame
from npformer.golden.page_edits.operators import Edit

CLOSE = 1e-5  # factors found from a float32 port have about this precision
STEP = 1e-4
STEPS = 8
ALIKE = 0.5  # a factor is solved for if its effect and the error have at least this cosine
FEWEST = 8  # minimum number of values from which a factor is found


def factor(case: Case, place: Place, frames: Sequence[Frame]) -> Place | None:
    """The edit that multiplies an expression by the number that explains the stage; None without such a number."""
    node, i = place.edit.node, case.texts[0]
    right, theirs = case.right[i], case.theirs[case.stage][i]
    of_numbers = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    if not of_numbers and not isinstance(node, ast.BinOp | ast.Call | ast.Name):
        return None
    if theirs.size < FEWEST or theirs.shape != right.shape or not np.isfinite(theirs).all():
        return None
    own = ast.unparse(node)

    def made(factor: float) -> np.ndarray | None:
        return case.values([Place(place.function, Edit(node, f"{factor!r} * ({own})", "solved"))], frames)

    if (found := _solved(made, right, theirs)) is None:
        return None
    text, known = number(found, [right.shape], frames[i].arguments)
    kind = "another size" if known else "another value"
    return Place(place.function, Edit(node, f"{text} * ({own})", kind))


def _solved(made: Callable[[float], np.ndarray | None], right: np.ndarray, theirs: np.ndarray) -> float | None:
    """The factor that brings the values nearest to the other program's, by Newton's method; None if none helps."""
    moved = made(1 + STEP)
    if moved is None or not (moved - right).any():
        return None
    error, slope = theirs - right, (moved - right) / STEP
    if abs(_cosine(error, slope)) < ALIKE:
        return None
    factor, value = 1.0, right
    for _ in range(STEPS):
        change = float(((theirs - value) * slope).sum() / (slope**2).sum())
        factor += change
        if not np.isfinite(factor) or abs(factor) > 1e6:
            return None
        if abs(change) < CLOSE / 10 * abs(factor):
            break
        value_here = made(factor)
        next_here = made(factor * (1 + STEP))
        if value_here is None or next_here is None or not (next_here - value_here).any():
            return None
        value, slope = value_here, (next_here - value_here) / (factor * STEP)
    return factor if abs(factor) > STEP and abs(factor - 1) > 1e-7 else None


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float((a * b).sum()) / length if length else 0.0


def number(factor: float, shapes: Iterable[tuple[int, ...]], arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """The expression of a factor, and whether it is a likely one: three digits, or a size or its root."""
    sizes = {each for shape in shapes for each in shape}
    sizes |= {each for array in arguments.values() if isinstance(array, np.ndarray) for each in array.shape}
    forms = [
        *(f"{each:.1f}" for each in (0.5, 2, -1, 3, 4, 8, 16)),
        "0.25",
        "0.125",
        "math.sqrt(2)",
        "1 / math.sqrt(2)",
    ]
    forms += [
        form.format(each)
        for each in sorted(sizes)
        if each > 1
        for form in ("math.sqrt({})", "1 / math.sqrt({})", "{}", "1 / {}")
    ]
    for form in (*forms, f"{factor:.3g}"):
        if abs(value_of(form) - factor) <= CLOSE * abs(factor):
            return form, True
    return f"{factor:.8g}", False


def value_of(form: str) -> float:
    """Evaluates an expression that `number` returned."""
    return float(eval(form, {"math": math, "__builtins__": {}}))
