"""A learner's progress, stored in their folder: the functions that passed, and the number of hints shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npformer.common.errors import NpformerError
from npformer.common.files import place_in_folder, read_json, written_whole

FILE = "progress.json"


def checked(folder: Path, passed: Sequence[str]) -> dict[str, int]:
    """Stores the names of passing functions; returns the number of hints shown for each."""
    state = read(folder)
    if state["passed"] != list(passed):
        _write(folder, {**state, "passed": list(passed)})
    return dict(state["hints"])


def hinted(folder: Path, name: str, most: int) -> int:
    """Adds one to a function's count of hints, up to `most`; returns the count."""
    state = read(folder)
    shown = min(most, int(state["hints"].get(name, 0)) + 1)
    _write(folder, {**state, "hints": {**state["hints"], name: shown}})
    return shown


def read(folder: Path) -> dict[str, Any]:
    """Returns the learner's progress, which is empty if none is stored."""
    path = folder / FILE
    state: dict[str, Any] = read_json(path) if path.exists() else {}
    passed, hints = state.get("passed", []), state.get("hints", {})
    if (
        not isinstance(passed, list)
        or not isinstance(hints, dict)
        or not all(isinstance(n, int) for n in hints.values())
    ):
        raise NpformerError(f"{path}: not a progress file of the course; remove it")
    return {"passed": passed, "hints": hints}


def _write(folder: Path, state: dict[str, Any]) -> None:
    with written_whole(place_in_folder(folder / FILE)) as partial:
        partial.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
