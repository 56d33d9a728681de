"""Checks of user input. A check returns the value, or raises an NpformerError that names the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from npformer.common.errors import NpformerError

#: The largest number in float32. Python's integers are unbounded, and JSON can contain integers of any size.
LARGEST = 3.4028234663852886e38


def whole(name: str, value: Any, low: int, high: float = math.inf) -> int:
    """Checks that `value` is a whole number from low to high."""
    if type(value) is not int or not low <= value <= high:
        to = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
        raise NpformerError(f"{name}: expected a whole number {to}, got {shown(value)}")
    return value


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Checks that `value` is a number from low to high, within the range of float32."""
    if type(value) not in (int, float) or not (low <= value <= high and abs(value) <= LARGEST):
        bounds = "" if low == -math.inf else f" of at least {low}" if high == math.inf else f" from {low} to {high}"
        raise NpformerError(f"{name}: expected a number{bounds}, got {shown(value)}")
    return value


def positive(name: str, value: Any) -> float:
    """Checks that `value` is a number above 0, within the range of float32."""
    if type(value) not in (int, float) or not 0 < value <= LARGEST:
        raise NpformerError(f"{name}: expected a number above 0, got {shown(value)}")
    return value


def boolean(name: str, value: Any) -> bool:
    """Checks that `value` is True or False."""
    if type(value) is not bool:
        raise NpformerError(f"{name}: expected true or false, got {shown(value)}")
    return value


def one_of(name: str, value: Any, known: Iterable[Any]) -> Any:
    """Checks that `value` is one of the `known` values."""
    known = list(dict.fromkeys(known))
    if not isinstance(value, str | int | None) or value not in known:
        expected = list(map(str, known))
        raise NpformerError(f"{name}: expected one of {listed(expected)}, got {shown(value)}{_meant(value, expected)}")
    return value


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> NpformerError:
    """The error for an unknown name, with a suggestion, and with either the `hint` or all known names."""
    known = list(known)
    meant = _meant(name, known) or "."
    return NpformerError(f"{kind}: {name!r:.80} is not known{meant} {hint or f'Known: {listed(known)}'}")


def listed(names: Iterable[object]) -> str:
    """Joins names into one line of an error message. Names from files, such as labels, may contain line breaks."""
    return ", ".join(map(str, names)).replace("\n", "\\n")


def nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Returns up to `count` known names that are similar to `name`, the most similar first."""
    from difflib import get_close_matches

    return get_close_matches(name, list(known), n=count, cutoff=0.6)


def _meant(name: object, known: Iterable[str]) -> str:
    near = nearest(name, known) if isinstance(name, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: object) -> str:
    """Formats a value for an error message: shortens long texts, and shows only the type of objects such as lists."""
    if isinstance(value, str | bool | float | None) or (isinstance(value, int) and abs(value) < 2**64):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, int):
        return f"a whole number of {value.bit_length()} bits"
    return f"a {type(value).__name__}"


def brief(settings: Any) -> str:
    """The repr of a dataclass, without fields that have default values. Evaluating the repr returns an equal object."""
    given = {each.name: getattr(settings, each.name) for each in fields(settings)}
    changed = [f"{each.name}={given[each.name]!r}" for each in fields(settings) if given[each.name] != each.default]
    return f"{type(settings).__name__}({', '.join(changed)})"
