"""`Group`: the declaration of a group of weights, which each part of a model makes for the weights that it has.

A part declares its groups by names of its own; the part that contains it puts them in their place by `within`. So the
shapes of a model's weights come from the parts that compute with them: `Parts.groups` walks a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Group(NamedTuple):
    """The shapes of a group's arrays."""

    shape: tuple[int, ...]  # of the weight
    bias: int | None = None  # numbers of the bias; None: no bias
    kind: str = "table"  # "linear", whose weight is (in, out), which is (out, in) in torch's files; "table" or "norm"
    joined: int = 0  # projections of attention that torch initializes as one matrix; 0 outside attention
    start: float = 1.0  # the weight of a norm before training


def linear(inputs: int, outputs: int, bias: bool = True, joined: int = 0) -> Group:
    """The weight and bias of a linear layer."""
    return Group((inputs, outputs), outputs if bias else None, "linear", joined)


def table(rows: int, width: int) -> Group:
    """The rows of a table."""
    return Group((rows, width))


def within(scope: str, groups: Mapping[str, Group]) -> dict[str, Group]:
    """The groups of a part below a scope; the name "" means the part itself."""
    return {f"{scope}.{name}" if name else scope: each for name, each in groups.items()}
