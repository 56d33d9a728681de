"""Formats small values in 80 columns: the arguments of a case, the learner's answer and the right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.learn.answers import Truth, is_numeric, leaves, near

NUMBERS = 24  # maximum number of an array's values to show
ARRAYS = 4  # maximum number of a dict's arrays to show
DIGITS = 4  # minimum number of decimals; more are shown if two different answers would look the same
WIDTH = 74  # maximum width of a line: 80 columns minus the report's indentation of 6


def shown_case(names: list[str], args: tuple[Any, ...]) -> str:
    """Formats the arguments of a case."""
    return _table([row for name, value in zip(names, args, strict=False) for row in _argument(name, value)])


def shown_answer(names: list[str], args: tuple[Any, ...], answer: Any, true: Truth, values: Sequence[str]) -> str:
    """Formats a case, the learner's answer and the right answer.

    If an answer has several values, only the first wrong value is shown.
    """
    rows = [row for name, value in zip(names, args, strict=False) for row in _argument(name, value)]
    right, name = true.outcome.answer, ""
    exact, parts = dict(leaves(right)), dict(leaves(answer))
    if len(exact) > 1:
        path = _first_wrong(parts, exact, true)
        answer, right, name = parts.get(path), exact[path], f" {value_name(values, path)}"
    return _table([*rows, (f"yours{name}", answer), (f"right{name}", right)], _digits(answer, right))


def _first_wrong(parts: Mapping[str, Any], exact: Mapping[str, Any], true: Truth) -> str:
    """Returns the path of the first value with a wrong shape, or of the first wrong value if all shapes are right."""
    misshapen = [path for path in exact if path not in parts or np.shape(parts[path]) != np.shape(exact[path])]
    wrong = [path for path in exact if path not in parts or not near(parts[path], exact[path], true.budgets[path])]
    return next(iter([*misshapen, *wrong, *exact]))


def value_name(values: Sequence[str], path: str) -> str:
    """Names a returned value by its path: "1.query" becomes "gradients.query", "1.0" becomes "past[0]"."""
    if not values:
        return path
    first, *rest = path.split(".")
    return values[int(first)] + "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in rest)


def _digits(answer: Any, right: Any) -> int:
    """Returns the number of digits needed to distinguish two answers."""
    if not is_numeric(answer) or np.shape(answer) != np.shape(right) or np.array_equal(answer, right):
        return DIGITS
    digits = range(DIGITS, 9)
    return next((n for n in digits if shown(answer, digits=n) != shown(right, digits=n)), DIGITS)


def _table(rows: list[tuple[str, Any]], digits: int = DIGITS) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(_row(name, value, width, digits) for name, value in rows)


def _row(name: str, value: Any, width: int, digits: int) -> str:
    lines = shown(value, WIDTH - width - 2, digits).splitlines() or [""]
    return "\n".join(f"{name if i == 0 else '':{width}}  {line}".rstrip() for i, line in enumerate(lines))


def _argument(name: str, value: Any) -> list[tuple[str, Any]]:
    """Formats an argument as one row, or a small dict as one row for each of its arrays."""
    arrays = list(leaves(value)) if isinstance(value, Mapping) else []
    if 0 < len(arrays) <= ARRAYS and all(np.size(each) <= NUMBERS for _, each in arrays):
        return [(f"{name}.{path}", each) for path, each in arrays]
    return [(name, value)]


def shown(value: Any, width: int = WIDTH, digits: int = DIGITS) -> str:
    """Formats a value in a few lines: small arrays as numbers, large arrays as shapes."""
    if isinstance(value, np.ndarray):
        if value.size > NUMBERS:
            return f"an array of shape {value.shape}"
        return np.array2string(value.astype(np.float64) if value.dtype.kind == "f" else value, width, digits, True, " ")
    if isinstance(value, np.floating | float):
        return f"{float(value):.{digits + 2}g}"
    if isinstance(value, np.integer | np.bool_):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(map(str, value)) + "}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if callable(value):
        return getattr(value, "__name__", "a function")
    return repr(value)[:width]


def difference(answer: Any, true: Truth, values: Sequence[str]) -> str:
    """Describes where a large answer differs most from the right answer, or returns "" for a small answer."""
    exact = dict(leaves(true.outcome.answer))
    for path, value in leaves(answer):
        right = np.asarray(exact[path])
        if right.dtype.kind != "f" or right.size <= NUMBERS:
            continue
        distance = np.nan_to_num(np.abs(np.asarray(value, np.float64) - right), nan=np.inf)
        if distance.max() > true.budgets[path]:
            worst = tuple(int(i) for i in np.unravel_index(distance.argmax(), right.shape))
            index = ", ".join(map(str, worst))
            place = f"{value_name(values, path)}[{index}]"
            return f", most at {place}: yours {np.asarray(value)[worst]:.6g}, right {right[worst]:.6g}"
    return ""
