"""`Group`: the declaration of a group of weights, which each part of a model makes for the weights that it may have.

A part declares its groups by names of its own; the part that contains it puts them in their place by `within`. So the
shapes of a model's weights come from the parts that compute with them: `Parts.groups` walks a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Group(NamedTuple):
    """The shapes of a group's arrays."""

    shape: tuple[int, ...]  # of the weight
    bias: int | None = None  # numbers of the bias; None: it never has one
    is_linear: bool = False  # the weight is (in, out), which is (out, in) in torch's files


def linear(inputs: int, outputs: int) -> Group:
    """The weight and bias of a linear layer."""
    return Group((inputs, outputs), outputs, True)


def table(rows: int, width: int) -> Group:
    """The rows of a table."""
    return Group((rows, width))


def norm(width: int) -> Group:
    """The weight and bias of a norm."""
    return Group((width,), width)


def within(scope: str, groups: Mapping[str, Group]) -> dict[str, Group]:
    """The groups of a part below a scope; the name "" means the part itself."""
    return {f"{scope}.{name}" if name else scope: each for name, each in groups.items()}
