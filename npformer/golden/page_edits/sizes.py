"""Recognises a factor: a small number, or a size of the arrays, its root or their inverses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

CLOSE = 1e-5  # a float32 port gives its factors to about this precision


def number(factor: float, shapes: Iterable[tuple[int, ...]], arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """The expression of a factor, and whether it is a recognisable constant."""
    sizes = {each for shape in shapes for each in shape}
    sizes |= {each for array in arguments.values() if isinstance(array, np.ndarray) for each in array.shape}
    forms = [*(f"{each:.1f}" for each in (0.5, 2, -1, 3, 4, 0.25, 8, 16, 0.125)), "math.sqrt(2)", "1 / math.sqrt(2)"]
    forms += [
        form.format(each)
        for each in sorted(sizes)
        if each > 1
        for form in ("math.sqrt({})", "1 / math.sqrt({})", "{}", "1 / {}")
    ]
    for form in forms:
        if abs(value_of(form) - factor) <= CLOSE * abs(factor):
            return form, True
    return f"{factor:.6g}", False


def value_of(form: str) -> float:
    """The number that such an expression stands for."""
    return float(eval(form, {"math": math, "__builtins__": {}}))
