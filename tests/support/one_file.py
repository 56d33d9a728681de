"""Runs models as one file, as `npformer page -m MODEL --standalone` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npformer.pages.standalone import standalone_model


def executed(text: str, path: Path) -> dict[str, Any]:
    """Returns the names that a file defines. Checks that no line is longer than npformer's lines may be."""
    assert max(map(len, text.splitlines())) <= 120
    scope: dict[str, Any] = {"__name__": "a_page", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    return scope


def answering(model: Any, ids: list[int], folder: Path) -> Callable[[list[int]], dict[str, np.ndarray]]:
    """Writes a model as model.py with its arrays in model.npz; returns the file's function from ids to answers."""
    text, arrays = standalone_model(model, ids)
    np.savez(folder / "model.npz", **arrays)
    scope = executed(text, folder / "model.py")
    return lambda given: scope["answers"](scope["load"](), np.array(given))
