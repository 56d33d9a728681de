"""Mistakes that ports make in the projections around a stack, for narrow token tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.golden.mistake import Mistake


def _padded(y: np.ndarray, at: Any) -> np.ndarray:
    rows: np.ndarray = at.source
    return np.pad(rows, ((0, 0), (0, y.shape[1] - rows.shape[1])))


def _other(table: str) -> Any:
    """A rule that projects with the transposed weight `table` instead."""
    return lambda y, at: at.source @ at.weight(table).T


TOKENS = (
    Mistake(
        "missing projection of the token rows",
        "token rows are projected to the width of the layers by project_in before positions are added",
        {
            "padded with zeros": {"embeddings.project": _padded},
            "project_out, transposed": {"embeddings.project": _other("project")},
        },
    ),
)
STACK = (
    Mistake(
        "missing projection of the last layer's rows",
        "the rows of the last layer are projected to the width of the token table by project_out",
        {
            "its first columns": {"project": lambda y, at: at.source[:, : y.shape[1]]},
            "project_in, transposed": {"project": _other("embeddings.project")},
        },
    ),
)
