"""Finds the row of a table that a port used, by the smallest distance."""

from __future__ import annotations

import numpy as np

from npformer.golden.mistakes.parts.norm import standard


def nearest(rows: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns the index of the nearest row t of a table (V, D) for each row e (N, D).

    |e - t|^2 is smallest where |t|^2 / 2 - e t^T is.
    """
    found: np.ndarray = np.argmin(np.vecdot(table, table) / 2 - rows @ table.T, axis=-1)
    return found


def nearest_normalized(z: np.ndarray, rest: np.ndarray, table: np.ndarray, eps: float) -> np.ndarray:
    """Returns, for each normalized row z, the index of the table row t for which Normalize(rest + t) is nearest to z.

    z, rest (N, D), table (V, D) -> (N,).
    """
    return np.array([int(np.argmax(standard(table + r, eps) @ row)) for r, row in zip(rest, z, strict=True)])


def put_first(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns y with its first rows replaced by `rows`. Its other rows are padding."""
    made = y.copy()
    made[: len(rows)] = rows
    return made
