"""Renames the arrays of gated feed-forward networks: earlier versions called gate "hidden", and up "gate".

A file of weights has both arrays, so their names show its version. A golden file or a trace may have only one of the
two stages, and therefore stores `NAMES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from npformer.common.errors import NpformerError

NAMES = 2  # version of the stage names; earlier files do not store it
_NOW = {"hidden": "gate", "gate": "up"}  # current names by earlier name
_PART = re.compile(r"(.*\bffn)\.(hidden|gate|up)\b(.*)")
_Array = TypeVar("_Array")


def renamed(arrays: Mapping[str, _Array]) -> dict[str, _Array]:
    """Returns the arrays by their current names. A network is renamed if it has hidden and gate, but not up.

    >>> list(renamed({"layers.0.ffn.hidden.weight": 1, "layers.0.ffn.gate.weight": 2}))
    ['layers.0.ffn.gate.weight', 'layers.0.ffn.up.weight']
    """
    parts: dict[str, set[str]] = {}
    for name in arrays:
        if found := _PART.fullmatch(name):
            parts.setdefault(found[1], set()).add(found[2])
    earlier = {network for network, each in parts.items() if each == _NOW.keys()}
    if not earlier:
        return dict(arrays)

    def present(name: str) -> str:
        found = _PART.fullmatch(name)
        return f"{found[1]}.{_NOW[found[2]]}{found[3]}" if found and found[1] in earlier else name

    return {present(name): array for name, array in arrays.items()}


def refuse(names: Iterable[str], gated: bool, version: Any = NAMES) -> None:
    """Raises NpformerError for earlier names of stages or weights.

    gated: whether the feed-forward networks are gated. version: the `NAMES` of the file, or None for earlier files.
    """
    parts = {found[2] for name in names if (found := _PART.fullmatch(name))}
    if (gated and "hidden" in parts) or (version != NAMES and "gate" in parts):
        raise NpformerError(
            "recorded with the names of an earlier version: ffn.hidden is now ffn.gate, which the activation reads, "
            "and ffn.gate is now ffn.up; record the file again"
        )
