"""A learner's progress, stored in their folder: the functions that passed, and the number of hints shown."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npformer.common.errors import NpformerError
from npformer.common.files import place_in_folder, read_json, written_whole

FILE = "progress.json"


def checked(folder: Path, passed: Sequence[str]) -> tuple[dict[str, int], str]:
    """Stores the names of passing functions.

    Returns the number of hints shown for each function, and a sentence if the progress cannot be read or written.
    """
    state, problem = read(folder)
    if not problem and state["passed"] != list(passed):
        problem = _write(folder, {**state, "passed": list(passed)})
    return dict(state["hints"]), problem


def hinted(folder: Path, name: str, most: int) -> tuple[int, str]:
    """Adds one to a function's count of hints, up to `most`.

    Returns the count, and a sentence if it cannot be read or written. In this case, the count is `most`, because a
    count that cannot be stored would never grow.
    """
    state, problem = read(folder)
    shown = min(most, int(state["hints"].get(name, 0)) + 1)
    problem = problem or _write(folder, {**state, "hints": {**state["hints"], name: shown}})
    return (most if problem else shown), problem


def read(folder: Path) -> tuple[dict[str, Any], str]:
    """Returns the learner's progress, which is empty if no progress is stored, and a sentence if reading it fails."""
    path = folder / FILE
    empty: dict[str, Any] = {"passed": [], "hints": {}}
    try:
        state: dict[str, Any] = read_json(path) if os.path.lexists(path) else {}
    except NpformerError as error:
        return empty, f"Your progress is not stored: {error}. Remove the file, so that it can be stored again."
    passed, hints = state.get("passed", []), state.get("hints", {})
    counts = isinstance(hints, dict) and all(isinstance(n, int) for n in hints.values())
    if not isinstance(passed, list) or not counts:
        return empty, f"Your progress is not stored: {path} is not a progress file of the course. Remove it."
    return {"passed": passed, "hints": hints}, ""


def _write(folder: Path, state: dict[str, Any]) -> str:
    """Stores the progress, and returns a sentence if this fails."""
    try:
        with written_whole(place_in_folder(folder / FILE)) as partial:
            partial.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    except (NpformerError, OSError) as error:
        return f"Your progress is not stored: {error}."
    return ""
