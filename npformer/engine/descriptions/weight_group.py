"""`Group`: the shapes of a group of weights, such as the weight and bias of a linear layer.

Each part of a model declares the groups of its weights by local names, and `within` adds the prefix of the enclosing
part. `Parts.groups` collects the groups of a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Group(NamedTuple):
    """The shapes of a group of weights."""

    shape: tuple[int, ...]  # shape of the weight
    bias: int | None = None  # length of the bias; None means no bias
    kind: str = "table"  # "table", "norm", or "linear": a weight (in, out), stored as (out, in) in torch's files
    joined: int = 0  # number of attention projections that torch initializes as one matrix; 0 outside attention
    start: float = 1.0  # initial weight of a norm


def linear(inputs: int, outputs: int, bias: bool = True, joined: int = 0) -> Group:
    return Group((inputs, outputs), outputs if bias else None, "linear", joined)


def table(n_rows: int, width: int) -> Group:
    return Group((n_rows, width))


def within(scope: str, groups: Mapping[str, Group]) -> dict[str, Group]:
    """Prefixes the names of groups with a scope. The name "" becomes the scope itself."""
    return {f"{scope}.{name}" if name else scope: each for name, each in groups.items()}
