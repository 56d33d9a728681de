"""Maps of columns: for each column, the index of the column from which it is taken. Rows and heads have maps too."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

PAIRS = 8  # maximum number of heads for which all pairs are exchanged or copied; with more, only neighbouring pairs are


@lru_cache(maxsize=64)
def maps_of(size: int, width: int = 0) -> dict[str, np.ndarray]:
    """Returns maps of `size` columns by description. A width other than 0 adds maps of heads of this width."""
    numbers = np.arange(size)
    orders = {"halves exchanged": np.roll(numbers, size // 2), "reversed": numbers[::-1]}
    orders |= {f"moved by {n}": np.roll(numbers, n) for n in (1, -1) if size > 1}
    if size % 2 == 0:
        orders["even indices before odd ones"] = numbers.reshape(-1, 2).T.ravel()
        orders["halves interleaved"] = numbers.reshape(2, -1).T.ravel()
    if width and size % width == 0 and size > width:
        heads = numbers.reshape(-1, width)
        count = len(heads)
        orders["in the order (K, H), not (H, K)"] = heads.T.ravel()
        orders["in the order (H, K), not (K, H)"] = numbers.reshape(width, -1).T.ravel()
        orders |= {f"moved by {n} of {count} heads": np.roll(heads, n, axis=0).ravel() for n in (1, -1)}
        orders["of the heads reversed"] = heads[::-1].ravel()
        for i in range(count):
            for j in range(count):
                if i == j or (count > PAIRS and abs(i - j) > 1):
                    continue
                copied, exchanged = heads.copy(), heads.copy()
                copied[i], exchanged[[i, j]] = heads[j], heads[[j, i]]
                orders[f"of head {i} are those of head {j}"] = copied.ravel()
                if i < j:
                    orders[f"of heads {i} and {j} exchanged"] = exchanged.ravel()
    return orders


def said_of_map(order: np.ndarray, width: int = 0) -> str:
    """Describes a map by its name, else by its runs, such as "24 to 35 are 12 to 23"."""
    for said, known in maps_of(len(order), width).items():
        if np.array_equal(order, known):
            return said
    runs: list[list[int]] = []
    for i in np.flatnonzero(order != np.arange(len(order))).tolist():
        if runs and runs[-1][1] == i - 1 and order[i] == order[i - 1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    said = ", ".join(
        f"{i} is {order[i]}" if i == end else f"{i} to {end} are {order[i]} to {order[end]}" for i, end in runs[:4]
    )
    return said + (", ..." if len(runs) > 4 else "")


def map_of_numbers(theirs: np.ndarray, own: np.ndarray) -> np.ndarray | None:
    """For each number in `theirs`, returns the index of an equal number in `own`, preferably at the same position.

    Returns None if a number of `theirs` is not in `own`, or if every number is at its correct position.
    """
    near = np.abs(np.subtract.outer(theirs, own)).argmin(1)
    allowed = 1e-5 * max(float(np.abs(own).max()), 1e-30)
    near = np.where(np.abs(theirs - own) <= allowed, np.arange(len(own)), near)
    found = (np.abs(theirs - own[near]) <= allowed).all() and (near != np.arange(len(own))).any()
    return near if found else None


def numbers_said(some: Iterable[int]) -> str:
    """Formats at most six runs of numbers, as in "0, 3 to 5"."""
    numbers = [int(i) for i in some]
    runs: list[list[int]] = []
    for i in numbers:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    said = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:6])
    return said + (", ..." if len(runs) > 6 else "")


def lines_said(kind: str, some: Iterable[int]) -> str:
    """Names rows, columns or heads, as in "column 3" or "columns 0, 3 to 5"."""
    numbers = list(some)
    return f"{kind}{'s' if len(numbers) > 1 else ''} {numbers_said(numbers)}"


def zeros_said(kind: str, some: Iterable[int], of: str = "") -> str:
    """Says that rows, columns or heads are 0, as in "column 3 of the weight is 0"."""
    numbers = list(some)
    return f"{lines_said(kind, numbers)}{of} {'are' if len(numbers) > 1 else 'is'} 0"
