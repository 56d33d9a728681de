"""Small numbers as text: the arguments of a case, the learner's answer and the right one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npformer.learn.answers import Truth, is_numeric, leaves

NUMBERS = 24  # the most numbers of an array that are shown
WIDTH = 100


def shown_case(names: list[str], args: tuple[Any, ...], answer: Any = None, right: Any = None) -> str:
    """The arguments of a case; with answers, those with each array that differs."""
    rows = [(name, value) for name, value in zip(names, args, strict=False)]
    if right is not None:
        parts, exact = dict(leaves(answer)), dict(leaves(right))
        if len(exact) > 1:  # the first part that differs
            differing = [path for path in exact if not _looks_same(parts.get(path), exact[path])]
            path = next(iter(differing), next(iter(exact)))
            rows += [(f"yours, {path}", parts.get(path)), (f"right, {path}", exact[path])]
        else:
            rows += [("yours", answer), ("right", right)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(_row(name, value, width) for name, value in rows)


def _looks_same(value: Any, exact: Any) -> bool:
    return (
        is_numeric(value) and np.shape(value) == np.shape(exact) and bool(np.allclose(value, exact, 1e-4, 1e-5, True))
    )


def _row(name: str, value: Any, width: int) -> str:
    lines = shown(value).splitlines() or [""]
    return "\n".join(f"{name if i == 0 else '':{width}}  {line}" for i, line in enumerate(lines))


def shown(value: Any) -> str:
    """A value in a few lines: numbers of small arrays, shapes of large ones."""
    if isinstance(value, np.ndarray):
        if value.size > NUMBERS:
            return f"an array of shape {value.shape}"
        return np.array2string(value.astype(np.float64) if value.dtype.kind == "f" else value, WIDTH, 4, True, " ")
    if isinstance(value, np.floating | float):
        return f"{float(value):.6g}"
    if isinstance(value, Mapping):
        parts = [f"{name}: {shown(each)}" for name, each in value.items()]
        flat = "{" + ", ".join(parts) + "}"
        return " ".join(flat.split()) if len(flat) <= 2 * WIDTH else "{" + ", ".join(map(str, value)) + "}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if callable(value):
        return getattr(value, "__name__", "a function")
    return repr(value)[:WIDTH]


def difference(answer: Any, true: Truth) -> str:
    """Where a large answer differs most from the right one; "" for a small one, which is shown whole."""
    exact = dict(leaves(true.outcome.answer))
    for path, value in leaves(answer):
        right = np.asarray(exact[path])
        if right.dtype.kind != "f" or right.size <= NUMBERS:
            continue
        distance = np.nan_to_num(np.abs(np.asarray(value, np.float64) - right), nan=np.inf)
        if distance.max() > true.budgets[path]:
            worst = tuple(int(i) for i in np.unravel_index(distance.argmax(), right.shape))
            index = ", ".join(map(str, worst))
            return f", most at [{index}]: yours {np.asarray(value)[worst]:.6g}, right {right[worst]:.6g}"
    return ""
